package monitors

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

// gpuChecks are the checks that share one look at the driver, with what each says on a healthy node.
var gpuChecks = map[string]string{
	"ecc": "no memory fault on any GPU", "gpucount": "all GPUs are on the PCI bus and known to the driver",
	"nvlink": "all NVLinks are up", "thermal": "no GPU is too hot or slowed down",
}

// gpuNode is a node whose checks run under this process, which has NPD's name.
type gpuNode struct {
	*nvmltest.Node
	t        *testing.T
	args     []string
	binaries map[string]string
}

func newGPUNode(t *testing.T) *gpuNode {
	t.Helper()
	n := &gpuNode{Node: nvmltest.NewFor(t, "../plugins/ecc"), t: t, binaries: map[string]string{}}
	_, n.args = n.Command()
	for check := range gpuChecks {
		n.binaries[check] = build(t, check)
	}
	n.say()
	return n
}

func (n *gpuNode) inits() string { return n.Path("inits") }

// say sets what the stand-in answers. It always counts the initialisations.
func (n *gpuNode) say(lines ...string) {
	n.t.Helper()
	n.Say(append(lines, "write "+n.inits())...)
}

// run runs a check as NPD does and returns its line.
func (n *gpuNode) run(check string, args ...string) string {
	n.t.Helper()
	out, err := exec.CommandContext(n.t.Context(), n.binaries[check], append(append([]string{}, n.args...), args...)...).Output()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		n.t.Error(err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// byHand runs a check below a shell, as on a terminal.
func (n *gpuNode) byHand(check string, args ...string) string {
	n.t.Helper()
	shell := append([]string{"-c", `"$@"; true`, "sh", n.binaries[check]}, append(append([]string{}, n.args...), args...)...)
	out, err := exec.CommandContext(n.t.Context(), "sh", shell...).Output()
	if err != nil {
		n.t.Error(err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// all runs all checks at the same time.
func (n *gpuNode) all(args ...string) map[string]string {
	n.t.Helper()
	return n.each(func(check string) string { return n.run(check, args...) })
}

// each asks all checks at the same time.
func (n *gpuNode) each(ask func(check string) string) map[string]string {
	answers := map[string]string{}
	var mutex sync.Mutex
	var group sync.WaitGroup
	for check := range gpuChecks {
		group.Go(func() {
			answer := ask(check)
			mutex.Lock()
			defer mutex.Unlock()
			answers[check] = answer
		})
	}
	group.Wait()
	return answers
}

// opened returns how often NVML was initialised since the last call.
func (n *gpuNode) opened() int {
	n.t.Helper()
	data, err := os.ReadFile(n.inits())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	if err := os.RemoveAll(n.inits()); err != nil {
		n.t.Fatal(err)
	}
	return len(data)
}

func (n *gpuNode) wantOpened(want int, when string) {
	n.t.Helper()
	if got := n.opened(); got != want {
		n.t.Errorf("%s: NVML was initialised %d times, want %d", when, got, want)
	}
}

func (n *gpuNode) want(want map[string]string, got map[string]string) {
	n.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("-want +got\n%s", diff)
	}
}

// reading is the file that the checks share.
func (n *gpuNode) reading() string { return filepath.Join(n.State(), "reading-nvml.json") }

// edit changes one value of the shared file.
func (n *gpuNode) edit(change func(file map[string]any)) {
	n.t.Helper()
	data, err := os.ReadFile(n.reading())
	if err != nil {
		n.t.Fatal(err)
	}
	file := map[string]any{}
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	if err := numbers.Decode(&file); err != nil {
		n.t.Fatal(err)
	}
	change(file)
	if data, err = json.Marshal(file); err != nil {
		n.t.Fatal(err)
	}
	n.replace(string(data), 0o600)
}

func (n *gpuNode) replace(text string, mode os.FileMode) {
	n.t.Helper()
	if err := errors.Join(os.RemoveAll(n.reading()), os.WriteFile(n.reading(), []byte(text), mode), os.Chmod(n.reading(), mode)); err != nil {
		n.t.Fatal(err)
	}
}

func each(text string) map[string]string {
	all := map[string]string{}
	for check := range gpuChecks {
		all[check] = text
	}
	return all
}

// A look at other moments is one more look at the driver.
func TestTheChecksThatShareLookAtTheSameMoments(t *testing.T) {
	for _, c := range []string{conditions.GPUMemoryError, conditions.GPUCountMismatch, conditions.GPUOverheated, conditions.NVLinkDown} {
		p := npd.New(c, "")
		if err := p.Parse(load(t, c+".json").Rules[0].Args); err != nil {
			t.Fatal(err)
		}
		if p.Hold != 5*time.Minute || p.Every != 30*time.Second || p.HealthyEvery != time.Minute {
			t.Errorf("%s: hold %s, every %s, healthy-every %s", c, p.Hold, p.Every, p.HealthyEvery)
		}
	}
}

func TestFourChecksThatStartTogetherOpenTheDriverOnce(t *testing.T) {
	n := newGPUNode(t)
	n.want(gpuChecks, n.all())
	n.wantOpened(1, "together")
	info, err := os.Stat(n.reading())
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the reading: %v, %v; want a file that only its owner can read", info, err)
	}
	// The answers are each check's own: what fails in one part is not known in another.
	n.say("2.remap.failed 1", "3.temperature 99", "4.links 17", "5.persistence 0", "6.error.nvmlDeviceGetNvLinkState 999",
		"7.error.nvmlDeviceGetRemappedRows 999", "1.error.nvmlDeviceGetMinorNumber 999")
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	n.want(map[string]string{
		"ecc":      "Replace gpu 0000:12:00: row remapping failed; gpu 0000:17:00: not read: remapped rows: Unknown Error",
		"gpucount": "unknown: gpu 0000:11:00: minor number: Unknown Error",
		"nvlink":   "ResetGPU gpu 0000:14:00: inactive NVLink 17; gpu 0000:16:00: not read: NVLink state: Unknown Error",
		"thermal":  "Reboot gpu 0000:13:00: at the temperature of its shutdown",
	}, n.all())
	n.wantOpened(1, "together, with faults")
}

// What its question meets is not met by the checks that taint, and they do not ask it.
func TestTheCheckOfAStallReadsByItself(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.binaries["stall"] = build(t, "stall")
	n.say("hang nvmlDeviceGetTotalEnergyConsumption")
	if got := n.run("stall", "-timeout", "4s"); got != "unknown: no answer within 3s" {
		t.Errorf("stall: %s", got)
	}
	n.opened()
	n.want(gpuChecks, n.all("-timeout", "1m"))
	n.wantOpened(1, "beside a check of a stall that hangs")
	n.say()
	if got := n.run("stall", "-timeout", "1m"); got != "no GPU that is in use stands still" {
		t.Errorf("stall: %s", got)
	}
	n.wantOpened(1, "for stall alone")
}

func TestASlowDriverIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("slow 2")
	n.want(gpuChecks, n.all("-timeout", "1m"))
	n.wantOpened(1, "a slow nvmlInit")
}

func TestOnlyNPDsRunsJudgeWhatAnotherCheckHasRead(t *testing.T) {
	n := newGPUNode(t)
	n.run("thermal")
	n.opened()
	n.say("2.remap.failed 1")
	const sick = "Replace gpu 0000:12:00: row remapping failed"
	if got := n.run("ecc"); got != gpuChecks["ecc"] {
		t.Errorf("under NPD, just after another check: %s", got)
	}
	n.wantOpened(0, "under NPD, just after another check")
	if got := n.byHand("ecc"); got != sick {
		t.Errorf("by hand: %s", got)
	}
	n.wantOpened(1, "by hand")
	if got := n.run("ecc"); got != gpuChecks["ecc"] {
		t.Errorf("under NPD, just after a run by hand: %s", got)
	}
	n.run("thermal")
	n.say()
	if got := n.run("ecc", "-dump"); strings.Contains(got, `"failed": true`) {
		t.Errorf("-dump shows an old reading")
	}
	n.wantOpened(1, "-dump")
}

func TestAReadingThatMayNotBeJudged(t *testing.T) {
	t.Parallel()
	begun := func(by time.Duration) func(map[string]any) {
		return func(file map[string]any) {
			at, _ := file["begun"].(json.Number).Int64()
			file["begun"] = at + int64(by)
		}
	}
	set := func(key string, value any) func(map[string]any) {
		return func(file map[string]any) { file[key] = value }
	}
	n := newGPUNode(t)
	tests := map[string]func(){
		"too old":               func() { n.edit(begun(-time.Minute)) },
		"from the future":       func() { n.edit(begun(time.Hour)) },
		"from before a reboot":  func() { n.edit(set("bootID", "another")) },
		"of another build":      func() { n.edit(set("version", "v0.0.1")) },
		"with null":             func() { n.edit(set("reading", nil)) },
		"with nothing":          func() { n.edit(set("reading", map[string]any{})) },
		"without a part":        func() { n.edit(set("reading", map[string]any{"parts": map[string]any{"memory": []any{}}})) },
		"without a reading":     func() { n.edit(func(file map[string]any) { delete(file, "reading") }) },
		"empty":                 func() { n.replace("", 0o600) },
		"cut short":             func() { data, _ := os.ReadFile(n.reading()); n.replace(string(data[:len(data)/2]), 0o600) },
		"not JSON":              func() { n.replace("\x00\xff", 0o600) },
		"a folder":              func() { _ = os.Remove(n.reading()); _ = os.Mkdir(n.reading(), 0o700) },
		"writable by the group": func() { _ = os.Chmod(n.reading(), 0o620) },
		"of another user":       func() { _ = os.Chown(n.reading(), 65534, 0) },
		"a link": func() {
			_ = os.Rename(n.reading(), n.Path("moved"))
			_ = os.Symlink(n.Path("moved"), n.reading())
		},
		"of a driver that was loaded again": func() {
			// Another folder: not one that was given back at once.
			n.Write("sys/module/keep", "")
			_ = os.Rename(n.Path("sys/module/nvidia"), n.Path("sys/module/before"))
			n.Module("580.95.05")
			_ = os.RemoveAll(n.Path("sys/module/before"))
		},
		"of another driver":         func() { n.Write("sys/module/nvidia/version", "570.1\n") },
		"from before a device came": func() { n.Write("sys/bus/pci/devices/0000:99:00.0/vendor", "0x8086\n") },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(n.reading()); err != nil {
				t.Fatal(err)
			}
			n.say("2.remap.failed 1")
			n.run("thermal")
			n.say()
			// Without it, the reading is judged.
			if got := n.run("ecc"); got != "Replace gpu 0000:12:00: row remapping failed" {
				t.Fatalf("a good reading: %s", got)
			}
			n.wantOpened(1, "before")
			spoil()
			if got := n.run("ecc"); got != gpuChecks["ecc"] {
				t.Errorf("got %s", got)
			}
			n.wantOpened(1, name)
			n.Module("580.95.05")
		})
	}
}

