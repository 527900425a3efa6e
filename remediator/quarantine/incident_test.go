package quarantine

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

const (
	// incidents has every guard that a rack which fails would meet, and a second place for another fault.
	incidents = `budget: {maxNodes: 2}
breaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 5m}
correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [clique]}
domains: [{label: clique, incidents: {}}]`
	// witnesses are the rules: those of the GPU driver wait for 5 s, that of the ports does not.
	witnesses = `restartJobs: true
      for: 5s
    memory: {match: {condition: GPUMemoryError, repair: [ResetGPU]}, for: 5s}
    overheated: {match: {condition: GPUOverheated, repair: [Inspect]}, alertOnly: true}
    watched-ports: {match: {condition: HCAPortDown, repair: [Monitor]}, mode: observe}
    ports: {match: {condition: HCAPortDown, repair: [Inspect]}, for: 5s, clearAfter: 1m, restartJobs: true}
    ready: {match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}, for: 5s, clearAfter: 1m, restartJobs: true}`
	rackSize = 6
)

var (
	portsDown = says(conditions.HCAPortDown, "True", "Inspect mlx5_0 port 1: link is down")
	portsUp   = says(conditions.HCAPortDown, "False", "all ports are up")
	memoryBad = says(conditions.GPUMemoryError, "True", "ResetGPU gpu 0000:1b:00: uncorrectable")
	awake     = says("Ready", "True", "")
	diskBad   = says("DiskFailing", "True", "x")
)

// newRacks makes racks a, b, c and so on.
func newRacks(t *testing.T, racks int, spec string) *fleet {
	t.Helper()
	f := newFleet(t, racks*rackSize, spec, witnesses)
	f.memory = limits.Memory{}
	for i, w := range f.worlds {
		w.node.Labels["clique"] = string(rune('a' + i/rackSize))
		awake(w)
		portsUp(w)
	}
	f.passes(time.Hour)
	return f
}

// fail does the same to the nodes from one to another, that one excluded.
func (f *fleet) fail(from, to int, steps ...step) {
	for _, w := range f.worlds[from:to] {
		for _, s := range steps {
			s(w)
		}
	}
}

// settles decides about all nodes, lets the rules' time pass, and decides again until a round changes nothing.
func (f *fleet) settles() {
	f.Helper()
	f.round()
	f.passes(5 * time.Second)
	for before := ""; before != f.phases(); {
		before = f.phases()
		f.round()
	}
}

func (f *fleet) wantPhases(want string) {
	f.Helper()
	got, b := f.phases(), &strings.Builder{}
	for i := range len(got) {
		if i > 0 && i%rackSize == 0 {
			b.WriteByte(' ')
		}
		b.WriteByte(got[i])
	}
	if b.String() != want {
		var blocked []string
		for _, w := range f.worlds {
			if w.last.Blocked != nil {
				blocked = append(blocked, w.node.Name+": "+w.last.Blocked.Reason+": "+w.last.Blocked.Message)
			}
		}
		f.Fatalf("the nodes are %s, want %s\n%s", b, want, strings.Join(blocked, "\n"))
	}
}

