package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// versions starts each program once. The plugins that load a library do not start where the C library is too old.
func (k *kit) versions(ctx context.Context, o *outcome) {
	all, err := os.ReadDir(k.programs)
	if err != nil {
		o.differs("%v", err)
	}
	for _, entry := range all {
		name := entry.Name()
		if name == detector || name == load {
			continue
		}
		if r := o.file(k.try(ctx, program{argv: []string{filepath.Join(k.programs, name), "-version"}, limit: 5 * time.Second})); r.Exit != 0 {
			o.differs("%s does not start: %s", name, firstLine(r.stderr))
		}
	}
}

// plugin runs a plugin that needs no GPU, once for what it reads and once for its answer.
func (k *kit) plugin(ctx context.Context, o *outcome, name string, args ...string) (dump ran) {
	dump = o.file(k.try(ctx, k.command(name, name+".json", append(args, "-dump")...)))
	if dump.Exit > 2 {
		o.differs("-dump exits %d: %s", dump.Exit, firstLine(dump.stderr))
	}
	o.answered(k.try(ctx, k.command(name, name+".txt", args...)))
	return dump
}

// command is a plugin with the flags that all have.
func (k *kit) command(name, output string, args ...string) program {
	argv := []string{filepath.Join(k.programs, name), "-state-dir", filepath.Join(k.work, "state"), "-timeout", k.limit.String()}
	return program{name: output, limit: k.limit + 3*time.Second, argv: append(argv, args...)}
}

// fixture returns a step that runs a plugin on a file of the archive, which has a fault.
func fixture(name, want string, args ...string) func(*kit, context.Context, *outcome) {
	return func(k *kit, ctx context.Context, o *outcome) {
		for i, arg := range args {
			if strings.HasPrefix(arg, "fixtures/") {
				args[i] = filepath.Join(k.home, arg)
			}
		}
		p := k.command(name, "", args...)
		p.argv[2] = filepath.Join(k.work, "fixture-"+name)
		if r := o.answered(k.try(ctx, p)); r.Exit != 1 || r.Says != want {
			o.differs("exit %d, %q, and in the tests exit 1, %q", r.Exit, r.Says, want)
		}
	}
}

// kernelLog runs the reader of the kernel log on the machine's own.
func (k *kit) kernelLog(ctx context.Context, o *outcome) {
	lines, xids, err := countRecords(k.kmsg)
	if err != nil {
		o.note("the kernel log cannot be read here: %v", err)
		return
	}
	dump := k.plugin(ctx, o, "xid", "-kmsg", k.kmsg)
	p := k.command("xid", "xid-hardware.txt", "-kmsg", k.kmsg, "-hardware")
	hardware := o.answered(k.try(ctx, p))
	o.note("%d records, %d with an Xid; %s; %s", lines, xids, o.Runs[1].Says, hardware.Says)
	if xids > 0 && dump.Exit == 0 && events(o, dump) == 0 {
		o.differs("the kernel log has %d lines with an Xid, and -dump no event", xids)
	}
}

// events counts the events in a dump of xid.
func events(o *outcome, dump ran) int {
	var seen struct{ Events []any }
	if err := json.Unmarshal([]byte(dump.stdout), &seen); err != nil {
		o.differs("-dump: %v", err)
	}
	return len(seen.Events)
}

// record matches a record of the kernel, not of user space, with its text.
var record = regexp.MustCompile(`^[0-7],\d+,\d+,[^;]*;(.*)`)

// countRecords reads the kernel log to its end, and counts the records and those with an Xid.
func countRecords(path string) (all, xids int, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	for r := bufio.NewReaderSize(untilEmpty(fd), 64<<10); all < 1<<20; {
		line, err := r.ReadString('\n')
		if m := record.FindStringSubmatch(line); m != nil {
			all++
			if strings.HasPrefix(m[1], "NVRM: Xid") {
				xids++
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return all, xids, nil
		case err != nil:
			return 0, 0, &os.PathError{Op: "read", Path: path, Err: err}
		}
	}
	return all, xids, nil
}

// untilEmpty is a kernel log that ends where the next record would have to be waited for.
type untilEmpty int

func (fd untilEmpty) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), p)
		switch {
		case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR): // overwritten meanwhile
		case errors.Is(err, unix.EAGAIN) || err == nil && n == 0:
			return 0, io.EOF
		case err != nil:
			return 0, err
		default:
			return n, nil
		}
	}
}

// journal runs the reader of the journal.
func (k *kit) journal(ctx context.Context, o *outcome) {
	if _, err := exec.LookPath("journalctl"); err != nil {
		o.note("there is no journalctl here")
		return
	}
	p := k.command("xid", "xid-journal.json", "-kmsg", k.kmsg, "-journal", "-dump")
	p.argv[2] = filepath.Join(k.work, "journal")
	r := o.file(k.try(ctx, p))
	if r.Exit != 0 {
		o.note("exit %d: %s", r.Exit, r.Says)
		return
	}
	o.note("%d events of the ring and the journal", events(o, r))
}

func (k *kit) podlog(ctx context.Context, o *outcome) {
	if _, err := os.Stat(k.podLogs); err != nil {
		o.note("no logs of pods here: %v", err)
		return
	}
	k.plugin(ctx, o, "podlog", "-namespaces", "*", "-pod-logs", k.podLogs)
}

