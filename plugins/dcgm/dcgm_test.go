package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/NVIDIA/go-dcgm/pkg/dcgm" // its module has NVIDIA's headers
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

const healthy = "the last diag found no fault"

//go:embed testdata/libdcgm.c
var standin string

//go:embed testdata/nvvs.c
var nvvs string

// node is a node with a stand-in for DCGM's library and a kubelet's pod resources socket.
type node struct {
	*nvmltest.Node
	t *testing.T
	// pods are what the kubelet answers; nil for an error.
	pods atomic.Pointer[podresources.ListPodResourcesResponse]
	podresources.UnimplementedPodResourcesListerServer
}

func newNode(t *testing.T) *node {
	n := &node{Node: nvmltest.New(t), t: t}
	n.pods.Store(&podresources.ListPodResourcesResponse{})
	n.install("driver")
	n.Library("libcuda.so.1", "int cuInit(unsigned flags) { return (int)flags; }", "github.com/NVIDIA/go-dcgm", "pkg/dcgm")
	t.Setenv("DCGM_STANDIN", n.Path("dcgm"))
	n.dcgm("")
	// A Unix socket's path is short.
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		os.RemoveAll(dir)
	})
	if err := os.Symlink(listener.Addr().String(), n.Path("kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	return n
}

// install puts DCGM where NVIDIA's packages have it below a root.
func (n *node) install(root string) {
	n.t.Helper()
	for name, source := range map[string]string{"libdcgm.so.4": standin, "libdcgmmodulediag.so.4": "int dcgm_alloc_module_instance;"} {
		npdtest.Library(n.t, n.Path(root+"/usr/lib64/"+name), source, "github.com/NVIDIA/go-dcgm", "pkg/dcgm")
	}
	program := root + "/usr/libexec/datacenter-gpu-manager-4/nvvs"
	n.Write(program+".c", nvvs)
	if out, err := exec.CommandContext(n.t.Context(), "gcc", "-o", n.Path(program), n.Path(program+".c")).CombinedOutput(); err != nil {
		n.t.Fatalf("compile nvvs: %v\n%s", err, out)
	}
}

func (n *node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if pods := n.pods.Load(); pods != nil {
		return pods, nil
	}
	return nil, fmt.Errorf("kubelet is not well")
}

// dcgm sets what the library's stand-in answers.
func (n *node) dcgm(lines ...string) { n.Write("dcgm", strings.Join(lines, "\n")+"\n") }

// maintain marks the node as under maintenance, as a sweep does before it calls -run.
func (n *node) maintain() {
	if err := os.WriteFile(filepath.Join(n.State(), "maintenance"), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// diag runs the diagnostic and compares.
func (n *node) diag(want string, args ...string) {
	n.t.Helper()
	n.Want(want, append([]string{"-run", "-timeout", "20s", "-idle-for", "0", "-pod-resources", n.Path("kubelet.sock")}, args...)...)
}

// dcgmi makes a program that prints a file of testdata and exits with the status.
func (n *node) dcgmi(sample string, status int) string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", sample))
	if err != nil {
		n.t.Fatal(err)
	}
	return n.prints(string(data), status)
}

// prints makes a dcgmi that prints a text.
func (n *node) prints(text string, status int) string {
	n.t.Helper()
	n.Write("out.json", text)
	n.Write("dcgmi", fmt.Sprintf("#!/bin/sh\necho \"$@\" > %s\ncat %s\nexit %d\n", n.Path("args"), n.Path("out.json"), status))
	if err := os.Chmod(n.Path("dcgmi"), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return n.Path("dcgmi")
}

func TestWithoutAReport(t *testing.T) {
	n := newNode(t)
	n.Want("exit 0\nno diag yet")
	n.Write("standin", "init 9\n") // the report needs no driver
	n.Want("exit 0\nno diag yet")
	if err := os.WriteFile(filepath.Join(n.State(), "dcgm-report.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Want("exit 2\nunknown: " + n.State() + "/dcgm-report.json: unexpected end of JSON input")
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	n.Want("exit 0\nno NVIDIA GPU")
}

func TestRunThroughTheLibrary(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.dcgm("result 0 15 0 0", "result 1 15 0 0", "result 0 2 0 0", "result 1 2 0 0", "result 1 0 1 0")
	n.diag("exit 0\n" + healthy)
	const sick = "exit 1\nReplace dcgm gpu 1: diag test pcie failed, SRAM errors over the vendor's threshold: SRAM, 100/; dcgm gpu 2: diag test eud failed; " +
		"dcgm gpu 4: diag test memory failed, DCGM error 62 MEMORY_BANDWIDTH: slow"
	n.dcgm("result 0 15 0 0", "result 1 2 3 118 SRAM; 100%", "result 2 9 3 0", "result 3 0 2 999 hm", "result 4 0 3 62 slow", "result 5 0 3 51 CUDA")
	n.diag(sick)
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	// The monitor's check reports the same from the report.
	n.Want(sick)
	n.Want("exit 2\nunknown: diag: the last report is too old", "-max-age", "1ns")
}

func TestARunThatComesToNothingIsUnknownAndLeavesTheReport(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.dcgm("result 0 15 0 0")
	n.diag("exit 0\n" + healthy)
	tests := map[string][]string{
		"DCGM: start a host engine: Generic unspecified error": {"start -3"},
		"DCGM: start a host engine: status -99":                {"start -99"},
		"DCGM diag: In use":                                    {"diag -34", "result 0 15 3 80 x"},
		"DCGM diag gave no result":                             {""},
		"DCGM diag, test \"software\": unknown status 7":       {"result 0 15 7 0"},
	}
	for want, answers := range tests {
		n.dcgm(answers...)
		n.diag("exit 2\nunknown: " + want)
	}
	n.dcgm("hang")
	start := time.Now()
	n.diag("exit 2\nunknown: no answer within 6s", "-timeout", "8s")
	if took := time.Since(start); took > time.Minute {
		t.Errorf("a diagnostic that hangs took %s", took)
	}
	n.diag("exit 2\nunknown: DCGM: no libdcgm.so.4 below /, "+n.nvmlOnly()+", /host (see docs/dcgm.md)", "-driver-root", n.nvmlOnly())
	n.Write("standin", "init 9\n")
	n.diag("exit 2\nunknown: no diag: NVML: couldn't communicate with the NVIDIA driver")
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	n.Want("exit 0\n" + healthy)

	n.maintain()
	n.Say()
	n.dcgm("result 0 15 1 0", "result 1 15 4 0")
	n.diag("exit 2\nunknown: diag: no test ran")
}

// nvmlOnly returns a driver root without DCGM.
func (n *node) nvmlOnly() string {
	n.t.Helper()
	n.Write("nvml/usr/lib64/libnvidia-ml.so.1", string(n.read("driver/usr/lib64/libnvidia-ml.so.1")))
	return n.Path("nvml")
}

func (n *node) read(name string) []byte {
	n.t.Helper()
	data, err := os.ReadFile(n.Path(name))
	if err != nil {
		n.t.Fatal(err)
	}
	return data
}

func TestRunsOnlyOnAnIdleNode(t *testing.T) {
	n := newNode(t)
	n.dcgm("result 0 15 0 0")
	n.diag("exit 2\nunknown: no diag: the node is not under maintenance (file " + n.State() + "/maintenance), -force does without")
	n.maintain()

	gpu := func(resource string) *podresources.ContainerResources {
		return &podresources.ContainerResources{Name: "c", CpuIds: []int64{1, 300}, Devices: []*podresources.ContainerDevices{
			{ResourceName: "example.com/nic", DeviceIds: []string{"0"}},
			{ResourceName: resource, DeviceIds: []string{"GPU-1"}, Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}},
		}}
	}
	claim := &podresources.ContainerResources{DynamicResources: []*podresources.DynamicResource{{ClaimName: "c"}}}
	idle := &podresources.PodResources{Name: "p", Namespace: "ns", CpuIds: []int64{5}, Containers: []*podresources.ContainerResources{gpu("example.com/gpu")}}
	for name, pods := range map[string][]*podresources.PodResources{
		"device": {idle, {Name: "train", Namespace: "ml", Containers: []*podresources.ContainerResources{{Name: "sidecar"}, gpu("nvidia.com/gpu")}}, idle},
		"claim":  {idle, {Name: "train", Namespace: "ml", Containers: []*podresources.ContainerResources{claim}}},
	} {
		n.pods.Store(&podresources.ListPodResourcesResponse{PodResources: pods})
		t.Log(name)
		n.diag("exit 2\nunknown: no diag: pod ml/train holds a GPU")
	}
	n.pods.Store(nil)
	n.diag("exit 2\nunknown: no diag: which pods hold GPUs is not known: kubelet answered HTTP 200, gRPC \"2\" kubelet is not well")
	n.pods.Store(&podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{idle}})
	n.diag("exit 2\nunknown: no diag: which pods hold GPUs is not known: dial unix "+n.Path("none")+": connect: no such file or directory", "-pod-resources", n.Path("none"))

	n.Say("5.processes 1")
	n.diag("exit 2\nunknown: no diag: gpu 0000:15:00 is busy")
	n.diag("exit 0\n"+healthy, "-force")
	n.Say("5.utilization 3")
	n.diag("exit 2\nunknown: no diag: gpu 0000:15:00 is busy")
	n.Say("5.processes -999")
	n.diag("exit 2\nunknown: no diag: gpu 0000:15:00 does not say whether it is idle")
	n.Say("5.mig 1")
	n.diag("exit 2\nunknown: no diag: gpu 0000:15:00 is in MIG mode", "-force")
	n.Say()
	n.diag("exit 0\n"+healthy, "-idle-for", "1s")
}

func TestRunWhenIdle(t *testing.T) {
	n := newNode(t)
	args := []string{"-run-when-idle", "-timeout", "20s", "-idle-for", "0", "-pod-resources", n.Path("kubelet.sock")}
	n.Say("5.processes 1")
	n.Want("exit 0\nno diag yet", args...)
	n.Say()
	n.dcgm("result 0 0 3 80 x")
	const replace = "exit 1\nReplace dcgm gpu 0: diag test memory failed, row remapping failed: x"
	n.Want(replace, args...)
	n.dcgm("result 0 0 0 0")
	n.Want(replace, args...)
	n.Want("exit 0\n"+healthy, append(args, "-interval", "1ns")...)
}

func TestAReportCountsForItsBootOnly(t *testing.T) {
	n := newNode(t)
	n.maintain()
	const replace = "exit 1\nReplace dcgm gpu 0: diag test memory failed, row remapping failed: x"
	n.dcgm("result 0 0 3 80 x")
	n.diag(replace)
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	n.Want(replace)
	file := filepath.Join(n.State(), "dcgm-report.json")
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	id, err := boot.ID("/proc")
	if err != nil || !strings.Contains(string(written), `"bootID":"`+id+`"`) {
		t.Fatalf("the report does not say its boot: %v, %s", err, written)
	}
	replaceInReport := func(old, with string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(string(written), old, with, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replaceInReport(id, "another")
	n.Want("exit 0\nno diag yet")
	// A report without a boot id, as older versions wrote it, is neither healthy nor sick.
	replaceInReport(`"bootID":"`+id+`",`, "")
	n.Want("exit 2\nunknown: diag: the last report does not say in which boot it ran")

	// A diagnostic is due, however young the report is.
	n.dcgm("result 0 0 0 0")
	idle := []string{"-run-when-idle", "-timeout", "20s", "-idle-for", "0", "-pod-resources", n.Path("kubelet.sock")}
	n.Want("exit 0\n"+healthy, idle...)
	replaceInReport(id, "another")
	n.Want("exit 0\n"+healthy, idle...)
	n.Want("exit 0\n" + healthy)
}

func TestFlagsThatAreFalse(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.dcgm("result 0 0 3 80 x")
	// Under maintenance a check must open nothing. A check that runs no diagnostic does not.
	for _, args := range [][]string{{"-run=false"}, {"-run-when-idle=false"}, {"-run", "-run=false"}, {"-run-when-idle", "-run-when-idle=false"}} {
		n.Want("exit 2\nunknown: maintenance, and nothing is known from before it", args...)
	}
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	n.Want("exit 0\nno diag yet", "-run=false", "-run-when-idle=false", "-report=true")
	if _, err := os.Stat(filepath.Join(n.State(), "dcgm-report.json")); err == nil {
		t.Error("the diagnostic ran")
	}
	n.maintain()
	n.diag("exit 1\nReplace dcgm gpu 0: diag test memory failed, row remapping failed: x", "-run-when-idle=false")
	n.Want("exit 2\nunknown: invalid boolean value \"maybe\" for -run: strconv.ParseBool: parsing \"maybe\": invalid syntax", "-run=maybe")
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}

	n.Want("exit 2\nunknown: -report=false leaves nothing to judge without -health", "-report=false")
	n.Want("exit 2\nunknown: -report=false does not go with -run and -run-when-idle, which judge the report that they write", "-report=false", "-run", "-health")
	// The failed report does not count, the health watches do.
	watches := []string{"-report=false", "-health", "-hostengine", "10.0.0.1:5555"}
	n.dcgm("connect 10.0.0.1:5555", "watch 255")
	n.Want("exit 0\nthe health watches have seen no fault", watches...)
	n.dcgm("connect 10.0.0.1:5555", "watch 255", "incident 5 20 125 reset me")
	n.Want("exit 1\nResetGPU dcgm gpu 5: health watch, GPU requires a reset", watches...)
}

func TestRunThroughDcgmi(t *testing.T) {
	n := newNode(t)
	n.maintain()
	const fail4 = "exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: GPU 1 had row remap failures: 100/ of banks, see manual; " +
		"dcgm gpu 2: diag test memory failed, DCGM error 999: GPU 2 needs a reset.; dcgm cpu 0: diag test memory failed, DCGM error 998: " +
		"Of a severity to come.; dcgm gpu 3: diag test memory failed"
	tests := map[string]struct {
		sample string
		exit   int
		want   string
	}{
		"4.x passes, after a banner":    {"dcgmi-4.x-r2-pass.json", 0, "exit 0\n" + healthy},
		"4.x fails":                     {"dcgmi-4.x-r2-fail.json", 226, fail4},
		"4.x isolate":                   {"dcgmi-4.x-r2-pass.json", 205, "exit 1\nInspect diag: dcgmi asks to isolate the node"},
		"persistence mode is no fault":  {"dcgmi-4.2.3-r1-fail-config-gb10.json", 226, "exit 0\n" + healthy},
		"persistence mode on 8 GPUs":    {"dcgmi-4.x-r1-fail-config-8gpu.json", 226, "exit 0\n" + healthy},
		"3.x all skipped":               {"dcgmi-3.x-r3-skip-t400.json", 0, "exit 2\nunknown: diag: no hardware test ran, skipped: pcie, gpu memory, diagnostic, eud test, targeted stress"},
		"2.x passes":                    {"dcgmi-2.x-r1-pass-gcm.json", 0, "exit 0\n" + healthy},
		"2.x persistence mode, warning": {"dcgmi-2.x-r1-fail-gcm.json", 0, "exit 0\n" + healthy},
		"2.x warning":                   {"dcgmi-2.x-r1-warn-gcm.json", 0, "exit 0\n" + healthy},
		"an error, but no test failed":  {"dcgmi-4.x-r2-pass.json", 226, "exit 2\nunknown: dcgmi reported an error, but no test failed"},
		"killed":                        {"SOURCES.txt", 203, ""},
		"no JSON":                       {"../judge.go", 0, "exit 2\nunknown: dcgmi's JSON: invalid character 'r' looking for beginning of object key string"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			program := n.dcgmi(test.sample, test.exit)
			if test.want != "" {
				n.diag(test.want, "-dcgmi", program)
			} else if got := n.Run("-run", "-timeout", "20s", "-force", "-dcgmi", program); !strings.HasPrefix(got, "exit 2\nunknown: dcgmi exited 203: ") {
				t.Errorf("got %s", got)
			}
		})
	}
	n.diag("exit 0\n"+healthy, "-dcgmi", n.dcgmi("dcgmi-4.x-r2-pass.json", 0), "-tests", "pcie,memory", "-hostengine", "10.0.0.1")
	if args, _ := os.ReadFile(n.Path("args")); string(args) != "diag -r pcie,memory -j --host 10.0.0.1\n" {
		t.Errorf("dcgmi was called with %s", args)
	}
}

// In the form of DCGM 4.6 (dcgmi/Diag.cpp): the summary of a test has the errors of all entities and those of none, which make every GPU fail.
func TestWhomAnErrorIsAbout(t *testing.T) {
	test := func(name, status, results, warnings string) string {
		return fmt.Sprintf(`{"name": %q, "results": [%s], "test_summary": {"status": %q, "warnings": [%s]}}`, name, results, status, warnings)
	}
	all := func(status string) string {
		return gpuResult(0, status) + "," + gpuResult(1, status) + "," + gpuResult(2, status)
	}
	const (
		count     = `{"error_category": 8, "error_id": 20, "error_severity": 5, "warning": "/dev/nvidia8 is present, but NVML counts 8 GPUs"}`
		infoROM   = `{"error_category": 1, "error_id": 9, "error_severity": 4, "warning": "A corrupt InfoROM has been detected in GPU 2."}`
		both      = `{"error_id": 13, "error_severity": 4, "warning": "GPU 1 and GPU 2 disagree"}`
		remap     = `{"error_id": 80, "error_severity": 6, "warning": "GPU 1 had row remap failures"}`
		ecc       = `{"error_id": 55, "error_severity": 5, "warning": "ECC is disabled"}`
		lifetime  = `{"error_id": 71, "error_severity": 2, "warning": "Detected 7 CRC NvLink errors on GPU 1's NVLink (should be 0)"}`
		imex      = `{"error_id": 122, "error_severity": 2, "warning": "IMEX domain status is DEGRADED (2)"}`
		bandwidth = `{"error_id": 33, "error_severity": 2, "warning": "Detected a violation on GPU 1"}`
	)
	software := func(status, results, warnings string) string { return test("software", status, results, warnings) }
	passes := test("memory", "Pass", all("Pass"), "")
	for name, tt := range map[string]struct {
		software, hardware string
		exit               int
		want               string
	}{
		"of none, in software":            {software("Fail", all("Fail"), count), passes, 226, "exit 0\n" + healthy},
		"of none, in hardware":            {"", test("memory", "Fail", all("Fail"), ecc), 226, "exit 0\n" + healthy},
		"of one, named in the text":       {software("Fail", all("Fail"), infoROM), passes, 226, corrupt},
		"of one, in software":             {software("Fail", gpuResult(0, "Fail")+","+gpuResult(2, "Fail", infoROM), infoROM), passes, 226, corrupt},
		"of two, named in the text":       {software("Fail", all("Fail"), both), passes, 226, "exit 1\nInspect dcgm node: diag test software failed, DCGM error 13 NVLINK_ERROR_THRESHOLD: GPU 1 and GPU 2 disagree"},
		"of none beside one":              {software("Fail", all("Fail"), count+","+infoROM), passes, 226, corrupt},
		"of one, and a GPU without words": {"", test("memory", "Fail", gpuResult(0, "Fail")+","+gpuResult(1, "Fail", remap), remap), 226, "exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: GPU 1 had row remap failures; dcgm gpu 0: diag test memory failed"},
		"of one and of none, in hardware": {"", test("memory", "Fail", gpuResult(0, "Fail")+","+gpuResult(1, "Fail", remap), ecc+","+remap), 226, "exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: GPU 1 had row remap failures"},
		"in the summary alone":            {"", test("memory", "Fail", all("Pass"), ecc), 226, "exit 0\n" + healthy},
		"no words at all":                 {"", test("memory", "Fail", all("Pass"), ""), 226, "exit 1\nInspect dcgm node: diag test memory failed"},
		"known false alarms":              {"", test("nvlink", "Fail", gpuResult(0, "Pass")+","+gpuResult(1, "Fail", lifetime), lifetime+","+imex), 205, "exit 0\n" + healthy},
		"one that is none beside them": {"", test("nvlink", "Fail", gpuResult(0, "Fail", bandwidth)+","+gpuResult(1, "Fail", lifetime), lifetime+","+bandwidth), 205,
			"exit 1\nInspect dcgm gpu 0: diag test nvlink failed, DCGM error 33 FIELD_VIOLATION: Detected a violation on GPU 1; diag: dcgmi asks to isolate the node"},
		"its own Xid":     {"", test("memory", "Fail", gpuResult(1, "Fail", xid(45)), xid(45)), 226, "exit 0\n" + healthy},
		"another's Xid":   {"", test("memory", "Fail", gpuResult(1, "Fail", xid(79)), xid(79)), 226, "exit 1\nInspect dcgm gpu 1: diag test memory failed, an Xid during the test (often an Xid 45 of the diagnostic itself): Detected XID 79 for GPU 1"},
		"Xid 453":         {"", test("memory", "Fail", gpuResult(1, "Fail", xid(453)), xid(453)), 226, "exit 1\nInspect dcgm gpu 1: diag test memory failed, an Xid during the test (often an Xid 45 of the diagnostic itself): Detected XID 453 for GPU 1"},
		"all are skipped": {software("Pass", all("Pass"), ""), test("memory", "Skip", all("Skip"), "") + "," + test("nvbandwidth", "Skip", all("Skip"), ""), 0, "exit 2\nunknown: diag: no hardware test ran, skipped: memory, nvbandwidth"},
		"one is skipped":  {software("Pass", all("Pass"), ""), test("memory", "Pass", gpuResult(0, "Pass")+","+gpuResult(1, "Skip"), "") + "," + test("nvbandwidth", "Skip", all("Skip"), ""), 0, "exit 2\nunknown: dcgm gpu 1, dcgm gpu 2: every hardware test was skipped"},
		"a fault and one that is skipped": {software("Fail", all("Fail"), infoROM), test("memory", "Pass", gpuResult(0, "Pass")+","+gpuResult(2, "Pass")+","+gpuResult(1, "Not Run"), ""), 226,
			corrupt + "; dcgm gpu 1: not read: every hardware test was skipped"},
		"level 1":    {software("Pass", all("Pass"), ""), "", 0, "exit 0\n" + healthy},
		"some tests": {software("Pass", all("Pass"), ""), passes + "," + test("nvbandwidth", "Skip", all("Skip"), ""), 0, "exit 0\n" + healthy},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.maintain()
			out := fmt.Sprintf(`{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [%s]}, {"category": "Hardware", "tests": [%s]}]}}`, tt.software, tt.hardware)
			n.diag(tt.want, "-dcgmi", n.prints(out, tt.exit))
		})
	}
}

const corrupt = "exit 1\nInspect dcgm gpu 2: diag test software failed, DCGM error 9 CORRUPT_INFOROM: A corrupt InfoROM has been detected in GPU 2."

func gpuResult(gpu int, status string, warnings ...string) string {
	return fmt.Sprintf(`{"entity_group": "GPU", "entity_group_id": 1, "entity_id": %d, "status": %q, "warnings": [%s]}`, gpu, status, strings.Join(warnings, ","))
}

func xid(number int) string {
	return fmt.Sprintf(`{"error_category": 5, "error_id": 101, "error_severity": 4, "warning": "Detected XID %d for GPU 1"}`, number)
}

// As DCGM 3.3 prints it: no summary, the tests of the software one by one.
func TestTheFormOfDCGM33(t *testing.T) {
	n := newNode(t)
	n.maintain()
	out := func(infoROM, memory string) string {
		return fmt.Sprintf(`Successfully ran diagnostic for group.
{"DCGM GPU Diagnostic": {"runtime_error": "", "test_categories": [
 {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"status": "Pass"}]}, {"name": "Inforom", "results": [%s]}]},
 {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [%s]}]}]}, "Driver Version Detected": "550.90.07", "GPU Device IDs": ["2330"]}`, infoROM, memory)
	}
	n.diag("exit 0\n"+healthy, "-dcgmi", n.prints(out(`{"status": "Pass"}`, `{"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "Pass"}`), 0))
	n.diag("exit 2\nunknown: diag: no hardware test ran, skipped: gpu memory", "-dcgmi",
		n.prints(out(`{"status": "Pass"}`, `{"gpu_id": "0", "status": "Skip"}, {"gpu_id": "1", "status": "Skip"}`), 0))
	n.diag("exit 1\nInspect dcgm node: diag test inforom failed, DCGM error 9 CORRUPT_INFOROM: A corrupt InfoROM has been detected in GPU 1.", "-dcgmi",
		n.prints(out(`{"status": "Fail", "warnings": [{"error_id": 9, "warning": "A corrupt InfoROM has been detected in GPU 1."}]}`, `{"gpu_id": "0", "status": "Pass"}`), 226))
}

// As nvvs of DCGM 2 and 3 writes it: several GPUs in one result, empty tests, warnings that are texts.
func TestTheFormOfNVVS(t *testing.T) {
	n := newNode(t)
	n.maintain()
	out := func(memory string) string {
		return fmt.Sprintf(`{"DCGM GPU Diagnostic": {"test_categories": [
 {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}, null]},
 {"category": "Hardware", "tests": [null, {"name": "GPU Memory", "results": [{"gpu_ids": "0", %s}, {"gpu_ids": "1", "status": "PASS"}]}]}], "version": "3.1.7"}}`,
			memory)
	}
	n.diag("exit 0\n"+healthy, "-dcgmi", n.prints(out(`"status": "PASS", "info": ["GPU 0 allocated 79 % of its memory"]`), 0))
	n.diag("exit 1\nInspect dcgm gpu 0: diag test gpu memory failed: A DBE was detected", "-dcgmi",
		n.prints(out(`"status": "FAIL", "warnings": ["A DBE was detected", "Another"]`), 226))
	n.diag("exit 1\nInspect dcgm gpu 0: diag test gpu memory failed: A DBE was detected", "-dcgmi",
		n.prints(out(`"status": "FAIL", "warnings": "A DBE was detected"`), 226))
}

// An error of no GPU makes the test fail on each. The library has all errors, as dcgmi prints them.
func TestErrorsOfTheLibraryAreThoseOfWhomTheyAreAbout(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.dcgm("result 0 15 3 0", "result 1 15 3 0", "result 2 15 3 0", "error -1 15 20 7 GPUs", "result 0 0 0 0")
	n.diag("exit 0\n" + healthy)
	n.dcgm("result 0 15 3 0", "result 1 15 3 0", "result 2 15 3 0", "error -1 15 9 GPU 1 has a corrupt InfoROM", "result 0 0 0 0")
	n.diag("exit 1\nInspect dcgm gpu 1: diag test software failed, DCGM error 9 CORRUPT_INFOROM: GPU 1 has a corrupt InfoROM")
	// The worst of several, which need not be the first.
	n.dcgm("result 0 0 0 0", "result 1 0 3 51 CUDA", "error 1 0 80 banks", "error -1 0 22 no library")
	n.diag("exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: banks; dcgm node: diag test memory failed, " +
		"DCGM error 22 CANNOT_OPEN_LIB: no library")
	n.dcgm("result 0 15 0 0", "result 1 15 0 0", "result 0 0 1 0", "result 1 0 1 0")
	n.diag("exit 2\nunknown: diag: no hardware test ran, skipped: memory")
}

// What NVIDIA's files need each other for: without one, the diagnostic does not run, and that is what is reported.
func TestAnInstallationThatLacksAFile(t *testing.T) {
	const nvvsFolder = "/usr/libexec/datacenter-gpu-manager-4"
	const refused = "DCGM diag: Error when executing the diagnostic: "
	linker := func(name string) string {
		return refused + "DCGM GPU Diagnostic returned an error Nvvs stderr: nvvs: error while loading shared libraries: " + name +
			": cannot open shared object file: No such file or directory (see docs/dcgm.md)"
	}
	tests := map[string]struct {
		remove, env string
		args        func(n *node) []string
		want        func(n *node) string
	}{
		"library": {remove: "/usr/lib64/libdcgm.so.4", want: func(n *node) string { return "DCGM: no libdcgm.so.4 below " + n.Path("dcgm4") + " (see docs/dcgm.md)" }},
		"module": {remove: "/usr/lib64/libdcgmmodulediag.so.4", want: func(*node) string {
			return "DCGM diag: This request is serviced by a module of DCGM that is not currently loaded: libdcgmmodulediag.so.4 does not load (see docs/dcgm.md)"
		}},
		"nvvs": {remove: nvvsFolder + "/nvvs", want: func(n *node) string {
			return "DCGM: no program nvvs in " + n.Path("dcgm4") + nvvsFolder + " (see docs/dcgm.md)"
		}},
		"CUDA": {remove: "/../driver/usr/lib64/libcuda.so.1", want: func(*node) string { return linker("libcuda.so.1") }},
		"folder of libraries": {args: func(n *node) []string { return []string{"-dcgm-libraries", n.Path("none")} }, want: func(n *node) string {
			return "DCGM: " + n.Path("none/libdcgm.so.4") + ": cannot open shared object file: No such file or directory (see docs/dcgm.md)"
		}},
		"folder of nvvs": {args: func(n *node) []string { return []string{"-nvvs", n.Path("none")} }, want: func(n *node) string {
			return "DCGM: no program nvvs: stat " + n.Path("none/nvvs") + ": no such file or directory (see docs/dcgm.md)"
		}},
		"variable": {env: "/none", want: func(*node) string {
			return "DCGM: no program nvvs: stat /none/nvvs: no such file or directory (see docs/dcgm.md)"
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.maintain()
			n.install("dcgm4")
			n.dcgm("result 0 15 0 0", "result 0 0 0 0")
			args := []string{"-dcgm-root", n.Path("dcgm4")}
			n.diag("exit 0\n"+healthy, args...)
			if _, err := os.Stat(filepath.Join(n.State(), "dcgm-libraries")); err == nil {
				t.Error("the folder of links stays")
			}
			if test.remove != "" {
				if err := os.Remove(n.Path("dcgm4" + test.remove)); err != nil {
					t.Fatal(err)
				}
			}
			if test.env != "" {
				t.Setenv("NVVS_BIN_PATH", test.env)
			}
			if test.args != nil {
				args = append(args, test.args(n)...)
			}
			n.diag("exit 2\nunknown: "+test.want(n), args...)
			// The last report stays.
			if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
				t.Fatal(err)
			}
			n.Want("exit 0\n" + healthy)
		})
	}
}

