package xid

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
)

// settle is how long a line waits for the lines that the driver prints beside it and that decide what it means.
const settle = 2 * time.Second

// Fault is the worst that stands against one GPU, NVSwitch link or other piece of hardware.
type Fault struct {
	// Subject is what it stands against, e.g. "gpu 0000:4e:00" or "nvswitch 0000:05:00 link 32".
	Subject string            `json:"subject"`
	Kind    Kind              `json:"kind"`
	Code    int               `json:"code,omitempty"`
	Repair  conditions.Repair `json:"repair"`
	Text    string            `json:"text"`
	Time    time.Time         `json:"time,omitzero"`
	// SeenBoots counts the boots in which the subject showed the code, this one included.
	SeenBoots int `json:"seenBoots,omitempty"`
}

// subject is what the event stands against.
func (e Event) subject() string {
	switch e.Kind {
	case KindHardware:
		return e.Device
	case KindPeermem:
		return "nvidia-peermem"
	case KindUncoded:
		if e.Device == "" {
			return strings.TrimSuffix("nvidia driver GPU"+e.Unit, " GPU")
		}
	case KindSXid:
		if e.Link != "" {
			return "nvswitch " + e.Device + " link " + e.Link
		}
		return "nvswitch " + e.Device
	}
	return "gpu " + e.Device
}

// Case is all that is judged.
type Case struct {
	// Events are those of this boot, in order.
	Events []Event
	// Now is the kernel's monotonic clock.
	Now time.Duration
	// GPUs is what is known of each GPU, by Device.
	GPUs map[string]GPU
	// Overrides are the site's own classes.
	Overrides Overrides
	// Recovered is when each GPU was last seen to need no reset any more, by Device. A fault that a reset clears is over if it was
	// last reported before that time. A reset by `nvidia-smi -r` may log nothing.
	Recovered map[string]time.Duration
	// Storms makes Inspect of corrected errors and timeouts that repeat at the rate of their row.
	Storms bool
}

// GPU is what the driver reports about a GPU apart from faults.
type GPU struct {
	UUID string `json:"uuid,omitempty"`
	// Index is the device minor number, the N of /dev/nvidiaN; empty when not known.
	Index string `json:"index,omitempty"`
	Model string `json:"model,omitempty"`
	// MIG is true if the GPU is partitioned.
	MIG bool `json:"mig,omitempty"`
}

// Judge returns the present faults of each subject. The worst class wins and, within a class, what may be the cause of the others, then
// the event that came first, so that the answer is stable. Lines that are still settling do not count yet.
func (c Case) Judge() []Fault {
	worst := map[string]Fault{}
	cleared := map[string]int{} // index of the event after which a subject's history counts
	clear := func(subject string, i int) {
		cleared[subject] = i
		if f := worst[subject]; f.Repair <= conditions.ResetGPU || f.Kind == KindInit {
			delete(worst, subject)
		}
	}
	for i, e := range c.Events {
		switch {
		case e.Kind == KindUnload:
		case e.Kind == KindDriver:
			for _, other := range c.Events[:i] {
				if other.Kind != KindHardware {
					clear(other.subject(), i)
				}
			}
		case e.clears():
			clear(e.subject(), i)
		case e.settling(c.Now):
		default:
			subject := e.subject()
			repair, text := c.classify(cleared[subject], i)
			if e.Kind != KindSXid && cmp.Or(e.SeenLast, e.Last) < c.Recovered[e.Device] &&
				(repair <= conditions.ResetGPU || e.Kind == KindInit) {
				cleared[subject] = i + 1
				continue
			}
			if e.Injected {
				text += " (injected)"
			}
			known := worst[subject]
			isCause := known.Repair > 0 && causeRank(e.Kind, e.Code) > causeRank(known.Kind, known.Code)
			if repair > known.Repair || repair == known.Repair && isCause {
				worst[subject] = Fault{Subject: subject, Kind: e.Kind, Code: e.Code, Repair: repair, Text: text, Time: e.Time}
			}
		}
	}
	faults := slices.Collect(maps.Values(worst))
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(b.Repair, a.Repair), cmp.Compare(a.Subject, b.Subject))
	})
	return faults
}

