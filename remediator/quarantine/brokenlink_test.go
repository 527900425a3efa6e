package quarantine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

const (
	xid149 = "ResetGPU gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"
	xid145 = "ResetGPU gpu 0018:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 13"
	xid45  = "ResetGPU gpu 0018:01:00: Xid 45 preemptive cleanup after an earlier error, caused by Xid 145"
	// cliques has the NVLink domains, and every guard that one rack of faults would meet.
	cliques = `budget: {maxNodes: 1}
breaker: {maxNodes: 1, window: 10m, coolDown: 30m, pace: 5m}
correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [clique]}
domains: [{label: clique}]`
)

// newRack makes n nodes of one NVLink domain.
func newRack(t *testing.T, n int, spec string) *fleet {
	t.Helper()
	f := newFleet(t, n, spec, "restartJobs: true")
	for _, w := range f.worlds {
		w.node.Labels["clique"] = "a"
	}
	return f
}

// passes lets time pass in the cluster.
func (f *fleet) passes(d time.Duration) {
	for _, w := range f.worlds {
		w.now = w.now.Add(d)
		beats(w)
	}
}

// round decides about each node once.
func (f *fleet) round() {
	f.Helper()
	for i := range f.worlds {
		f.decide(i)
	}
}

// reports gives a node another message, as NPD does: with a new transition.
func reports(message string) step {
	return func(w *world) {
		gpuFine(w)
		gpu(message)(w)
		for i := range w.node.Status.Conditions {
			w.node.Status.Conditions[i].LastTransitionTime = metav1.NewTime(w.now)
		}
	}
}

// links is what is done about each node: r for the repair of its own fault, h for a node that is only held from new jobs, s for a
// suspect and - for neither. A capital letter says that its jobs are restarted.
func (f *fleet) links() string {
	f.Helper()
	var b strings.Builder
	for _, w := range f.worlds {
		letter := "-"
		switch r := w.record(); {
		case r == nil || r.Phase == causes.Released:
		case r.Phase == causes.Suspect:
			letter = "s"
		case w.node.Labels[conditions.LabelRepair] == "Inspect" && w.node.Spec.Taints[0].Effect == corev1.TaintEffectNoSchedule:
			letter = "h"
		default:
			letter = "r"
		}
		if w.last.RestartJobs {
			letter = strings.ToUpper(letter)
		}
		b.WriteString(letter)
	}
	return b.String()
}

func (f *fleet) wantLinks(want string) {
	f.Helper()
	if got := f.links(); got != want {
		f.Fatalf("the nodes are %s, want %s; the last is blocked by %+v", got, want, f.worlds[len(f.worlds)-1].last.Blocked)
	}
}

// One link breaks and a whole rack reports it: one repair, one unit of the budget, one node whose jobs are restarted.
func TestOneBrokenLinkIsOneRepair(t *testing.T) {
	for name, at := range map[string]int{"the origin is seen first": 0, "the origin is seen last": 15} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 16, cliques)
			for i, w := range f.worlds {
				gpu(xid145)(w)
				if i == at {
					gpu(xid149)(w)
				}
				f.decide(i)
			}
			f.round()
			want := []byte(strings.Repeat("h", 16))
			want[at] = 'R'
			f.wantLinks(string(want))
			victim := f.worlds[8]
			if !strings.Contains(victim.node.Annotations[conditions.AnnotationQuarantine], fmt.Sprintf(`"heldFor":"n%d"`, at)) {
				t.Error(victim.node.Annotations[conditions.AnnotationQuarantine])
			}
			if victim.last.Started != nil || len(peers.Of(victim.policy, victim.node).Starts) > 0 {
				t.Error("a victim counts for the breaker")
			}
		})
	}
}