// The folders by their flags and by NVIDIA's variable, and a driver that is elsewhere than DCGM.
func TestAnInstallationInFoldersOfItsOwn(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.install("image")
	n.dcgm("result 0 15 0 0", "result 0 0 0 0")
	libraries, program := n.Path("image/usr/lib64"), n.Path("image/usr/libexec/datacenter-gpu-manager-4")
	driver := []string{"-driver-root", n.nvmlOnly()}
	n.diag("exit 2\nunknown: DCGM: no program nvvs in /usr/libexec/datacenter-gpu-manager-4, "+n.nvmlOnly()+"/usr/libexec/datacenter-gpu-manager-4, "+
		"/host/usr/libexec/datacenter-gpu-manager-4 (see docs/dcgm.md)",
		append(driver, "-dcgm-libraries", libraries)...)
	n.Write("nvml/usr/lib64/libcuda.so.1", string(n.read("driver/usr/lib64/libcuda.so.1")))
	n.diag("exit 0\n"+healthy, append(driver, "-dcgm-libraries", libraries, "-nvvs", program)...)
	t.Setenv("NVVS_BIN_PATH", program)
	n.diag("exit 0\n"+healthy, append(driver, "-dcgm-libraries", libraries)...)
}

// A host engine has libraries, modules and nvvs of its own. It must be that of this node.
func TestADiagnosticOfAHostEngine(t *testing.T) {
	n := newNode(t)
	n.maintain()
	if err := errors.Join(os.Remove(n.Path("driver/usr/lib64/libdcgmmodulediag.so.4")), os.RemoveAll(n.Path("driver/usr/libexec"))); err != nil {
		t.Fatal(err)
	}
	args := []string{"-hostengine", "10.0.0.1:5555", "-procfs", n.Path("proc")}
	engine := []string{"connect 10.0.0.1:5555", "uuid GPU-1a", "uuid GPU-2b", "result 0 15 0 0", "result 0 0 0 0"}
	n.diag("exit 2\nunknown: DCGM: no connection to the host engine at 10.0.0.1:5555: Host engine connection invalid/disconnected (see docs/dcgm.md)", args...)
	n.dcgm(engine...)
	const foreign = "exit 2\nunknown: DCGM: the host engine at 10.0.0.1:5555 has GPU \"GPU-2b\", which is not one of the 1 of this node: " +
		"it must be this node's (see docs/dcgm.md)"
	n.Write("proc/driver/nvidia/gpus/0000:10:00.0/information", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1a\nVideo BIOS: ??\n")
	n.diag(foreign, args...)
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	n.Want(foreign, append(args, "-report=false", "-health")...)
	n.maintain()
	n.Write("proc/driver/nvidia/gpus/0000:11:00.0/information", "GPU UUID: \t GPU-2B\n")
	n.diag("exit 0\n"+healthy, args...)
	n.dcgm(append(engine, "diag -33")...)
	n.diag("exit 2\nunknown: DCGM diag: This request is serviced by a module of DCGM that is not currently loaded: libdcgmmodulediag.so.4 does not load "+
		"(see docs/dcgm.md)", args...)
}

func TestHealthWatchesOfAHostEngine(t *testing.T) {
	n := newNode(t)
	args := []string{"-health", "-hostengine", "10.0.0.1:5555"}
	const unanswered = "exit 2\nunknown: health watches: DCGM: no connection to the host engine at 10.0.0.1:5555: Host engine connection invalid/disconnected (see docs/dcgm.md)"
	n.Want(unanswered, args...)
	n.dcgm("connect 10.0.0.1:5555")
	n.Want("exit 2\nunknown: health watches: DCGM health: the host engine watches nothing", args...)
	n.dcgm("connect 10.0.0.1:5555", "watch 255")
	n.Want("exit 0\nno diag yet", args...)
	n.dcgm("connect 10.0.0.1:5555", "watch 255", "incident 3 10 0 warm", "incident 4 20 999 broken", "incident 5 20 125 reset me")
	n.Want("exit 1\nResetGPU dcgm gpu 5: health watch, GPU requires a reset; dcgm gpu 4: health watch, DCGM error 999", args...)
}

// The report of the last diagnostic and the health watches hide each other's faults neither when one fails nor when it hangs.
func TestTheReportAndTheWatchesHideNoFaultOfEachOther(t *testing.T) {
	n := newNode(t)
	n.maintain()
	n.diag("exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: bad", "-dcgmi", n.prints(
		`{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", "results": [`+
			gpuResult(1, "Fail", `{"error_id": 80, "error_severity": 6, "warning": "bad"}`)+`]}]}]}}`, 226))
	if err := os.Remove(filepath.Join(n.State(), "maintenance")); err != nil {
		t.Fatal(err)
	}
	args := []string{"-health", "-hostengine", "10.0.0.1:5555", "-timeout", "8s"}
	const sick = "exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: bad; health watches: not read: "
	n.Want(sick+"DCGM: no connection to the host engine at 10.0.0.1:5555: Host engine connection invalid/disconnected (see docs/dcgm.md)", args...)
	n.dcgm("connect 10.0.0.1:5555", "watch -1")
	n.Want(sick+"did not answer in time", args...)
	n.dcgm("connect 10.0.0.1:5555", "watch 255", "incident 5 20 125 reset me")
	if err := os.WriteFile(filepath.Join(n.State(), "dcgm-report.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := n.Run(args...)
	if want := "exit 1\nResetGPU dcgm gpu 5: health watch, GPU requires a reset; diag: not read: "; !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOptionsThatDoNotGoTogether(t *testing.T) {
	n := newNode(t)
	n.Want("exit 2\nunknown: invalid value \"5\" for flag -level: not from 1 to 4", "-level", "5")
	n.Want("exit 2\nunknown: -tests needs -dcgmi: the library runs levels only", "-tests", "pcie")
	n.Want("exit 2\nunknown: -health needs -hostengine: a host engine that has just started has watched nothing", "-health")
}

func TestClassOfAResult(t *testing.T) {
	severity := func(s int) *int { return &s }
	tests := map[string]struct {
		status status
		w      []warning
		want   conditions.Repair
	}{
		"pass":                              {passed, []warning{{ID: 80}}, 0},
		"skip":                              {skipped, nil, 0},
		"fail without a word":               {failed, nil, conditions.Inspect},
		"warning without a word":            {warned, nil, conditions.Monitor},
		"warning of a kind that is known":   {warned, []warning{{ID: 80}}, conditions.Replace},
		"fail, severity NONE":               {failed, []warning{{1, severity(0), ""}}, conditions.Inspect},
		"fail, severity MONITOR":            {failed, []warning{{1, severity(1), ""}}, conditions.Monitor},
		"fail, severity ISOLATE":            {failed, []warning{{1, severity(2), ""}}, conditions.Inspect},
		"fail, severity UNKNOWN":            {failed, []warning{{1, severity(3), ""}}, conditions.Inspect},
		"fail, severity TRIAGE":             {failed, []warning{{1, severity(4), ""}}, conditions.Inspect},
		"fail, severity CONFIG":             {failed, []warning{{1, severity(5), ""}}, conditions.Monitor},
		"fail, severity RESET":              {failed, []warning{{1, severity(6), ""}}, conditions.ResetGPU},
		"fail, severity to come":            {failed, []warning{{1, severity(7), ""}}, conditions.Inspect},
		"what it is counts, not how severe": {failed, []warning{{29, severity(6), ""}}, conditions.Monitor},
		"the worst counts":                  {failed, []warning{{80, nil, ""}, {81, nil, ""}, {29, nil, ""}}, conditions.Replace},
		"fallen off the bus":                {failed, []warning{{ID: 120}}, conditions.Reboot},
		"uncontained":                       {failed, []warning{{ID: 81}}, conditions.ResetGPU},
		"SRAM":                              {failed, []warning{{ID: 118}}, conditions.Replace},
		"reset":                             {failed, []warning{{ID: 125}}, conditions.ResetGPU},
		"reboot":                            {failed, []warning{{ID: 126}}, conditions.Reboot},
		"drain and reset":                   {failed, []warning{{ID: 128}}, conditions.ResetGPU},
		"row remap limit":                   {failed, []warning{{ID: 132}}, conditions.Replace},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, _ := result{Test: "memory", Entity: "gpu 1", Status: test.status, Warnings: test.w}.finding()
			if f.Repair != test.want {
				t.Errorf("%v, want %v", f.Repair, test.want)
			}
		})
	}
}

// The health watches give only the number of an error.
func TestEveryErrorOfTheLibraryHasItsClass(t *testing.T) {
	classes := map[string]conditions.Repair{
		"MONITOR": conditions.Monitor, "CONFIG": conditions.Monitor, "ISOLATE": conditions.Inspect,
		"UNKNOWN": conditions.Inspect, "TRIAGE": conditions.Inspect, "RESET": conditions.ResetGPU,
	}
	ours := map[string]conditions.Repair{
		"PERSISTENCE_MODE": conditions.Monitor, "UNCONTAINED_ERROR": conditions.ResetGPU, "GPU_RECOVERY_RESET": conditions.ResetGPU,
		"GPU_RECOVERY_DRAIN_RESET": conditions.ResetGPU, "FALLEN_OFF_BUS": conditions.Reboot, "GPU_RECOVERY_REBOOT": conditions.Reboot,
		"NVLINK_ERROR_CRITICAL": conditions.Monitor, "IMEX_UNHEALTHY": conditions.Monitor, "XID_ERROR": conditions.Inspect,
		"ROW_REMAP_FAILURE": conditions.Replace, "SRAM_THRESHOLD": conditions.Replace, "UNCORRECTABLE_ROW_REMAP_LIMIT": conditions.Replace,
	}
	numbers := libraryErrors(t)
	rows, err := table.Rows(errorsCSV, "code", "name", "severity", "repair", "text")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		code, name := row[0], row[1]
		id, known := numbers[name]
		if !known || code != strconv.Itoa(id) {
			t.Errorf("error %s %s is number %d in go-dcgm", code, name, id)
		}
		delete(numbers, name)
		want, text := classes[row[2]], "diag test memory failed, DCGM error "+code+" "+name
		if repair, known := ours[name]; known {
			want, text = repair, "diag test memory failed, "+row[4]
		}
		f, _ := result{Test: "memory", Entity: "gpu 1", Status: failed, Warnings: []warning{{ID: id}}}.finding()
		if f.Repair != want || f.Text != text {
			t.Errorf("%s: %v %s, want %v %s", name, f.Repair, f.Text, want, text)
		}
	}
	// No error, one whose severity is not published, and the end of the list.
	for _, name := range []string{"OK", "CPU_SDC_TEST_FAILED", "ERROR_SENTINEL"} {
		delete(numbers, name)
	}
	if len(numbers) > 0 {
		t.Errorf("without a row: %v", numbers)
	}
}

// libraryErrors reads the numbers of DCGM's errors from go-dcgm's copy of DCGM's header.
func libraryErrors(t *testing.T) map[string]int {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/dcgm/dcgm_errors.h"))
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	enum, _, _ := strings.Cut(string(header), "dcgmError_t;")
	for _, m := range regexp.MustCompile(`DCGM_FR_(\w+)\s*=\s*(\d+)`).FindAllStringSubmatch(enum, -1) {
		if numbers[m[1]], err = strconv.Atoi(m[2]); err != nil {
			t.Fatal(err)
		}
	}
	return numbers
}

func TestAnUnknownShapeNeverPasses(t *testing.T) {
	for _, out := range []string{
		``, `{}`, `{"DCGM Diagnostic": null}`, `{"DCGM 5": {"test_categories": []}}`, `{"DCGM Diagnostic": {"runtime_error": "no"}}`,
		`{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "a", "results": [{"status": "Fine"}]}]}]}}`,
		`{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "a", "results": [{"status": "Fail", "warnings": 7}]}]}]}}`,
	} {
		if results, err := parseDiag([]byte(out)); err == nil {
			t.Errorf("%s: %+v", out, results)
		}
	}
	// A result without tests is not a pass either.
	results, err := parseDiag([]byte(`{"DCGM Diagnostic": {"test_categories": []}}`))
	if r := judge(snapshot{Report: &report{BootID: "1", Results: results}}); err != nil || len(r.Unread) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

func FuzzParseDiag(f *testing.F) {
	samples, err := filepath.Glob("testdata/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, sample := range samples {
		data, err := os.ReadFile(sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		results, err := parseDiag(out)
		if err != nil {
			return
		}
		for _, r := range results {
			if _, err := parseStatus(string(r.Status)); err != nil {
				t.Error(err)
			}
		}
		judge(snapshot{Report: &report{BootID: "1", Results: results}})
	})
}