// preflight runs the local checks of preflight, for a job of this machine alone.
func (k *kit) preflight(ctx context.Context, o *outcome) {
	storage := filepath.Join(k.work, "storage")
	if err := os.Mkdir(storage, 0o755); err != nil {
		o.differs("%v", err)
		return
	}
	port, err := freePort(ctx)
	if err != nil {
		o.note("no port for rank 0: %v", err)
		return
	}
	argv := []string{filepath.Join(k.programs, "preflight"), "-node", "this-node", "-rank", "0", "-size", "1",
		"-leader", "127.0.0.1", "-port", port, "-rounds", "0", "-meet-timeout", (k.limit + 3*time.Second).String(),
		"-storage", storage, "-out", filepath.Join(k.work, "report")}
	for _, name := range []string{"ecc", "gpucount"} {
		argv = append(argv, "-check", quote(k.nvmlCommand(name, "").argv))
	}
	r := o.file(k.try(ctx, program{name: "preflight.txt", limit: 3 * (k.limit + 3*time.Second), argv: argv}))
	if r.Failed != "" {
		return
	}
	if len(k.machine.GPUs) > 0 && r.Exit != 0 || r.Exit > 2 {
		o.differs("exit %d: %s", r.Exit, firstLine(r.stderr))
	}
	reports, _ := filepath.Glob(filepath.Join(k.work, "report", "*.json"))
	if len(reports) != 1 {
		o.differs("exit %d, and %d reports", r.Exit, len(reports))
		return
	}
	written := text(reports[0])
	k.kept.add("preflight-report.json", written)
	var seen struct {
		Storage *int `json:"storage_check"`
		GPU     *int `json:"gpu_check"`
	}
	if err := json.Unmarshal([]byte(written), &seen); err != nil || seen.Storage == nil || seen.GPU == nil {
		o.differs("the report is %.80q, %v", written, err)
		return
	}
	o.note("storage_check %d, gpu_check %d", *seen.Storage, *seen.GPU)
	if len(k.machine.GPUs) > 0 && *seen.GPU != 1 {
		o.differs("gpu_check is %d", *seen.GPU)
	}
}

// freePort returns a port that no one listens on.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// quote writes arguments for a shell.
func quote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// answer is the last line of the program repair.
type answer struct{ Result, Message string }

func (k *kit) repair(ctx context.Context, o *outcome, output string, args ...string) (ran, answer) {
	argv := append([]string{filepath.Join(k.programs, "repair")}, args...)
	r := o.file(k.try(ctx, program{name: output, limit: 30 * time.Second, argv: argv, env: k.environment()}))
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var a answer
	if r.Failed != "" {
		return r, a
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &a); err != nil {
		o.differs("exit %d, and its last line is no result: %v", r.Exit, err)
	}
	o.note("%s: %s", a.Result, a.Message)
	return r, a
}

// repairFlags are those that all commands of repair have.
func (k *kit) repairFlags() []string {
	state := filepath.Join(k.work, "state")
	return []string{"-state-dir", state, "-sysfs", k.sysfs, "-devices", k.devices, "-wait", "0s", "-termination-log", ""}
}

// reset has repair say what it would do to reset all GPUs.
func (k *kit) reset(ctx context.Context, o *outcome) {
	if k.smiHangs {
		o.note("not run: nvidia-smi hangs")
		return
	}
	args := append([]string{"reset-gpu", "-all", "-dry-run"}, k.repairFlags()...)
	if k.machine.SMI != "" {
		args = append(args, "-tool", k.machine.SMI)
	}
	r, a := k.repair(ctx, o, "repair-reset-gpu.json", args...)
	switch {
	case r.Failed != "":
	case r.Exit != 2 || a.Result != "refused":
		o.differs("exit %d, and a dry run must refuse with exit 2", r.Exit)
	case k.machine.SMI != "" && len(k.machine.GPUs) > 0 && !strings.HasPrefix(a.Message, "dry run, nothing was changed: "):
		o.differs("%s", a.Message)
	}
}

// check has repair run a check on the idle node: the plugin ecc as a command.
func (k *kit) check(ctx context.Context, o *outcome) {
	if k.silent > 0 {
		o.note("not run: NVML gives no answer")
		return
	}
	args := append(append([]string{"check", "-command"}, k.repairFlags()...), "--")
	r, a := k.repair(ctx, o, "repair-check.txt", append(args, k.nvmlCommand("ecc", "").argv...)...)
	// It refuses while a process holds a device, or where not all processes can be seen.
	if len(k.machine.GPUs) > 0 && r.Failed == "" && a.Result != "healthy" && a.Result != "refused" {
		o.differs("exit %d, %s: %s", r.Exit, a.Result, a.Message)
	}
}

// dcgm runs DCGM's diagnostic of level 1, if the GPUs are idle.
func (k *kit) dcgm(ctx context.Context, o *outcome) {
	const library = "libdcgm.so.4"
	found := find(library, append([]string{k.machine.DriverRoot}, roots...), libraryFolders)
	if found == "" {
		found = k.loaders(ctx, library)
	}
	switch {
	case found == "":
		o.note("there is no %s here", library)
		return
	case k.silent > 0:
		o.note("not run: NVML gives no answer")
		return
	}
	p := k.nvmlCommand("dcgm", "dcgm-run.txt", "-run-when-idle", "-interval", "1s", "-idle-for", "1s", "-level", "1")
	// The last of two flags counts.
	p.argv = append(p.argv, "-timeout", dcgmLimit.String())
	p.limit = dcgmLimit + 3*time.Second
	r := o.answered(k.try(ctx, p))
	if len(k.machine.GPUs) > 0 && r.Exit != 0 {
		o.differs("exit %d: %s", r.Exit, r.Says)
	}
	reports, _ := filepath.Glob(filepath.Join(k.work, "state", "dcgm*.json"))
	for _, path := range reports {
		k.kept.add(filepath.Base(path), text(path))
	}
}

const dcgmLimit = time.Minute
