package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg/kmsgtest"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

const (
	fine = "exit 0\nports are as expected\n"
	down = "exit 1\nInspect hca mlx5_1 port 1: state DOWN, expected ACTIVE\n"
)

// node is a sysfs, an uptime and a state directory that the plugin runs on.
type node struct {
	t           *testing.T
	binary, dir string
	uptime      time.Duration
}

// newNode has two InfiniBand adapters, mlx5_0 and mlx5_1, an hour after the boot.
func newNode(t *testing.T) *node { return newNodeOf(t, npdtest.Build(t)) }

func newNodeOf(t *testing.T, binary string) *node {
	n := &node{t: t, binary: binary, dir: t.TempDir()}
	n.write("proc/sys/kernel/random/boot_id", "first")
	n.write("sys/class/net/lo/operstate", "unknown")
	n.write("kmsg", "")
	n.at(time.Hour)
	for i := range 2 {
		n.adapter(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("0000:%d8:00.0", i))
	}
	return n
}

func (n *node) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	// As a whole: a port's file of the kernel is never empty, and a plugin that holds its answer reads at any moment.
	if err := os.WriteFile(path+".new", []byte(content+"\n"), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) at(uptime time.Duration) {
	n.uptime = uptime
	n.write("proc/uptime", fmt.Sprintf("%.2f 1.00", uptime.Seconds()))
}

func (n *node) later(d time.Duration) { n.at(n.uptime + d) }

// adapter adds one in the form of the kernel: a class folder that points to a PCI function.
func (n *node) adapter(name, address string) {
	n.t.Helper()
	n.write("sys/bus/pci/devices/"+address+"/driver/module/version", "1")
	dir := "sys/class/infiniband/" + name
	n.write(dir+"/board_id", "MT_0000000838")
	if err := os.Symlink("../../../bus/pci/devices/"+address, filepath.Join(n.dir, dir, "device")); err != nil {
		n.t.Fatal(err)
	}
	n.port(name, "4: ACTIVE", "400 Gb/sec (4X NDR)")
	for _, counter := range []string{"link_downed", "symbol_error", "local_link_integrity_errors", "excessive_buffer_overrun_errors"} {
		n.counter(name, counter, 0)
	}
	n.write(dir+"/ports/1/hw_counters/rnr_nak_retry_err", "0")
}

func (n *node) port(name, state, rate string) {
	n.t.Helper()
	dir := "sys/class/infiniband/" + name + "/ports/1/"
	phys := "5: LinkUp"
	if strings.HasPrefix(state, "1") {
		phys = "2: Polling"
	}
	n.write(dir+"state", state)
	n.write(dir+"phys_state", phys)
	n.write(dir+"rate", rate)
	n.write(dir+"link_layer", "InfiniBand")
}

func (n *node) down(name string) { n.port(name, "1: DOWN", "10 Gb/sec (4X SDR)") }
func (n *node) up(name string)   { n.port(name, "4: ACTIVE", "400 Gb/sec (4X NDR)") }

func (n *node) counter(name, counter string, value int) {
	n.t.Helper()
	n.write("sys/class/infiniband/"+name+"/ports/1/counters/"+counter, fmt.Sprint(value))
}

func (n *node) remove(path string) {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.dir, path)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) run(args ...string) string {
	n.t.Helper()
	return npdtest.Run(n.t, n.binary, append([]string{
		"-sysfs", filepath.Join(n.dir, "sys"), "-procfs", filepath.Join(n.dir, "proc"), "-state-dir", filepath.Join(n.dir, "state"), "-kmsg", filepath.Join(n.dir, "kmsg"),
	}, args...)...)
}

func (n *node) want(want string, args ...string) {
	n.t.Helper()
	if got := n.run(args...); got != want {
		n.t.Errorf("got  %swant %s", got, want)
	}
}

func TestAPortThatWasUpIsMissed(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.down("mlx5_0")
	n.down("mlx5_1")
	n.want("exit 1\nInspect hca mlx5_0 port 1: state DOWN, expected ACTIVE; hca mlx5_1 port 1: state DOWN, expected ACTIVE\n")
	n.up("mlx5_0")
	n.want(down)
	n.later(3 * time.Minute)
	n.want(down)
	n.later(time.Minute)
	n.want("exit 1\nInspect hca mlx5_1 port 1: state DOWN, expected ACTIVE, dropped\n")
	n.up("mlx5_1")
	n.want(fine)
}

