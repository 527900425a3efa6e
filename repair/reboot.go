package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// rebootAction is the command reboot.
type rebootAction struct {
	holding
	bootID, bus              string
	allowHolders             bool
	timeout, wait, idleLimit time.Duration
}

func (a *rebootAction) flags(f *flags.Set) {
	f.StringVar(&a.bootID, "boot-id", "", "`id` of the boot that the reboot ends; in another boot nothing is done")
	f.StringVar(&a.bus, "bus", "/run/dbus/system_bus_socket", "`path` of the socket of the host's system bus, on which logind is")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "limit of writing files to disk, and of each call of logind",
		10*time.Millisecond, time.Hour)
	f.DurationVar(&a.wait, "wait", 10*time.Minute,
		"how long the node may take to end this program after logind has agreed; after that it has failed",
		0, flags.Day)
	a.holding.flags(f)
	f.BoolVar(&a.allowHolders, "allow-holders", false, "reboot although processes or pods hold accelerators")
	f.DurationVar(&a.idleLimit, "wait-idle", 30*time.Second, "how long to wait for holders of a device; after that it refuses",
		0, flags.Day)
}

var bootIDPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *rebootAction) check(args []string) error {
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case !bootIDPattern.MatchString(a.bootID):
		// Anything else would read as another boot, in which there is nothing to do.
		return fmt.Errorf("-boot-id %q is no boot id such as that of /proc/sys/kernel/random/boot_id", a.bootID)
	}
	return a.holding.check()
}

// The bus name, object and interface of logind, org.freedesktop.login1(5). Package login1 of go-systemd drops the errors of Reboot.
const (
	logind  = "org.freedesktop.login1"
	manager = "org.freedesktop.login1.Manager"
)

func (a *rebootAction) run(ctx context.Context, report func(repairresult.Result)) (result repairresult.Result, err error) {
	id, err := boot.ID(procfs)
	if err != nil {
		return result, refuse("the boot id: %v", err)
	}
	if id != a.bootID {
		return repairresult.Result{Result: repairresult.Done, Message: "already in a new boot"}, nil
	}
	conn, err := a.connect()
	if err != nil {
		return result, err
	}
	// Nothing is lost with it.
	defer func() { _ = conn.Close() }()
	object := conn.Object(logind, "/org/freedesktop/login1")
	if err := a.inhibited(ctx, object); err != nil {
		return result, err
	}
	if err := a.idle(ctx); err != nil {
		return result, err
	}
	a.sync()
	if ctx.Err() != nil {
		return result, fmt.Errorf("stopped before the reboot: %w", context.Cause(ctx))
	}
	// Before the call: this program may be ended at any moment after it.
	asked := repairresult.Result{Result: repairresult.Done, Message: "logind reboots the node"}
	report(asked)
	if err := a.call(ctx, object, manager+".Reboot", false).Err; err != nil {
		return result, fmt.Errorf("logind does not reboot the node: %w", err)
	}
	select {
	case <-ctx.Done():
		return asked, nil
	case <-time.After(a.wait):
		return result, fmt.Errorf("logind has agreed to reboot the node, which still runs after %s", a.wait)
	}
}

func (a *rebootAction) connect() (*dbus.Conn, error) {
	if _, err := os.Stat(a.bus); err != nil {
		return nil, refuse("no system bus here: %v", err)
	}
	// A bus that does not answer: the end of the context closes the connection.
	ctx, hangUp := context.WithCancel(context.Background())
	timer := time.AfterFunc(a.timeout, hangUp)
	defer timer.Stop()
	conn, err := dbus.Dial("unix:path="+a.bus, dbus.WithContext(ctx))
	if err != nil {
		hangUp()
		return nil, fmt.Errorf("the system bus at %s: %w", a.bus, err)
	}
	// Logind lets uid 0 reboot without asking polkit.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if err == nil {
		err = conn.Hello()
	}
	if err != nil {
		hangUp()
		return nil, fmt.Errorf("the system bus at %s: %w", a.bus, errors.Join(err, ctx.Err()))
	}
	return conn, nil
}

func (a *rebootAction) call(ctx context.Context, object dbus.BusObject, method string, args ...any) *dbus.Call {
	// Of its own: SIGTERM, which comes with the reboot, must not hide logind's answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
	defer cancel()
	return object.CallWithContext(ctx, method, 0, args...)
}

// inhibited refuses while a program blocks shutdowns. Logind before 257 lets root pass.
func (a *rebootAction) inhibited(ctx context.Context, object dbus.BusObject) error {
	var inhibitors []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	if err := a.call(ctx, object, manager+".ListInhibitors").Store(&inhibitors); err != nil {
		return fmt.Errorf("ask logind what blocks a reboot: %w", err)
	}
	for _, i := range inhibitors {
		for what := range strings.SplitSeq(i.What, ":") {
			if what == "shutdown" && strings.HasPrefix(i.Mode, "block") {
				return refuse("%s (pid %d) blocks the reboot: %s", i.Who, i.PID, i.Why)
			}
		}
	}
	return nil
}

// idle refuses while somebody uses an accelerator, of whatever vendor: a GPU that has fallen off the bus is still held. Of the host, each
// process that has one open counts but those that a reset stops or tolerates; of pods only those that compute or were given one: a monitor
// loses nothing by the reboot. A process that was killed and hangs in the driver is often why the node reboots.
func (a *rebootAction) idle(ctx context.Context) error {
	if a.allowHolders {
		return nil
	}
	w := a.watcher(vendors...)
	w.Wait, w.Killed = a.idleLimit, true
	var units []string
	for _, v := range vendors {
		units = append(units, v.units...)
		w.Devices, w.PodDevices = slices.Concat(w.Devices, v.devices), slices.Concat(w.PodDevices, v.work)
	}
	a.replace(w)
	return w.Idle(ctx, units)
}

// sync writes files to disk, of all file systems of the node. One that hangs does not keep the node from the reboot.
func (a *rebootAction) sync() {
	done := make(chan struct{})
	go func() {
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(a.timeout):
		slog.Warn("Not all file systems are written to disk", "after", a.timeout)
	}
}