func TestVictimsUseUpNoPlaceOfTheBudget(t *testing.T) {
	f := newRack(t, 6, strings.ReplaceAll(cliques, "maxNodes: 1", "maxNodes: 2"))
	f.worlds[5].node.Labels["clique"] = "b"
	gpu(xid149)(f.worlds[0])
	for _, w := range f.worlds[1:5] {
		gpu(xid145)(w)
	}
	f.round()
	f.wantLinks("Rhhhh-")
	gpu(ecc)(f.worlds[5])
	f.round()
	f.wantLinks("RhhhhR")
	// A record that claims to be a victim's has its place: the node that it names is not quarantined.
	peers := limits.PeersOf(limits.Peer{Name: "x", OutOfService: true, Why: limits.Quarantined, Rule: "gpu", HeldFor: "y"})
	if got := limits.ExceededBudget(&policy.Policy{Budget: policy.Budget{MaxNodes: 1, MaxPercent: 100}}, limits.Held{}, f.worlds[0].policy.Rules[0], nil, peers, f.worlds[0].now); got == "" {
		t.Error("a node that is held for none uses up no place")
	}
}

// The victims wait for the origin, and return with it although their faults are still reported.
func TestVictimsReturnWithTheOrigin(t *testing.T) {
	f := newRack(t, 4, cliques)
	gpu(xid149)(f.worlds[0])
	for _, w := range f.worlds[1:] {
		gpu(xid145)(w)
	}
	f.round()
	f.passes(6 * time.Hour)
	f.round()
	f.wantLinks("Rhhh")
	gpuFine(f.worlds[0])
	f.decide(0)
	f.passes(2 * time.Minute)
	f.round()
	f.wantLinks("----")
	if w := f.worlds[1]; w.node.Labels[conditions.LabelStatus] != "suspect" || len(w.node.Spec.Taints) > 0 || !strings.Contains(w.last.Events[0].Message, "node n0") {
		t.Errorf("%v %v %+v", w.node.Labels, w.node.Spec.Taints, w.last.Events)
	}
	f.passes(time.Hour)
	f.round()
	f.wantLinks("----")
	gpu("Reboot gpu 0018:01:00: Xid 79 GPU has fallen off the bus")(f.worlds[2])
	f.round()
	f.wantLinks("--R-")
	gpuFine(f.worlds[2])
	reboots(f.worlds[2])
	f.round()
	f.passes(2 * time.Minute)
	f.round()
	f.passes(time.Hour)
	for i := range f.worlds[1].policy.Rules { // no class that a person has accepted
		if r := &f.worlds[1].policy.Rules[i]; r.Name == "disk" {
			r.Repair = []conditions.Repair{conditions.ResetGPU}
		}
	}
	says("DiskFailing", "True", "x")(f.worlds[1])
	f.round()
	f.wantLinks("-r--")
}

// That the origin is missing does not show that it was repaired: its kubelet can have its Node created anew, or make it too large. The victims
// return when their own faults have cleared.
func TestAnOriginThatIsMissingReleasesNoVictim(t *testing.T) {
	for name, vanish := range map[string]func(f *fleet){
		"its Node is gone":    func(f *fleet) { f.worlds = f.worlds[1:] },
		"it was created anew": func(f *fleet) { f.replace(0, "n0") },
		"it has grown":        func(f *fleet) { f.worlds[0].node.Annotations["/too-large"] = "labels" },
		"it is left alone":    func(f *fleet) { f.worlds[0].node.Labels[conditions.LabelSkip] = "true" },
		"it has lost its record": func(f *fleet) {
			delete(f.worlds[0].node.Annotations, conditions.AnnotationQuarantine)
			f.worlds[0].node.Spec.Taints = nil
			gpuFine(f.worlds[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 2, cliques)
			f.memory = limits.Memory{}
			gpu(xid149)(f.worlds[0])
			gpu(xid145)(f.worlds[1])
			f.round()
			f.wantLinks("Rh")
			victim := f.worlds[1]
			vanish(f)
			for range 3 {
				f.passes(time.Hour)
				f.round()
			}
			if r := victim.record(); r.Phase != causes.Quarantined || r.Taint.HeldFor != "n0" {
				t.Fatalf("the victim is %s", r)
			}
			if b := victim.last.Blocked; b == nil || b.Reason != causes.BlockedByOrigin || !strings.Contains(b.Message, "node n0, and nothing shows that it was repaired") {
				t.Errorf("%+v", b)
			}
			gpuFine(victim)
			f.round()
			f.passes(2 * time.Minute)
			f.round()
			if r := victim.record(); r.Phase != causes.Released || victim.last.Blocked != nil {
				t.Errorf("the victim is %s, blocked by %+v", r, victim.last.Blocked)
			}
		})
	}
}