func TestAPortThatFlapsIsReportedUntilCleared(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	flap := func() {
		t.Helper()
		n.later(time.Minute)
		n.down("mlx5_1")
		n.run()
		n.later(time.Second)
		n.up("mlx5_1")
	}
	flap()
	n.want(fine)
	flap()
	n.want(fine)
	flap()
	const flapped = "exit 1\nInspect hca mlx5_1 port 1: went down and up again and again\n"
	n.want(flapped)
	n.later(48 * time.Hour)
	n.want(flapped)
	n.want("exit 0\ncleared hca mlx5_1 port 1\n", "-clear", "mlx5_1")
	n.want(fine)
}

func TestRareCyclesAreNoFlap(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	for range 5 {
		n.later(7 * time.Hour)
		n.down("mlx5_1")
		n.run()
		n.later(time.Minute)
		n.up("mlx5_1")
		n.want(fine)
	}
}

func TestCountersThatGrow(t *testing.T) {
	tests := map[string]struct {
		counter string
		values  []int
		want    string
	}{
		"two losses of the link":         {"link_downed", []int{7, 8, 9}, fine},
		"three losses of the link":       {"link_downed", []int{7, 8, 10}, "exit 1\nInspect hca mlx5_1 port 1: link went down again and again within the last hour\n"},
		"old ones":                       {"link_downed", []int{7, 7}, fine},
		"reset":                          {"link_downed", []int{7, 0}, fine},
		"link integrity":                 {"local_link_integrity_errors", []int{0, 1}, "exit 1\nInspect hca mlx5_1 port 1: local link integrity errors within the last hour\n"},
		"buffer overruns":                {"excessive_buffer_overrun_errors", []int{0, 1}, "exit 1\nInspect hca mlx5_1 port 1: excessive buffer overruns within the last hour\n"},
		"few symbol errors":              {"symbol_error", []int{0, 60, 120}, fine},
		"too many symbol errors":         {"symbol_error", []int{0, 60, 121}, "exit 1\nInspect hca mlx5_1 port 1: too many symbol errors within the last hour\n"},
		"the peer is slow, not worth it": {"../hw_counters/rnr_nak_retry_err", []int{0, 5}, fine},
	}
	binary := npdtest.Build(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNodeOf(t, binary)
			for _, value := range test.values {
				n.counter("mlx5_1", test.counter, value)
				n.later(time.Minute)
				n.run()
			}
			n.want(test.want)
			n.later(61 * time.Minute)
			n.want(fine)
		})
	}
}

func TestCountersAreReadOnceAMinute(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.counter("mlx5_1", "link_downed", 3)
	n.later(59 * time.Second)
	n.want(fine)
	n.later(time.Second)
	n.want("exit 1\nInspect hca mlx5_1 port 1: link went down again and again within the last hour\n")
}

func TestALinkThatComesBackSlower(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.port("mlx5_1", "4: ACTIVE", "200 Gb/sec (2X NDR)")
	n.want("exit 1\nInspect hca mlx5_1 port 1: rate 200 Gb/s, was 400\n")
	n.up("mlx5_1")
	n.want(fine)
}

func TestAnAdapterThatIsGone(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.remove("sys/class/infiniband/mlx5_1")
	n.want("exit 2\nunknown: hca mlx5_1 port 1: its PCI device is there but it is not: in another network namespace, or its RDMA driver is unloaded\n")
	n.remove("sys/bus/pci/devices/0000:18:00.0")
	n.want("exit 1\nInspect hca mlx5_1 port 1: gone\n")
	n.want(fine, "-ignore", "mlx5_1")
	n.want("exit 0\ncleared hca mlx5_1 port 1\n", "-clear", "hca mlx5_1")
	n.want(fine)
}

func TestTheDriverNamesTheCable(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.write("kmsg", "6,10,1000,-;mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged\n"+
		"6,11,1001,-;mlx5_core 0000:08:00.0: Port module event: module 0, Cable unplugged\n"+
		"6,12,1002,-;mlx5_core 0000:08:00.0: Port module event: module 0, Cable plugged\n"+
		"14,13,1003,-;mlx5_core 0000:08:00.0: Port module event: module 0, Cable forged")
	n.down("mlx5_0")
	n.down("mlx5_1")
	const unplugged = "exit 1\nInspect hca mlx5_0 port 1: state DOWN, expected ACTIVE; hca mlx5_1 port 1: state DOWN, expected ACTIVE, Cable unplugged\n"
	n.want(unplugged)
	n.write("kmsg", "")
	n.want(unplugged)
	n.up("mlx5_0")
	n.write("kmsg", "3,14,2000,-;mlx5_core 0000:18:00.0: mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature")
	n.want("exit 1\nInspect hca mlx5_1 port 1: state DOWN, expected ACTIVE, Cable error, High Temperature\n")
	n.up("mlx5_1")
	n.want(fine)
	n.want("exit 1\nMonitor hca mlx5_1 port 1: Cable error, High Temperature\n", "-min-repair", "Monitor")
	n.remove("kmsg")
	n.want(fine) // the log only explains
}

