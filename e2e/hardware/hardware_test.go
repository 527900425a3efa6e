// Package hardware builds the archive that checks everything on real hardware, and runs it here on stand-ins.
package hardware

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

// archive is what `make hardware-kit` builds.
const archive = "bin/hardware-kit.tar.gz"

var unpacked struct {
	sync.Once
	dir string
	err error
}

// kit builds the archive and unpacks it, once for all tests.
func kit(t *testing.T) string {
	t.Helper()
	unpacked.Do(func() { unpacked.dir, unpacked.err = unpack() })
	if unpacked.err != nil {
		t.Fatal(unpacked.err)
	}
	return unpacked.dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	if unpacked.dir != "" {
		_ = os.RemoveAll(filepath.Dir(unpacked.dir))
	}
	os.Exit(code)
}

func unpack() (string, error) {
	root, err := components.Root()
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"make", "-C", root, "--no-print-directory", "hardware-kit"}, {"tar", "-xzf", filepath.Join(root, archive)},
	} {
		cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
		if args[0] == "tar" {
			if cmd.Dir, err = os.MkdirTemp("", "hardware-"); err != nil {
				return "", err
			}
			unpacked.dir = filepath.Join(cmd.Dir, "hardware-kit")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return unpacked.dir, fmt.Errorf("%q: %w\n%s", args, err, out)
		}
	}
	return unpacked.dir, nil
}