// A node that shows a broken link for a moment, and is never quarantined for it, holds back no other one for longer.
func TestAnOriginThatShowsForAMomentHoldsNoSuspect(t *testing.T) {
	for name, test := range map[string]struct {
		vanish func(f *fleet)
		want   string
	}{
		"its fault clears": {func(f *fleet) { gpuFine(f.worlds[0]) }, "-R"},
		"its Node is gone": {func(f *fleet) { f.worlds = f.worlds[1:] }, "R"},
		"it has grown":     {func(f *fleet) { f.worlds[0].node.Annotations["/too-large"] = "labels" }, "sR"},
		"domains are gone": {func(f *fleet) {
			without := *f.worlds[0].policy
			without.Domains, without.Breaker = nil, nil
			without.Budget.MaxNodes = 2
			for _, w := range f.worlds {
				w.policy = &without
			}
		}, "RR"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2, cliques, "restartJobs: true\n      for: 1m")
			for _, w := range f.worlds {
				w.node.Labels["clique"] = "a"
			}
			gpu(xid149)(f.worlds[0])
			gpu(xid145)(f.worlds[1])
			f.round()
			f.wantLinks("ss")
			if got := f.worlds[1].record().Causes[0].Link.Origin; got != "n0" {
				t.Fatalf("the origin is %q", got)
			}
			test.vanish(f)
			f.round()
			f.passes(2 * time.Minute)
			f.round()
			f.round()
			f.wantLinks(test.want)
			if r := f.worlds[len(f.worlds)-1].record(); r.Causes[0].Repair != conditions.ResetGPU || r.Taint.HeldFor != "" {
				t.Errorf("%s", r)
			}
		})
	}
}

// A node of the same domain, or one that claims to be, takes no origin away from its victims by a fault that is closer to theirs in time.
func TestAnotherOriginTakesNoneAway(t *testing.T) {
	f := newFleet(t, 3, cliques, "restartJobs: true\n      for: 1m")
	for _, w := range f.worlds {
		w.node.Labels["clique"] = "a"
	}
	gpu(xid149)(f.worlds[0])
	f.round()
	f.passes(10 * time.Second)
	gpu(xid145)(f.worlds[1])
	f.round()
	gpu(xid149)(f.worlds[2])
	f.round()
	f.wantLinks("sss")
	f.passes(55 * time.Second)
	f.round()
	f.passes(10 * time.Second)
	f.round()
	f.wantLinks("Rhs")
}

// No place for the origin: its victims are not held either, and nothing of them is repaired.
func TestVictimsWaitForTheOrigin(t *testing.T) {
	f := newRack(t, 4, strings.Replace(cliques, "maxNodes: 1", "maxNodes: 0", 1))
	gpu(xid149)(f.worlds[0])
	for _, w := range f.worlds[1:] {
		gpu(xid145)(w)
	}
	f.round()
	f.passes(time.Minute)
	f.round()
	f.wantLinks("ssss")
	if b := f.worlds[1].last.Blocked; b == nil || b.Reason != causes.BlockedByOrigin || !strings.Contains(b.Message, "node n0, which is not quarantined") || !f.worlds[1].last.WaitsForOthers {
		t.Errorf("%+v", b)
	}
}

