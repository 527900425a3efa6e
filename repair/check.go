package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/repair/program"
)

// checkAction is the command check.
type checkAction struct {
	node
	level        int
	dcgm         string
	command      bool
	allowHolders bool
	timeout      time.Duration
	// args are what follows the flags: those of the plugin, or the command. plugin are further ones of the plugin.
	args, plugin []string
}

func (a *checkAction) flags(f *flags.Set) {
	a.node.flags(f, 30*time.Second)
	f.IntVar(&a.level, "level", 2, "level of DCGM's diagnostics, 1 to 4: seconds, minutes, half an hour, hours", 1, 4)
	f.StringVar(&a.dcgm, "dcgm", "",
		"`path` of the plugin dcgm, which runs them (default: beside this program); what follows -- are flags of it")
	for _, name := range []string{"driver-root", "dcgm-root", "dcgm-libraries", "nvvs", "hostengine"} {
		where := "`value` of this flag of the plugin dcgm: where DCGM and the driver are"
		f.Func(name, where, func(value string) error { a.plugin = append(a.plugin, "-"+name, value); return nil })
	}
	f.BoolVar(&a.command, "command", false, "run the command that follows -- instead: exit 0 means healthy, 1 a problem, else it failed")
	f.BoolVar(&a.allowHolders, "allow-holders", false, "run although processes or pods hold accelerators")
	f.DurationVar(&a.timeout, "timeout", 40*time.Minute, "limit of the check; three quarters of it are DCGM's", time.Second, flags.Day)
}

func (a *checkAction) check(args []string) error {
	a.args = args
	switch {
	case a.command && len(args) == 0:
		return errors.New("-command needs a command after --")
	case !a.command && len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		return fmt.Errorf("unexpected argument %q: only -command takes a command", args[0])
	}
	return a.node.check()
}

func (a *checkAction) run(ctx context.Context, _ func(repairresult.Result)) (result repairresult.Result, err error) {
	v, _, err := vendorOf(a.vendor, a.sysfs)
	// A command may test a node without accelerators.
	if err != nil && (!a.command || !errors.Is(err, errNone)) {
		return result, err
	}
	if !a.command && v.name != "nvidia" {
		return result, refuse("DCGM's diagnostics are for GPUs of NVIDIA; -command runs a test of %s", v.name)
	}
	s := &state{dir: a.stateDir, systemd: a.systemd}
	if tool, err := program.Find("nvidia-smi", "", ""); err == nil {
		s.persist = func(ctx context.Context, gpus []string) ([]string, error) { return persist(ctx, tool, gpus) }
	}
	if err := s.open(); err != nil {
		return result, err
	}
	// What a reset left that was killed.
	if err := s.restore(); err != nil {
		slog.Error("What a run before has left is not put back", "err", err)
	}
	if !a.allowHolders && v.name != "" {
		if err := a.watcher(v, v.compute).Idle(ctx, nil); err != nil {
			return result, err
		}
	}
	if a.command {
		return a.runCommand(ctx)
	}
	if err := maintenance.Begin(procfs, a.stateDir, "repair check", a.timeout+restoring); err != nil {
		return result, refuse("%v", err)
	}
	defer func() {
		if endErr := maintenance.End(a.stateDir); endErr != nil {
			slog.Error("The maintenance does not end", "err", endErr)
			result.Message += "; " + endErr.Error()
		}
	}()
	return a.runDCGM(ctx)
}

// runDCGM runs the plugin, which looks itself whether the GPUs are idle and leaves its report in the state directory.
func (a *checkAction) runDCGM(ctx context.Context) (result repairresult.Result, err error) {
	path := a.dcgm
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return result, err
		}
		path = filepath.Join(filepath.Dir(self), "dcgm")
	}
	args := []string{"-run", "-level", strconv.Itoa(a.level), "-timeout", a.timeout.String(), "-state-dir", a.stateDir,
		"-sysfs", a.sysfs, "-pod-resources", a.podResources, "-force=" + strconv.FormatBool(a.allowHolders)}
	// Where the driver's tool is, its libraries are. Without it the plugin looks in this container.
	tool, missing := program.Find("nvidia-smi", "", "")
	if missing == nil && tool.Root != "" {
		args = append(args, "-driver-root", tool.Root)
	}
	plugin := program.Command{Path: path, Log: logged{}}.With(a.timeout, append(append(args, a.plugin...), a.args...)...)
	line, err := plugin.Run(ctx)
	line = lastLine(line)
	var exit *program.ExitError
	switch {
	case err == nil:
		return repairresult.Result{Result: repairresult.Healthy, Message: fmt.Sprintf("diagnostics of level %d: %s", a.level, line)}, nil
	case !errors.As(err, &exit):
		return result, err
	case exit.Code == 1 && line != "":
		return repairresult.Result{Result: repairresult.Problem, Message: line}, nil
	case strings.HasPrefix(line, "unknown: no diag:") && !strings.Contains(line, "NVML"):
		return result, refuse("%s", line)
	case exit.Code == 2 && strings.HasPrefix(line, "unknown: "):
		if missing != nil && strings.Contains(line, "NVML") {
			line += "; " + missing.Error()
		}
		return result, fmt.Errorf("the diagnostic gave no result: %.400s", strings.TrimPrefix(line, "unknown: "))
	default:
		return result, fmt.Errorf("%s exited %d: %.400s", filepath.Base(path), exit.Code, line)
	}
}

// runCommand runs a command of the admin. Its output is in the log.
func (a *checkAction) runCommand(ctx context.Context) (result repairresult.Result, err error) {
	test := program.Command{Path: a.args[0], Log: logged{}, Echo: true, Grace: 5 * time.Second}.With(a.timeout, a.args[1:]...)
	text, err := test.Run(ctx)
	name, line := filepath.Base(a.args[0]), lastLine(text)
	if line != "" {
		line = ": " + line
	}
	var exit *program.ExitError
	switch {
	case err == nil:
		return repairresult.Result{Result: repairresult.Healthy, Message: fmt.Sprintf("%s exited 0%.400s", name, line)}, nil
	case errors.As(err, &exit) && exit.Code == 1:
		return repairresult.Result{Result: repairresult.Problem, Message: fmt.Sprintf("%s exited 1%.400s", name, line)}, nil
	case errors.As(err, &exit):
		return result, fmt.Errorf("%s exited %d%.400s", name, exit.Code, line)
	default:
		return result, err
	}
}

// lastLine is the last line of an output that is not empty.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// logged writes to stderr. It is no file: a program that hangs in a driver does not keep this container's log open.
type logged struct{}

func (logged) Write(p []byte) (int, error) { return os.Stderr.Write(p) }
