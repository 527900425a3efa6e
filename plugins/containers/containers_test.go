package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// op is one instruction as the kernel has it.
func op(code, dst, src byte, offset int16, constant int32) []byte {
	in := []byte{code, dst | src<<4, 0, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint16(in[2:], uint16(offset))
	binary.NativeEndian.PutUint32(in[4:], uint32(constant))
	return in
}

// device is a rule; minor -1 is any.
type device struct{ major, minor, access int32 }

// asRunc makes the program as runc does (opencontainers/cgroups, devices/devicefilter.go): one block for each rule, and no at the end.
func asRunc(rules ...device) (p program) {
	p = append(p, op(0x69, 2, 1, 0, 0)...)
	p = append(p, op(0x61, 3, 1, 0, 0)...)
	p = append(p, op(0x74, 3, 0, 0, 16)...)
	p = append(p, op(0x61, 4, 1, 4, 0)...)
	p = append(p, op(0x61, 5, 1, 8, 0)...)
	for _, r := range rules {
		tests := int16(5)
		if r.minor < 0 {
			tests = 4
		}
		end := tests + 2 // what is left of the block after the first test
		p = append(p, op(0x55, 2, 0, end, 2)...)
		p = append(p, op(0xbc, 1, 3, 0, 0)...)
		p = append(p, op(0x54, 1, 0, 0, r.access)...)
		p = append(p, op(0x5d, 1, 3, end-3, 0)...)
		p = append(p, op(0x55, 4, 0, end-4, r.major)...)
		if r.minor >= 0 {
			p = append(p, op(0x55, 5, 0, end-5, r.minor)...)
		}
		p = append(p, op(0xb4, 0, 0, 0, 1)...)
		p = append(p, op(0x95, 0, 0, 0, 0)...)
	}
	p = append(p, op(0xb4, 0, 0, 0, 0)...)
	return append(p, op(0x95, 0, 0, 0, 0)...)
}

// asSystemd makes it as systemd does (src/core/bpf-devices.c): the type by a mask, jumps to the end, the answer in register 0.
func asSystemd(rules ...device) (p program) {
	p = append(p, op(0x61, 2, 1, 0, 0)...)
	p = append(p, op(0x54, 2, 0, 0, 0xffff)...)
	p = append(p, op(0x61, 3, 1, 0, 0)...)
	p = append(p, op(0x74, 3, 0, 0, 16)...)
	p = append(p, op(0x61, 4, 1, 4, 0)...)
	p = append(p, op(0x61, 5, 1, 8, 0)...)
	for i, r := range rules {
		p = append(p, op(0xbc, 1, 3, 0, 0)...)
		p = append(p, op(0x54, 1, 0, 0, r.access)...)
		p = append(p, op(0x5d, 1, 3, 4, 0)...)
		p = append(p, op(0x55, 2, 0, 3, 2)...)
		p = append(p, op(0x55, 4, 0, 2, r.major)...)
		p = append(p, op(0x55, 5, 0, 1, r.minor)...)
		p = append(p, op(0x05, 0, 0, int16(7*(len(rules)-1-i)+2), 0)...)
	}
	p = append(p, op(0xb7, 0, 0, 0, 0)...)
	p = append(p, op(0x05, 0, 0, 1, 0)...)
	p = append(p, op(0xb7, 0, 0, 0, 1)...)
	return append(p, op(0x95, 0, 0, 0, 0)...)
}

// TestTheKernelsOwnRules gives a cgroup of this machine's kernel the programs of runc and of systemd, and reads them back.
func TestTheKernelsOwnRules(t *testing.T) {
	const read, write, mknod = 2, 4, 1
	null, gpu := device{1, 3, read | write | mknod}, device{195, 0, read | write}
	for name, test := range map[string]struct {
		program program
		want    bool
	}{
		"runc, GPU":            {asRunc(null, gpu), true},
		"runc, any GPU":        {asRunc(null, device{195, -1, read | write}), true},
		"runc, another GPU":    {asRunc(null, device{195, 1, read | write}), false},
		"runc, only mknod":     {asRunc(null, device{195, -1, mknod}), false},
		"runc, only to read":   {asRunc(null, device{195, 0, read}), false},
		"runc, not the GPU":    {asRunc(null), false},
		"systemd, GPU":         {asSystemd(null, gpu, null), true},
		"systemd, not the GPU": {asSystemd(null, null), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := attached(t, test.program)
			programs, err := devicePrograms(dir)
			if err != nil || len(programs) == 0 {
				t.Fatalf("%d programs, %v", len(programs), err)
			}
			r := &reader{cgroups: filepath.Dir(dir)}
			rules, err := r.rules(filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := rules(195, 0); got != test.want || err != nil {
				t.Errorf("GPU: %t, %v; want %t", got, err, test.want)
			}
			if got, err := rules(1, 3); !got || err != nil {
				t.Errorf("null: %t, %v", got, err)
			}
		})
	}
}

// attached returns a cgroup with a program. It needs root, cgroup v2 and BPF.
func attached(t *testing.T, p program) string {
	t.Helper()
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	dir := filepath.Join(root, fmt.Sprintf("pitcrew-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	npdtest.AttachDeviceRules(t, dir, p, 0)
	return dir
}

func TestAProgramThatIsNotKnown(t *testing.T) {
	for name, p := range map[string]program{
		"a helper": op(0x85, 0, 0, 0, 1), "no end": op(0x05, 0, 0, -1, 0), "cut": {0xb7, 0, 0}, "out of the context": op(0x61, 0, 1, 12, 0),
		"nothing": nil,
	} {
		if allowed, err := p.run(195, 0); err == nil || allowed {
			t.Errorf("%s: %t, %v", name, allowed, err)
		}
	}
}

func FuzzProgram(f *testing.F) {
	f.Add([]byte(asRunc(device{195, 0, 6})))
	f.Add([]byte(asSystemd(device{195, 0, 6})))
	f.Fuzz(func(t *testing.T, code []byte) {
		if allowed, err := program(code).run(195, 0); allowed && err != nil {
			t.Errorf("allowed, and %v", err)
		}
	})
}

func TestRulesOfCgroupV1(t *testing.T) {
	for list, want := range map[string]bool{
		"a *:* rwm\n": true, "c 195:0 rw\n": true, "c 195:* r\nc 195:0 w\n": true, "c 195:* m\n": false, "c 195:1 rw\n": false,
		"b 195:0 rw\n": false,
		"c 1:3 rwm\n":  false, "": false, "c 195:0 r\n": false,
	} {
		if got, err := listed(list, 195, 0); got != want || err != nil {
			t.Errorf("%q: %t, %v", list, got, err)
		}
	}
	if _, err := listed("c 195:0\n", 195, 0); err == nil {
		t.Error("a malformed line is taken for a rule")
	}
}

func TestCgroupsPath(t *testing.T) {
	for path, want := range map[string]string{
		"kubepods-burstable-pod1f_2.slice:cri-containerd:abc": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f_2.slice/" +
			"cri-containerd-abc.scope",
		"/kubepods/besteffort/pod1f-2/abc": "/kubepods/besteffort/pod1f-2/abc",
		"system.slice:cri-containerd:abc":  "system.slice/cri-containerd-abc.scope",
	} {
		if got := cgroupOf(path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestAFaultMustLast(t *testing.T) {
	l := limits{after: 5 * time.Minute}
	for ago, want := range map[time.Duration]int{5*time.Minute - 1: 0, 5 * time.Minute: 1} {
		f := fault{Kind: leaked, Subject: "shim of x", Text: "y", Since: time.Hour - ago}
		r := l.judge(snapshot{Boot: boot.Boot{Uptime: time.Hour}, Faults: []fault{f}})
		if len(r.Findings) != want || r.Unconfirmed != (want == 0) {
			t.Errorf("%s: %+v", ago, r)
		}
	}
}

// TestAContainerThatLostItsGPUs runs the plugin on a node's tree, beside a stand-in for the kubelet.
func TestAContainerThatLostItsGPUs(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	const id = "d254b91e9b76d5e6a1b787f4fc6004f0f6318ac910360ee0d254b91e9b76d5e6"
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/uptime", "86400.00 1.00\n")
	write("proc/sys/kernel/random/boot_id", "7e1f6f4c\n")
	write("proc/4242/stat", "4242 (python3) S 1 4242 4242 0 -1 4194560 1 1 1 0 1 1 0 0 20 0 19 0 2123 3012440064\n")
	write("proc/4242/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-"+id+".scope\n")
	write("proc/4242/root/dev/x", "")
	// The last one's name is the container's own text.
	for minor, name := range []string{"nvidia0", "nvidia1", "nvidia10 and all others"} {
		if err := unix.Mknod(filepath.Join(dir, "proc/4242/root/dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(minor)))); err != nil {
			t.Fatal(err)
		}
	}
	write("tasks/k8s.io/"+id+"/init.pid", "4242")
	write("tasks/k8s.io/"+id+"/config.json", `{"ociVersion": "1.2.0", "process": {"env": ["TOKEN=secret"]}, "annotations": {
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "train",
		"io.kubernetes.cri.sandbox-name": "bert-0", "io.kubernetes.cri.sandbox-namespace": "team-a"},
		"linux": {"cgroupsPath": "kubepods-pod1.slice:cri-containerd:`+id+`"}}`)
	rules := func(list string) {
		write("cgroup/devices/kubepods.slice/kubepods-pod1.slice/cri-containerd-"+id+".scope/devices.list", list)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	holds := kubelet(t, socket)
	look := func(args ...string) string {
		return npdtest.Run(t, binary, append([]string{"-procfs", dir + "/proc", "-cgroups", dir + "/cgroup", "-tasks", dir + "/tasks/k8s.io",
			"-pod-resources", socket, "-state-dir", dir + "/state", "-min-repair", "RestartApp", "-after", "0s"}, args...)...)
	}
	const healthy = "exit 0\ncontainers have their GPUs and end when they are killed\n"
	lost := func(gpus string) string {
		return "exit 1\nRestartApp pod team-a/bert-0: container train may no longer open " + gpus +
			": denied by the device rules of its cgroup, as after a reload of systemd\n"
	}
	// Before and after systemctl daemon-reload: https://github.com/NVIDIA/nvidia-container-toolkit/issues/251.
	for _, step := range []struct{ pod, list, want string }{
		{"bert-0", "c 1:3 rwm\nc 195:254 rw\nc 195:0 rw\nc 195:1 rw\n", healthy},
		{"bert-0", "c 1:3 rwm\nc 195:* m\n", lost("/dev/nvidia0 and 1 more")},
		{"bert-0", "c 1:3 rwm\nc 195:0 rw\nc 195:* m\n", lost("/dev/nvidia1")},
		{"bert-1", "c 1:3 rwm\nc 195:* m\n", healthy},
		{"bert-0", "a *:* rwm\n", healthy},
	} {
		*holds = step.pod
		rules(step.list)
		if got := look(); got != step.want {
			t.Errorf("%s, %q: %s", step.pod, step.list, got)
		}
	}
	*holds = "bert-0"
	rules("c 195:* m\n")
	if got := look("-after", "1h"); got != healthy {
		t.Errorf("at once: %s", got)
	}
	if got := look("-dump"); strings.Contains(got, "secret") {
		t.Errorf("the dump has the environment of a container: %s", got)
	}
	if got := look("-pod-resources", dir+"/nothing"); !strings.HasPrefix(got, "exit 2\nunknown: pods with GPUs: ") {
		t.Errorf("without a kubelet: %s", got)
	}
}

// TestAShimThatContainerdHasForgotten runs a process as a shim runs, and removes its bundle.
func TestAShimThatContainerdHasForgotten(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	bundle := filepath.Join(dir, "io.containerd.runtime.v2.task/k8s.io/2a7f1c3d0b9f0e6a1f7f")
	if err := os.MkdirAll(bundle, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "containerd-shim-runc-v2")
	if out, err := exec.Command("cp", "/bin/cat", program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shim := exec.Command(program)
	shim.Dir = bundle
	stdin, err := shim.StdinPipe()
	if err == nil {
		err = shim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := shim.Wait(); err != nil {
			t.Error(err)
		}
	})
	look := func() string {
		return npdtest.Run(t, binary, "-tasks", filepath.Dir(bundle), "-pod-resources=", "-state-dir", dir+"/state", "-after", "0s")
	}
	if got := look(); !strings.HasPrefix(got, "exit 0\n") {
		t.Errorf("while it has its bundle: %s", got)
	}
	if err := os.Remove(bundle); err != nil {
		t.Fatal(err)
	}
	if got := look(); !strings.HasPrefix(got, "exit 1\nInspect shim of 2a7f1c3d0b9f0: containerd has removed its sandbox, and it still runs") {
		t.Errorf("without its bundle: %s", got)
	}
}

// kubelet answers PodResourcesLister.List: the pod team-a/*holds has a GPU.
func kubelet(t *testing.T, socket string) (holds *string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	holds = new(string)
	field := func(number byte, text string) string { return string([]byte{number<<3 | 2, byte(len(text))}) + text }
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		devices := field(1, "nvidia.com/gpu") + field(2, "GPU-1")
		message := field(1, field(1, *holds)+field(2, "team-a")+field(3, field(1, "train")+field(2, devices)))
		w.Header().Set("Trailer", "Grpc-Status")
		fmt.Fprintf(w, "\x00\x00\x00\x00%c%s", len(message), message)
		w.Header().Set("Grpc-Status", "0")
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return holds
}