func TestRolesOfFaults(t *testing.T) {
	for message, want := range map[string]limits.LinkRole{
		xid149:       limits.Origin,
		xid145:       limits.Victim,
		xid45:        limits.Victim,
		ecc:          "",
		"no message": "",
		xid145 + "; gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_INT Fatal":                       limits.Origin,
		xid145 + "; gpu 0008:01:00: Xid 95 uncontained ECC error":                                      "",
		xid145 + "; gpu 0019:01:00: Xid 145 NVLINK: RLW Error; +3 more":                                limits.Victim,
		"ResetGPU gpu 0018:01:00: Xid 144 NVLINK: SAW Error SAW_MVB Fatal on link 3":                   limits.Origin,
		"ResetGPU gpu 0018:01:00: Xid 144 NVLINK: SAW Error SAW_MVB Fatal":                             "",
		"ResetGPU gpu 0018:01:00: Xid 144 NVLINK: SAW Error SAW_MVB Nonfatal on link 3":                "",
		"ResetGPU gpu 0018:01:00: Xid 149 NVLINK: NETIR Error NETIR_X Non-fatal on link 3":             "",
		"ResetGPU gpu 0018:01:00: Xid 1450 unknown":                                                    "",
		"Inspect gpu 0018:01:00: Xid 45 preemptive cleanup after an earlier error":                     "",
		"Inspect gpu 0018:01:00: Xid 45 preemptive cleanup after an earlier error, caused by Xid 31":   "",
		"Inspect gpu 0018:01:00: Xid 45 preemptive cleanup after an earlier error, caused by Xid 1490": "",
	} {
		if got := units.RoleOf(corev1.NodeCondition{Type: conditions.GPUXidError, Message: message}); got != want {
			t.Errorf("%s is %q, want %q", message, got, want)
		}
	}
	if got := units.RoleOf(corev1.NodeCondition{Type: "GpuXid", Message: xid149}); got != "" {
		t.Errorf("the text of another project is %q", got)
	}
}

// Without a broken link, and without domains, each fault is the node's own.
func TestOneVictimAloneIsRepaired(t *testing.T) {
	f := newRack(t, 3, cliques)
	gpu(xid145)(f.worlds[0])
	f.round()
	f.wantLinks("s--")
	if after := f.worlds[0].last.RequeueAfter; after != policy.DefaultDomainSettle {
		t.Errorf("decided again after %s", after)
	}
	f.passes(policy.DefaultDomainSettle)
	f.round()
	f.wantLinks("R--")
	// It stays so when others come: the repair may have begun.
	gpu(xid149)(f.worlds[1])
	f.round()
	f.passes(time.Minute)
	f.round()
	f.wantLinks("Rs-") // the budget is 1

	without := newRack(t, 2, "budget: {maxNodes: 2}")
	gpu(xid149)(without.worlds[0])
	gpu(xid145)(without.worlds[1])
	without.round()
	without.wantLinks("RR")
}

// All victims and no origin: the switches are suspect, no compute tray is reset and no job restarted. Fault 4 of the review: that stays so
// until a node's own finding clears.
func TestVictimsWithoutAnOriginPointAtTheSwitches(t *testing.T) {
	f := newRack(t, 4, "budget: {maxNodes: 4}\ndomains: [{label: clique}]")
	for _, w := range f.worlds[:3] {
		gpu(xid145)(w)
	}
	f.round()
	f.wantLinks("sss-")
	f.passes(3 * time.Second)
	f.round()
	f.wantLinks("hhh-")
	if text := f.worlds[0].last.State.Record.String(); !strings.Contains(text, `"switchSide":true`) {
		t.Error(text)
	}
	gpuFine(f.worlds[0])
	gpuFine(f.worlds[1])
	f.round()
	f.passes(2 * time.Minute)
	reports("ResetGPU gpu 0018:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 14")(f.worlds[2])
	f.round()
	f.passes(time.Hour)
	f.round()
	f.wantLinks("--h-")
	gpuFine(f.worlds[2])
	f.round()
	f.passes(2 * time.Minute)
	f.round()
	f.wantLinks("----")
	// Another fault of its own counts in full.
	gpu(xid145 + "; gpu 0019:01:00: Xid 95 uncontained ECC error")(f.worlds[2])
	f.round()
	f.wantLinks("--R-")
}

