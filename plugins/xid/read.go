package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// snapshot is all that the judge needs.
type snapshot struct {
	// BootID is empty for a plain text log.
	BootID string `json:"bootID"`
	// Now is the clock of the events at the look.
	Now time.Duration `json:"now"`
	// Gap says that records of this boot were overwritten before they could be read.
	Gap bool `json:"gap"`
	// Dropped counts events that did not fit.
	Dropped int         `json:"dropped,omitempty"`
	Events  []xid.Event `json:"events"`
	// Latched is what stands against each subject; it follows from the rest and is there for people.
	Latched   []xid.Fault        `json:"latched"`
	GPUs      map[string]xid.GPU `json:"gpus,omitempty"`
	Overrides xid.Overrides      `json:"overrides,omitempty"`
	// Recovered is what the ecc check saw of GPUs that needed a reset and then needed none.
	Recovered map[string]time.Duration `json:"recovered,omitempty"`
	// Unread says why the kernel log could not be read, Unshared why the state could not be kept.
	Unread   string `json:"unread,omitempty"`
	Unshared string `json:"unshared,omitempty"`
}

// complete adds what follows from the state and from what else is known.
func (s snapshot) complete(state xid.State) snapshot {
	s.Gap, s.Dropped, s.Events = state.Lost > 0, state.Dropped, state.Events
	s.Events = append([]xid.Event{}, s.asCase().Classified()...)
	s.Latched = append([]xid.Fault{}, s.faults()...)
	state.Remember(s.Latched)
	return s
}

func (s snapshot) asCase() xid.Case {
	return xid.Case{Events: s.Events, Now: s.Now, GPUs: s.GPUs, Overrides: s.Overrides, Recovered: s.Recovered}
}

func (s snapshot) faults() []xid.Fault { return s.asCase().Judge() }

// reader follows the kernel log from look to look of one run and merges what it finds into the state of all runs.
type reader struct {
	plugin                  *npd.Plugin
	kmsg, text, procfs      string
	journalctl, journalDir  string
	overridesFile           string
	hardware, allowInjected bool
	journal, journalled     bool

	store   *npd.Store[xid.State]
	notes   *npd.Store[gpu.Recoveries]
	log     *kmsg.Reader
	oldest  time.Duration // of the first record that the ring still had
	joiner  xid.Joiner
	pending pending
	// list is the driver's list of GPUs, if it was asked for.
	list   map[string]xid.GPU
	listed bool
	// lost is how much of the log's count of lost records is in the state.
	lost uint64
}

// pending is what was read but is not in the state yet.
type pending struct {
	events []seen
	uuids  map[string]string
	// before are events from before the ring's oldest record, whole says that they reach back to the boot.
	before            []xid.Event
	journalled, whole bool
}

// seen is an event and the sequence number of its record.
type seen struct {
	seq   uint64
	event xid.Event
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	if r.text != "" {
		return r.readText(ctx)
	}
	overrides, err := r.overrides()
	if err != nil {
		return snapshot{}, err
	}
	if err := r.open(); err != nil {
		return snapshot{}, err
	}
	logErr := r.follow(ctx)
	state, storeErr := r.merge(nil)
	// After the log was read, so that nothing in it is from the future.
	now, err := npd.Uptime()
	if err != nil {
		return snapshot{}, err
	}
	var list map[string]xid.GPU
	if len(state.Events) > 0 {
		list = r.driverList(ctx)
	}
	if !r.allowInjected {
		// A drill beside this run shares the state.
		state.Events = slices.Clone(state.Events)
		state.DropInjected()
	}
	s := snapshot{
		BootID: r.store.BootID, Now: now, GPUs: gpus(state.UUIDs, list), Overrides: overrides, Recovered: r.recovered(),
	}.complete(state)
	if logErr != nil {
		s.Unread = logErr.Error()
	}
	if storeErr != nil {
		s.Unshared = storeErr.Error()
	}
	return s, nil
}

// recovered is when each GPU was last seen to need no reset any more, as the ecc check noted it. Without that check, or
// when its notes cannot be read, nothing has recovered.
func (r *reader) recovered() map[string]time.Duration {
	known, ok := r.notes.Unchanged()
	if !ok {
		if _, err := os.Stat(r.notes.Path); err != nil {
			return nil
		}
		var err error
		known, err = r.notes.Update(func(*gpu.Recoveries) bool { return false })
		if err != nil {
			return nil
		}
	}
	recovered := map[string]time.Duration{}
	for device, note := range known {
		if note.Recovered > 0 {
			recovered[device] = note.Recovered
		}
	}
	return recovered
}

