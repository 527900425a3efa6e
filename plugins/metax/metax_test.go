package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg/kmsgtest"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// node has one GPU and a tool that reports it as healthy and counts its runs.
type node struct {
	t           *testing.T
	binary, dir string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, binary: npdtest.Build(t), dir: t.TempDir()}
	n.write("proc/sys/kernel/random/boot_id", "first")
	n.write("proc/uptime", "86400.00 1.00")
	n.write("kmsg", "")
	gpu := "sys/bus/pci/devices/0000:08:00.0/"
	n.write(gpu+"vendor", "0x9999")
	n.write(gpu+"device", "0x4001")
	n.write(gpu+"class", "0x038000")
	n.write("mx-smi", "#!/bin/sh\necho $1 >>"+n.path("runs")+`
case $1 in
-L) printf 'mx-smi  version: 2.2.9\nGPU#0 MXC500 0000:08:00.0 Available (UUID: GPU-1)\n' ;;
*) printf 'MetaX System Management Interface Log\nAttached GPUs : 1\nGPU#0 MXC500 0000:08:00.0\nhotspot(sensor0) : 39.00 C\nDouble Bit ECC : 0\n' ;;
esac`)
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content+"\n"), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) want(want string, args ...string) {
	n.t.Helper()
	got := npdtest.Run(n.t, n.binary, append([]string{"-mx-smi", n.path("mx-smi"), "-sysfs", n.path("sys"), "-procfs", n.path("proc"),
		"-kmsg", n.path("kmsg"), "-state-dir", n.path("state")}, args...)...)
	if got != want {
		n.t.Errorf("got  %swant %s", got, want)
	}
}

const fine = "exit 0\nMetaX GPUs are as expected\n"

func TestTheDailyCheckRunsOnce(t *testing.T) {
	n := newNode(t)
	runs := func(want int) {
		t.Helper()
		data, err := os.ReadFile(n.path("runs"))
		if got := strings.Count(string(data), "-L"); err != nil || got != want {
			t.Errorf("the tool ran %d times, want %d, %v", got, want, err)
		}
	}
	n.want(fine, "-at", "10:00")
	runs(1)
	n.want(fine, "-at", "10:00")
	runs(1)
	n.want(fine)
	runs(2)
}

func TestAnErrorOfTheDriverStaysUntilCleared(t *testing.T) {
	n := newNode(t)
	n.want(fine)
	n.write("kmsg", "3,7,1000,-;METAX.B800.ATU.ERROR EID (0000:08:00.0): 0x2101, ATU fault")
	const sick = "exit 1\nInspect gpu 0000:08:00.0: ATU ERROR EID 0x2101 ATU fault\n"
	n.want(sick)
	n.write("kmsg", "")
	n.want(sick)
	n.want("exit 0\nnothing to clear\n", "-clear", "0000:09:00.0")
	n.want("exit 0\ncleared gpu 0000:08:00.0\n", "-clear", "gpu")
	n.want(fine)
	n.write("kmsg", "3,8,1000,-;METAX.B800.ATU.ERROR")
	n.want("exit 1\nInspect gpu 0000:08:00.0: ATU ERROR\n")
	n.write("kmsg", "")
	n.write("proc/sys/kernel/random/boot_id", "second")
	n.want(fine)
}

func TestAToolThatHangsHidesNoErrorOfTheDriver(t *testing.T) {
	n := newNode(t)
	n.write("mx-smi", "#!/bin/sh\nexec sleep 60")
	n.write("kmsg", "3,7,1000,-;METAX.B800.ATU.ERROR")
	n.want("exit 1\nInspect gpu 0000:08:00.0: ATU ERROR; mx-smi: not read: "+n.path("mx-smi")+" -L: did not answer in time\n", "-timeout", "4s")
}

func FuzzParseList(f *testing.F) {
	f.Add("mx-smi  version: 2.3.1\nGPU#0    MXC550      0000:2b:00.0   Available (UUID: GPU-abc-123)\nGPU#1 MXC550 bus Not Available(MetaX Sysfs File Unaccessible)\n")
	f.Fuzz(func(t *testing.T, out string) {
		gpus, err := parseList(out)
		for _, g := range gpus {
			if err != nil || g.Index == "" || g.State == "" {
				t.Errorf("%+v, %v from %q", g, err, out)
			}
		}
	})
}

func FuzzParseValues(f *testing.F) {
	f.Add("=== MetaX System Management Interface Log ===\nAttached GPUs : 1\nGPU#0  MXC500  0000:08:00.0\n\thotspot(sensor0) :  39.00 C\n")
	f.Fuzz(func(t *testing.T, out string) {
		values, err := parseValues(out, regexp.MustCompile(`hotspot`))
		if err == nil && (!strings.Contains(out, "MetaX System Management Interface") || len(values) > strings.Count(out, "GPU#")) {
			t.Errorf("%q from %q", values, out)
		}
	})
}

func FuzzParseHotspot(f *testing.F) {
	f.Add("39.00 C")
	f.Add("NaN C")
	f.Fuzz(func(t *testing.T, s string) {
		if hot, err := parseHotspot(s); err == nil && !(hot > -100 && hot < 1000) {
			t.Errorf("%g from %q", hot, s)
		}
	})
}

// Attack 18: the names of processes and files are a user's choice.
func FuzzTheNameOfAProcessIsNoError(f *testing.F) {
	processes, files := kmsgtest.DriversWords()
	for i := range max(len(processes), len(files)) {
		f.Add(processes[i%len(processes)], files[i%len(files)])
	}
	f.Add("METAX.B1.x.CRIT", "METAX.B900.ATU.ERROR\n")
	f.Fuzz(func(t *testing.T, process, file string) {
		for _, body := range kmsgtest.About(process, file) {
			if got, ok := parseKernel(body); ok {
				t.Errorf("%+v from %q", got, body)
			}
		}
	})
}

func FuzzParseKernel(f *testing.F) {
	f.Add("METAX.B10200.ATU.ERROR EID (0001:02:00.0): 0x2101, description, suggestion, data")
	f.Add("MXCD.BFFFFFFFF.D0.V1.PCIE.ALERT")
	f.Fuzz(func(t *testing.T, body string) {
		if got, ok := parseKernel(body); ok && (!regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`).MatchString(got.Address) || got.Text == "") {
			t.Errorf("%+v from %q", got, body)
		}
	})
}
