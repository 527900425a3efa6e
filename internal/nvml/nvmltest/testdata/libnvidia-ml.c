// A stand-in for libnvidia-ml.so.1 with up to 16 GPUs. What it answers stands in a file that is read again at every call: that of the
// environment variable NVML_STANDIN, or else "standin" beside the driver's root that the library lies in. Each line is a name and a number:
//
//	gpus 8                  how many GPUs there are
//	init 9                  what nvmlInit returns
//	hang NAME               calls of the function NAME never return (the name of a function instead of a number)
//	3.hang NAME             those calls that ask GPU 3; * for all of them
//	library 12.580.95.05    the library's own version
//	slow 8                  nvmlInit takes that many seconds, as it does on a node without persistence mode
//	burn 500                nvmlInit takes that many milliseconds of CPU time
//	driver 575.57.08        the driver's version: what a field number means depends on it
//	crash NAME              calls of the function NAME end the process
//	write PATH              every nvmlInit first appends a byte to PATH: uninterruptible sleep while its filesystem is frozen
//	3.error 15              all questions to GPU 3 fail with this nvmlReturn_t
//	3.error.NAME 15         only those by the function NAME
//	3.link5.error 999       the state of its link 5 cannot be asked
//	3.link5.state 2         what the field NVLINK_GET_STATE says of its link 5
//	3.hidden 1              GPU 3 cannot be found
//	3.temperature 91        a value; *.temperature is that of all GPUs
//
// Values and their defaults are in the functions below: a healthy H100 of eight.
//
// Compiled with BEFORE_450 it lacks the functions that drivers before 450 lack. Compiled with READ_ONCE it reads the file once: for
// measurements, in which a question shall cost little.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#define MOST 16
struct nvmlDevice_st { int gpu; };
static struct nvmlDevice_st devices[MOST] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

// beside is the file of a library in ROOT/usr/lib64. It is not compiled in, so that tests share a library, nor is it in the environment,
// so that they run in parallel.
static char beside[PATH_MAX];
__attribute__((constructor)) static void locate(void) {
	Dl_info self;
	if (!dladdr(beside, &self) || strlen(self.dli_fname) + sizeof "standin" > sizeof beside) return;
	strcpy(beside, self.dli_fname);
	for (int up = 0; up < 4; up++) {
		char *slash = strrchr(beside, '/');
		if (slash) *slash = 0;
	}
	strcat(beside, "/standin");
}

// setting finds the text after a name.
static int setting(const char *name, char *text, size_t size) {
	const char *path = getenv("NVML_STANDIN");
	if (!path) path = beside;
#ifdef READ_ONCE
	static char content[4096];
	static size_t length;
	FILE *file = length ? NULL : fopen(path, "r");
	if (file) {
		length = fread(content, 1, sizeof content, file);
		fclose(file);
	}
	FILE *f = length ? fmemopen(content, length, "r") : NULL;
#else
	FILE *f = fopen(path, "r");
#endif
	if (!f) return 0;
	char line[512], key[256];
	int found = 0, at = 0;
	while (!found && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%255s %n", key, &at) == 1 && strcmp(key, name) == 0) {
			line[strcspn(line, "\n")] = 0;
			snprintf(text, size, "%s", line + at);
			found = 1;
		}
	}
	fclose(f);
	return found;
}

static long long number(int gpu, const char *name, long long otherwise) {
	char key[256], text[512];
	snprintf(key, sizeof key, "%d.%s", gpu, name);
	if (setting(key, text, sizeof text)) return atoll(text);
	snprintf(key, sizeof key, "*.%s", name);
	if (setting(key, text, sizeof text)) return atoll(text);
	return otherwise;
}

static long long global(const char *name, long long otherwise) {
	char text[512];
	return setting(name, text, sizeof text) ? atoll(text) : otherwise;
}

static void hang(const char *function) {
	char text[512];
	if (setting("hang", text, sizeof text) && strcmp(text, function) == 0)
		for (;;) pause();
	if (setting("crash", text, sizeof text) && strcmp(text, function) == 0)
		abort();
}

