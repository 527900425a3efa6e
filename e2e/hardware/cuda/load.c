// cuda-load keeps all GPUs busy for a number of seconds, for the hold of a check beside it. It needs the driver's libcuda.so.1 and nothing
// else: each GPU's memory is written again and again.
//
//	cuda-load SECONDS
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int result;
typedef unsigned long long address;

// Of cuda.h: the driver API is stable, and these are the versions that every driver since CUDA 4 has.
static result (*init)(unsigned int);
static result (*deviceGetCount)(int *);
static result (*deviceGet)(int *, int);
static result (*ctxCreate)(void **, unsigned int, int);
static result (*ctxSetCurrent)(void *);
static result (*ctxSynchronize)(void);
static result (*memAlloc)(address *, size_t);
static result (*memsetD32)(address, unsigned int, size_t);

enum { MOST = 64, WORDS = 64 << 20 };

static void must(result r, const char *what) {
	if (r) {
		printf("cuda-load: %s: CUDA error %d\n", what, r);
		exit(1);
	}
}

int main(int argc, char **argv) {
	struct { const char *name; void **to; } functions[] = {
		{"cuInit", (void **)&init}, {"cuDeviceGetCount", (void **)&deviceGetCount}, {"cuDeviceGet", (void **)&deviceGet},
		{"cuCtxCreate_v2", (void **)&ctxCreate}, {"cuCtxSetCurrent", (void **)&ctxSetCurrent}, {"cuCtxSynchronize", (void **)&ctxSynchronize},
		{"cuMemAlloc_v2", (void **)&memAlloc}, {"cuMemsetD32_v2", (void **)&memsetD32},
	};
	if (argc != 2) return 2;
	time_t end = time(NULL) + atoi(argv[1]);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		printf("cuda-load: %s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		if (!(*functions[i].to = dlsym(library, functions[i].name))) {
			printf("cuda-load: libcuda.so.1 has no %s\n", functions[i].name);
			return 1;
		}
	}
	int gpus = 0;
	void *contexts[MOST];
	address memory[MOST];
	must(init(0), "cuInit");
	must(deviceGetCount(&gpus), "cuDeviceGetCount");
	if (gpus > MOST) gpus = MOST;
	for (int i = 0; i < gpus; i++) {
		int device;
		must(deviceGet(&device, i), "cuDeviceGet");
		must(ctxCreate(&contexts[i], 0, device), "cuCtxCreate");
		must(memAlloc(&memory[i], 4UL * WORDS), "cuMemAlloc");
	}
	if (gpus == 0) {
		puts("cuda-load: no GPU");
		return 1;
	}
	for (unsigned int round = 0; time(NULL) < end; round++) {
		for (int i = 0; i < gpus; i++) {
			must(ctxSetCurrent(contexts[i]), "cuCtxSetCurrent");
			// 256 MiB take less than a millisecond on HBM: enough of them that the GPUs do not wait for this loop.
			for (int n = 0; n < 200; n++) must(memsetD32(memory[i], round, WORDS), "cuMemsetD32");
		}
		for (int i = 0; i < gpus; i++) {
			must(ctxSetCurrent(contexts[i]), "cuCtxSetCurrent");
			must(ctxSynchronize(), "cuCtxSynchronize");
		}
	}
	printf("cuda-load: kept %d GPUs busy\n", gpus);
	return 0;
}
