package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// A line of the last two minutes may wait for those beside it, and the machine of the tests may have been up for any time.
func TestTheTimesOfGoldenLogsAreOfNoMachine(t *testing.T) {
	const most = 100 * 365 * 24 * time.Hour
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	record := regexp.MustCompile(`(?m)^[0-9]+,[0-9]+,([0-9]{9,}),`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range record.FindAllStringSubmatch(string(text), -1) {
			if at, err := strconv.ParseInt(match[1], 10, 64); err != nil || at < most.Microseconds() {
				t.Errorf("%s has a record of %s µs, %v: a machine may have been up for as long", file, match[1], err)
			}
		}
	}
}

const (
	reboot = "exit 1\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus\n"
	reset  = "exit 1\nResetGPU gpu 0000:4e:00: Xid 119 GSP RPC timeout\n"
	fine   = "exit 0\nno fault of a GPU in the kernel log of this boot\n"
)

// node is a kernel log, a boot id and a state directory that the plugin runs on.
type node struct {
	t           *testing.T
	binary, dir string
	seq         int
}

func newNode(t *testing.T) *node {
	n := &node{t: t, binary: npdtest.Build(t), dir: t.TempDir()}
	n.boot("first")
	return n
}

// boot starts with an empty kernel log and another boot id.
func (n *node) boot(id string) {
	n.t.Helper()
	n.write("proc/sys/kernel/random/boot_id", id+"\n")
	n.write("kmsg", "")
	n.seq = 0
}

func (n *node) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// kernel appends records to the kernel log.
func (n *node) kernel(bodies ...string) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.dir, "kmsg"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	for _, body := range bodies {
		fmt.Fprintf(f, "3,%d,%d,-;%s\n", n.seq, 1000+n.seq, body)
		n.seq++
	}
}

// wrap empties the kernel log: the ring has overwritten all of it.
func (n *node) wrap() { n.write("kmsg", "") }

func (n *node) run(args ...string) string {
	n.t.Helper()
	return npdtest.Run(n.t, n.binary, append([]string{
		"-kmsg", filepath.Join(n.dir, "kmsg"), "-procfs", filepath.Join(n.dir, "proc"), "-state-dir", filepath.Join(n.dir, "state"),
	}, args...)...)
}

func (n *node) want(want string, args ...string) {
	n.t.Helper()
	if got := n.run(args...); got != want {
		n.t.Errorf("got  %swant %s", got, want)
	}
}

func (n *node) dump() (s snapshot) {
	n.t.Helper()
	out := strings.TrimPrefix(n.run("-dump"), "exit 0\n")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return s
}

const (
	lostGPU = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."
	gspGone = "NVRM: Xid (PCI:0000:4e:00): 119, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
)

func TestAFaultStaysUntilTheNextBoot(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.kernel("usb 1-1: new device", lostGPU)
	n.want(reboot)
	n.wrap()
	n.want(reboot)
	n.kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15")
	n.want(reboot)
	n.boot("second")
	n.want(fine)
}

func TestADriverLoadClearsWhatAResetClears(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	n.want(reset)
	n.kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15")
	n.want(fine)
	n.kernel(gspGone)
	n.want(reset)
}

func TestClearForgetsWhatHappenedBeforeIt(t *testing.T) {
	n := newNode(t)
	n.kernel(lostGPU)
	n.want(reboot)
	n.want("exit 0\nnothing to clear\n", "-clear", "gpu", "0000:1b:00")
	n.want(reboot)
	n.kernel("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
	n.want("exit 0\ncleared gpu 0000:1b:00\n", "-clear", "0000:1b:00") // a fault that no run has read yet
	n.want(reboot)
	n.want("exit 0\ncleared gpu 0000:4e:00\n", "-clear")
	n.want(fine)
	n.kernel(lostGPU)
	n.want(reboot)
}

func TestAFaultOutlivesABrokenKernelLog(t *testing.T) {
	n := newNode(t)
	n.kernel(lostGPU)
	n.want(reboot)
	absent := filepath.Join(n.dir, "absent")
	n.want(fmt.Sprintf("exit 1\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus; kernel log: not read: open %s: no such file or directory\n", absent), "-kmsg", absent)
}

func TestACorruptStateIsRebuiltFromTheRing(t *testing.T) {
	n := newNode(t)
	n.kernel(lostGPU)
	n.want(reboot)
	n.write("state/xid.json", `{"v":1,"bootID":"first","state":{"ne`)
	n.want(reboot)
	if _, err := os.Stat(filepath.Join(n.dir, "state/xid.json.corrupt")); err != nil {
		t.Error("the corrupt file was not kept aside:", err)
	}
}

func TestAnUnwritableStateDirectory(t *testing.T) {
	n := newNode(t)
	n.kernel(lostGPU)
	n.write("file", "")
	n.want("exit 1\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus\n", "-state-dir", filepath.Join(n.dir, "file"))
}

func TestInjectedRecordsAreDroppedByTheNextRunWithout(t *testing.T) {
	n := newNode(t)
	n.write("kmsg", "11,0,9,-;"+lostGPU+"\n")
	const injected = "exit 1\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus (injected)\n"
	n.want(injected, "-allow-injected")
	n.want(injected, "-allow-injected")
	n.want(fine)
	n.want(fine, "-allow-injected")
}

func TestAGapIsReportedAndSurvived(t *testing.T) {
	n := newNode(t)
	n.kernel("one", "two")
	if n.dump().Gap {
		t.Error("a gap in a whole log")
	}
	n.wrap()
	n.seq += 1000
	n.kernel(gspGone)
	n.want(reset)
	if s := n.dump(); !s.Gap || len(s.Latched) != 1 {
		t.Errorf("%+v", s)
	}
}

func TestADumpIsJudgedTheSame(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	dump := strings.TrimPrefix(n.run("-dump"), "exit 0\n")
	n.write("dump.json", dump)
	n.want(reset, "-snapshot", filepath.Join(n.dir, "dump.json"), "-kmsg", "/nonexistent")
}

func TestAFaultOfTwoBootsIsCountedTwice(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	n.want(reset)
	n.boot("second")
	n.want(fine)
	n.kernel(gspGone)
	n.want(reset)
	if s := n.dump(); len(s.Latched) != 1 || s.Latched[0].SeenBoots != 2 {
		t.Errorf("%+v", s.Latched)
	}
}

func TestADumpNamesTheGPU(t *testing.T) {
	n := newNode(t)
	n.write("proc/driver/nvidia/gpus/0000:4e:00.0/information", "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1\nDevice Minor: \t 5\n")
	n.kernel("NVRM: GPU at PCI:0000:1b:00: GPU-8f3c0d6e-0000-0000-0000-000000000000", gspGone)
	gpus := n.dump().GPUs
	want := map[string]xid.GPU{
		"0000:4e:00": {UUID: "GPU-1", Index: "5", Model: "NVIDIA H200"},
		"0000:1b:00": {UUID: "GPU-8f3c0d6e-0000-0000-0000-000000000000"},
	}
	if diff := cmp.Diff(want, gpus); diff != "" {
		t.Error(diff)
	}
}

func TestADumpHasTheDocumentedKeys(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	var dump struct {
		BootID  string
		Gap     *bool
		Latched []map[string]any
		Events  []map[string]any
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(n.run("-dump"), "exit 0\n")), &dump); err != nil {
		t.Fatal(err)
	}
	if dump.BootID != "first" || dump.Gap == nil || len(dump.Events) != 1 || len(dump.Latched) != 1 {
		t.Fatalf("%+v", dump)
	}
	for _, key := range []string{"kind", "code", "device", "repair", "cause", "mig", "text", "time"} {
		if _, ok := dump.Events[0][key]; !ok {
			t.Errorf("an event has no key %q: %v", key, dump.Events[0])
		}
	}
}