func TestARenamedAdapterIsNotGone(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.remove("sys/class/infiniband/mlx5_1")
	n.adapter("mlx5_bond_0", "0000:18:00.0")
	n.want(fine)
}

func TestAnotherBootRemembersNothing(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.down("mlx5_1")
	n.want(down)
	n.write("proc/sys/kernel/random/boot_id", "second")
	n.want(fine) // one of two: nobody knows whether it has a cable
}

func TestAManagementAdapterIsAskedOnce(t *testing.T) {
	n := newNode(t)
	n.write("sys/bus/pci/devices/0000:18:00.0/vpd", "SW_MNG")
	n.down("mlx5_1")
	n.want(fine)
	n.remove("sys/bus/pci/devices/0000:18:00.0/vpd")
	n.want(fine, "-count", "1")
	n.want("exit 1\nInspect hca ports: 1 of 2 expected ports are ACTIVE\n", "-count", "2")
}

func TestACorruptStateIsRebuilt(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.write("state/hca.json", `{"v":1,"boot`)
	n.want(fine)
	n.down("mlx5_1")
	n.want(down)
	if _, err := os.Stat(filepath.Join(n.dir, "state/hca.json.corrupt")); err != nil {
		t.Error("the corrupt file was not kept aside:", err)
	}
}

// TestALossIsSeenByALook runs the plugin as NPD does: it holds back its answer until a look, one a second, finds another one.
func TestALossIsSeenByALook(t *testing.T) {
	n := newNode(t)
	n.holds(func() { n.down("mlx5_1") })
}