// A rack fails. It uses up one place of a budget of two, and counts once for a breaker of two.
func TestARackThatFailsIsOneIncident(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
	for i, w := range f.worlds[:rackSize] {
		if !w.last.RestartJobs || w.last.RestartRule != "gpu" {
			t.Errorf("the jobs of node %d are restarted by %q", i, w.last.RestartRule)
		}
	}
	f.fail(6, 7, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq q----- ------")
	f.fail(12, 13, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq q----- s-----")
	if b := f.worlds[12].last.Blocked; b.Reason != causes.BlockedByBudget || !strings.Contains(b.Message, "quarantined, with others of clique=a") {
		t.Errorf("%+v", b)
	}
	f.worlds[12].policy.Budget.MaxNodes = 3
	f.settles()
	f.wantPhases("qqqqqq q----- s-----")
	if b := f.worlds[12].last.Blocked; b.Reason != causes.BlockedByBreaker {
		t.Errorf("%+v", b)
	}
}

// Whatever the second witness is, and whatever else the node shows, and if the label of the fabric vanishes with it.
func TestWhoTakesPartInAnIncident(t *testing.T) {
	const out, in = "qqqqqq ------ ------", "ssssss ------ ------"
	for name, test := range map[string]struct {
		spec  string
		steps []step
		want  string
	}{
		"ports and GPUs":                        {"", []step{portsDown, gpu(ecc)}, out},
		"ports, and the node is silent":         {"", []step{portsDown, silent}, out},
		"all three":                             {"", []step{portsDown, gpu(ecc), memoryBad, silent}, out},
		"the label is gone":                     {"", []step{portsDown, decide, func(w *world) { delete(w.node.Labels, "clique") }, gpu(ecc)}, out},
		"as far apart as the window":            {"", []step{portsDown, decide, passes(115 * time.Second), beats, gpu(ecc)}, out},
		"further apart":                         {"", []step{portsDown, decide, passes(121 * time.Second), beats, gpu(ecc)}, in},
		"many conditions of one driver":         {"", []step{gpu(ecc), memoryBad}, in},
		"a driver, and the node restarts":       {"", []step{gpu(ecc), memoryBad, silent}, in},
		"ports alone":                           {"", []step{portsDown}, in},
		"the node alone":                        {"", []step{silent}, in},
		"another component's condition":         {"", []step{portsDown, diskBad}, in},
		"a finding that is only worth an alert": {"", []step{portsDown, says(conditions.GPUOverheated, "True", "Inspect gpu 0000:1b:00: hot")}, in},
		"a rule that only observes":             {"", []step{says(conditions.HCAPortDown, "True", "Monitor mlx5_0 port 1: slow"), gpu(ecc)}, in},
		"no incidents":                          {", incidents: {}", []step{portsDown, gpu(ecc)}, in},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRacks(t, 3, strings.Replace(incidents, cmp.Or(test.spec, "no such text"), "", 1))
			f.fail(0, 6, test.steps...)
			for _, w := range f.worlds[:rackSize] {
				if got := peers.Of(w.policy, w.node).Failed; (got == limits.Span{}) != (test.want == in) {
					t.Errorf("%s has failed at %v", w.node.Name, got)
				}
			}
			f.settles()
			f.wantPhases(test.want)
			if want := test.want == in; want != (f.worlds[0].last.Blocked != nil && f.worlds[0].last.Blocked.Reason == causes.BlockedByDetectorSuspect) {
				t.Errorf("%+v", f.worlds[0].last.Blocked)
			}
		})
	}
}

// Nodes that lie about themselves confirm nothing of the others.
func TestLiarsConfirmNothingOfOthers(t *testing.T) {
	for name, victim := range map[string][]step{
		"one witness":                 {gpu(ecc)},
		"two conditions of a witness": {gpu(ecc), memoryBad},
		"a rollout, and it restarts":  {gpu(ecc), silent},
		"a fault of ports alone":      {portsDown},
		"a node that is silent":       {silent},
		"a forged record of the lied-to": {gpu(ecc), func(w *world) {
			w.node.Annotations = map[string]string{conditions.AnnotationQuarantine: strings.ReplaceAll(
				`{"v":1,"nodeUID":"UID","boot":{"id":"boot-1"},"domain":{"label":"clique","value":"a"},"id":"x","phase":"suspect","causes":[{"condition":"HCAPortDown","rule":"ports","repair":"Inspect","message":"x","firstSeen":"2026-11-20T12:00:00Z","due":true,"bootID":"boot-1"}]}`,
				"UID", string(w.node.UID))}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRacks(t, 5, incidents)
			for _, w := range f.worlds[rackSize : 4*rackSize] {
				w.node.Labels["clique"] = "a" // a larger domain, most of it lied to
			}
			f.fail(0, 4, portsDown, gpu(ecc))
			f.fail(4, 4*rackSize, victim...)
			f.settles()
			if got := strings.Count(f.phases()[4:], "q"); got > 0 {
				t.Errorf("%s: %d nodes are out that do not corroborate themselves", f.phases(), got)
			}
		})
	}
}