// causeRank orders faults of one class by whether they may be the cause of others. An Xid 149 is the broken link itself. An Xid 145 is
// about the remote end of a link, an Xid 45 ends a channel for another fault, and a failed initialisation is over when the next one works:
// they must not hide a fault of the GPU itself.
func causeRank(kind Kind, code int) int {
	switch {
	case kind == KindXid && code == 149:
		return 2
	case kind == KindXid && (code == 145 || code == 45), kind == KindInit, kind == KindUncoded:
		return 0
	}
	return 1
}

// Classified returns the events with the class that each has alone.
func (c Case) Classified() []Event {
	events := slices.Clone(c.Events)
	for i, e := range events {
		if e.Kind != KindDriver && e.Kind != KindUnload && !e.clears() {
			events[i].Repair, _ = c.classify(0, i)
		}
	}
	return events
}

// clears reports whether an Xid 154 withdraws the GPU's recovery action.
func (e *Event) clears() bool {
	if e.Kind != KindXid || e.Action.Name == "" {
		return false
	}
	need, known := e.Action.need()
	return known && need.Repair == 0
}

// Settled is how long it takes until no line is settling any more, 0 if none is.
func (c Case) Settled() (wait time.Duration) {
	for _, e := range c.Events {
		if e.settling(c.Now) {
			wait = max(wait, settle-(c.Now-cmp.Or(e.Seen, e.At)))
		}
	}
	return wait
}

// settling reports whether the class of a line still depends on the lines after it. A line from the future is not a current one.
func (e Event) settling(now time.Duration) bool {
	entry, _ := Lookup(e.Code)
	waits := e.Kind == KindUncoded || e.Kind == KindXid && (entry.Rule == "settle" || entry.Rule == "cause") ||
		e.Kind == KindSXid && e.Code == ltssmFaultUp
	// Two clocks: the time of reading shows how long the line has waited, its own timestamp whether it is recent.
	const recent = 2 * time.Minute
	age := now - cmp.Or(e.Seen, e.At)
	return waits && age >= 0 && age < settle && (now-e.At).Abs() < recent
}

// classify gives the class and the words for event i; events from index since on count as the subject's history.
func (c Case) classify(since, i int) (conditions.Repair, string) {
	e := c.Events[i]
	repair, text := c.byRules(since, i)
	if class, ok := c.Overrides.lookup(e.Kind, e.Code); ok {
		return class, text
	}
	return repair, text
}

func (c Case) byRules(since, i int) (conditions.Repair, string) {
	e := c.Events[i]
	if e.Kind != KindXid {
		return c.byKind(e)
	}
	entry, _ := Lookup(e.Code)
	repair, text := entry.Repair, entry.Text
	switch entry.Rule {
	case "settle":
		if e.beside(c.Events, 94) && !e.beside(c.Events, 64) && !e.beside(c.Events, 95) {
			repair = conditions.RestartApp
		}
	case "cause":
		if e.Cause != 0 {
			repair, text = c.inherit(since, i), fmt.Sprintf("%s, caused by Xid %d", text, e.Cause)
		}
	case "text":
		repair, text = e.Action.classify()
	case "episodes":
		if recurs(c.Events[:i+1], since, e) {
			repair, text = conditions.Inspect, text+", recurring with several applications"
		}
	case "registers":
		repair, text = classify74(c.Events, i)
	case "nvlink5":
		repair, text = classifyNVLink5(e, text)
	case "uncontained":
		// Without MIG an A100 cannot reset one GPU of the board alone after this (NVIDIA's GPU debug guidelines).
		if g := c.GPUs[e.Device]; strings.Contains(g.Model, "A100") && !g.MIG && e.MIG == "" {
			repair = conditions.Reboot
		}
	}
	return repair, fmt.Sprintf("Xid %d %s", e.Code, text)
}