// clear reads the log to its end first, so that it forgets all that happened before it.
func (r *reader) clear(ctx context.Context, subject string) (cleared []string, err error) {
	if r.text != "" {
		return nil, errors.New("a plain text log has nothing to clear")
	}
	now, err := npd.Uptime()
	if err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if err := r.follow(ctx); err != nil {
		return nil, err
	}
	_, err = r.merge(func(s *xid.State) bool {
		cleared = s.Clear(subject, r.hardware, now)
		return true
	})
	return cleared, err
}

// wait returns when the driver has written something that matters.
func (r *reader) wait(ctx context.Context) error {
	if r.log == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for len(r.pending.events) == 0 {
		if err := r.log.Wait(ctx); err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) overrides() (xid.Overrides, error) {
	if r.overridesFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(r.overridesFile)
	if err != nil {
		return nil, err
	}
	overrides, err := xid.ParseOverrides(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.overridesFile, err)
	}
	return overrides, nil
}

// open binds the state to this boot.
func (r *reader) open() error {
	if r.store != nil {
		return nil
	}
	bootID, err := os.ReadFile(filepath.Join(r.procfs, "sys/kernel/random/boot_id"))
	if err != nil {
		return err
	}
	r.store = &npd.Store[xid.State]{
		Path:   filepath.Join(r.plugin.StateDir, "xid.json"),
		BootID: strings.TrimSpace(string(bootID)),
		Carry:  xid.State.NextBoot,
	}
	r.notes = &npd.Store[gpu.Recoveries]{
		Path:   filepath.Join(r.plugin.StateDir, gpu.RecoveryFile+".json"),
		BootID: r.store.BootID,
	}
	return nil
}

// follow reads the log to its end, from where the runs before this one got to.
func (r *reader) follow(ctx context.Context) error {
	if r.log == nil {
		state, _ := r.merge(func(s *xid.State) bool { return !r.allowInjected && s.DropInjected() })
		log, err := kmsg.Open(r.kmsg, state.Next)
		if err != nil {
			return err
		}
		// What the ring loses later was read, or its gap is told.
		r.log, r.journalled = log, state.Journal || state.Next > 0
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	if r.journal && !r.journalled && r.log.Lost() > 0 {
		r.journalled = true
		if err := r.readJournal(ctx); err != nil {
			slog.Warn("what the kernel's ring has lost is not read from the journal", "err", err)
		}
	}
	return nil
}

// drain parses what the kernel log holds now.
func (r *reader) drain(ctx context.Context) error {
	now, err := npd.Uptime()
	if err != nil {
		return err
	}
	wall := time.Now()
	for ctx.Err() == nil {
		rec, err := r.log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, kmsg.ErrMalformed):
			slog.Warn("kernel log", "err", err)
			continue
		case err != nil:
			return err
		}
		if r.oldest == 0 {
			r.oldest = rec.Time
		}
		injected := rec.Facility != 0
		if injected && !r.allowInjected {
			continue
		}
		if e, ok := r.joiner.Parse(rec.Body); ok {
			e.Injected, e.At, e.Seen = injected, rec.Time, now
			e.Time = wall.Add(rec.Time - now).Round(time.Millisecond)
			r.pending.events = append(r.pending.events, seen{rec.Seq, e})
		} else if gpu, uuid, ok := xid.ParseIdentity(rec.Body); ok {
			r.pending.identify(gpu, uuid)
		}
	}
	return nil
}

func (p *pending) identify(gpu, uuid string) {
	if p.uuids == nil {
		p.uuids = map[string]string{}
	}
	p.uuids[gpu] = uuid
}