static nvmlReturn_t fails(int gpu, const char *function) {
	hang(function);
	char name[256], text[512];
	snprintf(name, sizeof name, "%d.hang", gpu);
	if (setting(name, text, sizeof text) && (strcmp(text, "*") == 0 || strcmp(text, function) == 0))
		for (;;) pause();
	snprintf(name, sizeof name, "error.%s", function);
	return number(gpu, name, number(gpu, "error", NVML_SUCCESS));
}

// BEGIN starts every question to a GPU.
#define BEGIN nvmlReturn_t failure = fails(device.handle->gpu, __func__); if (failure) return failure
#define VALUE(name, otherwise) number(device.handle->gpu, name, otherwise)
// NONE as a value means that the GPU does not support the question.
#define NONE (-999)
#define ANSWER(to, name, otherwise) do { \
	long long v_ = VALUE(name, otherwise); \
	if (v_ == NONE) return NVML_ERROR_NOT_SUPPORTED; \
	*(to) = v_; \
} while (0)

nvmlReturn_t nvmlInit_v2(void) {
	hang(__func__);
	unsigned int left = global("slow", 0);
	char path[512];
	if (setting("write", path, sizeof path)) {
		int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
		if (fd < 0 || write(fd, "x", 1) != 1) return NVML_ERROR_UNKNOWN;
		close(fd);
	}
	while (left > 0) left = sleep(left);
	for (clock_t until = clock() + global("burn", 0) * (CLOCKS_PER_SEC / 1000); clock() < until;);
	return global("init", NVML_SUCCESS);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned int length) {
	char text[512];
	snprintf(to, length, "%s", setting("library", text, sizeof text) ? text : "12.580.95.05");
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { hang(__func__); return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) {
	return r == NVML_ERROR_UNKNOWN ? "Unknown Error" : r == NVML_ERROR_NO_PERMISSION ? "Insufficient Permissions" : "Error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned int length) {
	hang(__func__);
	char text[512];
	snprintf(to, length, "%s", setting("driver", text, sizeof text) ? text : "580.95.05");
	return global("error.nvmlSystemGetDriverVersion", NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) {
	hang(__func__);
	*n = 0;
	for (int gpu = 0; gpu < global("gpus", 8); gpu++) *n += !number(gpu, "hidden", 0);
	return NVML_SUCCESS;
}
static nvmlReturn_t handle(int gpu, nvmlDevice_t *device, const char *function) {
	if (gpu < 0 || gpu >= MOST || number(gpu, "hidden", 0)) return NVML_ERROR_NOT_FOUND;
	device->handle = &devices[gpu];
	return fails(gpu, function);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
	// The library counts only what it can find.
	int gpu = 0;
	for (unsigned int visible = 0; gpu < MOST; gpu++)
		if (!number(gpu, "hidden", 0) && visible++ == index) break;
	return handle(gpu, device, __func__);
}
// GPU n is at 0000:1n:00.0.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
	int domain, bus, gpus = global("gpus", 8);
	if (sscanf(id, "%x:%x:", &domain, &bus) != 2 || bus < 0x10 || bus >= 0x10 + gpus) return NVML_ERROR_NOT_FOUND;
	return handle(bus - 0x10, device, __func__);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
	BEGIN;
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x10 + device.handle->gpu;
	snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
	BEGIN;
	char text[512];
	snprintf(name, length, "%s", setting("name", text, sizeof text) ? text : "NVIDIA H100 80GB HBM3");
	return NVML_SUCCESS;
}
#ifndef BEFORE_450
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending) {
	BEGIN;
	ANSWER(now, "mig", 0);
	*pending = *now;
	return NVML_SUCCESS;
}
#endif
// Each GPU has its own serial number and UUID.
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) { BEGIN; snprintf(serial, length, "165052100%04u", device.handle->gpu); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) { BEGIN; snprintf(uuid, length, "GPU-5f0c3ab1-0000-4000-8000-%012u", device.handle->gpu); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) { BEGIN; snprintf(version, length, "96.00.74.00.01"); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) { BEGIN; ANSWER(minor, "minor", device.handle->gpu); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) { BEGIN; ANSWER(mode, "persistence", 1); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
	BEGIN;
	unsigned int room = *count;
	ANSWER(count, "processes", 0);
	if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
	memset(infos, 0, *count * sizeof *infos);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *use) { BEGIN; ANSWER(&use->gpu, "utilization", 0); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t which, unsigned int *mhz) { BEGIN; if (which != NVML_CLOCK_SM) return NVML_ERROR_INVALID_ARGUMENT; ANSWER(mhz, "clock", 1980); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t which, unsigned int *mhz) { BEGIN; if (which != NVML_CLOCK_SM) return NVML_ERROR_INVALID_ARGUMENT; ANSWER(mhz, "max.clock", 1980); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) { BEGIN; ANSWER(millijoules, "energy", 70000); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) { BEGIN; ANSWER(milliwatts, "power.limit", 700000); return NVML_SUCCESS; }