func TestAReadingDoesNotGoByTheClockThatCanBeSet(t *testing.T) {
	n := newGPUNode(t)
	n.run("thermal")
	n.opened()
	for _, at := range []time.Time{time.Unix(1, 0), time.Now().Add(24 * time.Hour)} {
		if err := os.Chtimes(n.reading(), at, at); err != nil {
			t.Fatal(err)
		}
		n.run("ecc")
		n.wantOpened(0, "a file that seems to be of "+at.String())
	}
}

func TestAUnpluggedGPUIsSeenAtOnce(t *testing.T) {
	n := newGPUNode(t)
	n.want(gpuChecks, n.all())
	n.Unplug(3)
	if got := n.run("gpucount"); !strings.Contains(got, "gpu 0000:13:00: gone from the PCI bus") {
		t.Error(got)
	}
}

func TestAGPUThatIsGivenToAVMIsSeenAtOnce(t *testing.T) {
	n := newGPUNode(t)
	n.say("3.hidden 1")
	n.run("thermal")
	n.Plug(3, "vfio-pci")
	if got := n.run("gpucount"); got != gpuChecks["gpucount"] {
		t.Error(got)
	}
}

func TestAReadingOfADriverThatChangedMeanwhileIsForItsOwnLook(t *testing.T) {
	n := newGPUNode(t)
	n.say("slow 1")
	done := make(chan string)
	go func() { done <- n.run("ecc", "-timeout", "1m") }()
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(n.State(), "worker-nvml.json")); return err == nil })
	n.Write("sys/module/nvidia/version", "590.1\n")
	if got := <-done; got != gpuChecks["ecc"] {
		t.Error(got)
	}
	if _, err := os.Stat(n.reading()); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is kept for the others:", err)
	}
}

