package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/internal/systemd"
	"github.com/pitcrew-dev/pitcrew/repair/holders"
	"github.com/pitcrew-dev/pitcrew/repair/program"
)

// node holds the flags that say what belongs to the node.
type node struct {
	stateDir, systemd, sysfs string
	vendor                   string
	holding
	wait time.Duration
}

func (n *node) flags(f *flags.Set, wait time.Duration) {
	f.StringVar(&n.stateDir, "state-dir", "/run/pitcrew",
		"state `directory` of the node's plugins, for the maintenance file, the lock and what must be put back")
	f.StringVar(&n.systemd, "systemd", systemd.Socket,
		"`path` of systemd's private socket; where there is none, no service is stopped or started")
	f.StringVar(&n.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host")
	f.StringVar(&n.vendor, "vendor", "", "`name` of the vendor, nvidia, metax or ascend (default: what is on the PCI bus)")
	n.holding.flags(f)
	f.DurationVar(&n.wait, "wait", wait, "how long to wait for processes and pods that hold a device; after that it refuses", 0, flags.Day)
}

func (n *node) check() error {
	if n.vendor != "" && !slices.ContainsFunc(vendors, func(v vendor) bool { return v.name == n.vendor }) {
		return fmt.Errorf("-vendor %q is none of nvidia, metax and ascend", n.vendor)
	}
	return n.holding.check()
}

func (n *node) watcher(v vendor, devices []string) *holders.Watcher {
	w := n.holding.watcher(v)
	w.Devices, w.PodDevices, w.Wait = devices, devices, n.wait
	n.replace(w)
	return w
}

// resetAction is the command reset-gpu.
type resetAction struct {
	node
	gpus []string
	all  bool
	// rehearse reports that nothing is changed.
	rehearse bool
	clients  []string
	// tool and root say where the vendor's tool is.
	tool, root string
	// timeout bounds the run; resetLimit bounds the tool's reset and verify how long a GPU may take to answer after it.
	timeout, resetLimit, verify time.Duration
	settle                      time.Duration
}

func (a *resetAction) flags(f *flags.Set) {
	a.node.flags(f, 30*time.Second)
	flags.List(f.FlagSet, &a.gpus, "gpu", "PCI `addresses` of the GPUs, e.g. 0000:4e:00,0000:5f:00", checkAddress)
	f.BoolVar(&a.all, "all", false, "reset all GPUs if -gpu is empty, which else is refused")
	f.BoolVar(&a.rehearse, "dry-run", false, "look for holders, say what would be done, and refuse to do it")
	flags.List(f.FlagSet, &a.clients, "clients",
		"`services` of systemd that are stopped before and started again afterwards (default: those of NVIDIA; empty: none)",
		nil)
	f.StringVar(&a.tool, "tool", "",
		"`path` of the vendor's tool below -root (default: nvidia-smi, mx-smi or npu-smi where they are installed)")
	f.StringVar(&a.root, "root", "",
		"`directory` that the tool takes for / (default: the first of "+strings.Join(program.Roots[:2], ", ")+" and / that has it)")
	f.DurationVar(&a.timeout, "timeout", 8*time.Minute, "limit of the run; putting everything back may take 2m more",
		time.Second, flags.Day)
	f.DurationVar(&a.resetLimit, "reset-timeout", 3*time.Minute, "limit of one call of the tool that resets",
		10*time.Millisecond, flags.Day)
	f.DurationVar(&a.verify, "verify", time.Minute, "how long a GPU may take to answer after the reset", 0, flags.Day)
	f.DurationVar(&a.settle, "settle", -1,
		"pause between the reset and the first question (default: 20s for ascend, as its documentation asks, else none)",
		0, time.Hour)
}

var address = regexp.MustCompile(`^([0-9a-f]{4,8}):[0-9a-f]{2}:[01][0-9a-f]$`)

func checkAddress(s string) error {
	if !address.MatchString(gpu.Address(s)) {
		return fmt.Errorf("%q is not a PCI address such as 0000:4e:00", s)
	}
	return nil
}

func (a *resetAction) check(args []string) error {
	for i := range a.gpus {
		a.gpus[i] = gpu.Address(a.gpus[i])
	}
	slices.Sort(a.gpus)
	a.gpus = slices.Compact(a.gpus)
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case len(a.gpus) == 0 && !a.all:
		return errors.New("-gpu is empty: which GPU needs the reset is not known, and only -all resets all")
	}
	return a.node.check()
}

// restoring is how long putting everything back may take; the maintenance ends by itself after it.
const restoring = 2 * time.Minute