// byKind judges a line that is no Xid.
func (c Case) byKind(e Event) (conditions.Repair, string) {
	switch e.Kind {
	case KindLost:
		return conditions.Reboot, "GPU has fallen off the bus"
	case KindInit:
		return conditions.Reboot, clip(e.Text)
	case KindSXid:
		return classifySXid(c.Events, e)
	case KindUncoded:
		return classifyUncoded(c.Events, e)
	case KindHardware:
		return classifyHardware(e, c.Storms)
	}
	return conditions.Monitor, e.Text
}

// beside reports whether the same GPU shows the code within the settle time.
func (e Event) beside(events []Event, code int) bool {
	return slices.ContainsFunc(events, func(o Event) bool {
		return o.Kind == KindXid && o.Code == code && o.Device == e.Device && o.near(e, settle)
	})
}

// near reports whether two bursts are at most d apart.
func (e Event) near(o Event, d time.Duration) bool {
	return e.At-o.Last <= d && o.At-e.Last <= d
}

// inherit gives an Xid 45 the class of the Xid that caused it: as judged on this GPU, else by the catalogue. Of an
// NVLink5 error only a reset is inherited; everything else needs inspection by an administrator.
func (c Case) inherit(since, i int) conditions.Repair {
	e := c.Events[i]
	entry, _ := Lookup(e.Cause)
	if entry.Rule == "cause" {
		return conditions.Monitor
	}
	judged := conditions.Repair(0)
	for j := since; j < i; j++ {
		if o := c.Events[j]; o.Kind == KindXid && o.Code == e.Cause && o.Device == e.Device {
			r, _ := c.classify(since, j)
			judged = max(judged, r)
		}
	}
	switch {
	case judged == 0:
		return entry.Repair
	case entry.Rule == "nvlink5":
		return max(judged, entry.Repair)
	}
	return judged
}

// recurs reports whether an application's error follows the GPU rather than the application: within a day at least three episodes
// at least 30 minutes apart, from at least two applications known by name, while no other GPU of the node shows the same
// code within five minutes, which would be one job failing everywhere. For an Xid 13 the place on the GPU must be the same.
// See docs/adr/0064-errors-of-applications-recur-within-a-day.md.
func recurs(events []Event, since int, e Event) bool {
	const day, apart, together, episodes, applications = 24 * time.Hour, 30 * time.Minute, 5 * time.Minute, 3, 2
	names := map[string]bool{}
	count := 0
	var last time.Duration
	for _, o := range events[since:] {
		if o.Kind != KindXid || o.Code != e.Code || o.Device != e.Device || o.Unit != e.Unit || e.At-o.Last > day {
			continue
		}
		elsewhere := slices.ContainsFunc(events, func(x Event) bool {
			return x.Kind == KindXid && x.Code == o.Code && x.Device != o.Device && x.near(o, together)
		})
		if elsewhere {
			continue
		}
		if o.Process != "" {
			names[o.Process] = true
		}
		if count == 0 || o.At-last >= apart {
			count++
		}
		last = o.Last
	}
	return count >= episodes && len(names) >= applications
}

// classify gives the class of an Xid 154 and the words for it.
func (a Action) classify() (conditions.Repair, string) {
	need, known := a.need()
	switch {
	case known:
		return need.Repair, "recovery action " + need.Name
	case a.Name != "":
		return conditions.Inspect, "recovery action " + clip(a.Name)
	}
	return conditions.Inspect, "recovery action not understood"
}

// need looks the action up by value and, if the value is not known, by name: some builds print other names for the same thing.
func (a Action) need() (gpu.Need, bool) {
	if a.Name == "" {
		return gpu.Need{}, false
	}
	if need, known := gpu.RecoveryAction(a.Value).Need(); known {
		return need, true
	}
	return gpu.NeedNamed(a.Name)
}