func TestAHungDriverMakesAllChecksUnknown(t *testing.T) {
	t.Parallel()
	n, frozen := newGPUNode(t), npdtest.Freeze(t)
	n.want(gpuChecks, n.all())
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	// A worker that can be killed: one text at every look, whichever of the checks had the lock.
	n.say("hang nvmlInit_v2")
	for range 2 {
		n.want(each("unknown: no answer within 6s"), n.all("-timeout", "8s"))
	}
	// One that cannot.
	n.Say("write " + filepath.Join(frozen.Dir, "file"))
	n.want(each("unknown: driver: an earlier call into it has not returned"), n.all("-timeout", "8s", "-hung-after", "1h"))
	n.want(each("Reboot driver: a call into it has not returned for 1ns and cannot be killed"), n.all("-timeout", "8s", "-hung-after", "1ns"))
	frozen.Thaw()
	n.say()
	waitFor(t, func() bool { return cmp.Equal(gpuChecks, n.all()) })
}

// partsWithFaults is what the checks say when GPU 2 has a failed row remap, GPU 3 is too hot, and NVLink is not answered.
func partsWithFaults(nvlink string) map[string]string {
	return map[string]string{
		"ecc": "Replace gpu 0000:12:00: row remapping failed", "gpucount": gpuChecks["gpucount"], "nvlink": nvlink,
		"thermal": "Reboot gpu 0000:13:00: at the temperature of its shutdown",
	}
}