// Fault 4 of the review, before the quarantine: the guard against common causes holds back a rack of victims. What was found lasts when
// the others have cleared, and when NPD writes a new message.
func TestTheSwitchSideIsRememberedWhileNothingIsDone(t *testing.T) {
	f := newRack(t, 4, cliques)
	for _, w := range f.worlds {
		gpu(xid145)(w)
	}
	f.round()
	f.passes(3 * time.Second)
	f.round()
	f.wantLinks("ssss")
	if b := f.worlds[0].last.Blocked; b == nil || b.Reason != causes.BlockedByDetectorSuspect {
		t.Fatalf("%+v", b)
	}
	for _, w := range f.worlds[1:] {
		gpuFine(w)
	}
	f.passes(10 * time.Minute)
	reports(xid45)(f.worlds[0])
	f.round()
	f.wantLinks("h---")
}

// The pair is found by when each role was first seen: a new message moves neither.
func TestRolesKeepTheirFirstTime(t *testing.T) {
	f := newRack(t, 2, "budget: {maxNodes: 2}\ndomains: [{label: clique}]")
	gpu(xid149)(f.worlds[0])
	f.round()
	f.passes(10 * time.Minute)
	reports("ResetGPU gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 5")(f.worlds[0])
	f.round()
	f.passes(time.Second)
	reports(xid145)(f.worlds[1]) // ten minutes after the origin: a fault of its own
	f.round()
	f.passes(3 * time.Second)
	f.round()
	f.wantLinks("RR")
}

// Fault 1 of the review: a node that is being worked on, or that others have cordoned, is no victim, and proves nothing about the
// switches.
func TestNodesUnderMaintenanceAreNoVictims(t *testing.T) {
	for name, s := range map[string]step{
		"maintenance": func(w *world) { w.node.Spec.Taints = append(w.node.Spec.Taints, maintenance) },
		"cordon":      cordoned,
		"upgrade":     labels("nvidia.com/gpu-driver-upgrade-state", "drain-required"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 3, "budget: {maxNodes: 3}\ndomains: [{label: clique}]")
			for _, w := range f.worlds {
				gpu(xid145)(w)
			}
			s(f.worlds[1])
			s(f.worlds[2])
			f.decide(0)
			f.passes(3 * time.Second)
			if w := f.decide(0); w.node.Labels[conditions.LabelRepair] != "ResetGPU" {
				t.Errorf("%v", w.node.Labels)
			}
		})
	}
}

// Fault 2 of the review: the faults of a rule that does not act are no origin and no victims for one that does.
func TestRulesThatDoNotActProveNothing(t *testing.T) {
	f := newRack(t, 2, "budget: {maxNodes: 2}\ndomains: [{label: clique}]")
	quiet := *f.worlds[0].policy
	gpu(xid149)(f.worlds[0])
	gpu(xid145)(f.worlds[1])
	for name, change := range map[string]func(*policy.Rule){
		"observe":   func(r *policy.Rule) { r.Observe = true },
		"alertOnly": func(r *policy.Rule) { r.AlertOnly = true },
	} {
		quiet.Rules = append([]policy.Rule{}, f.worlds[0].policy.Rules...)
		for i := range quiet.Rules {
			change(&quiet.Rules[i])
		}
		origin := peers.Of(&quiet, f.worlds[0].node)
		victim := limits.LinkFault{Role: limits.Victim, Since: f.worlds[1].now}
		if got := limits.PeersOf(origin).OriginOf(f.worlds[0].policy.Domains[0], origin.Domain, victim); got != "" {
			t.Errorf("%s: node %s is the origin", name, got)
		}
	}
}

// Fault 6 of the review: without domains in the policy a victim stays held until its fault clears or its origin is repaired.
func TestVictimsStayHeldWithoutDomains(t *testing.T) {
	for name, clear := range map[string]int{"the origin is repaired": 0, "its own fault clears": 1} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 2, cliques)
			gpu(xid149)(f.worlds[0])
			gpu(xid145)(f.worlds[1])
			f.round()
			f.wantLinks("Rh")
			without := *f.worlds[0].policy
			without.Domains = nil
			for _, w := range f.worlds {
				w.policy = &without
			}
			f.round()
			f.passes(time.Hour)
			f.round()
			f.wantLinks("Rh")
			gpuFine(f.worlds[clear])
			f.round()
			f.passes(2 * time.Minute)
			f.round()
			if got := f.links()[1]; got != '-' {
				t.Errorf("the victim is %c", got)
			}
		})
	}
}

