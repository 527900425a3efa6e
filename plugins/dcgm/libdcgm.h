// What the plugin calls of libdcgm.so.4: from the headers of DCGM 4.6.1 (dcgm_agent.h, dcgm_structs.h), whose structs carry their size
// in their version. The test's stand-in is compiled against NVIDIA's own headers and refuses another size.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define VERSION(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))

enum { ALL_GPUS = 0x7fffffff, MODE_AUTO = 1, SYSTEM_ERROR = 0x70, MESSAGE = 512, UUID_AT = 4148, UUID_SIZE = 256, MAX_GPUS = 32 };

typedef struct { int group; unsigned int id; } entity_t;

typedef struct { entity_t entity; unsigned int code, category, severity; char text[MESSAGE]; unsigned int test; } error_t;

typedef struct { entity_t entity; int result; unsigned int test; } result_t;

typedef struct {
	char name[32], plugin[32];
	int result;
	unsigned char errors, infos, category, padding;
	unsigned short results;
	unsigned char error[32], info[128];
	unsigned short at[1024];
	char aux[2052];
} test_t;

// diag_t is dcgmDiagResponse_v12.
typedef struct {
	unsigned int version;
	unsigned char tests, errors, infos, categories;
	unsigned short entities, results;
	test_t test[20];
	char entity[1024][272];
	error_t error[32];
	char info[128][524];
	result_t result[20480];
	char category[5][20];
	char rest[622220];
} diag_t;

typedef struct { unsigned int system; int health; char text[1024]; unsigned int code; entity_t entity; } incident_t;

// health_t is dcgmHealthResponse_v5.
typedef struct { unsigned int version; int overall; unsigned int incidents; incident_t incident[1024]; } health_t;

// attributes_t is dcgmDeviceAttributes_v3.
typedef struct { unsigned int version; char rest[5216]; } attributes_t;

typedef struct { unsigned int version, persist, timeout, socket; } connect_t;

static struct {
	int (*init)(void);
	int (*shutdown)(void);
	int (*start)(int, uintptr_t *);
	int (*stop)(uintptr_t);
	int (*connect)(const char *, connect_t *, uintptr_t *);
	int (*disconnect)(uintptr_t);
	int (*run)(uintptr_t, uintptr_t, int, diag_t *);
	int (*watched)(uintptr_t, uintptr_t, unsigned int *);
	int (*health)(uintptr_t, uintptr_t, health_t *);
	int (*devices)(uintptr_t, unsigned int *, int *);
	int (*attributes)(uintptr_t, unsigned int, attributes_t *);
	const char *(*text)(int);
} dcgm;

static const struct { const char *name; void **to; } symbols[] = {
	{"dcgmInit", (void **)&dcgm.init},
	{"dcgmShutdown", (void **)&dcgm.shutdown},
	{"dcgmStartEmbedded", (void **)&dcgm.start},
	{"dcgmStopEmbedded", (void **)&dcgm.stop},
	{"dcgmConnect_v2", (void **)&dcgm.connect},
	{"dcgmDisconnect", (void **)&dcgm.disconnect},
	{"dcgmRunDiagnostic", (void **)&dcgm.run},
	{"dcgmHealthGet", (void **)&dcgm.watched},
	{"dcgmHealthCheck", (void **)&dcgm.health},
	{"dcgmGetAllDevices", (void **)&dcgm.devices},
	{"dcgmGetDeviceAttributes", (void **)&dcgm.attributes},
	{"errorString", (void **)&dcgm.text},
};

// load loads a library for the whole process, also under its bare name, and returns what the loader says if that fails.
static const char *load(const char *path) { return dlopen(path, RTLD_LAZY | RTLD_GLOBAL) ? NULL : dlerror(); }

// bind looks up the functions in the library and returns the name of one that is missing.
static const char *bind(const char *path) {
	void *library = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
	if (!library) return "the library";
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (!(*symbols[i].to = dlsym(library, symbols[i].name))) return symbols[i].name;
	return NULL;
}

static int start(uintptr_t *handle) {
	int r = dcgm.init();
	return r ? r : dcgm.start(MODE_AUTO, handle);
}

static int connect_to(const char *address, int socket, uintptr_t *handle) {
	connect_t params = {VERSION(connect_t, 2), 0, 0, socket};
	int r = dcgm.init();
	return r ? r : dcgm.connect(address, &params, handle);
}

static void stop(uintptr_t handle, int embedded) {
	if (embedded) dcgm.stop(handle);
	else dcgm.disconnect(handle);
	dcgm.shutdown();
}

static int run(uintptr_t handle, int level, diag_t *response) {
	response->version = VERSION(diag_t, 12);
	return dcgm.run(handle, ALL_GPUS, level, response);
}

static int watched(uintptr_t handle, unsigned int *systems) { return dcgm.watched(handle, ALL_GPUS, systems); }

static int health(uintptr_t handle, health_t *response) {
	response->version = VERSION(health_t, 5);
	return dcgm.health(handle, ALL_GPUS, response);
}

static int devices(uintptr_t handle, unsigned int *ids, int *count) { return dcgm.devices(handle, ids, count); }

// uuid writes the UUID of a GPU.
static int uuid(uintptr_t handle, unsigned int id, char *to) {
	attributes_t a = {VERSION(attributes_t, 3)};
	int r = dcgm.attributes(handle, id, &a);
	snprintf(to, UUID_SIZE, "%.*s", UUID_SIZE - 1, (const char *)&a + UUID_AT);
	return r;
}

static const char *text(int status) { return dcgm.text(status); }
