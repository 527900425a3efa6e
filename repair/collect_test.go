package main_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// collecting is a machine with stand-ins for the tools of a driver, which know secrets.
type collecting struct {
	t           *testing.T
	binary, dir string
}

func newCollecting(t *testing.T) *collecting {
	t.Parallel()
	c := &collecting{t: t, binary: npdtest.Build(t), dir: t.TempDir()}
	c.tool("nvidia-smi", `echo "    Serial Number    : 1650522000000"; echo "        Name     : python3 train.py PLANTED"`)
	c.tool("journalctl", `echo "2026-11-28T03:40:00+0000 host nvidia-dcgm[7]: agent --token PLANTED HF_TOKEN=PLANTED"; echo "$@" >`+c.path("journal-args"))
	// As the vendor's program does: with the ending of its compressed format.
	c.tool("nvidia-bug-report.sh", `test "$1" = --output-file; { echo "*** /proc/cmdline"; echo "HOME=/root PLANTED"; seq 100000; echo "NVRM: Xid 79"; } | gzip >"$2.gz"; echo "$2" >`+c.path("report"))
	for _, plugin := range []string{"xid", "units", "hca", "fabric", "gpucount", "ecc", "nvlink", "thermal", "dcgm"} {
		c.tool("plugins/"+plugin, `echo '{"plugin": "`+plugin+`", "password": "PLANTED"}'; echo "$@" >`+c.path("args-"+plugin))
	}
	c.file("kmsg", "3,1,60000000,-;NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=x, GPU has fallen off the bus.\n6,2,61000000,-;agent: API_KEY=PLANTED\n")
	c.file("state/dcgm-report.json", `{"DCGM Diagnostic": {}}`+"\n")
	c.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
	c.file("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "7\n")
	return c
}

func (c *collecting) path(name string) string { return filepath.Join(c.dir, name) }

func (c *collecting) file(name, content string) {
	c.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(c.path(name)), 0o755), os.WriteFile(c.path(name), []byte(content), 0o755)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *collecting) tool(name, script string) { c.file(name, "#!/bin/sh\n"+script+"\n") }

func (c *collecting) command(args ...string) *exec.Cmd {
	own := []string{args[0], "-termination-log", "", "-dir", c.path("evidence"), "-node", "gpu-1"}
	if args[0] == "collect" {
		own = append(own, "-plugins", c.path("plugins"), "-kmsg", c.path("kmsg"), "-sysfs", c.path("sys"), "-state-dir", c.path("state"),
			"-systemd", c.path("systemd"), "-min-free", "1")
	}
	cmd := exec.CommandContext(c.t.Context(), c.binary, append(own, args[1:]...)...)
	cmd.Env = append(os.Environ(), "PATH="+c.dir+":"+os.Getenv("PATH"))
	return cmd
}

// run returns the lines on stdout and the result.
func (c *collecting) run(args ...string) ([]string, repairresult.Result) {
	c.t.Helper()
	out, _ := c.command(args...).Output() // the result has the exit code
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var result repairresult.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		c.t.Fatalf("%s: %v", out, err)
	}
	return lines[:len(lines)-1], result
}

func (c *collecting) untar(data []byte) map[string]string {
	c.t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		c.t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		var text []byte
		if err == nil {
			text, err = io.ReadAll(archive)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		files[head.Name] = string(text)
	}
}