// The label of the domain vanishes with the fault.
func TestTheDomainOutlivesItsLabel(t *testing.T) {
	f := newRack(t, 3, cliques)
	gpu(xid149)(f.worlds[0])
	f.round()
	for _, w := range f.worlds {
		delete(w.node.Labels, "clique")
	}
	w := f.meets(1)
	gpu(xid145)(w)
	last := limits.Domain{Label: "clique", Value: "a"}
	o := w.observe()
	o.Domain = last
	d := Decide(w.policy, o, w.now)
	if r := d.State.Record; r.Taint == nil || r.Taint.HeldFor != "n0" || r.Domain != last {
		t.Errorf("%s", r)
	}
	if got := causes.DomainOf(w.policy, f.worlds[0].node, limits.Domain{}); got != last {
		t.Errorf("the record has domain %s", got)
	}
	f.worlds[0].node.Labels["clique"] = "b" // while it is faulty, that may be a part of the fault
	if got := causes.DomainOf(w.policy, f.worlds[0].node, limits.Domain{}); got != last {
		t.Errorf("the record has domain %s", got)
	}
	f.worlds[2].node.Labels["clique"] = "b"
	if got := causes.DomainOf(w.policy, f.worlds[2].node, last); got.Value != "b" {
		t.Errorf("a healthy node has domain %s", got)
	}
	ordered := policy.Policy{Domains: []policy.Domain{{Label: "clique"}, {Label: "rack"}}}
	delete(f.worlds[2].node.Labels, "clique")
	if got := causes.DomainOf(&ordered, f.worlds[2].node, limits.Domain{}); got.String() != "rack=r0" {
		t.Errorf("the second label gives %s", got)
	}
	if got := causes.DomainOf(&ordered, f.worlds[2].node, last); got != last {
		t.Errorf("the lost first label gives %s", got)
	}
}

// A board without a domain: several GPUs that are victims are not reset.
func TestGPUsOfOneBoard(t *testing.T) {
	two := xid145 + "; gpu 0019:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 13"
	for message, want := range map[string]string{two: "h", xid145: "R", two + "; gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_INT Fatal": "R"} {
		f := newFleet(t, 1, cliques, "restartJobs: true")
		gpu(message)(f.worlds[0])
		f.round()
		f.wantLinks(want)
	}
}

// A quarantine that evicts, hands off to repair controllers and validates does nothing of that to a victim.
func TestAVictimIsOnlyKeptFromNewJobs(t *testing.T) {
	f := newFleet(t, 2, cliques+"\nhandOff: {cordon: true, labels: {example.com/broken: x}, taints: [{key: example.com/out, effect: NoExecute}]}",
		"restartJobs: true\n      taint: {key: example.com/gpu, effect: NoExecute}")
	for _, w := range f.worlds {
		w.node.Labels["clique"] = "a"
	}
	gpu(xid149)(f.worlds[0])
	gpu(xid145)(f.worlds[1])
	f.round()
	f.wantLinks("Rh")
	n := f.worlds[1].node
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != conditions.TaintUnhealthy || n.Labels["example.com/broken"] != "" || !n.Spec.Unschedulable {
		t.Errorf("%v %v", n.Spec.Taints, n.Labels)
	}
	if text, known := f.worlds[1].last.State.Suspicion(); !known || text != "" {
		t.Errorf("the node is shown as faulty: %q", text)
	}
	// A fault of its own makes it one that leaves service, within the limits.
	gpu("Reboot gpu 0018:01:00: Xid 79 GPU has fallen off the bus")(f.worlds[1])
	f.round()
	if d := f.worlds[1].last; d.Blocked == nil || d.Blocked.Reason != causes.BlockedByBudget || d.RestartJobs || d.State.Record.Taint.HeldFor != "n0" {
		t.Errorf("%+v", d)
	}
}