// Some fail first, others lag behind.
func TestNodesJoinAnIncidentWithinItsWindow(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 3, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqs--- ------ ------") // three are no incident: two have the places of the budget
	f.passes(time.Minute)
	f.fail(3, 4, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqq-- ------ ------")
	f.passes(time.Minute)
	f.fail(4, 5, portsDown, gpu(ecc)) // with the fourth and the third alone
	f.settles()
	f.wantPhases("qqqqs- ------ ------")
}

// One incident at a time, and the next when it is over.
func TestTwoRacksAtOnce(t *testing.T) {
	f := newRacks(t, 6, strings.ReplaceAll(incidents, "maxNodes: 2", "maxNodes: 1"))
	f.fail(0, 12, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq ssssss ------ ------ ------ ------")
	if d := f.worlds[6].last; d.Blocked.Reason != causes.BlockedByDetectorSuspect || !d.WaitsForOthers ||
		!strings.HasSuffix(d.Blocked.Message, "it is no failure of the domain: the incident of clique=a is not over, and it is one at a time") {
		t.Errorf("%+v", d)
	}
	f.fail(0, 6, portsUp, gpuFine)
	f.round()
	f.passes(time.Minute)
	f.fail(6, 12, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("------ ssssss ------ ------ ------ ------") // the breaker counts the first incident
	f.passes(10 * time.Minute)
	f.broken = nil
	f.fail(6, 12, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("------ qqqqqq ------ ------ ------ ------")
}

// A node that is not repaired for long, or lies, does not use up the one incident.
func TestFewNodesThatAreLeftAreNoIncident(t *testing.T) {
	for left, want := range map[int]string{3: "---qqq qqqqqq ------ ------ ------ ------", 4: "--qqqq ssssss ------ ------ ------ ------"} {
		f := newRacks(t, 6, incidents)
		f.fail(0, 6, portsDown, gpu(ecc))
		f.settles()
		f.fail(0, 6-left, portsUp, gpuFine)
		f.round()
		f.passes(time.Minute)
		f.round()
		f.passes(10 * time.Minute)
		f.fail(6, 12, portsDown, gpu(ecc))
		f.settles()
		f.wantPhases(want)
	}
}

// What most of the cluster shows is no failure of a domain.
func TestAFailureOfAllRacksIsNoIncident(t *testing.T) {
	for name, second := range map[string][2]step{
		"the same":        {gpu(ecc), gpu(ecc)},
		"the ports alone": {gpu(ecc), awake},
	} {
		f := newRacks(t, 3, incidents)
		f.fail(0, 6, portsDown, second[0])
		f.fail(6, 18, portsDown, second[1])
		f.settles()
		if strings.Contains(f.phases(), "q") {
			t.Errorf("%s: %s", name, f.phases())
		}
	}
}

// An incident waits for a place like a single node, and then has it as a whole.
func TestAnIncidentNeedsOnePlace(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(12, 14, cordoned)
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("ssssss ------ ------")
	if d := f.worlds[5].last; d.Blocked.Reason != causes.BlockedByBudget || !d.Limited || len(d.BlockedToo) > 0 {
		t.Errorf("%+v", d)
	}
	f.worlds[12].node.Spec.Unschedulable = false
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
	// Its nodes that are not Ready and not quarantined yet take no further place from it.
	f = newRacks(t, 3, strings.ReplaceAll(incidents, "maxNodes: 2", "maxNodes: 1"))
	f.fail(0, 6, portsDown, gpu(ecc), silent)
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
	// Each budget of a rule counts it once, too.
	f = newRacks(t, 3, incidents)
	for i := range f.worlds[0].policy.Rules {
		f.worlds[0].policy.Rules[i].Budget.MaxNodes = 1
	}
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
}

// An open breaker holds back an incident that has not begun, and not the rest of one that has.
func TestAnOpenBreakerAndAnIncident(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.broken = &limits.BreakerState{OpenedAt: f.worlds[0].now}
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("ssssss ------ ------")
	f.broken = nil
	f.decide(0)
	f.broken = &limits.BreakerState{OpenedAt: f.worlds[0].now}
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
}

// The process ends in the middle. What it has not stored yet is shown by the nodes, to the nodes of the incident alone.
func TestAnIncidentGoesOnAfterARestart(t *testing.T) {
	for name, memory := range map[string]func(limits.Memory) limits.Memory{
		"all is stored": func(m limits.Memory) limits.Memory {
			stored, err := limits.ParseMemory(m.String(), time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC))
			if err != nil {
				t.Fatal(err)
			}
			return stored
		},
		"nothing is stored": func(limits.Memory) limits.Memory { return limits.Memory{} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newRacks(t, 3, incidents)
			f.fail(0, 6, portsDown, gpu(ecc))
			f.round()
			f.passes(5 * time.Second)
			for i := range 3 {
				f.decide(i)
			}
			f.wantPhases("qqqsss ------ ------")
			f.memory = memory(f.memory)
			for _, w := range f.worlds {
				w.seen = seen.Seen{}
			}
			f.settles()
			f.wantPhases("qqqqqq ------ ------")
			// For others, what is stored alone says that three nodes are one.
			f.fail(6, 7, gpu(ecc))
			f.settles()
			want := map[string]string{"all is stored": "qqqqqq q----- ------", "nothing is stored": "qqqqqq s----- ------"}
			f.wantPhases(want[name])
		})
	}
}

// Whatever a node that is quarantined for itself reports about itself later, it keeps its place: else it would make one for others.
func TestANodeCannotJoinAnIncidentToFreeItsPlace(t *testing.T) {
	f := newRacks(t, 3, strings.Replace(incidents, "breaker: {maxNodes: 2,", "breaker: {maxNodes: 9,", 1))
	f.fail(0, 2, gpu(ecc))
	f.settles()
	f.wantPhases("qq---- ------ ------")
	f.fail(0, 4, portsDown, reports(ecc))
	f.settles()
	f.wantPhases("qqqq-- ------ ------")
	f.fail(6, 7, gpu(ecc))
	f.settles()
	f.wantPhases("qqqq-- s----- ------")
}

// The last one to return ends it, and the signs that nodes still show after a release by hand begin none.
func TestAnIncidentEndsWithItsQuarantines(t *testing.T) {
	f := newRacks(t, 6, incidents)
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.fail(0, 6, portsUp) // the GPUs still need a reset
	f.settles()
	f.fail(6, 7, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq q----- ------ ------ ------ ------") // it is one place all the same
	f.fail(0, 6, gpuFine)
	f.round()
	f.passes(time.Minute)
	f.round()
	f.wantPhases("------ q----- ------ ------ ------ ------")
	for _, w := range f.worlds[:rackSize] {
		if got := peers.With(w.policy, w.node, f.memory[w.node.Name], limits.Domain{}); got.Failed != (limits.Span{}) {
			t.Errorf("%s has failed at %v", w.node.Name, got.Failed)
		}
	}
}

func TestNodesThatAreWorkedOnMakeNoIncident(t *testing.T) {
	for name, work := range map[string]step{
		"excluded": func(w *world) { w.node.Labels[conditions.LabelSkip] = "true" },
		"maintained": func(w *world) {
			w.node.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Effect: corev1.TaintEffectNoSchedule}}
		},
		"upgraded": func(w *world) { w.node.Labels[node.LabelUpgradeState] = "drain-required" },
		"cordoned": cordoned,
		"removed": func(w *world) {
			w.node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		},
		"never seen to be ready": func(w *world) {
			gpuFine(w)
			c := &w.node.Status.Conditions[1]
			c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusNeverUpdated", metav1.NewTime(w.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRacks(t, 3, strings.ReplaceAll(incidents, "budget: {maxNodes: 2}", "budget: {maxNodes: 9}"))
			f.fail(0, 6, portsDown, gpu(ecc))
			f.fail(0, 3, work)
			for _, w := range f.worlds[:3] {
				if got := peers.Of(w.policy, w.node).Failed; got != (limits.Span{}) && name != "excluded" {
					t.Errorf("%s has failed at %v", w.node.Name, got)
				}
			}
			f.settles()
			for i, w := range f.worlds[3:6] {
				if incident := w.last.Started; incident != nil && incident.Incident != (limits.Domain{}) {
					t.Errorf("node %d: %+v", i+3, incident)
				}
			}
			if strings.Contains(fmt.Sprint(f.worlds[3].last.Events), "failed together") {
				t.Error(f.worlds[3].last.Events)
			}
		})
	}
}

