package main

import (
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func mustPatterns(t testing.TB) []pattern {
	t.Helper()
	patterns, err := loadPatterns("")
	if err != nil {
		t.Fatal(err)
	}
	return patterns
}

// corpus holds lines that each embedded pattern must find. They are made up from the message texts in the sources that
// the pattern file names, with other values.
var corpus = map[string][]string{
	"cuda-ecc": {
		"RuntimeError: CUDA error: uncorrectable ECC error encountered",
		"an NCCL error is only its consequence: NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
	},
	"gpu-lost": {"Unable to determine the device handle for GPU0000:4E:00.0: GPU is lost.  Reboot the system to recover this GPU"},
	"xid": {
		"NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"[538441.007373] NVRM: Xid (PCI:0000:4e:00 GPU-I:05): 79, pid=7194, Contained: CE User Channel (0x9)",
		"NVRM: Xid (0000:03:00): 79",
	},
	"xid-device-plugin":  {"I1120 14:00:01.1 1 health.go:171] XidCriticalError: Xid=79 on Device=GPU-8f3c; marking device as unhealthy."},
	"gpu-fallen-off":     {"NVRM: GPU 0000:91:00.0: GPU has fallen off the bus."},
	"sxid-fatal":         {"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"},
	"sxid":               {"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"},
	"peermem":            {"[99.5] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"},
	"cuda-nvlink":        {"RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"},
	"nccl-remote":        {"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."},
	"nccl-remote-text":   {"[E ProcessGroupNCCL.cpp:852] NCCL error: remote process exited or there was a network error, NCCL version 2.19.3"},
	"nccl-remote-closed": {"w-1:110:697 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer w-2<55912>"},
	"gloo-remote-closed": {"RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41834"},
	"nccl-ib": {"NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4753> with error 12", "NCCL WARN NET/IB: Got completion from peer", "NCCL WARN NET/IB/GIN: Got completion from peer",
		"NCCL WARN NET/IB : mlx5_0:1 Got completion from peer 10.0.0.7<4753> with status=12"},
	"nccl-watchdog":        {"[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"},
	"nccl-cuda":            {"ncclUnhandledCudaError: Call to CUDA function failed."},
	"nccl-system":          {"ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."},
	"nccl-internal":        {"ncclInternalError: Internal check failed."},
	"nccl-error":           {"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error"},
	"invalid-ordinal":      {"RuntimeError: CUDA error: invalid device ordinal"},
	"cuda-no-device":       {"RuntimeError: CUDA error: no CUDA-capable device is detected"},
	"cuda-unavailable":     {"CUDA error: CUDA-capable device(s) is/are busy or unavailable"},
	"cuda-not-ready":       {"Error 802: system not yet initialized"},
	"cuda-launch":          {"CUDA error: unspecified launch failure"},
	"cuda-illegal-address": {"CUDA error: an illegal memory access was encountered"},
	"cuda-contained":       {"INTERNAL: CUDA error: Failed call to cuStreamSynchronize: CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink", "CUDA_ERROR_CONTAINED"},
	"cuda-contained-text":  {"CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"},
	"nvml-unknown":         {"Failed to initialize NVML: Unknown Error", `E1127 main.go:132] error starting plugins: failed to initialize NVML: Unknown Error`},
	"nvml-unknown-python":  {"pynvml.NVMLError_Unknown: Unknown Error"},
	"nvml-mismatch": {"Failed to initialize NVML: Driver/library version mismatch", "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
		"nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"},
	"npu-ecc":                {"RuntimeError: ... HBM MULTI BIT ECC ERROR."},
	"npu-ecc-code":           {"RuntimeError: ACL stream synchronize failed, error code:507054"},
	"cuda-launch-name":       {"Failed to launch CUDA kernel: CUDA_ERROR_LAUNCH_FAILED"},
	"cuda-illegal-name":      {"Failed call to cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"},
	"cuda-not-ready-name":    {"cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY"},
	"cuda-no-device-name":    {"failed call to cuInit: CUDA_ERROR_NO_DEVICE"},
	"torch-no-gpu":           {"RuntimeError: No CUDA GPUs are available"},
	"torch-no-driver":        {"RuntimeError: Found no NVIDIA driver on your system. Please check"},
	"rocm-fault":             {"Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f."},
	"npu-link":               {"RuntimeError: HCCS LINK ERROR"},
	"npu-memory":             {"RuntimeError: SUSPECT MEM ERROR"},
	"gpu-reset-required":     {"nvml: GPU requires reset"},
	"cuda-ecc-name":          {"CUDA driver error: CUDA_ERROR_ECC_UNCORRECTABLE"},
	"cuda-ecc-runtime":       {"thrust::system_error: cudaErrorECCUncorrectable"},
	"cuda-contained-runtime": {"got cudaErrorContained from cudaStreamSynchronize"},
	"cuda-nvlink-name":       {"Failed to synchronize: CUDA_ERROR_NVLINK_UNCORRECTABLE"},
	"cuda-nvlink-runtime":    {"cudaErrorNvlinkUncorrectable"},
	"cuda-tensor":            {"CUDA_ERROR_TENSOR_MEMORY_LEAK"},
	"cuda-tensor-runtime":    {"cudaErrorTensorMemoryLeak"},
	"nccl-ib-event":          {"NCCL WARN NET/IB : Got async event : port error"},
	"nccl-ib-fatal":          {"NCCL WARN NET/IB : mlx5_3:1 async fatal event: local catastrophic error"},
	"nccl-ib-qp":             {"NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"},
	"nccl-ofi":               {"NCCL WARN NET/OFI Request 0x7f completed with error. RC: 107. Error: 4121 (Destination did not answer)"},
	"nvml-init":              {"Failed to initialize NVML: Insufficient Permissions", "failed to initialize NVML: ERROR_DRIVER_NOT_LOADED"},
	"nvml-container":         {"nvidia-container-cli: initialization error: nvml error: unknown error"},
	"smi-no-driver":          {"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running."},
	"smi-no-handle":          {"Unable to determine the device handle for GPU0000:4E:00.0: Unknown Error"},
	"smi-no-device":          {"No devices were found"},
	"cuda-driver":            {"Error 803: system has unsupported display driver / cuda driver combination"},
	"cuda-unknown":           {"RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"},
}

func TestEveryPatternFindsItsLines(t *testing.T) {
	patterns := mustPatterns(t)
	for _, p := range patterns {
		lines := corpus[p.Name]
		if len(lines) == 0 {
			t.Errorf("pattern %s has no line in the corpus", p.Name)
		}
		for _, line := range lines {
			for _, text := range []string{line, "prefix " + line + " suffix"} {
				m, ok := find(patterns, []byte(text))
				if !ok || m.pattern != p.Name {
					t.Errorf("%q: found %q, want %q", text, m.pattern, p.Name)
				}
				if want := map[bool]int{true: 79}[p.Role == xidText]; m.xid != want {
					t.Errorf("%q: Xid %d, want %d", text, m.xid, want)
				}
			}
		}
	}
	if len(corpus) != len(patterns) {
		t.Errorf("lines for %d patterns, there are %d", len(corpus), len(patterns))
	}
}

func TestOnlyADevicesOwnFaultIsInspect(t *testing.T) {
	for _, p := range mustPatterns(t) {
		own := p.Role == hardware || p.Role == xidText
		if (p.Repair == conditions.Inspect) != own || !own && p.Repair != conditions.Monitor {
			t.Errorf("%s: %s for the role %s", p.Name, p.Repair, p.Role)
		}
	}
}

func TestOrdinaryLinesMatchNothing(t *testing.T) {
	patterns := mustPatterns(t)
	for _, line := range []string{
		"", "step 1 | loss 11.2", "train-0:412:1907 [3] NCCL INFO Connected all rings", "correctable ECC error count 0",
		"NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", "handling Xids: 79", "Xid", "NVRM: Xid (PCI:0000:4e:00): none",
		"NVRM: Xid (PCI:0000:4e:00): 99999999999999999999, x", "SXid (PCI:0000:06:00.0): Severity 1", "connection closed by peer",
		"gpu has fallen OFF the bus", "the remote process exited", "RuntimeError: CUDA out of memory",
	} {
		if m, ok := find(patterns, []byte(line)); ok {
			t.Errorf("%q: found %s", line, m.pattern)
		}
	}
}

func TestRelayedLines(t *testing.T) {
	patterns := mustPatterns(t)
	const text = "GPU is lost"
	for line, want := range map[string]bool{
		text:                          false,
		"(WorkerDict pid=17) " + text: false,
		"(WorkerDict pid=17, ip=10.0.0.7) " + text:           true,
		"(pid=17, ip=10.0.0.7) " + text:                      true,
		"\x1b[2m\x1b[36m(f pid=17, ip=fd00::1) " + text:      true,
		"[1,9]<stderr>:" + text:                              true,
		"[9]<stdout>:" + text:                                true,
		"[rank9]: " + text:                                   false,
		"[1,9]: " + text:                                     false,
		text + " (WorkerDict pid=17, ip=10.0.0.7)":           false,
		"loss(pid=1) and more, ip=10.0.0.7) " + text:         false,
		"2026-11-20 (WorkerDict pid=17, ip=1.2.3.4) " + text: false,
	} {
		m, ok := find(patterns, []byte(line))
		if !ok || m.relayed != want {
			t.Errorf("%q: relayed %t, want %t", line, m.relayed, want)
		}
	}
}

func TestParsePatternsRefuses(t *testing.T) {
	const head = "name,repair,count,role,text,pattern,source\n"
	if _, err := parsePatterns([]byte(head + "a,Inspect,1,hardware,GPU is lost,GPU is lost,NVML\n")); err != nil {
		t.Fatal(err)
	}
	for want, file := range map[string]string{
		"the first row":                 "",
		"the first row is not":          "name,repair,count,role,text,regexp,source\n",
		"no pattern":                    head,
		"wrong number of fields":        head + "a,Inspect,1\n",
		"no repair class":               head + "a,inspect,1,hardware,x,GPU is lost,NVML\n",
		"never more than Inspect":       head + "a,ResetGPU,1,hardware,x,GPU is lost,NVML\n",
		"count \"0\"":                   head + "a,Inspect,0,hardware,x,GPU is lost,NVML\n",
		"count \"many\"":                head + "a,Inspect,many,hardware,x,GPU is lost,NVML\n",
		"no name or no source":          head + "a,Inspect,1,hardware,x,GPU is lost,\n",
		"is no role":                    head + "a,Inspect,1,device,x,GPU is lost,NVML\n",
		"cannot stand in a message":     head + "a,Inspect,1,hardware,x;y,GPU is lost,NVML\n",
		"error parsing regexp":          head + "a,Inspect,1,hardware,x,(GPU is lost,NVML\n",
		"1 groups, want 0":              head + "a,Inspect,1,hardware,x,(GPU is lost),NVML\n",
		"0 groups, want 1":              head + "a,Inspect,1,xid,x,GPU is lost,NVML\n",
		"longest text that is in every": head + "a,Inspect,1,hardware,x,GPU is (?:lost)?,NVML\n",
		"at least 8 bytes on one line":  head + "a,Inspect,1,hardware,x,GPU\\nis lost,NVML\n",
		"stands there twice":            head + "a,Inspect,1,hardware,x,GPU is lost,NVML\na,Inspect,1,hardware,x,GPU is lost,NVML\n",
	} {
		if _, err := parsePatterns([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one that says %q", file, err, want)
		}
	}
}

func TestTheLiteralIsInEveryMatch(t *testing.T) {
	for expr, want := range map[string]string{
		"abc":            "abc",
		"abc[0-9]+defg":  "defg",
		"abcd(efg)?hi":   "abcd",
		"(abc)+":         "abc",
		"(abc){2,}":      "abc",
		"(abc)*d":        "d",
		"(abc){0,2}d":    "d",
		"abc|abd|xyzw":   "",
		"(?i)abcdef":     "",
		"(?i:abcdef)ghi": "ghi",
		`NVRM: Xid \(x`:  "NVRM: Xid (x",
		"^abc$":          "abc",
		"[x]yz":          "xyz",
	} {
		tree, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		if got := literal(tree); got != want {
			t.Errorf("literal of %s is %q, want %q", expr, got, want)
		}
	}
}