// A record that names an origin taints nothing beyond the limits: the other nodes must show that origin.
func TestAForgedOriginHoldsNoNode(t *testing.T) {
	f := newRack(t, 3, cliques)
	gpu(ecc)(f.worlds[0])
	f.round()
	gpu(xid145)(f.worlds[1])
	f.round()
	f.wantLinks("Rs-")
	w := f.worlds[1]
	r := w.record()
	r.Causes[0].Link.Origin = "n0"
	w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
	f.round()
	f.wantLinks("Rs-")
	if origin := w.record().Causes[0].Link.Origin; origin != "" {
		t.Errorf("it waits for %s", origin)
	}
	f.passes(time.Minute)
	f.round()
	f.wantLinks("Rs-")
	if b := w.last.Blocked; b == nil || b.Reason != causes.BlockedByBudget {
		t.Errorf("%+v", b)
	}
}

// S4: three victims have used up the budget as nodes of a suspect switch when the origin reports. Both are of one broken link, so it gets
// their place, they give theirs back, and none of them returns before it.
func TestALateOriginTakesOverItsVictims(t *testing.T) {
	f := newRack(t, 5, "budget: {maxNodes: 3}\ndomains: [{label: clique}]")
	f.worlds[4].node.Labels["clique"] = "b"
	for _, w := range f.worlds[1:4] {
		gpu(xid145)(w)
	}
	f.round()
	f.passes(3 * time.Second)
	f.round()
	f.wantLinks("-hhh-")
	f.passes(10 * time.Second)
	reports(xid149)(f.worlds[0])
	f.round()
	f.round()
	f.wantLinks("Rhhh-")
	for _, w := range f.worlds[1:4] {
		if got := w.record().Taint.HeldFor; got != "n0" {
			t.Errorf("%s is held for %q", w.node.Name, got)
		}
	}
	f.passes(time.Hour)
	f.round()
	f.wantLinks("Rhhh-")
	gpu(ecc)(f.worlds[4]) // two places are free again
	f.round()
	f.wantLinks("RhhhR")
	gpuFine(f.worlds[0])
	f.decide(0)
	f.passes(2 * time.Minute)
	f.round()
	f.wantLinks("----R")
}

// S4: an origin that gets no place was never quarantined, so its victims stay.
func TestAnOriginWithoutAPlaceReleasesNoVictim(t *testing.T) {
	for name, spec := range map[string]string{
		"the budget is used up": "budget: {maxNodes: 3}\ndomains: [{label: clique}]",
		"the breaker is open":   "budget: {maxNodes: 9}\nbreaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 5m}\ndomains: [{label: clique}]",
	} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 4, spec)
			f.worlds[3].node.Labels["clique"] = "b"
			for _, w := range f.worlds[1:3] {
				gpu(xid145)(w)
			}
			f.round()
			f.passes(3 * time.Second)
			f.round()
			f.wantLinks("-hh-")
			if f.worlds[3].policy.Breaker == nil {
				gpu(ecc)(f.worlds[3])
				f.round()
				f.worlds[3].policy.Budget.MaxNodes = 1
			}
			f.passes(10 * time.Second)
			for range 3 {
				reports(xid149)(f.worlds[0])
				f.round()
				f.passes(time.Minute)
			}
			if got := f.links(); got[:3] != "shh" {
				t.Fatalf("the nodes are %s", got)
			}
			gpuFine(f.worlds[0])
			f.passes(time.Hour)
			f.round()
			if got := f.links(); got[:3] != "-hh" {
				t.Errorf("the nodes are %s", got)
			}
		})
	}
}

// S4: hours later a node claims the clique and an Xid 149 from then. We saw it too late, whatever its condition, its label or its record
// say, and its quarantine ends those of no others.
func TestABackdatedOriginIsNone(t *testing.T) {
	for name, forge := range map[string]func(w *world){
		"by its condition": func(*world) {},
		"by its record": func(w *world) {
			r := w.record()
			r.Causes[0].FirstSeen = r.Causes[0].Link.Since
			r.Causes[0].Link.Seen = r.Causes[0].Link.Since
			w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, 3, "budget: {maxNodes: 3}\ndomains: [{label: clique}]")
			attacker := f.worlds[2]
			attacker.node.Labels["clique"] = "b"
			began := f.worlds[0].now
			for _, w := range f.worlds[:2] {
				gpu(xid145)(w)
			}
			f.round()
			f.passes(3 * time.Second)
			f.round()
			f.wantLinks("hh-")
			f.passes(5 * time.Hour)
			attacker.node.Labels["clique"] = "a"
			reports(xid149)(attacker)
			for i := range attacker.node.Status.Conditions {
				attacker.node.Status.Conditions[i].LastTransitionTime = metav1.NewTime(began)
			}
			f.decide(2)
			forge(attacker)
			f.round()
			gpuFine(attacker)
			f.round()
			f.passes(2 * time.Minute)
			f.round()
			f.wantLinks("hh-")
			for _, w := range f.worlds[:2] {
				if r := w.record(); r.Causes[0].Link.Origin != "" {
					t.Errorf("%+v", r.Causes[0].Link)
				}
			}
		})
	}
}

