// Package npd is Node Problem Detector's custom plugin protocol: one line on stdout, exit 0 (healthy), 1 (problem) or 2
// (cannot tell), and between two answers a hold that makes a polled plugin as quick as an event. A look is one Read and
// one Judge of a check; a run that holds takes many. See docs/adr/0002-hold-and-latch.md.
package npd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/version"
)

// Status is an exit code of the plugin protocol (NPD pkg/custompluginmonitor/plugin: OK, NonOK, Unknown).
type Status int

// The exit codes. NPD takes every other code, a signal and its own timeout for Unknown too.
const (
	OK      Status = 0
	Problem Status = 1
	Unknown Status = 2
)

// Unread names something that a look could not observe, and why.
type Unread struct{ Subject, Why string }

// Result is the outcome of one look. One broken device never hides another: what is sick and what could not be read
// are both reported, and sick wins.
type Result struct {
	// Findings are the faults of every class. Those below the plugin's -min-repair do not make a problem.
	Findings []conditions.Finding
	// Unread makes the answer Unknown unless a finding makes it a problem.
	Unread []Unread
	// Healthy is the line of a healthy answer.
	Healthy string
	// Unconfirmed reports that this look saw something that makes a problem if the next look sees it, too. The next look is after -every,
	// also while the answer is healthy.
	Unconfirmed bool
}

// Check is one node check.
type Check[S any] struct {
	// Read observes. An error means that nothing could be observed; what could not be observed in part belongs
	// into the snapshot. It is called once per look, never concurrently.
	Read func(ctx context.Context) (S, error)
	// Judge decides. It is pure: the same snapshot gives the same result.
	Judge func(S) Result
	// Driver, if set, says that Read calls into a driver or runs a vendor's tool, which may hang and then cannot be
	// killed. Read runs in a worker process then, and S goes through JSON. Driver identifies the loaded driver and
	// returns "" while there is none or it is being changed; only a driver that is there can be at fault. See [Module].
	Driver func() string
	// Shared, if set, is the part of Read that calls into the driver, and several checks share it. Then Read runs in the plugin's own
	// process and has the reading from [Shared.Get]. It needs Driver.
	Shared sharedRead
	// UsesDriver, if set, reports after the flags are parsed whether Read calls into the driver in this run.
	UsesDriver func() bool
	// Wait, if set, returns before the pause between two looks is over when there is something to look at.
	Wait func(ctx context.Context) error
	// Clear, if set, forgets the latched faults whose subject contains the text ("" for all) and returns the
	// subjects that it forgot.
	Clear func(ctx context.Context, subject string) ([]string, error)
}

// Plugin holds the flags that every plugin has. A plugin adds its own to the set before [Main] parses them.
type Plugin struct {
	*flags.Set
	// Timeout bounds one look.
	Timeout time.Duration
	// Hold is how long an unchanged answer is held back; 0 answers at once.
	Hold time.Duration
	// Every is the pause between two looks while holding.
	Every time.Duration
	// HealthyEvery is the pause after a look that found nothing; Every if it is shorter.
	HealthyEvery time.Duration
	// StateDir holds latches and last answers. The default is on a tmpfs, which a reboot empties.
	StateDir string
	// Grace is the uptime before which findings of absence are Unknown.
	Grace time.Duration
	// HungAfter is how long a worker must have survived being killed before the driver is at fault.
	HungAfter time.Duration
	// Work names what a plugin does to the accelerators in this run, such as a diagnostic; empty for a check. It has a
	// worker of its own beside that of the check, it logs its progress, and maintenance does not stop it.
	Work string
	// MinRepair is the weakest class that makes a problem.
	MinRepair conditions.Repair

	snapshot    string
	dump, clear bool
	prints      []*printer
}

// printer is a flag that prints a text instead of checking the node.
type printer struct {
	set  bool
	text func(args []string) (string, error)
}