func (a *resetAction) run(ctx context.Context, _ func(repairresult.Result)) (result repairresult.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	v, bus, err := vendorOf(a.vendor, a.sysfs)
	if err != nil {
		return result, err
	}
	gpus := a.gpus
	if len(gpus) == 0 {
		gpus = bus
	}
	if i := slices.IndexFunc(gpus, func(g string) bool { return !slices.Contains(bus, g) }); i >= 0 {
		return result, fmt.Errorf("GPU %s is not on the PCI bus: no reset brings it back", gpus[i])
	}
	tool, err := program.Find(v.tool, a.tool, a.root)
	if err != nil {
		return result, err
	}
	if a.rehearse {
		return result, a.dryRun(ctx, v, tool, gpus)
	}
	s := &state{dir: a.stateDir, systemd: a.systemd}
	if v.name == "nvidia" {
		s.persist = func(ctx context.Context, gpus []string) ([]string, error) { return persist(ctx, tool, gpus) }
	}
	if err := s.open(); err != nil {
		return result, err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("stopped, %w: %w", context.Cause(ctx), err)
		}
		result.Stopped = s.changed.Units
		if restoreErr := s.restore(); restoreErr != nil {
			slog.Error("Not everything could be put back; the next run tries again", "err", restoreErr)
			result.Message += "; not put back: " + restoreErr.Error()
			if err != nil {
				err = fmt.Errorf("%w; not put back: %w", err, restoreErr)
			}
		}
	}()
	if err := maintenance.Begin(procfs, a.stateDir, "repair reset-gpu", a.timeout+restoring); err != nil {
		return result, refuse("%v", err)
	}
	w := a.watcher(v, v.devices)
	// Before anything is changed: a refusal is repeated every few minutes.
	if err := w.Idle(ctx, a.stops(v)); err != nil {
		return result, err
	}
	result.GPUs, err = a.reset(ctx, s, v, tool, w, a.stops(v), gpus, bus)
	if err != nil {
		return result, err
	}
	if err := a.verified(ctx, v, tool, result.GPUs); err != nil {
		return result, err
	}
	result.Result, result.Message = repairresult.Done, "reset "+strings.Join(result.GPUs, ", ")
	return result, nil
}

// dryRun returns a refusal that says what a reset would do, or what holds a device now. It asks the vendor's tool for persistence modes and
// changes nothing. It is a refusal, because no GPU was reset: whoever waits for the reset must not take it for done.
func (a *resetAction) dryRun(ctx context.Context, v vendor, tool program.Command, gpus []string) error {
	const said = "dry run, nothing was changed: "
	w := a.watcher(v, v.devices)
	w.Wait = 0
	err := w.Idle(ctx, a.stops(v))
	if held := (*repairresult.Refusal)(nil); errors.As(err, &held) {
		return &repairresult.Refusal{Message: said + held.Message, Holders: held.Holders}
	}
	text := fmt.Sprintf("no process holds a device; a reset would stop what runs of %q", a.stops(v))
	if v.name == "nvidia" {
		text += fmt.Sprintf(", turn persistence mode off where it is on, which is %q", persistent(ctx, tool, gpus))
	}
	return refuse("%s%s, reset %s with %s, and undo the rest", said, text, strings.Join(gpus, ", "), tool.Root+tool.Path)
}

// stops returns the services that a reset stops.
func (a *resetAction) stops(v vendor) []string {
	if a.clients == nil {
		return v.units
	}
	return a.clients
}

// reset takes clients away from the GPUs, resets them and returns which were reset.
func (a *resetAction) reset(
	ctx context.Context, s *state, v vendor, tool program.Command, w *holders.Watcher, clients, gpus, bus []string,
) ([]string, error) {
	for {
		if v.name == "nvidia" {
			// Before the services: persistenced sets the mode back when it ends.
			if err := s.change(func(c *changes) { c.Persistence = union(c.Persistence, persistent(ctx, tool, gpus)) }); err != nil {
				return nil, err
			}
		}
		if err := stopUnits(ctx, a.systemd, clients, s.stopping); err != nil {
			return nil, err
		}
		if v.name == "nvidia" {
			for _, g := range s.changed.Persistence {
				if err := setPersistence(ctx, tool, g, "0"); err != nil {
					// The reset may be possible all the same, and says why if it is not.
					slog.Warn("Persistence mode is not off", "gpu", g, "err", err)
				}
			}
		}
		if err := w.Idle(ctx, nil); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("before the reset: %w", err)
		}
		// A reset that has begun goes on to its end.
		err := v.reset(context.WithoutCancel(ctx), tool, gpus, a.resetLimit)
		if errors.Is(err, errTogether) && len(gpus) < len(bus) {
			slog.Info("The GPUs are reset together with all others of the node, which are not held either", "gpus", gpus, "all", bus)
			gpus = bus
			continue
		}
		return gpus, err
	}
}

// verified waits until the GPUs answer.
func (a *resetAction) verified(ctx context.Context, v vendor, tool program.Command, gpus []string) error {
	settle := v.settle
	if a.settle >= 0 {
		settle = a.settle
	}
	select {
	case <-ctx.Done():
	case <-time.After(settle):
	}
	ctx, cancel := context.WithTimeout(ctx, a.verify)
	defer cancel()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for _, g := range gpus {
		var last error
		for {
			err := v.answers(ctx, tool, g)
			if err == nil {
				break
			}
			if ctx.Err() == nil || last == nil {
				last = err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s has reset the GPU %s, which does not answer: %w", v.tool, g, last)
			case <-again.C:
			}
		}
	}
	return nil
}

// persistent returns the GPUs whose persistence mode is on. One that does not answer is left as it is.
func persistent(ctx context.Context, tool program.Command, gpus []string) (on []string) {
	for _, g := range gpus {
		is, err := persistence(ctx, tool, g)
		if err != nil {
			slog.Warn("The persistence mode is not known", "gpu", g, "err", err)
		}
		if is {
			on = append(on, g)
		}
	}
	return on
}

// persist turns persistence mode on, where no service has done it, and returns the GPUs where it failed.
func persist(ctx context.Context, tool program.Command, gpus []string) (left []string, err error) {
	var errs []error
	for _, g := range gpus {
		if on, err := persistence(ctx, tool, g); err == nil && on {
			continue
		}
		if err := setPersistence(ctx, tool, g, "1"); err != nil {
			left = append(left, g)
			errs = append(errs, fmt.Errorf("persistence mode of GPU %s: %w", g, err))
		}
	}
	return left, errors.Join(errs...)
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