// An hour lies between two looks that read more than the states. The kernel fills a file in again for each read of it, and does not
// replace it.
func TestALossIsSeenByALookAtTheStates(t *testing.T) {
	n := newNode(t)
	n.holds(func() {
		state, err := os.OpenFile(filepath.Join(n.dir, "sys/class/infiniband/mlx5_1/ports/1/state"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer state.Close()
		if _, err := state.WriteAt([]byte("1: DOWN  \n"), 0); err != nil {
			t.Fatal(err)
		}
	}, "-details-every", "1h")
}

// Another run may also have forgotten a fault.
func TestWhatAnotherRunHasWrittenIsSeen(t *testing.T) {
	n := newNode(t)
	n.holds(func() {
		n.down("mlx5_1")
		n.run() // it remembers the loss
	}, "-details-every", "1h")
}

// holds runs the plugin as NPD does. It holds back its answer until what happens then takes mlx5_1 down.
func (n *node) holds(happens func(), args ...string) {
	n.t.Helper()
	if err := os.WriteFile("/proc/self/comm", []byte("node-problem-detector"), 0); err != nil {
		n.t.Fatal(err)
	}
	args = append(args, "-hold", "1h")
	n.want(fine, args...) // nothing was told before: at once
	answer := make(chan string)
	go func() { answer <- n.run(args...) }()
	// It holds once it has marked its run as begun.
	begun := func() bool {
		files, err := filepath.Glob(filepath.Join(n.dir, "state/told-*"))
		if err != nil || len(files) != 1 {
			n.t.Fatalf("told: %q, %v", files, err)
		}
		told, err := os.ReadFile(files[0])
		return err == nil && strings.Contains(string(told), "begun")
	}
	for !begun() {
		select {
		case got := <-answer:
			n.t.Fatalf("it does not hold: %s", got)
		case <-time.After(10 * time.Millisecond):
		}
	}
	happens()
	select {
	case got := <-answer:
		if got != down {
			n.t.Errorf("got %swant %s", got, down)
		}
	case <-time.After(time.Minute):
		n.t.Fatal("no look of the hold sees it")
	}
}

func TestTheHistoryIsBounded(t *testing.T) {
	var h history
	adapters := []device{}
	for i := range 2 * maxPorts {
		adapters = append(adapters, device{Name: fmt.Sprint("mlx5_", i), Address: fmt.Sprint(i), Ports: []port{{Number: 1, State: "ACTIVE", Counters: map[string]uint64{}}}})
	}
	for look := range 200 {
		for i := range adapters {
			p := &adapters[i].Ports[0]
			p.State = []string{"ACTIVE", "DOWN"}[look%2]
			p.Counters[symbolErrors] = uint64(look)
		}
		h.advance(time.Duration(look)*time.Second, adapters, 3)
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Ports) != maxPorts || len(data) > maxPorts*4096 {
		t.Errorf("%d ports in %d bytes", len(h.Ports), len(data))
	}
}

func FuzzParseWord(f *testing.F) {
	f.Add("4: ACTIVE")
	f.Add("5: ")
	f.Fuzz(func(t *testing.T, s string) {
		if word, err := parseWord(s); err == nil && !strings.HasSuffix(s, ": "+word) {
			t.Errorf("%q from %q", word, s)
		}
	})
}

func FuzzParseModuleEvent(f *testing.F) {
	f.Add("mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature")
	f.Fuzz(func(t *testing.T, body string) {
		if address, event, ok := parseModuleEvent(body); ok && (len(address) != len("0000:5c:00.0") || event == "" || len(event) > 80) {
			t.Errorf("%q %q from %q", address, event, body)
		}
	})
}

// Attack 18: users choose the names of processes and files.
func FuzzTheNameOfAProcessIsNoModuleEvent(f *testing.F) {
	processes, files := kmsgtest.DriversWords()
	for i := range max(len(processes), len(files)) {
		f.Add(processes[i%len(processes)], files[i%len(files)])
	}
	f.Fuzz(func(t *testing.T, process, file string) {
		for _, body := range kmsgtest.About(process, file) {
			if address, event, ok := parseModuleEvent(body); ok {
				t.Errorf("%q %q from %q", address, event, body)
			}
		}
	})
}

func FuzzParseDevinfo(f *testing.F) {
	f.Add("hca_id: mlx5_0\n\tport: 1\n\t\tstate: PORT_ACTIVE (4)\n")
	f.Fuzz(func(t *testing.T, out string) {
		for _, p := range parseDevinfo(out).Ports {
			if p.State != "" && !strings.Contains(out, p.State) {
				t.Errorf("%+v from %q", p, out)
			}
		}
	})
}

func FuzzParseRate(f *testing.F) {
	f.Add("400 Gb/sec (4X NDR)")
	f.Add("2.5 Gb/sec (1X SDR)")
	f.Add("NaN Gb/sec")
	f.Fuzz(func(t *testing.T, s string) {
		if rate, err := parseRate(s); err == nil && !(rate >= 0 && rate <= 1e6) {
			t.Errorf("%g from %q", rate, s)
		}
	})
}

func FuzzParseMemlock(f *testing.F) {
	f.Add("Max locked memory         8388608              8388608              bytes\n")
	f.Add("Max locked memory         unlimited            unlimited            bytes\n")
	f.Add("Max locked memory")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := parseMemlock(s); err == nil && !strings.Contains(s, "Max locked memory") {
			t.Errorf("a limit from %q", s)
		}
	})
}

// hang makes a file one whose reads do not return, as an adapter does whose firmware does not answer.
func (n *node) hang(name string) {
	n.t.Helper()
	n.remove(name)
	if err := unix.Mkfifo(filepath.Join(n.dir, name), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// What hangs is named, and hides nothing else: neither other ports nor, if only its counters hang, what its own state is.
func TestAPortThatHangsHidesNoOther(t *testing.T) {
	binary := npdtest.Build(t)
	tests := map[string]struct{ file, want string }{
		"state":    {"mlx5_1/ports/1/state", "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE; hca mlx5_1 port 1: not read: did not answer in time"},
		"rate":     {"mlx5_0/ports/1/rate", "Inspect hca mlx5_1 port 1: state DOWN, expected ACTIVE; hca mlx5_0 port 1: not read: did not answer in time"},
		"adapter":  {"mlx5_0/board_id", "Inspect hca mlx5_1 port 1: state DOWN, expected ACTIVE; hca mlx5_0: not read: did not answer in time"},
		"counters": {"mlx5_0/ports/1/counters/symbol_error", "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE; hca mlx5_1 port 1: state DOWN, expected ACTIVE"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNodeOf(t, binary)
			n.want(fine)
			n.later(2 * time.Minute)
			n.down("mlx5_0")
			n.down("mlx5_1")
			n.hang("sys/class/infiniband/" + test.file)
			n.want("exit 1\n"+test.want+"\n", "-timeout", "4s")
		})
	}
}

func TestAPortThatHangsIsUnknown(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.hang("sys/class/infiniband/mlx5_1/ports/1/state")
	n.want("exit 2\nunknown: hca mlx5_1 port 1: did not answer in time\n", "-timeout", "4s")
}
