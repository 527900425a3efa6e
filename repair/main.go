// Repair is the program that a Job of Pitcrew runs on a node. It is not resident, it has no rights in the cluster, and it judges
// nothing: that is done by the plugins, whose conditions the remediator reads.
//
//	repair check -level 3                      run DCGM's diagnostics on an idle node
//	repair check -command -- /opt/test --all   or a command of yours: exit 0 healthy, 1 problem
//	repair reset-gpu -gpu 0000:4e:00           reset GPUs with the vendor's tool
//	repair reboot -boot-id ID                  reboot an idle node, unless it is in another boot already
//	repair collect -node NAME                  write what is known about the node's faults into a bundle
//	repair print-bundle -node NAME -at TIME    print a bundle
//
// The last line on standard output, which is the termination message of the container too, is one JSON object:
//
//	{"result":"done","message":"reset","gpus":["0000:4e:00"],"stopped":["nvidia-dcgm.service"],"bootID":"..."}
//	{"result":"refused","message":"...","holders":[{"pid":71,"command":"python","pod":"ml/train-0"}],"bootID":"..."}
//
//	result    exit  meaning
//	done      0     the reset or the reboot was made, or the node is in a new boot already, or the bundle was written or printed
//	healthy   0     the check has run and found no fault
//	problem   0     the check has run and found a fault; that of DCGM's diagnostics is in the report that the plugin dcgm judges
//	failed    1     it could not do its work, and will not without a heavier action or a person
//	refused   2     a precondition is not met, such as a process that holds a GPU, or a flag is wrong; nothing was changed
//
// Whatever happens, services that were stopped are started again and the maintenance file is removed. What a run that was killed has
// left is put right by the next one; the plugins ignore its maintenance file after a few minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/repair/evidence"
)

const usage = `repair works on a node: Pitcrew's Jobs run it.

  repair check [-level N]             run DCGM's diagnostics on an idle node
  repair check -command -- ARGV...    run a command: exit 0 healthy, 1 problem, else failed
  repair reset-gpu -gpu LIST | -all   reset GPUs with the vendor's tool; -dry-run says what it would do
  repair reboot -boot-id ID           reboot an idle node, unless it is in another boot already
  repair collect -node NAME           write what is known about the node's faults into a bundle
  repair print-bundle -node NAME -at TIME
                                      print a bundle that is on the node, as base64
  repair -version

"repair COMMAND -h" lists the flags of a command. The last line on stdout is the result as JSON.
exit 0 done, or checked, whatever was found; 1 failed; 2 refused, or a flag is wrong
`

// procfs is the proc filesystem. With hostPID it is the node's.
const procfs = "/proc"

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

// action is a command with its flags.
type action interface {
	flags(f *flags.Set)
	// check refuses flags that do not go together; args are what follows the flags.
	check(args []string) error
	run(ctx context.Context, report func(repairresult.Result)) (repairresult.Result, error)
}

func run(args []string, stdout io.Writer) int {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	terminationLog := repairresult.TerminationLog
	report := func(r repairresult.Result) {
		// A node without a boot id has no proc filesystem, and the action says so.
		r.BootID, _ = boot.ID(procfs)
		if err := r.Write(stdout, terminationLog); err != nil {
			slog.Error("The result is not known to the remediator", "err", err)
		}
	}
	refused := func(err error) int {
		report(repairresult.Result{Result: repairresult.Refused, Message: err.Error()})
		return repairresult.Refused.ExitCode()
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "-version", "--version":
		fmt.Fprintln(stdout, "repair "+version.String())
		return 0
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stdout, usage)
		return 0
	case evidence.PrintHCAs:
		return evidence.PrintAdapters(args[1:], stdout)
	}
	a := actionOf(name, stdout)
	if a == nil {
		return refused(fmt.Errorf("%q is none of check, reset-gpu, reboot, collect and print-bundle", name))
	}
	f := flags.NewSet("repair " + name)
	f.SetOutput(io.Discard) // Parse prints the usage for -h and for a bad flag alike
	f.StringVar(&terminationLog, "termination-log", terminationLog, "`file` that gets the result, too; empty for none")
	a.flags(f)
	switch err := f.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stdout)
		f.Usage()
		return 0
	case err != nil:
		return refused(err)
	}
	if err := a.check(f.Args()); err != nil {
		return refused(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	r := attempt(ctx, a, report)
	report(r)
	return r.Result.ExitCode()
}

// actionOf returns a command by its name, nil if there is none.
func actionOf(name string, stdout io.Writer) action {
	switch name {
	case "check":
		return &checkAction{}
	case "reset-gpu":
		return &resetAction{}
	case "reboot":
		return &rebootAction{}
	case "collect":
		return &collectAction{}
	case "print-bundle":
		return &printAction{stdout: stdout}
	default:
		return nil
	}
}

// attempt runs an action. An error is a failure, unless it is a refusal, and so is a panic.
func attempt(ctx context.Context, a action, report func(repairresult.Result)) (r repairresult.Result) {
	defer func() {
		if v := recover(); v != nil {
			slog.Error("panic", "value", v, "stack", string(debug.Stack()))
			r.Result, r.Message = repairresult.Failed, fmt.Sprintf("panic: %v", v)
		}
	}()
	r, err := a.run(ctx, report)
	if err == nil {
		return r
	}
	r.Result, r.Message = repairresult.Failed, err.Error()
	if refused := (*repairresult.Refusal)(nil); errors.As(err, &refused) {
		r.Result, r.Holders = repairresult.Refused, refused.Holders
	}
	return r
}

// refuse is [repairresult.Refuse].
var refuse = repairresult.Refuse