#ifndef BEFORE_450
// The driver reserves 600 MiB of the 80 GiB for itself.
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
	BEGIN;
	if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	long long mib;
	ANSWER(&mib, "memory", 4);
	memory->total = 80LL << 30;
	memory->reserved = 600LL << 20;
	memory->used = mib << 20;
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corr, unsigned int *unc, unsigned int *pending, unsigned int *failed) {
	BEGIN;
	ANSWER(corr, "remap.correctable", 0);
	ANSWER(unc, "remap.uncorrectable", 0);
	ANSWER(pending, "remap.pending", 0);
	ANSWER(failed, "remap.failed", 0);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetBankRemapperStatus_v1(nvmlDevice_t device, nvmlEccBankRemapperStatus_v1_t *status) {
	BEGIN;
	memset(status, 0, sizeof *status);
	ANSWER(&status->activeRemappings, "banks.active", NONE);
	ANSWER(&status->bPending, "banks.pending", 0);
	return NVML_SUCCESS;
}
#endif
nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending) { BEGIN; ANSWER(pending, "retired.pending", NONE); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses) {
	BEGIN;
	unsigned int room = *count;
	ANSWER(count, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired.dbe" : "retired.sbe", NONE);
	if (addresses) for (unsigned int i = 0; i < *count && i < room; i++) addresses[i] = i;
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *n) {
	BEGIN;
	if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED) return NVML_ERROR_INVALID_ARGUMENT;
	ANSWER(n, counter == NVML_VOLATILE_ECC ? "ecc.volatile" : "ecc.aggregate", 0);
	return NVML_SUCCESS;
}
#ifndef BEFORE_450
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) { BEGIN; ANSWER(&status->bThresholdExceeded, "sram", 0); return NVML_SUCCESS; }
#endif
nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned int *sum) { BEGIN; *sum = 1; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *c) { BEGIN; (void)sensor; ANSWER(c, "temperature", 40); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned int *c) {
	BEGIN;
	switch (which) {
	case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: ANSWER(c, "max.shutdown", 92); return NVML_SUCCESS;
	case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: ANSWER(c, "max.core", 87); return NVML_SUCCESS;
	case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: ANSWER(c, "max.hbm", 95); return NVML_SUCCESS;
	default: return NVML_ERROR_NOT_SUPPORTED;
	}
}
#ifndef BEFORE_450
// The successors of two functions that nvml.h of CUDA 13 calls deprecated.
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
	BEGIN;
	if (temperature->version != nvmlTemperature_v1 || temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
	ANSWER(&temperature->temperature, "temperature", 40);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) { BEGIN; ANSWER(reasons, "reasons", 0); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) { BEGIN; ANSWER(&margin->marginTemperature, "margin", 45); return NVML_SUCCESS; }
