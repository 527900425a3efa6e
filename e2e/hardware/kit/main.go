// Command kit checks on a machine with GPUs what the tests can only check on stand-ins: it runs the plugins, preflight and repair that lie
// beside it, says what differs from what is expected, and keeps what they saw, so that it can become fixtures. run.sh of the archive
// starts it.
//
// It changes one thing, and puts it back: the persistence mode of the GPUs. It ends in time whatever hangs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/version"
)

// The exit codes.
const (
	exitExpected = 0
	exitDiffers  = 1
	exitUnknown  = 2
)

func main() { os.Exit(start(os.Args)) }

func start(args []string) int {
	if len(args) > 2 && filepath.Base(args[0]) == detector {
		return asDetector(args[1], args[2:])
	}
	k := &kit{stuck: map[string]bool{}}
	f := flag.NewFlagSet("kit", flag.ContinueOnError)
	f.StringVar(&k.out, "out", "hardware-result", "`folder` for page.txt, result.json and dumps.tar.gz")
	f.StringVar(&k.driverRoot, "driver-root", "", "`folder` below which libnvidia-ml.so.1 and nvidia-smi lie (default: searched for)")
	f.StringVar(&k.sysfs, "sysfs", "/sys", "`path` of the sys filesystem")
	f.StringVar(&k.devices, "devices", "/dev/nvidia", "`beginning` of the paths of the GPUs' device files")
	f.StringVar(&k.kmsg, "kmsg", "/dev/kmsg", "`path` of the kernel log")
	f.StringVar(&k.podLogs, "pod-logs", "/var/log/pods", "`folder` of the logs of pods")
	f.DurationVar(&k.limit, "limit", 16*time.Second, "limit of one look of a plugin; the monitors have 16s")
	f.DurationVar(&k.overall, "overall", 265*time.Second, "limit of the run; what is left then is not run; to put things back takes 25s more")
	f.DurationVar(&k.holdFor, "hold", 30*time.Second, "how long a plugin holds beside a load")
	f.DurationVar(&k.every, "every", 5*time.Second, "pause between two looks of the plugin that holds")
	if err := f.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return exitExpected
	} else if err != nil {
		return exitUnknown
	}
	if f.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "kit: unexpected argument %q\n", f.Arg(0))
		return exitUnknown
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	code, err := k.main(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kit:", err)
		return exitUnknown
	}
	return code
}

// kit is one run.
type kit struct {
	out, driverRoot, sysfs, devices, kmsg, podLogs string
	limit, overall, holdFor, every                 time.Duration

	// home is where the archive was unpacked, programs where the programs are, work where they write.
	home, programs, work string
	// deadline is the end of the run.
	deadline time.Time
	machine  machine
	kept     keeper
	result   result
	// stuck are the processes that steps have left, by pid.
	stuck map[string]bool
	// silent counts the looks at NVML that gave no answer, smiHangs says that nvidia-smi gave none.
	silent   int
	smiHangs bool
}

func (k *kit) main(ctx context.Context, stdout io.Writer) (code int, err error) {
	begun := time.Now()
	k.deadline = begun.Add(k.overall)
	ctx, cancel := context.WithDeadline(ctx, k.deadline)
	defer cancel()
	defer func() { err = errors.Join(err, k.remove()) }()
	if err := k.prepare(ctx); err != nil {
		return 0, err
	}
	needs := strings.Fields(text(filepath.Join(k.home, "needs")))
	k.result.Version, k.result.Begun = version.String()+" "+strings.Join(needs[min(2, len(needs)):], " "), begun.UTC().Truncate(time.Second)
	k.machine = k.look(ctx)
	k.result.Machine = k.machine
	for _, s := range steps() {
		k.do(ctx, s)
	}
	k.result.HoldersAfter = k.holders()
	k.result.Seconds = seconds(time.Since(begun))
	k.result.conclude()
	return k.result.code(), k.write(stdout)
}

// prepare makes the folders and unpacks the programs.
func (k *kit) prepare(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	k.home = filepath.Dir(self)
	if k.out, err = filepath.Abs(k.out); err != nil {
		return err
	}
	if err := os.MkdirAll(k.out, 0o755); err != nil {
		return err
	}
	if k.work, err = os.MkdirTemp(k.out, "work-"); err != nil {
		return err
	}
	k.programs, err = unpack(ctx, k.home, self)
	return err
}

// remove removes the folders of this run.
func (k *kit) remove() (err error) {
	for _, folder := range []string{k.work, k.programs} {
		if folder != "" {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}
	return err
}

// do runs a step and files its outcome. A step that panics is a defect of the kit, and the others still run.
func (k *kit) do(ctx context.Context, s step) {
	begun := time.Now()
	o := outcome{Name: s.name}
	func() {
		defer func() {
			if v := recover(); v != nil {
				o.differs("the kit failed: %v", v)
			}
		}()
		if ctx.Err() != nil {
			o.Noted = "not run: the run was over before"
			return
		}
		s.run(k, ctx, &o)
	}()
	o.Seconds = seconds(time.Since(begun))
	k.result.Steps = append(k.result.Steps, o)
	fmt.Fprintf(os.Stderr, "%5.1f s  %-9s %s\n", o.Seconds, o.verdict(), strings.TrimSpace(o.Name+"  "+o.short()))
}

func seconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}