// The bundle has what a vendor asks for, and nothing of what was planted. It can be printed again, and nothing else can.
func TestCollect(t *testing.T) {
	c := newCollecting(t)
	_, result := c.run("collect")
	if result.Result != repairresult.Done || !strings.HasPrefix(result.Bundle, "gpu-1-20") || !strings.Contains(result.Message, "16 of 16 parts") {
		t.Fatalf("%+v", result)
	}
	at := strings.TrimSuffix(strings.TrimPrefix(result.Bundle, "gpu-1-"), ".tar.gz")
	lines, printed := c.run("print-bundle", "-at", at)
	var data []byte
	for _, line := range lines {
		piece, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, piece...)
	}
	if want := fmt.Sprintf("slice 1 of 1, %d bytes, sha256 ", len(data)); printed.Result != repairresult.Done || !strings.HasPrefix(printed.Message, want) {
		t.Errorf("%+v, want %q", printed, want)
	}
	files := c.untar(data)
	zip, err := gzip.NewReader(strings.NewReader(files["nvidia-bug-report.log.gz"]))
	if err != nil {
		t.Fatal(err)
	}
	report, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	files["nvidia-bug-report.log.gz"] = string(report)
	for name, content := range files {
		if strings.Contains(content, "PLANTED") {
			t.Errorf("%s has a secret: %.200s", name, content)
		}
	}
	for name, want := range map[string]string{
		"nvidia-bug-report.log.gz": "99999\n100000\nNVRM: Xid 79\n", "nvidia-smi-q.txt": "1650522000000", "journal-units.txt": "nvidia-dcgm[7]: agent --token [removed]",
		"journal-kernel.txt": "nvidia-dcgm", "dmesg.txt": "[   60.000000] <0,3> NVRM: Xid (PCI:0000:4e:00): 79", "dcgm-report.json": "DCGM Diagnostic",
		"plugins/xid.json": `"plugin": "xid"`, "sysfs-infiniband.txt": "/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer: 7\n",
		"index.txt": "plugins/thermal.json",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %.300s\n%s", name, want, files[name], files["index.txt"])
		}
	}
	where, err := os.ReadFile(c.path("report"))
	if _, statErr := os.Stat(filepath.Dir(strings.TrimSpace(string(where)))); err != nil || !errors.Is(statErr, os.ErrNotExist) {
		t.Errorf("the vendor's report is left behind: %s %v %v", where, err, statErr)
	}
	for args, want := range map[string]string{
		"print-bundle -at 20200101T000000Z": "no such file", "print-bundle -at ../../etc/passwd": "there is no bundle of node",
		"print-bundle -slice 2 -at " + at: "-slice 2: the bundle of",
		"collect x":                       `unexpected argument "x"`, "collect -node a/b": `-node "a/b" is no name of a node`,
	} {
		if _, result := c.run(strings.Fields(args)...); result.Result.ExitCode() == 0 || !strings.Contains(result.Message, want) {
			t.Errorf("%s: %+v", args, result)
		}
	}
}

// Tools that hang, fail, are missing or write without an end cost their time and a line, and the run ends within its bound.
func TestCollectWithToolsThatHang(t *testing.T) {
	c := newCollecting(t)
	// The whole group is killed, and what ignores SIGTERM, too.
	c.tool("nvidia-smi", `trap "" TERM; sleep 600 & sleep 600`)
	c.tool("nvidia-bug-report.sh", `echo begun | gzip >"$2.gz"; exec sleep 600`)
	c.tool("journalctl", `yes "a line without an end"`)
	c.tool("plugins/ecc", `echo "unknown: NVML TOKEN=PLANTED" >&2; exit 2`)
	if err := os.Remove(c.path("plugins/dcgm")); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, result := c.run("collect", "-timeout", "40s", "-max-size", "4")
	if took := time.Since(begin); took > 45*time.Second || result.Result != repairresult.Done {
		t.Fatalf("%s: %+v", took, result)
	}
	data, err := os.ReadFile(filepath.Join(c.path("evidence"), result.Bundle))
	if err != nil || len(data) > 4<<20 {
		t.Fatal(len(data), err)
	}
	files := c.untar(data)
	for _, want := range []string{"nvidia-smi gave no answer within 20s", "nvidia-bug-report.sh: sh gave no answer within", "cut: the bundle has no more room", "ecc exited 2: unknown: NVML TOKEN=[removed]", "dcgm: no such file"} {
		if !strings.Contains(files["index.txt"], want) {
			t.Errorf("the index has no %q:\n%s", want, files["index.txt"])
		}
	}
	if files["nvidia-bug-report.log.gz"] == "" || !strings.Contains(files["dmesg.txt"], "Xid") {
		t.Errorf("%.300q", files)
	}
}

// A run that is killed leaves no bundle; the next one leaves one.
func TestCollectThatIsKilled(t *testing.T) {
	c := newCollecting(t)
	if err := syscall.Mkfifo(c.path("runs"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.tool("nvidia-smi", `echo yes >`+c.path("runs")+`; exec sleep 600`)
	cmd := c.command("collect")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(c.path("runs")); err != nil || string(text) != "yes\n" {
		t.Fatal(string(text), err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	bundles := func(ending string) []string {
		found, err := filepath.Glob(filepath.Join(c.path("evidence"), "*"+ending))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if whole, half := bundles(".tar.gz"), bundles(".part"); len(whole) != 0 || len(half) != 1 {
		t.Errorf("%q and %q", whole, half)
	}
	c.tool("nvidia-smi", "echo healthy")
	if _, result := c.run("collect"); result.Result != repairresult.Done || len(bundles(".tar.gz")) != 1 || len(bundles(".part")) != 0 {
		t.Errorf("%+v, %q and %q", result, bundles(".tar.gz"), bundles(".part"))
	}
}
