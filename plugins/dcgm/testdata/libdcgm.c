// A stand-in for libdcgm.so.4. What it answers stands in the file that the environment variable DCGM_STANDIN names:
//
//	start -3                          what dcgmStartEmbedded returns
//	connect ADDRESS                   the only address at which a host engine listens
//	hang                              the diagnostic never ends
//	diag -34                          what dcgmRunDiagnostic returns
//	result GPU TEST RESULT CODE TEXT  one result of the diagnostic, in numbers of dcgm_structs.h; CODE 0 for no error
//	watch MASK                        what the host engine watches
//	incident GPU HEALTH CODE TEXT     what it has seen
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "dcgm_agent.h"
#include "dcgm_structs.h"

static FILE *answers(void) {
	const char *path = getenv("DCGM_STANDIN");
	return path ? fopen(path, "r") : NULL;
}

static int number(const char *name, int otherwise) {
	FILE *f = answers();
	char line[512], format[64];
	int n = otherwise;
	snprintf(format, sizeof format, "%s %%d", name);
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, format, &n) == 1) break;
	if (f) fclose(f);
	return n;
}

dcgmReturn_t dcgmInit(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmShutdown(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *handle) { (void)mode; *handle = 1; return number("start", DCGM_ST_OK); }
dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *params, dcgmHandle_t *handle) {
	FILE *f = answers();
	char line[512], listens[512];
	dcgmReturn_t r = DCGM_ST_CONNECTION_NOT_VALID;
	(void)params;
	*handle = 1;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "connect %511s", listens) == 1 && strcmp(listens, address) == 0) r = DCGM_ST_OK;
	if (f) fclose(f);
	return r;
}
dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
const char *errorString(dcgmReturn_t r) {
	return r == DCGM_ST_IN_USE ? "In use" : r == DCGM_ST_CONNECTION_NOT_VALID ? "Not connected" : "Generic unspecified error";
}

dcgmReturn_t dcgmRunDiagnostic(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmDiagnosticLevel_t level, dcgmDiagResponse_t *response) {
	FILE *f = answers();
	char line[512];
	(void)handle;
	if (group != DCGM_GROUP_ALL_GPUS || level < DCGM_DIAG_LVL_SHORT || response->version != dcgmDiagResponse_version12) return DCGM_ST_BADPARAM;
	while (f && fgets(line, sizeof line, f)) {
		int gpu, test, result, code, at = 0;
		line[strcspn(line, "\n")] = 0;
		if (strcmp(line, "hang") == 0)
			for (;;) pause();
		if (sscanf(line, "result %d %d %d %d %n", &gpu, &test, &result, &code, &at) < 4) continue;
		dcgmDiagEntityResult_v1 *to = &response->results[response->numResults++];
		to->entity.entityGroupId = DCGM_FE_GPU;
		to->entity.entityId = gpu;
		to->testId = test;
		to->result = result;
		if (!code) continue;
		dcgmDiagError_v1 *error = &response->errors[response->numErrors++];
		error->entity = to->entity;
		error->testId = test;
		error->code = code;
		snprintf(error->msg, sizeof error->msg, "%s", line + at);
	}
	if (f) fclose(f);
	return number("diag", DCGM_ST_OK);
}

dcgmReturn_t dcgmHealthGet(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthSystems_t *systems) {
	(void)handle, (void)group;
	*systems = number("watch", 0);
	return DCGM_ST_OK;
}
dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthResponse_t *response) {
	FILE *f = answers();
	char line[512];
	(void)handle, (void)group;
	while (f && fgets(line, sizeof line, f)) {
		int gpu, health, code, at = 0;
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "incident %d %d %d %n", &gpu, &health, &code, &at) < 3) continue;
		dcgmIncidentInfo_t *to = &response->incidents[response->incidentCount++];
		to->system = DCGM_HEALTH_WATCH_MEM;
		to->health = health;
		to->entityInfo.entityGroupId = DCGM_FE_GPU;
		to->entityInfo.entityId = gpu;
		to->error.code = code;
		snprintf(to->error.msg, sizeof to->error.msg, "%s", line + at);
	}
	if (f) fclose(f);
	return DCGM_ST_OK;
}
