// A stand-in for libcuda.so.1 with eight GPUs, for cuda-load. It takes its time for a write of memory.
#include <stddef.h>
#include <unistd.h>

static int contexts[8], memory;
int cuInit(unsigned int flags) { (void)flags; return 0; }
int cuDeviceGetCount(int *n) { *n = 8; return 0; }
int cuDeviceGet(int *device, int n) { *device = n; return n < 8 ? 0 : 101; }
int cuCtxCreate_v2(void **context, unsigned int flags, int device) { (void)flags; *context = &contexts[device]; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(unsigned long long *at, size_t size) { (void)size; *at = (unsigned long long)&memory; return 0; }
int cuMemsetD32_v2(unsigned long long at, unsigned int value, size_t n) { (void)value; (void)n; usleep(100); return at ? 0 : 1; }