#endif
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) { BEGIN; ANSWER(reasons, "reasons", 0); return NVML_SUCCESS; }
#ifndef BEFORE_450
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) { BEGIN; ANSWER(architecture, "architecture", NVML_DEVICE_ARCH_HOPPER); return NVML_SUCCESS; }
#endif
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state) {
	BEGIN;
	if (link >= 18) return NVML_ERROR_INVALID_ARGUMENT;
	char key[32];
	snprintf(key, sizeof key, "link%u.error", link);
	if (VALUE(key, NVML_SUCCESS)) return VALUE(key, NVML_SUCCESS);
	// Links from this number on are down; NONE for a GPU without links.
	long long up;
	ANSWER(&up, "links", 18);
	*state = link < up ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter, unsigned long long *n) {
	BEGIN;
	(void)link;
	*n = counter == NVML_NVLINK_ERROR_DL_REPLAY ? VALUE("link.errors", 0) : 0;
	return NVML_SUCCESS;
}
#ifndef BEFORE_450
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
	BEGIN;
	ANSWER(&info->state, "fabric.state", NVML_GPU_FABRIC_STATE_COMPLETED);
	info->status = VALUE("fabric.status", 0);
	info->healthMask = VALUE("fabric.mask", 0xaa);
	info->healthSummary = VALUE("fabric.health", NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY);
	return NVML_SUCCESS;
}
// version is the driver's, as a number: 580082 for 580.82.07.
static int version(void) {
	char text[512];
	int major = 580, minor = 95;
	if (setting("driver", text, sizeof text) && sscanf(text, "%d.%d", &major, &minor) != 2) return 0;
	return major * 1000 + minor;
}
// The clock event counters have other numbers in other drivers. NVIDIA's nvml.h of 12.9.40 and 13.0.39 (drivers 575.51 to
// 580.76) gives them 251 to 253, and 270 and 271 to settings of power smoothing; that of 13.3.29 (from 580.82) gives them
// 269 to 271, and 252 and 253 to such settings. Before 575.51 the counters do not exist.
static int brakeField(void) {
	int v = version();
	return v >= 580082 ? 271 : v >= 575051 ? 253 : 0;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
	BEGIN;
	for (int i = 0; i < count; i++) {
		long long v;
		int brake = brakeField();
		values[i].valueType = NVML_VALUE_TYPE_SIGNED_LONG_LONG;
		switch (values[i].fieldId) {
		case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: v = VALUE("recovery", 0); break;
		case NVML_FI_DEV_MEMORY_TEMP: v = VALUE("hbm", 50); break;
		case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: v = VALUE("margin.shutdown", -8); break;
		case 252: case 253: case 270: case 271:
			if (values[i].fieldId == brake) v = VALUE("slowed.brake", 0);
			else if (values[i].fieldId == brake - 1) v = VALUE("slowed.thermal", 0);
			else {
				v = VALUE("smoothing", 80);
				values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
				break;
			}
			values[i].valueType = VALUE("slowed.type", NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
			break;
		case NVML_FI_DEV_NVLINK_GET_STATE: {
			char key[32];
			snprintf(key, sizeof key, "link%u.state", values[i].scopeId);
			v = VALUE(key, NONE);
			values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			break;
		}
		case NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS: v = VALUE("link.errors", 0); break;
		// KiB, of all links before Blackwell; bytes of each link of Blackwell, whose link 17 alone carries data.
		case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
			v = VALUE("architecture", NVML_DEVICE_ARCH_HOPPER) >= NVML_DEVICE_ARCH_BLACKWELL || values[i].scopeId != ~0u ? NONE
				: values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ? VALUE("nvlink.sent", 1000) : VALUE("nvlink.received", 1000);
			values[i].valueType = VALUE("nvlink.type", NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
			break;
		case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES: case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES:
			v = VALUE("architecture", NVML_DEVICE_ARCH_HOPPER) < NVML_DEVICE_ARCH_BLACKWELL || values[i].scopeId >= 18 ? NONE
				: values[i].scopeId != 17 ? 0 : values[i].fieldId == NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES ? VALUE("nvlink.sent", 1000) : VALUE("nvlink.received", 1000);
			values[i].valueType = VALUE("nvlink.type", NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
			break;
		default: v = NONE;
		}
		values[i].nvmlReturn = v == NONE ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
		values[i].value.sllVal = v;
	}
	return NVML_SUCCESS;
}
#endif