// merge brings what was read into the state that all runs share, and then the change if it is not nil. Another run may
// have got further: what it has merged is not merged again.
func (r *reader) merge(change func(*xid.State) (changed bool)) (xid.State, error) {
	if state, ok := r.store.Unchanged(); ok && change == nil && !r.news(state) {
		return state, nil
	}
	state, err := r.store.Update(func(s *xid.State) bool {
		changed := false
		for gpu, uuid := range r.pending.uuids {
			changed = s.Identify(gpu, uuid) || changed
		}
		for _, p := range r.pending.events {
			if p.seq >= s.Next {
				s.Add(p.event)
				changed = true
			}
		}
		if r.log != nil {
			if lost := r.log.Lost(); lost > r.lost {
				s.Lost += lost - r.lost
				r.lost, changed = lost, true
			}
			if next := r.log.Seq(); next > s.Next {
				s.Next, changed = next, true
			}
		}
		if r.pending.journalled && !s.Journal {
			s.Precede(r.pending.before)
			s.Journal, changed = true, true
			if r.pending.whole {
				s.Lost = 0
			}
		}
		if change != nil {
			changed = change(s) || changed
		}
		return changed
	})
	r.pending = pending{}
	return state, err
}

// readJournal reads what the ring had lost before the first look of this boot. A journalctl that hangs on a broken disk
// is left behind, but it keeps the lock that it inherits, so that there is never a second one.
func (r *reader) readJournal(ctx context.Context) error {
	lock, err := os.OpenFile(filepath.Join(r.plugin.StateDir, "xid-journal.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another journalctl has not ended: %w", err)
	}
	now, err := npd.Uptime()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	args := []string{
		"--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
		"_TRANSPORT=kernel", "SYSLOG_FACILITY=0", "_BOOT_ID=" + strings.ReplaceAll(r.store.BootID, "-", ""),
	}
	if r.journalDir != "" {
		args = append(args, "--directory="+r.journalDir)
	}
	cmd := exec.CommandContext(ctx, r.journalctl, args...)
	cmd.ExtraFiles = []*os.File{lock}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	read, enough, err := r.parseJournal(out, time.Now(), now)
	if enough || err != nil {
		cancel()
	}
	// Ended by us, what it dies of is no matter.
	if ended := cmd.Wait(); ended != nil && !enough && err == nil {
		err = fmt.Errorf("%s: %w", r.journalctl, ended)
	}
	if err != nil {
		return err
	}
	for gpu, uuid := range read.uuids {
		r.pending.identify(gpu, uuid)
	}
	r.pending.before, r.pending.journalled, r.pending.whole = read.before, true, read.whole
	return nil
}

// news tells whether anything was read that the state does not have. That the log got longer by lines of no interest
// can wait for the next write: whoever starts from there reads them again.
func (r *reader) news(state xid.State) bool {
	const mark = 256
	return len(r.pending.events) > 0 || len(r.pending.uuids) > 0 || r.pending.journalled ||
		r.log != nil && (r.log.Lost() > r.lost || r.log.Seq() > state.Next+mark)
}

// listGPUs reads the driver's own list of GPUs.
func listGPUs(procfs string) map[string]xid.GPU {
	found := map[string]xid.GPU{}
	files, _ := filepath.Glob(filepath.Join(procfs, "driver/nvidia/gpus/*/information"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		gpu := driverInformation(string(text))
		instances, _ := filepath.Glob(filepath.Join(procfs, "driver/nvidia/capabilities/gpu"+gpu.Index+"/mig/gi*"))
		gpu.MIG = len(instances) > 0
		found[xid.Device(filepath.Base(filepath.Dir(file)))] = gpu
	}
	return found
}

// driverList has another process, this plugin with -gpus, read the driver's list, once per run. These files are calls
// into the driver: one that hangs cannot be killed, and in this process it would keep NPD's pipes open for ever. It is
// left behind after a moment, but it keeps the lock that it inherits, so that there is never a second one.
func (r *reader) driverList(ctx context.Context) map[string]xid.GPU {
	const moment = 500 * time.Millisecond
	if r.listed {
		return r.list
	}
	r.listed = true
	if _, err := os.Stat(filepath.Join(r.procfs, "driver/nvidia")); err != nil {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(r.plugin.StateDir, "xid-gpus.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-procfs", r.procfs, "-gpus")
	cmd.ExtraFiles = []*os.File{lock}
	printed := make(chan []byte, 1)
	go func() {
		// A list that did not come is an empty one.
		out, _ := cmd.Output()
		printed <- out
	}()
	select {
	case out := <-printed:
		if err := json.Unmarshal(out, &r.list); err != nil {
			slog.Warn("the driver's list of GPUs", "err", err)
		}
	case <-ctx.Done():
		slog.Warn("the driver's list of GPUs does not come")
	}
	return r.list
}
