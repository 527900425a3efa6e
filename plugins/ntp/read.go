package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Now is the clock in question.
	Now time.Time `json:"now"`
	// Asked names the daemon that must answer; "auto" for any.
	Asked string `json:"asked"`
	// Clock is the answer of the first daemon that answered, nil if none did.
	Clock *clock `json:"clock"`
	// Unanswered are the daemons that did not answer.
	Unanswered []unanswered `json:"silent"`
	// Before names the daemon that answered last in this boot.
	Before string `json:"before,omitempty"`
	Kernel kernel `json:"kernel"`
	// Unshared is why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// clock is what a daemon reports of the clock that it disciplines.
type clock struct {
	Daemon string `json:"daemon"`
	// Leap is the leap indicator of RFC 5905; 3 means not synchronised.
	Leap    int `json:"leap"`
	Stratum int `json:"stratum"`
	// Local: the reference is the node's own clock.
	Local bool `json:"local,omitempty"`
	// Reference is when the clock was last updated from a server, Poll the pause between updates.
	Reference time.Time     `json:"reference"`
	Poll      time.Duration `json:"poll"`
	// Offset is the distance from NTP time; of two measures of it the larger.
	Offset         time.Duration `json:"offset"`
	RootDelay      time.Duration `json:"rootDelay"`
	RootDispersion time.Duration `json:"rootDispersion"`
}

type unanswered struct {
	Daemon string `json:"daemon"`
	Why    string `json:"why"`
}

// kernel is adjtimex(2), which every daemon keeps up to date.
type kernel struct {
	Synchronised bool          `json:"synchronised"`
	MaxError     time.Duration `json:"maxError"`
	Err          string        `json:"err,omitempty"`
}

// reader asks the daemons in turn.
type reader struct {
	plugin            *npd.Plugin
	daemon            string
	procfs, ntpd, bus string
	chrony            []string

	store npd.Store[state]
}

// state remembers who disciplines the clock, so that a daemon that died differs from one that never ran.
type state struct {
	Daemon string `json:"daemon"`
}

// auto asks one daemon after another.
const auto = "auto"

// askFor bounds one question; a daemon answers within a millisecond.
const askFor = time.Second

func (r *reader) read(ctx context.Context) (snapshot, error) {
	if !slices.Contains([]string{auto, "chronyd", "ntpd", "timesyncd"}, r.daemon) {
		return snapshot{}, fmt.Errorf("no time daemon %q", r.daemon)
	}
	b, err := r.open()
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, Asked: r.daemon, Unanswered: []unanswered{}, Kernel: readKernel()}
	for _, daemon := range []struct {
		name string
		ask  func(context.Context) (clock, error)
	}{{"chronyd", r.askChronyd}, {"ntpd", r.askNTPd}, {"timesyncd", r.askTimesyncd}} {
		if s.Clock != nil || r.daemon != auto && r.daemon != daemon.name {
			continue
		}
		c, err := ask(ctx, daemon.ask)
		if err != nil {
			s.Unanswered = append(s.Unanswered, unanswered{daemon.name, err.Error()})
			continue
		}
		c.Daemon = daemon.name
		s.Clock = &c
	}
	s.Now = time.Now()
	before, err := r.store.Update(func(st *state) bool {
		if s.Clock == nil || st.Daemon == s.Clock.Daemon {
			return false
		}
		st.Daemon = s.Clock.Daemon
		return true
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	s.Before = before.Daemon
	return s, nil
}

func ask(ctx context.Context, f func(context.Context) (clock, error)) (clock, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	return f(ctx)
}

// clear forgets which daemon answered, for a node whose daemon was taken away on purpose.
func (r *reader) clear(_ context.Context, _ string) (cleared []string, err error) {
	if _, err := r.open(); err != nil {
		return nil, err
	}
	_, err = r.store.Update(func(st *state) bool {
		if st.Daemon != "" {
			cleared = []string{st.Daemon}
		}
		*st = state{}
		return true
	})
	return cleared, err
}

// open binds the state to this boot.
func (r *reader) open() (boot.Boot, error) {
	return r.store.Open(r.procfs, r.plugin.StateDir, "ntp")
}

func readKernel() kernel {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return kernel{Err: fmt.Sprintf("adjtimex: %v", err)}
	}
	return kernel{Synchronised: t.Status&unix.STA_UNSYNC == 0, MaxError: time.Duration(t.Maxerror) * time.Microsecond}
}

// seconds converts what the daemons report.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