func TestAQuestionThatHangsHidesTheOtherFaultsForOneLook(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("hang nvmlDeviceGetNvLinkState", "2.remap.failed 1", "3.temperature 99")
	n.want(each("unknown: no answer within 4.5s"), n.all("-timeout", "6s"))
	for range 2 {
		n.want(partsWithFaults("unknown: no answer within 4.5s"), n.all("-timeout", "6s"))
	}
	// Not while the checks read apart.
	n.say()
	n.want(gpuChecks, n.all())
	n.opened()
	n.want(gpuChecks, n.all())
	n.wantOpened(4, "apart")
	// After a while one of them tries a shared read.
	n.longApart()
	n.want(gpuChecks, n.all())
	n.opened()
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	n.want(gpuChecks, n.all())
	n.wantOpened(1, "together again")
	// A try that hangs changes no answer, and the others do not wait for it.
	n.say("hang nvmlDeviceGetNvLinkState", "2.remap.failed 1", "3.temperature 99")
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	n.all("-timeout", "6s")
	n.longApart()
	n.want(partsWithFaults("unknown: no answer within 4.5s"), n.all("-timeout", "6s"))
	n.opened()
	n.want(partsWithFaults("unknown: no answer within 4.5s"), n.all("-timeout", "6s"))
	n.wantOpened(4, "just after a try that hung")
}

// The calls about one GPU hang: the others are judged at every look, and in the second one the parts of it that answer.
func TestAGPUThatHangsHidesNoOther(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	const nvlink = "ResetGPU gpu 0000:16:00: inactive NVLink 17; gpu 0000:14:00: not read: the calls about it do not return"
	// Two of them leave no time for a read apart.
	n.say("4.hang nvmlDeviceGetNvLinkState", "5.hang nvmlDeviceGetNvLinkState", "6.links 17")
	if got := n.run("nvlink", "-timeout", "12s"); got != nvlink+"; gpu 0000:15:00: not read: the calls about it do not return" {
		t.Error(got)
	}
	n.say("4.hang nvmlDeviceGetNvLinkState", "2.remap.failed 1", "3.temperature 99", "6.links 17", "4.remap.failed 1")
	want := partsWithFaults(nvlink)
	want["ecc"] = "Replace gpu 0000:12:00: row remapping failed; gpu 0000:14:00: row remapping failed"
	n.opened()
	n.want(want, n.all("-timeout", "12s"))
	n.wantOpened(4, "apart")
	n.longApart()
	n.want(want, n.all("-timeout", "12s"))
	n.opened()
	n.want(want, n.all("-timeout", "12s"))
	n.wantOpened(4, "just after a try in which a GPU hung")
}