// Print adds a flag that, instead of a look, prints a text made from the arguments after the flags and exits 0.
func (p *Plugin) Print(name, usage string, text func(args []string) (string, error)) {
	pr := &printer{text: text}
	p.BoolVar(&pr.set, name, false, usage)
	p.prints = append(p.prints, pr)
}

// Dumps reports whether this run only shows what it reads (-dump): it is no look that later ones build on.
func (p *Plugin) Dumps() bool { return p.dump }

// New returns a plugin with the common flags.
func New(name, about string) *Plugin {
	p := &Plugin{Set: flags.NewSet(name)}
	p.DurationVar(&p.Timeout, "timeout", 8*time.Second, "limit for one check of the node", 10*time.Millisecond, flags.Day)
	p.DurationVar(&p.Hold, "hold", 0, "how long to hold back an unchanged answer; hold + timeout + 1s must be below NPD's timeout",
		0, time.Hour)
	p.DurationVar(&p.Every, "every", time.Second, "pause between checks while holding", time.Millisecond, time.Hour)
	p.DurationVar(&p.HealthyEvery, "healthy-every", 0, "longer pause while holding, after a check that found nothing", 0, flags.Day)
	p.StringVar(&p.StateDir, "state-dir", "/run/pitcrew",
		"`directory` for latches and last answers; the default is on a tmpfs, which a reboot empties")
	p.DurationVar(&p.Grace, "grace", 20*time.Minute, "uptime before which something absent is Unknown, not a problem", 0, flags.Year)
	p.DurationVar(&p.HungAfter, "hung-after", 5*time.Minute,
		"how long a killed call into a driver may still hang before the node needs a reboot", 0, flags.Day)
	p.TextVar(&p.MinRepair, "min-repair", conditions.Inspect, "weakest repair `class` that is a problem")
	p.StringVar(&p.snapshot, "snapshot", "", "judge this dumped `file` instead of reading the node")
	p.BoolVar(&p.dump, "dump", false, "print the snapshot as JSON and exit 0")
	p.BoolVar(&p.clear, "clear", false, "forget latched faults, or those of the subject given as argument")
	p.Print("version", "print the version and exit 0", func([]string) (string, error) {
		return name + " " + version.String() + "\n", nil
	})
	p.Usage = func() {
		fmt.Fprintf(p.Output(), "%s %s\nexit 0 healthy, 1 problem, 2 cannot tell\n", name, about)
		p.PrintDefaults()
	}
	return p
}

// answer is what NPD gets.
type answer struct {
	Status  Status `json:"status"`
	Message string `json:"message"`
}

func unknown(format string, a ...any) answer {
	return answer{Unknown, line("unknown: " + fmt.Sprintf(format, a...))}
}

// answer turns a result into one line and an exit code.
func (r Result) answer(minRepair conditions.Repair) answer {
	var sick []conditions.Finding
	for _, f := range r.Findings {
		if f.Repair >= minRepair {
			sick = append(sick, f)
		}
	}
	switch {
	case len(sick) > 0:
		for _, u := range r.Unread {
			sick = append(sick, conditions.Finding{Repair: conditions.Monitor, Subject: u.Subject, Text: conditions.NotRead + u.Why})
		}
		return answer{Problem, conditions.Summarize(sick).String()}
	case len(r.Unread) > 0:
		return unknown("%s", notRead(r.Unread))
	}
	return answer{OK, line(r.Healthy)}
}

// notRead names what was not read, by the reasons: eight GPUs may have one.
func notRead(unread []Unread) string {
	subjects, whys := map[string][]string{}, []string{}
	for _, u := range unread {
		if subjects[u.Why] == nil {
			whys = append(whys, u.Why)
		}
		subjects[u.Why] = append(subjects[u.Why], u.Subject)
	}
	var parts []string
	for _, why := range whys {
		parts = append(parts, strings.Join(subjects[why], ", ")+": "+why)
	}
	return strings.Join(parts, ", ")
}

// line makes foreign text one safe line.
func line(s string) string {
	s = conditions.Sanitize(s)
	return s[:min(len(s), conditions.MaxMessage)]
}
