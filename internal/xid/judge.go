package xid

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// settle is how long a line waits for the lines that the driver prints beside it and that decide what it means.
const settle = 2 * time.Second

// Fault is the worst that stands against one GPU.
type Fault struct {
	Device string            `json:"device"`
	Kind   Kind              `json:"kind"`
	Code   int               `json:"code,omitempty"`
	Repair conditions.Repair `json:"repair"`
	Text   string            `json:"text"`
	Time   time.Time         `json:"time,omitzero"`
}

// Finding is the fault in the message's form.
func (f Fault) Finding() conditions.Finding {
	return conditions.Finding{Repair: f.Repair, Subject: "gpu " + f.Device, Text: f.Text}
}

// Judge says what stands against each GPU, given all events of this boot in order and the kernel's monotonic clock.
// The worst class wins and, within a class, the event that came first, so that the answer is stable. Lines that are
// still settling do not count yet.
func Judge(events []Event, now time.Duration) []Fault {
	worst := map[string]Fault{}
	cleared := map[string]int{} // index of the event after which a GPU's history counts
	clearGPU := func(device string, i int) {
		cleared[device] = i
		if worst[device].Repair <= conditions.ResetGPU {
			delete(worst, device)
		}
	}
	for i, e := range events {
		if e.Kind == KindDriver {
			for _, other := range events[:i] {
				clearGPU(other.Device, i)
			}
			continue
		}
		if e.clears() {
			clearGPU(e.Device, i)
			continue
		}
		if e.settling(now) {
			continue
		}
		repair, text := classify(events, cleared[e.Device], i)
		if e.Injected {
			text += " (injected)"
		}
		if repair > worst[e.Device].Repair {
			worst[e.Device] = Fault{e.Device, e.Kind, e.Code, repair, text, e.Time}
		}
	}
	var faults []Fault
	for _, f := range worst {
		faults = append(faults, f)
	}
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(b.Repair, a.Repair), cmp.Compare(a.Device, b.Device))
	})
	return faults
}

// clears tells an Xid 154 that withdraws the GPU's recovery action.
func (e Event) clears() bool {
	if e.Kind != KindXid || e.Code != 154 || e.Action == nil {
		return false
	}
	a, known := e.Action.recovery()
	return known && a.repair == 0
}

// settling tells a line whose class still depends on what follows it. A line from the future is no live one.
func (e Event) settling(now time.Duration) bool {
	if e.Kind != KindXid || e.Code != 48 && e.Code != 45 {
		return false
	}
	age := now - e.At
	return age >= 0 && age < settle
}

// classify gives the class and the words for event i; events from index since on count as the GPU's history.
func classify(events []Event, since, i int) (conditions.Repair, string) {
	e := events[i]
	switch e.Kind {
	case KindLost:
		return conditions.Reboot, "GPU has fallen off the bus"
	case KindInit:
		return conditions.Reboot, "RmInitAdapter failed"
	}
	entry, _ := Lookup(e.Code)
	repair, text := entry.Repair, entry.Text
	switch entry.Rule {
	case "settle":
		if e.beside(events, 94) && !e.beside(events, 64) && !e.beside(events, 95) {
			repair = conditions.RestartApp
		}
	case "cause":
		if e.Cause != 0 {
			repair, text = inherit(events, since, i), fmt.Sprintf("%s, caused by Xid %d", text, e.Cause)
		}
	case "text":
		repair, text = conditions.Inspect, "recovery action not understood"
		if e.Action != nil {
			text = "recovery action " + e.Action.Name
			if a, known := e.Action.recovery(); known {
				repair, text = a.repair, "recovery action "+a.name
			}
		}
	case "episodes":
		if recurs(events[:i+1], since, e) {
			repair, text = conditions.Inspect, text+", recurring with several applications"
		}
	}
	return repair, fmt.Sprintf("Xid %d %s", e.Code, text)
}

// beside tells whether the same GPU shows the code within the settle time.
func (e Event) beside(events []Event, code int) bool {
	return slices.ContainsFunc(events, func(o Event) bool {
		return o.Kind == KindXid && o.Code == code && o.Device == e.Device && o.near(e, settle)
	})
}

// near tells whether two bursts are at most d apart.
func (e Event) near(o Event, d time.Duration) bool {
	return e.At-o.Last <= d && o.At-e.Last <= d
}

// inherit gives an Xid 45 the class of the Xid that caused it: as judged on this GPU, else by the catalogue.
func inherit(events []Event, since, i int) conditions.Repair {
	e := events[i]
	entry, _ := Lookup(e.Cause)
	if entry.Rule == "cause" {
		return conditions.Monitor
	}
	repair := entry.Repair
	for j := since; j < i; j++ {
		if o := events[j]; o.Kind == KindXid && o.Code == e.Cause && o.Device == e.Device {
			if r, _ := classify(events, since, j); r > repair {
				repair = r
			}
		}
	}
	return repair
}

// recurs tells whether an application's error follows the GPU rather than the application: at least three episodes at
// least 30 minutes apart, from at least two applications known by name, while no other GPU of the node shows the same
// code within five minutes, which would be one job failing everywhere. For an Xid 13 the place on the GPU must be the same.
func recurs(events []Event, since int, e Event) bool {
	const apart, together, episodes, applications = 30 * time.Minute, 5 * time.Minute, 3, 2
	names := map[string]bool{}
	count := 0
	var last time.Duration
	for _, o := range events[since:] {
		if o.Kind != KindXid || o.Code != e.Code || o.Device != e.Device || o.Unit != e.Unit {
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

// recovery is what one of NVML's recovery actions needs; the zero class means that nothing is needed any more.
type recovery struct {
	name   string
	repair conditions.Repair
}

// recoveries are the values of nvmlDeviceGpuRecoveryAction_t (nvml.h, driver R570 and later) by number, with the names
// that the driver prints, lower case. Other builds print other names for the same thing, so the number goes first.
var recoveries = []struct {
	recovery
	names []string
}{
	0: {recovery{"None", 0}, []string{"none"}},
	1: {recovery{"GPU Reset", conditions.ResetGPU}, []string{"gpu reset required", "gpu reset", "pf flr"}},
	2: {recovery{"Node Reboot", conditions.Reboot}, []string{"node reboot required", "node reboot"}},
	3: {recovery{"Drain P2P", conditions.RestartApp}, []string{"drain p2p"}},
	4: {recovery{"Drain and Reset", conditions.ResetGPU}, []string{"drain and reset"}},
	5: {recovery{"Recover IMEX Domain", conditions.Inspect}, []string{"recover imex domain"}},
	6: {recovery{"Bus Reset", conditions.ResetGPU}, []string{"bus reset"}},
	7: {recovery{"System Reboot", conditions.Reboot}, []string{"system reboot", "os reboot"}},
}

// recovery looks the action up by value and, if the value is not known, by name.
func (a Action) recovery() (recovery, bool) {
	if a.Value >= 0 && a.Value < len(recoveries) {
		return recoveries[a.Value].recovery, true
	}
	for _, r := range recoveries {
		if slices.Contains(r.names, strings.ToLower(a.Name)) {
			return r.recovery, true
		}
	}
	return recovery{}, false
}