// node is a node with eight stand-in GPUs, nvidia-smi and libcuda, on which the kit runs.
type node struct {
	*nvmltest.Node
	t   *testing.T
	kit string
	// out and devices are the flags.
	out, devices string
	env          []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nvmltest.NewFor(t, "../../plugins/ecc"), t: t, kit: kit(t)}
	n.out, n.devices = n.Path("out"), n.Path("dev/nvidia")
	n.Write("driver/usr/bin/nvidia-smi", n.file("nvidia-smi"))
	if err := os.Chmod(n.Path("driver/usr/bin/nvidia-smi"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SMI_STANDIN", n.Path("smi"))
	n.Write("smi/q", n.file("smi-q.txt"))
	for gpu := range 8 {
		n.Write(fmt.Sprintf("smi/pm-00000000:1%d:00.0", gpu), "Enabled\n")
	}
	n.Library("libcuda.so.1", n.file("libcuda.c"), "github.com/NVIDIA/go-nvml", "pkg/nvml")
	n.Write("kmsg", "6,1,1,-;Linux version 6.8.0\n3,2,2,-;NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, GPU has fallen off the bus.\n")
	return n
}

func (n *node) file(name string) string {
	n.t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(content)
}

// ran is one run of the kit.
type ran struct {
	t      *testing.T
	exit   int
	stderr string
	took   time.Duration
	page   string
	dumps  map[string]string
	Result string
	Steps  []outcome
}

type outcome struct {
	Name                           string
	Differs, Answered, Unsupported []string
	Noted                          string
}

func (r *ran) step(name string) outcome {
	r.t.Helper()
	i := slices.IndexFunc(r.Steps, func(o outcome) bool { return o.Name == name })
	if i < 0 {
		r.t.Fatalf("no step %s in %+v", name, r.Steps)
	}
	return r.Steps[i]
}

// differs returns the steps that are not as expected.
func (r *ran) differs() (names []string) {
	for _, s := range r.Steps {
		if len(s.Differs) > 0 {
			names = append(names, s.Name)
		}
	}
	return names
}

// says checks that a step differs with a text.
func (r *ran) says(step, want string) {
	r.t.Helper()
	if got := strings.Join(r.step(step).Differs, "; "); !strings.Contains(got, want) {
		r.t.Errorf("%s: %q, want %q", step, got, want)
	}
}

// run runs the kit on the node, with short limits.
func (n *node) run(args ...string) *ran {
	n.t.Helper()
	all := append([]string{"-out", n.out, "-driver-root", n.DriverRoot(), "-sysfs", n.Path("sys"), "-devices", n.devices,
		"-kmsg", n.Path("kmsg"), "-pod-logs", n.Path("none"), "-limit", "4s", "-hold", "2s", "-every", "500ms"}, args...)
	// As a user runs it, from any folder.
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(n.kit, "run.sh"), all...)
	cmd.Dir, cmd.Env = n.t.TempDir(), append(os.Environ(), n.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begun := time.Now()
	page, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	r := &ran{t: n.t, exit: cmd.ProcessState.ExitCode(), stderr: stderr.String(), took: time.Since(begun), dumps: map[string]string{}}
	n.t.Logf("exit %d after %s\n%s\n%s", r.exit, r.took, r.stderr, page)
	if _, err := os.Stat(n.out); err != nil {
		return r
	}
	r.page = read(n.t, filepath.Join(n.out, "page.txt"))
	if r.page != strings.TrimPrefix(string(page), "\n") {
		n.t.Error("page.txt is not what was printed")
	}
	r.dumps["result.json"] = read(n.t, filepath.Join(n.out, "result.json"))
	if err := json.Unmarshal([]byte(r.dumps["result.json"]), r); err != nil {
		n.t.Fatal(err)
	}
	zipped, err := gzip.NewReader(strings.NewReader(read(n.t, filepath.Join(n.out, "dumps.tar.gz"))))
	if err != nil {
		n.t.Fatal(err)
	}
	for name, content := range untar(n.t, zipped) {
		r.dumps[name] = string(content)
	}
	if entries, err := os.ReadDir(n.out); err != nil || len(entries) != 3 {
		n.t.Errorf("left in the output: %v, %v", entries, err)
	}
	if programs, err := filepath.Glob(filepath.Join(n.kit, "programs-*")); err != nil || len(programs) > 0 {
		n.t.Errorf("left beside the kit: %v, %v", programs, err)
	}
	return r
}

// untar returns the files of an archive by their names.
func untar(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[filepath.Base(header.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// left fails if processes of the kit are still there.
func (n *node) left() {
	n.t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range all {
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, n.kit) {
			n.t.Errorf("left behind: %s", exe)
		}
	}
}

// The checks that ask NVML.
var nvml = []string{"ecc", "thermal", "gpucount", "nvlink", "stall"}

func TestHealthy(t *testing.T) {
	n := newNode(t)
	n.Write("smi/pm-00000000:13:00.0", "Disabled\n")
	r := n.run()
	if r.exit != 0 || r.Result != "expected" || len(r.differs()) > 0 {
		t.Errorf("exit %d, %s, differs %q", r.exit, r.Result, r.differs())
	}
	for name, want := range map[string]string{
		"kernel log": "2 records, 1 with an Xid; Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus; ", "podlog": "no logs of pods here: ",
		"PCI bus": "8 GPUs on the PCI bus, 8 with the kernel driver, 8 in NVML, 0 device files", "nvidia-smi": "8 GPUs",
		"preflight":        "storage_check 1, gpu_check 1",
		"repair reset-gpu": "refused: dry run, nothing was changed: ",
		"persistence mode": "Enabled: ", "hold": "beside a load by cuda-load; at once after ", "DCGM": "there is no libdcgm.so.4 here",
	} {
		if got := r.step(name).Noted; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// Where a test may not see all processes, repair refuses.
	got := r.step("repair check").Noted
	if !strings.HasPrefix(got, "healthy: ecc exited 0: ") && !strings.HasPrefix(got, "refused: which processes hold ") {
		t.Errorf("repair check: %q", got)
	}
	for gpu, want := range map[string]string{"2": "Enabled", "3": "Disabled"} {
		if got := strings.TrimSpace(read(t, n.Path("smi/pm-00000000:1"+gpu+":00.0"))); got != want {
			t.Errorf("persistence mode of GPU %s is %s and was %s", gpu, got, want)
		}
	}
	n.checkQuestions(r)
	n.checkSecrets(r)
	n.checkPrograms()
	n.left()

	// A dump that was kept can become a fixture.
	dump := filepath.Join(t.TempDir(), "ecc.json")
	if err := os.WriteFile(dump, []byte(r.dumps["ecc.json"]), 0o644); err != nil {
		t.Fatal(err)
	}
	got = npdtest.Run(t, npdtest.BuildIn(t, "../../plugins/ecc"), "-state-dir", t.TempDir(), "-snapshot", dump)
	if got != "exit 0\nno memory fault on any GPU\n" {
		t.Errorf("the kept dump gives %s", got)
	}
}

// checkQuestions compares the list of questions in the kit with what the stand-in has answered.
func (n *node) checkQuestions(r *ran) {
	n.t.Helper()
	var list strings.Builder
	for _, name := range slices.Sorted(slices.Values(nvml)) {
		for _, question := range r.step(name).Answered {
			fmt.Fprintln(&list, name, question)
		}
		if got := r.step(name).Unsupported; len(got) > 0 {
			n.t.Errorf("%s: not answered by the stand-in: %q", name, got)
		}
	}
	const file = "kit/questions.txt"
	if npdtest.Update() {
		if err := os.WriteFile(file, []byte(list.String()), 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
	if got := read(n.t, file); got != list.String() {
		n.t.Errorf("%s is\n%sand the stand-in answers\n%sgo test ./e2e/hardware -run Healthy -update writes it", file, got, list.String())
	}
}

// checkSecrets checks that nothing that was kept names the machine.
func (n *node) checkSecrets(r *ran) {
	n.t.Helper()
	host, err := os.Hostname()
	if err != nil {
		n.t.Fatal(err)
	}
	all := maps.Clone(r.dumps)
	all["page.txt"] = r.page
	for name, content := range all {
		for _, secret := range []string{"1652823050123", "3f0e4c9a", "a81c3f77d25ee1b0", "1821424190456", "0x1000", "alice", n.kit,
			strings.TrimSpace(read(n.t, "/proc/sys/kernel/random/boot_id"))} {
			if strings.Contains(content, secret) {
				n.t.Errorf("%s has %s", name, secret)
			}
		}
		if host != "localhost" && regexp.MustCompile(`\b`+regexp.QuoteMeta(host)+`\b`).MatchString(content) {
			n.t.Errorf("%s has the name of this machine, %s", name, host)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(content)) && !strings.HasPrefix(content, "unknown: ") {
			n.t.Errorf("%s is no JSON any more:\n%s", name, content)
		}
	}
	for _, want := range []string{"96.00.61.00.01", "692-2G520-0200-000", "GPU 00000000:10:00.0"} {
		if !strings.Contains(r.dumps["nvidia-smi-q.txt"], want) {
			n.t.Errorf("nvidia-smi -q has no %s:\n%s", want, r.dumps["nvidia-smi-q.txt"])
		}
	}
}

// checkPrograms checks the programs in the archive: all are there, and they start with the C library that run.sh asks for.
func (n *node) checkPrograms() {
	n.t.Helper()
	plugins, err := filepath.Glob("../../plugins/*")
	if err != nil {
		n.t.Fatal(err)
	}
	needs := strings.Fields(read(n.t, filepath.Join(n.kit, "needs")))
	programs := n.programs()
	dynamic := 0
	for _, path := range append(plugins, "preflight", "repair", "cuda-load") {
		name := filepath.Base(path)
		program, err := elf.NewFile(bytes.NewReader(programs[name]))
		if err != nil {
			n.t.Errorf("%s: %v", name, err)
			continue
		}
		libraries, err := program.DynamicVersionNeeds()
		if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
			n.t.Error(err)
		}
		for _, library := range libraries {
			dynamic++
			for _, need := range library.Needs {
				if version, ok := strings.CutPrefix(need.Dep, "GLIBC_"); ok && older(needs[1], version) {
					n.t.Errorf("%s needs glibc %s, and the kit says %s", name, version, needs[1])
				}
			}
		}
	}
	lock := regexp.MustCompile(`(?m)^libc6 ` + runtime.GOARCH + ` (\d+\.\d+)`).FindStringSubmatch(read(n.t, "../../images/debian.lock"))
	if dynamic == 0 || lock == nil || older(lock[1], needs[1]) {
		n.t.Errorf("%d programs need a glibc, %s; the images have %q", dynamic, needs[1], lock)
	}
	info, err := os.Stat(filepath.Join("../..", archive))
	if err != nil || info.Size() > 30<<20 {
		n.t.Errorf("the archive: %v, %v", info.Size(), err)
	}
}

// programs returns the programs in the archive.
func (n *node) programs() map[string][]byte {
	n.t.Helper()
	r, err := zstd.NewReader(strings.NewReader(read(n.t, filepath.Join(n.kit, "programs.tar.zst"))), zstd.WithDecoderMaxWindow(128<<20))
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close()
	return untar(n.t, r)
}

// older compares versions by their second numbers: all are 2.x.
func older(a, b string) bool {
	var x, y int
	_, _ = fmt.Sscanf(a, "2.%d", &x)
	_, _ = fmt.Sscanf(b, "2.%d", &y)
	return x < y
}

func TestALibraryThatHangs(t *testing.T) {
	n := newNode(t)
	n.Say("hang nvmlInit_v2")
	n.Write("smi/hang", "")
	r := n.run("-limit", "1s")
	if r.exit != 1 || r.took > 40*time.Second {
		t.Errorf("exit %d after %s", r.exit, r.took)
	}
	for _, name := range nvml {
		r.says(name, "no answer within ")
	}
	if got := r.step("nvidia-smi").Differs; !slices.Equal(got, []string{"nvidia-smi: no end within 2s "}) {
		t.Errorf("nvidia-smi: %q", got)
	}
	for _, name := range []string{"persistence mode", "hold", "repair reset-gpu", "repair check"} {
		if got := r.step(name).Noted; !strings.HasPrefix(got, "not run: ") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := r.step("library"); len(got.Unsupported) > 0 || len(r.step("xid on a fixture").Differs) > 0 {
		t.Errorf("%+v", got)
	}
	n.left()
}

func TestTheRunEndsInTime(t *testing.T) {
	n := newNode(t)
	n.Say("hang nvmlInit_v2")
	r := n.run("-limit", "2m", "-overall", "15s")
	if r.exit != 1 || r.took > time.Minute {
		t.Errorf("exit %d after %s", r.exit, r.took)
	}
	r.says("ecc", "the run was over")
	if got := r.step("hold").Noted; got != "not run: the run was over before" {
		t.Errorf("hold: %q", got)
	}
	n.left()
}

func TestALibraryThatIsSlow(t *testing.T) {
	n := newNode(t)
	n.Say("slow 2")
	r := n.run("-limit", "2s", "-overall", "1m")
	r.says("ecc", "unknown: no answer within 1.5s; it takes 2.")
	if got := r.step("thermal"); len(got.Differs) > 0 {
		t.Errorf("thermal has the longer limit, and %q", got.Differs)
	}
	n.left()
}

// A process that sleeps uninterruptibly cannot be ended: the run ends all the same, and names it.
func TestAProcessThatCannotBeKilled(t *testing.T) {
	n := newNode(t)
	frozen := npdtest.Freeze(t)
	n.Say("write " + filepath.Join(frozen.Dir, "x"))
	r := n.run("-limit", "3s")
	if r.exit != 1 || r.took > time.Minute {
		t.Errorf("exit %d after %s", r.exit, r.took)
	}
	for _, name := range nvml {
		r.says(name, name+" has left "+name+" (pid ")
		r.says(name, "unknown: driver: an earlier call into it has not returned")
	}
	for _, name := range []string{"persistence mode", "hold", "repair check"} {
		if got := r.step(name).Noted; got != "not run: NVML gives no answer" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestALibraryThatLacksSymbols(t *testing.T) {
	n := newNode(t)
	n.Before450()
	r := n.run()
	if r.exit != 0 || len(r.differs()) > 0 {
		t.Errorf("exit %d, differs %q", r.exit, r.differs())
	}
	for step, want := range map[string]string{
		"library": "nvmlDeviceGetRemappedRows", "ecc": "memory.remap.pending", "nvlink": "nvlink.fabric.completed",
	} {
		if got := r.step(step).Unsupported; !slices.Contains(got, want) {
			t.Errorf("%s: %q has no %s", step, got, want)
		}
	}
	if !strings.Contains(r.page, "\nNot answered here, and answered by the stand-in of the tests:\necc: memory.recovery, ") {
		t.Errorf("the page does not name the questions:\n%s", r.page)
	}
}

// Without -driver-root the library and nvidia-smi are searched for.
func TestTheDriverIsFound(t *testing.T) {
	n := newNode(t)
	n.env = []string{"LD_LIBRARY_PATH=" + n.Path("driver/usr/lib64"), "PATH=" + n.Path("driver/usr/bin") + ":" + os.Getenv("PATH")}
	r := n.run("-driver-root", "", "-overall", "30s", "-hold", "1s")
	if r.exit != 0 || len(r.differs()) > 0 || strings.Contains(r.dumps["result.json"], `"-driver-root"`) {
		t.Errorf("exit %d, differs %q:\n%s", r.exit, r.differs(), r.dumps["result.json"])
	}
	if got := r.step("library").Noted; !strings.HasPrefix(got, "libnvidia-ml.so.1 has ") {
		t.Errorf("library: %q", got)
	}
}

func TestNoLibrary(t *testing.T) {
	n := newNode(t)
	r := n.run("-driver-root", n.Path("empty"))
	if r.exit != 1 {
		t.Errorf("exit %d", r.exit)
	}
	for _, name := range nvml {
		r.says(name, "unknown: NVML: libnvidia-ml.so.1 not found")
	}
	if got := r.step("library").Noted; got != "no libnvidia-ml.so.1 was found: give -driver-root" {
		t.Errorf("library: %q", got)
	}
	if got := r.step("hold").Noted; !strings.HasPrefix(got, "no load by cuda-load: cuda-load: libcuda.so.1: ") {
		t.Errorf("hold: %q", got)
	}
	n.left()
}

func TestNoGPU(t *testing.T) {
	n := newNode(t)
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	// This test holds a device.
	n.Write("dev/nvidia0", "")
	device, err := os.Open(n.Path("dev/nvidia0"))
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	r := n.run("-driver-root", n.Path("empty"), "-kmsg", n.Path("none"))
	for _, when := range []string{"before", "after"} {
		if !strings.Contains(r.page, "\ndevices were held "+when+" it by hardware.test (pid ") {
			t.Errorf("the page does not say who held a device %s:\n%s", when, r.page)
		}
	}
	if r.exit != 2 || r.Result != "unknown" || len(r.differs()) > 0 {
		t.Errorf("exit %d, %s, differs %q", r.exit, r.Result, r.differs())
	}
	if got := r.step("kernel log").Noted; !strings.HasPrefix(got, "the kernel log cannot be read here: ") {
		t.Errorf("kernel log: %q", got)
	}
}

// The kit must see what it is for: that what a check says is not so.
func TestWhatDiffers(t *testing.T) {
	n := newNode(t)
	n.Unplug(7)
	n.Say("3.error.nvmlDeviceGetTotalEccErrors 999", "2.temperature 99")
	n.Write("smi/stubborn", "")
	r := n.run("-hold", "1s")
	for step, want := range map[string]string{
		"ecc": "gpu 0000:13:00: ECC errors: Unknown Error", "thermal": "a healthy GPU must be healthy, and exit ",
		"nvidia-smi":       "nvidia-smi has 8 GPUs, the PCI bus 7",
		"PCI bus":          `in NVML ["0000:10:00"`,
		"persistence mode": "the persistence mode of 00000000:10:00.0 is not put back: nvidia-smi -pm 1 -i 00000000:10:00.0",
		"preflight":        "gpu_check is ",
	} {
		r.says(step, want)
	}
	if r.exit != 1 {
		t.Errorf("exit %d", r.exit)
	}
}

// A plugin that holds must not have a device open between two looks, or no GPU could be reset. Here its log is taken for a device.
func TestADeviceThatStaysOpen(t *testing.T) {
	n := newNode(t)
	n.devices = filepath.Join(n.out, "work-")
	r := n.run()
	r.says("hold", "a device was open most of the time: in ")
}

// run.sh says what is wrong with the machine, before anything is started.
func TestTheWrongMachine(t *testing.T) {
	n := newNode(t)
	n.Unplug(0)
	for file, content := range map[string]string{"libc/getconf": "echo glibc 2.17", "machine/uname": "echo riscv64"} {
		n.Write(file, "#!/bin/sh\n"+content+"\n")
		if err := os.Chmod(n.Path(file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.env = []string{"PATH=" + n.Path("libc") + ":" + os.Getenv("PATH")}
	const old = "run.sh: glibc 2.17 of this machine is too old: the checks that load NVIDIA's libraries need 2."
	// What it does not know ends the kit before it looks at the machine.
	if r := n.run("nothing"); r.exit != 2 || !strings.HasPrefix(r.stderr, old) || !strings.Contains(r.stderr, `kit: unexpected argument "nothing"`) {
		t.Errorf("exit %d, it says %s", r.exit, r.stderr)
	}
	n.env = []string{"PATH=" + n.Path("machine") + ":" + os.Getenv("PATH")}
	n.out = n.Path("other")
	r := n.run()
	if r.exit != 2 || !strings.HasPrefix(r.stderr, "run.sh: this kit is for ") ||
		!strings.Contains(r.stderr, ", and this machine is riscv64: ") {
		t.Errorf("exit %d, %s", r.exit, r.stderr)
	}
}