func TestMoreNodesThanADomainHasAreNoIncident(t *testing.T) {
	for most, want := range map[int]string{6: "qqqqqq ------ ------", 5: "qqqqqq ------ ------", 4: "ssssss ------ ------"} {
		f := newRacks(t, 3, strings.Replace(incidents, "incidents: {}", fmt.Sprintf("incidents: {maxNodes: %d}", most), 1))
		f.fail(0, 6, portsDown, gpu(ecc))
		f.settles()
		f.wantPhases(want)
	}
	// S13: a node of another rack that claims to be in this one, and to have failed with it, makes it no group that is too large.
	f := newRacks(t, 3, strings.Replace(incidents, "incidents: {}", "incidents: {maxNodes: 6}", 1))
	f.worlds[6].node.Labels["clique"] = "a"
	f.fail(0, 7, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq q----- ------")
	// Nodes that are quarantined for it and have nothing any more count, too.
	f = newRacks(t, 3, strings.Replace(incidents, "incidents: {}", "incidents: {maxNodes: 8}", 1))
	for _, w := range f.worlds {
		w.node.Labels["clique"] = "a"
	}
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq ------ ------")
	f.fail(0, 6, portsUp, gpuFine)
	f.round()
	f.fail(6, 11, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("qqqqqq qssss- ------") // one by one, within the limits
}

// A fault of another time, or of another component, is not believed because the node is in an incident.
func TestAnIncidentConfirmsNoOtherFaultOfItsNodes(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 6, memoryBad)
	f.settles()
	f.wantPhases("ssssss ------ ------")
	f.passes(5 * time.Minute)
	f.fail(0, 6, portsDown, silent)
	f.settles()
	f.wantPhases("ssssss ------ ------") // the worse fault is an older one
	f = newRacks(t, 3, incidents)
	f.fail(0, 6, diskBad, portsDown, silent)
	f.settles()
	f.wantPhases("ssssss ------ ------")
}

// A condition of the boot before says nothing of a node.
func TestAConditionOfTheBootBeforeIsNoWitness(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 6, portsDown)
	f.round()
	f.fail(0, 6, passes(10*time.Second), func(w *world) { w.node.Status.NodeInfo.BootID = "boot-2" })
	f.round()
	f.fail(0, 6, passes(10*time.Second), func(w *world) {
		w.node.Status.Conditions = append(w.node.Status.Conditions, corev1.NodeCondition{
			Type: conditions.GPUMemoryError, Status: "True", Message: "ResetGPU gpu 0000:1b:00: uncorrectable", LastHeartbeatTime: metav1.NewTime(w.now), LastTransitionTime: metav1.NewTime(w.now),
		})
	})
	for _, w := range f.worlds[:rackSize] {
		if got := peers.Of(w.policy, w.node).Failed; got != (limits.Span{}) {
			t.Errorf("%s has failed at %v", w.node.Name, got)
		}
	}
}

