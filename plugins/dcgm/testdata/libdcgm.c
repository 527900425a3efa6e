// A stand-in for libdcgm.so.4, which opens its module by the bare name and starts nvvs as NVIDIA's does (DcgmHostEngineHandler.cpp,
// DcgmDiagManager.cpp of DCGM 4.6). What it answers stands in the file that the environment variable DCGM_STANDIN names:
//
//	start -3                          what dcgmStartEmbedded returns
//	connect ADDRESS                   the only address at which a host engine listens
//	dial                              host engines are real: what one sends to who connects takes the place of this file
//	uuid UUID                         a GPU of the host engine
//	hang                              the diagnostic never ends
//	diag -34                          what dcgmRunDiagnostic returns
//	result GPU TEST RESULT CODE TEXT  one result of the diagnostic, in numbers of dcgm_structs.h; CODE 0 for no error, GPU -1 for none
//	error GPU TEST CODE TEXT          one more error
//	watch MASK                        what the host engine watches; -1 and it never says
//	incident GPU HEALTH CODE TEXT     what it has seen
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "dcgm_agent.h"
#include "dcgm_structs.h"

// sent is what the host engine has sent.
static char sent[4096];

static FILE *answers(void) {
	const char *path = getenv("DCGM_STANDIN");
	if (sent[0]) return fmemopen(sent, strlen(sent), "r");
	return path ? fopen(path, "r") : NULL;
}

// dial connects to a host engine, as HOST, HOST:PORT or the path of a socket, and reads what it sends. NVIDIA's protocol is not this one.
static dcgmReturn_t dial(const char *address, int isSocket) {
	char host[256], *port = "5555";
	struct sockaddr_un path = {.sun_family = AF_UNIX};
	struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
	int fd, connected;
	size_t n = 0;
	if (isSocket) {
		snprintf(path.sun_path, sizeof path.sun_path, "%s", address);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		connected = connect(fd, (struct sockaddr *)&path, sizeof path);
	} else {
		snprintf(host, sizeof host, "%s", address);
		if (strrchr(host, ':')) port = strrchr(host, ':'), *port++ = 0;
		if (getaddrinfo(host, port, &hints, &found)) return DCGM_ST_CONNECTION_NOT_VALID;
		fd = socket(found->ai_family, SOCK_STREAM, 0);
		connected = connect(fd, found->ai_addr, found->ai_addrlen);
		freeaddrinfo(found);
	}
	if (connected == 0)
		for (ssize_t got; n < sizeof sent - 1 && (got = read(fd, sent + n, sizeof sent - 1 - n)) > 0; n += got);
	close(fd);
	return n ? DCGM_ST_OK : DCGM_ST_CONNECTION_NOT_VALID;
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

// remote is set while the host engine is another process, which has modules and nvvs of its own.
static int remote;

dcgmReturn_t dcgmInit(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmShutdown(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *handle) {
	(void)mode;
	*handle = 1;
	return number("start", DCGM_ST_OK);
}
dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *params, dcgmHandle_t *handle) {
	FILE *f = answers();
	char line[512], listens[512];
	dcgmReturn_t r = DCGM_ST_CONNECTION_NOT_VALID;
	remote = 1;
	if (params->version != dcgmConnectV2Params_version2) return DCGM_ST_VER_MISMATCH;
	*handle = 1;
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "connect %511s", listens) == 1 && strcmp(listens, address) == 0) r = DCGM_ST_OK;
		if (strcmp(line, "dial\n") == 0) r = dial(address, params->addressIsUnixSocket);
	}
	if (f) fclose(f);
	return r;
}
dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) { (void)handle; return DCGM_ST_OK; }
const char *errorString(dcgmReturn_t r) {
	switch (r) {
	case DCGM_ST_IN_USE: return "In use";
	case DCGM_ST_CONNECTION_NOT_VALID: return "Host engine connection invalid/disconnected";
	case DCGM_ST_MODULE_NOT_LOADED: return "This request is serviced by a module of DCGM that is not currently loaded";
	case DCGM_ST_NVVS_BINARY_NOT_FOUND: return "The NVVS binary was not found in the specified location";
	case DCGM_ST_NVVS_ERROR: return "DCGM GPU Diagnostic returned an error";
	case DCGM_ST_GENERIC_ERROR: return "Generic unspecified error";
	default: return NULL;
	}
}

static dcgmReturn_t systemError(dcgmDiagResponse_t *response, dcgmReturn_t r, const char *stderr) {
	dcgmDiagError_v1 *error = &response->errors[response->numErrors++];
	error->entity.entityGroupId = DCGM_FE_NONE;
	error->testId = DCGM_DIAG_RESPONSE_SYSTEM_ERROR;
	snprintf(error->msg, sizeof error->msg, "Error when executing the diagnostic: %s\nNvvs stderr: \n%s\n", errorString(r), stderr);
	return r;
}

