// A stand-in for NVIDIA's program nvvs, which is linked with the library and opens those of the driver by their names.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
	const char *names[] = {"libdcgm.so.4", "libnvidia-ml.so.1", "libcuda.so.1"};
	for (int i = 0; i < 3; i++)
		if (!dlopen(names[i], RTLD_NOW)) {
			fprintf(stderr, "nvvs: error while loading shared libraries: %s: cannot open shared object file: No such file or directory\n", names[i]);
			return 127;
		}
	return 0;
}