func TestTheEventOfANodeNamesItsIncident(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 6, portsDown, gpu(ecc))
	f.round()
	f.passes(5 * time.Second)
	f.round()
	if events := fmt.Sprint(f.worlds[5].last.Events); !strings.Contains(events, "; one of 6 nodes or more of clique=a that have failed together") {
		t.Error(events)
	}
}

// Ready counts without a rule, and not if the rule for it does not act.
func TestReadyIsAWitnessUnlessItsRuleDoesNotAct(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*policy.Rule)
		want   bool
	}{
		"enforces":      {func(*policy.Rule) {}, true},
		"observes":      {func(r *policy.Rule) { r.Observe = true }, false},
		"only alerts":   {func(r *policy.Rule) { r.AlertOnly = true }, false},
		"is not for it": {func(r *policy.Rule) { r.Condition = "Other" }, true},
	} {
		f := newRacks(t, 1, incidents)
		f.fail(0, 1, portsDown, silent)
		w := f.worlds[0]
		for i := range w.policy.Rules {
			if r := &w.policy.Rules[i]; r.Name == "ready" {
				test.change(r)
			}
		}
		if got := peers.Of(w.policy, w.node).Failed; (got != limits.Span{}) != test.want {
			t.Errorf("the rule %s: failed at %v", name, got)
		}
	}
}

// Whoever releases a node by hand knows what it reports.
func TestAReleaseByHandTakesANodeOutOfItsIncident(t *testing.T) {
	f := newRacks(t, 3, incidents)
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	w := f.worlds[0]
	r := w.record()
	r.Phase, r.ManualReleaseActive = causes.Released, true
	w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
	if got := peers.Of(w.policy, w.node).Failed; got != (limits.Span{}) {
		t.Errorf("it has failed at %v", got)
	}
}

// A quarantine that leaves the node in service takes part in none: there is nothing to be won.
func TestASoftQuarantineIsOfNoIncident(t *testing.T) {
	f := newRacks(t, 3, incidents)
	for i := range f.worlds[0].policy.Rules {
		f.worlds[0].policy.Rules[i].Taint.Effect = corev1.TaintEffectPreferNoSchedule
	}
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("ssssss ------ ------")
}

// Single GPUs are isolated one node at a time, as ever: an incident is about nodes.
func TestSingleGPUsAreIsolatedForNoIncident(t *testing.T) {
	f := newFleet(t, 3*rackSize, incidents, strings.Replace(witnesses, "for: 5s\n", "for: 5s\n      isolate: device\n", 1))
	for i, w := range f.worlds {
		w.node.Labels["clique"] = string(rune('a' + i/rackSize))
		gpus := slice(0, 1, 2, 3)
		gpus.Spec.NodeName, gpus.Spec.Pool.Name = &w.node.Name, w.node.Name
		w.devices = &devices.Look{Slices: []resourceapi.ResourceSlice{gpus}}
	}
	for i := range f.worlds[0].policy.Rules {
		if r := &f.worlds[0].policy.Rules[i]; r.Name == "ports" {
			r.For = time.Minute // the GPUs come first
		}
	}
	f.fail(0, 6, portsDown, gpu(ecc))
	f.settles()
	f.wantPhases("ssssss ------ ------")
	if b := f.worlds[0].last.Blocked; b == nil || b.Reason != causes.BlockedByDetectorSuspect {
		t.Errorf("%+v", b)
	}
}