// nvvs starts the program as the diag module does.
static dcgmReturn_t nvvs(dcgmDiagResponse_t *response) {
	char path[4096] = "/usr/libexec/datacenter-gpu-manager-4/nvvs", named[4096], out[256] = "";
	const char *dir = getenv("NVVS_BIN_PATH");
	int fds[2], status = 0;
	if (!dlopen("libdcgmmodulediag.so.4", RTLD_NOW)) return DCGM_ST_MODULE_NOT_LOADED;
	if (dir && snprintf(named, sizeof named, "%s/nvvs", dir) && access(named, F_OK) == 0) strcpy(path, named);
	if (access(path, F_OK)) return systemError(response, DCGM_ST_NVVS_BINARY_NOT_FOUND, "");
	if (pipe(fds)) return DCGM_ST_GENERIC_ERROR;
	pid_t child = fork();
	if (!child) {
		dup2(fds[1], 2);
		execl(path, path, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	if (read(fds[0], out, sizeof out - 1) < 0) out[0] = 0;
	close(fds[0]);
	waitpid(child, &status, 0);
	return status ? systemError(response, DCGM_ST_NVVS_ERROR, out) : DCGM_ST_OK;
}

static dcgmDiagTestRun_v2 *testOf(dcgmDiagResponse_t *response, int id) {
	const char *names[] = {"memory", "diagnostic", "pcie", "sm_stress", "targeted_stress", "targeted_power", "memory_bandwidth", "memtest",
		"pulse_test", "eud"};
	const char *name = id == DCGM_SOFTWARE_INDEX ? "software" : id < 10 ? names[id] : "another";
	for (int i = 0; i < response->numTests; i++)
		if (strcmp(response->tests[i].name, name) == 0) return &response->tests[i];
	dcgmDiagTestRun_v2 *test = &response->tests[response->numTests++];
	strcpy(test->name, name);
	test->categoryIndex = id == DCGM_SOFTWARE_INDEX ? 0 : 1;
	test->result = DCGM_DIAG_RESULT_NOT_RUN;
	return test;
}

static void addError(dcgmDiagResponse_t *response, int gpu, int test, int code, const char *text) {
	dcgmDiagTestRun_v2 *run = testOf(response, test);
	dcgmDiagError_v1 *error = &response->errors[response->numErrors];
	run->errorIndices[run->numErrors++] = response->numErrors++;
	error->entity.entityGroupId = gpu < 0 ? DCGM_FE_NONE : DCGM_FE_GPU;
	error->entity.entityId = gpu < 0 ? 0 : gpu;
	error->testId = test;
	error->code = code;
	switch (code) { /* as DCGM's table has them: TRIAGE, CONFIG, MONITOR, ISOLATE */
	case 62: error->severity = 4; break;
	case 20: case 29: error->severity = 5; break;
	case 51: case 999: error->severity = 1; break;
	default: error->severity = 2;
	}
	snprintf(error->msg, sizeof error->msg, "%s", text);
}

dcgmReturn_t dcgmRunDiagnostic(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmDiagnosticLevel_t level, dcgmDiagResponse_t *response) {
	FILE *f = answers();
	char line[512];
	dcgmReturn_t r;
	(void)handle;
	if (group != DCGM_GROUP_ALL_GPUS || level < DCGM_DIAG_LVL_SHORT) return DCGM_ST_BADPARAM;
	if (response->version != dcgmDiagResponse_version12) return DCGM_ST_VER_MISMATCH;
	if (!remote && (r = nvvs(response))) return r;
	strcpy(response->categories[0], "Deployment");
	strcpy(response->categories[1], "Hardware");
	while (f && fgets(line, sizeof line, f)) {
		int gpu, test, result, code, at = 0;
		line[strcspn(line, "\n")] = 0;
		if (strcmp(line, "hang") == 0)
			for (;;) pause();
		if (sscanf(line, "error %d %d %d %n", &gpu, &test, &code, &at) >= 3) addError(response, gpu, test, code, line + at);
		if (sscanf(line, "result %d %d %d %d %n", &gpu, &test, &result, &code, &at) < 4) continue;
		dcgmDiagTestRun_v2 *run = testOf(response, test);
		dcgmDiagEntityResult_v1 *to = &response->results[response->numResults];
		run->resultIndices[run->numResults++] = response->numResults++;
		to->entity.entityGroupId = DCGM_FE_GPU;
		to->entity.entityId = gpu;
		to->testId = test;
		to->result = result;
		if (run->result == DCGM_DIAG_RESULT_NOT_RUN || result == DCGM_DIAG_RESULT_FAIL || result > DCGM_DIAG_RESULT_NOT_RUN) run->result = result;
		if (code) addError(response, gpu, test, code, line + at);
	}
	if (f) fclose(f);
	return number("diag", DCGM_ST_OK);
}

dcgmReturn_t dcgmGetAllDevices(dcgmHandle_t handle, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count) {
	FILE *f = answers();
	char line[512];
	(void)handle;
	*count = 0;
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, "uuid ", 5) == 0) ids[*count] = *count, ++*count;
	if (f) fclose(f);
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmGetDeviceAttributes(dcgmHandle_t handle, unsigned int gpu, dcgmDeviceAttributes_t *attributes) {
	FILE *f = answers();
	char line[512];
	unsigned int i = 0;
	(void)handle;
	if (attributes->version != dcgmDeviceAttributes_version3) return DCGM_ST_VER_MISMATCH;
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, "uuid ", 5) == 0 && i++ == gpu) sscanf(line, "uuid %255s", attributes->identifiers.uuid);
	if (f) fclose(f);
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmHealthGet(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthSystems_t *systems) {
	(void)handle, (void)group;
	*systems = number("watch", 0);
	while (*systems == (dcgmHealthSystems_t)-1) pause();
	return DCGM_ST_OK;
}
dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmHealthResponse_t *response) {
	FILE *f = answers();
	char line[512];
	(void)handle, (void)group;
	if (response->version != dcgmHealthResponse_version5) return DCGM_ST_VER_MISMATCH;
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