// What has not enough time for an answer is not begun: it would end by a kill in a call into the driver.
func TestACheckThatHasWaitedLongBeginsNoRead(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("slow 8")
	first := make(chan string)
	go func() { first <- n.run("ecc", "-timeout", "1m") }()
	waitFor(t, func() bool { _, err := os.Stat(n.inits()); return err == nil })
	// So that what the first reads cannot be kept.
	if err := os.MkdirAll(filepath.Join(n.reading(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := n.run("thermal", "-timeout", "12s"); got != "unknown: no answer within 9s" {
		t.Error(got)
	}
	if got := <-first; got != gpuChecks["ecc"] {
		t.Error(got)
	}
	n.wantOpened(1, "by the first alone")
}

func TestACheckWhoseOwnPartTookLongTriesNoSharedRead(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("crash nvmlDeviceGetNvLinkState")
	n.run("ecc")
	n.longApart()
	n.opened()
	n.say("slow 4")
	n.run("ecc", "-timeout", "8s")
	n.wantOpened(1, "its own part")
}

func TestOneSharedReadIsEnoughToShareAgain(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("crash nvmlDeviceGetNvLinkState")
	n.run("ecc")
	n.longApart()
	n.opened()
	n.say("slow 4")
	slow := make(chan string)
	go func() { slow <- n.run("thermal", "-timeout", "1m") }()
	waitFor(t, func() bool { _, err := os.Stat(n.inits()); return err == nil })
	n.say()
	for check, got := range map[string]string{"ecc": n.run("ecc", "-timeout", "1m"), "thermal": <-slow} {
		if got != gpuChecks[check] {
			t.Errorf("%s: %s", check, got)
		}
	}
	n.wantOpened(3, "the part of each, and one for all")
}

// longApart makes the checks read apart since long ago.
func (n *gpuNode) longApart() {
	n.t.Helper()
	path := filepath.Join(n.State(), "apart-nvml.json")
	var file map[string]any
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	file["state"] = -time.Hour
	if data, err = json.Marshal(file); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func TestAWorkerThatDiesHidesNoOtherFault(t *testing.T) {
	n := newGPUNode(t)
	n.say("crash nvmlDeviceGetNvLinkState", "2.remap.failed 1", "3.temperature 99")
	got := n.all()
	if nvlink := got["nvlink"]; !strings.HasPrefix(nvlink, "unknown: the worker gave no answer: ") {
		t.Errorf("nvlink: %s", nvlink)
	}
	n.want(partsWithFaults(got["nvlink"]), got)
	n.wantOpened(5, "one read for all, and one for each check")
	if _, err := os.Stat(n.reading()); !errors.Is(err, os.ErrNotExist) {
		t.Error("there is a reading:", err)
	}
	n.say()
	n.want(gpuChecks, n.all())
}

func TestARunThatAsksMoreDoesNotMakeTheOthersWait(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("slow 7")
	n.want(gpuChecks, n.each(func(check string) string {
		if check == "nvlink" {
			return n.run(check, "-timeout", "16s", "-min-repair", "Monitor")
		}
		return n.run(check, "-timeout", "16s")
	}))
	n.wantOpened(2, "one for three checks, one for the errors of the links")
}

func TestARunByHandDoesNotMakeNPDsChecksWait(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t)
	n.say("slow 7")
	dump := make(chan string)
	go func() { dump <- n.byHand("nvlink", "-dump", "-timeout", "16s") }()
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(n.State(), "worker-nvlink.json")); return err == nil })
	n.want(gpuChecks, n.all("-timeout", "16s"))
	if got := <-dump; !strings.Contains(got, `"nvlink": {`) {
		t.Errorf("-dump: %s", got)
	}
	n.say("slow 3")
	n.want(gpuChecks, n.each(func(check string) string { return n.byHand(check) }))
}

func TestWhatOnlyOneRunCouldNotReadIsNotKnownToOthers(t *testing.T) {
	n := newGPUNode(t)
	// By hand, without permission; the devices of NPD's runs are those of the file.
	n.say("init 4")
	if got := n.byHand("thermal"); got != "unknown: NVML: Failed to initialize NVML: Insufficient Permissions" {
		t.Error(got)
	}
	n.say()
	n.want(gpuChecks, n.all())
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	// Under NPD, for a moment.
	n.say("init 999")
	n.run("thermal")
	n.say()
	n.want(gpuChecks, n.all())
}

func TestACheckThatIsKilledHalfWayLeavesNoReading(t *testing.T) {
	n := newGPUNode(t)
	n.say("slow 1000")
	check := exec.CommandContext(t.Context(), n.binaries["ecc"], append(n.args, "-timeout", "1h")...)
	if err := check.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(n.State(), "worker-nvml.json")); return err == nil })
	if err := check.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = check.Wait()
	n.say()
	n.want(gpuChecks, n.all("-timeout", "1m"))
}

func TestMaintenanceOpensNothingThoughAReadingIsFresh(t *testing.T) {
	n := newGPUNode(t)
	n.want(gpuChecks, n.all())
	n.opened()
	n.say("2.remap.failed 1")
	if err := os.WriteFile(filepath.Join(n.State(), "maintenance"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(n.reading()); err != nil {
		t.Fatal(err)
	}
	n.want(gpuChecks, n.all())
	n.wantOpened(0, "under maintenance")
}

func TestANodeWithoutAGPUStartsNoWorker(t *testing.T) {
	n := newGPUNode(t)
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	want := each("no NVIDIA GPU")
	want["gpucount"] = "unknown: gpu count: no GPU found on the PCI bus, set -expect to how many there should be"
	n.want(want, n.all())
	n.wantOpened(0, "without a GPU")
	if _, err := os.Stat(filepath.Join(n.State(), "worker-nvml.json")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a worker was started:", err)
	}
}

// waitFor returns when something is so.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.After(patience); !is(); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within %s", patience)
		}
	}
}