func TestAResetThatIsNotInTheLog(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	n.want(reset)
	n.write("state/gpu-recovery.json", `{"v":1,"bootID":"first","state":{"0000:4e:00":{"needed":true}}}`)
	n.want(reset)
	n.write("state/gpu-recovery.json", `{"v":1,"bootID":"first","state":{"0000:4e:00":{"recovered":1}}}`)
	n.want(reset) // before the line was read
	n.write("state/gpu-recovery.json", `{"v":1,"bootID":"another","state":{"0000:4e:00":{"recovered":1000000000000000000}}}`)
	n.want(reset)
	n.write("state/gpu-recovery.json", `{"v":1,"bootID":"first","state":{"0000:4e:00":{"recovered":1000000000000000000}}}`)
	n.want(fine)
}

func TestAnInjectedRecordIsIgnoredByOtherRuns(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.write("state/xid.json", `{"v":1,"bootID":"first","state":{"next":9,"events":[{"kind":"xid","code":79,"device":"0000:4e:00","cause":0,"mig":"","text":"x","at":1,"last":1,"count":1,"injected":true}]}}`)
	n.want("exit 1\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus (injected)\n", "-allow-injected")
	n.want(fine)
}

// An hour lies between two looks, but the class of an Xid 48 is decided by the lines of the next two seconds.
func TestASettledLineIsJudgedWithoutANewOne(t *testing.T) {
	if err := os.WriteFile("/proc/self/comm", []byte("node-problem-detector"), 0); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	path := filepath.Join(n.dir, "kmsg")
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	kernel, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	args := []string{"-hold", "1h", "-every", "1h"}
	n.want(fine, args...) // nothing was told before: at once
	answer := make(chan string)
	go func() { answer <- n.run(args...) }()
	now, err := npd.Uptime()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(kernel, "3,1,%d,-;NVRM: Xid (PCI:0000:4e:00): 48, pid=1, name=x, An uncorrectable double bit error (DBE) has been detected on GPU.\n", now.Microseconds())
	select {
	case got := <-answer:
		if !strings.HasPrefix(got, "exit 1\nResetGPU gpu 0000:4e:00: Xid 48 ") {
			t.Errorf("got %s", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("no look sees it")
	}
}

// What is read is reported although the rest takes too long.
func TestALogThatIsTooLongForOneLook(t *testing.T) {
	n := newNode(t)
	n.kernel(gspGone)
	f, err := os.OpenFile(filepath.Join(n.dir, "kmsg"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for seq := range 6_000_000 {
		fmt.Fprintf(w, "6,%d,2000,-;x\n", 10+seq)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	// A machine that gives the plugin no quarter of a second beside others has no answer. The next try begins anew: with the same state it would
	// read on where the last one has ended.
	want := func(want string, args ...string) {
		t.Helper()
		got := "no answer within 1s"
		for asked := 0; asked < 10 && strings.Contains(got, "no answer within 1s"); asked++ {
			got = n.run(append(args, "-state-dir", t.TempDir())...)
		}
		if got != want {
			t.Errorf("got  %swant %s", got, want)
		}
	}
	want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: still reading the kernel log\n", "-timeout", "1s")

	log := filepath.Join(n.dir, "log")
	n.write("log", gspGone+"\n"+strings.Repeat("x", 2*longest)+"\n"+strings.Repeat("x\n", 2_500_000))
	want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+log+" has more lines than can be read in 750ms, use a longer -timeout\n",
		"-timeout", "1s", "-log", log)
	n.write("log", strings.Repeat("x", 2*longest)+"\n"+gspGone)
	n.want(reset, "-log", log)
}