// A record alone, which a kubelet can write, does not make an origin one that was quarantined.
func TestAVictimIsNotHeldForAClaimedQuarantine(t *testing.T) {
	f := newRack(t, 2, "budget: {maxNodes: 1}\ndomains: [{label: clique}]")
	gpu(xid149)(f.worlds[0])
	f.round()
	f.worlds[0].node.Spec.Taints = nil
	gpu(xid145)(f.worlds[1])
	if w := f.decide(1); w.record().Phase != causes.Suspect || w.last.Blocked.Reason != causes.BlockedByOrigin {
		t.Errorf("%s", w.record())
	}
}

// S4: a node that changes its label with its fault stays in the domain from before.
func TestTheDomainOfAFaultIsThatFromBefore(t *testing.T) {
	f := newRack(t, 2, cliques)
	w := f.worlds[0]
	before := causes.DomainOf(w.policy, w.node, limits.Domain{})
	w.node.Labels["clique"] = "b"
	gpu(xid149)(w)
	if got := causes.DomainOf(w.policy, w.node, before); got != before {
		t.Errorf("it is in %s", got)
	}
	gpuFine(w)
	if got := causes.DomainOf(w.policy, w.node, before); got.Value != "b" {
		t.Errorf("without a fault it is in %s", got)
	}
}

// S13: a node of elsewhere that claims to be in a rack, which has as many nodes as a rack can have, makes it no group that is too large.
func TestOneNodeThatLiesMakesNoRackTooLarge(t *testing.T) {
	for name, test := range map[string]struct {
		nodes int
		spec  string
	}{
		"72 nodes": {72, cliques},
		"maxNodes": {18, strings.Replace(cliques, "label: clique", "label: clique, incidents: {maxNodes: 18}", 1)},
	} {
		for role, lies := range map[string]step{"healthy": gpuFine, "victim": gpu(xid145)} {
			t.Run(name+", "+role, func(t *testing.T) {
				f := newRack(t, test.nodes+1, test.spec)
				gpu(xid149)(f.worlds[0])
				for _, w := range f.worlds[1:test.nodes] {
					gpu(xid145)(w)
				}
				lies(f.worlds[test.nodes])
				f.round()
				f.passes(3 * time.Second)
				f.round()
				if got := f.links()[:test.nodes]; got != "R"+strings.Repeat("h", test.nodes-1) {
					t.Errorf("the nodes are %s", got)
				}
			})
		}
	}
}

// S9: a label that most nodes have names no domain, and its nodes are held back by the limits as without one.
func TestACoarseDomainClosesNoMoreThanTheBudget(t *testing.T) {
	for name, test := range map[string]struct {
		nodes int
		spec  string
	}{
		"100 nodes":          {100, "budget: {maxNodes: 3}\ndomains: [{label: clique}]"},
		"more than maxNodes": {8, "budget: {maxNodes: 3}\ndomains: [{label: clique, incidents: {minNodes: 4, maxNodes: 6}}]"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRack(t, test.nodes, test.spec)
			gpu(xid149)(f.worlds[0])
			for _, w := range f.worlds[1:] {
				gpu(xid145)(w)
			}
			f.round()
			f.passes(3 * time.Second)
			f.round()
			if got := f.links(); strings.Count(got, "s") != test.nodes-3 {
				t.Errorf("the nodes are %s", got)
			}
		})
	}
}
