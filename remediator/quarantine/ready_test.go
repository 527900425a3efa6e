package quarantine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// readyPolicy has a rule about nodes that are not Ready.
const readyPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, maxPercent: 10}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [rack]}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
    deadlock:
      match: {condition: KernelDeadlock, repair: [Reboot]}
    dead:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 2m
      clearAfter: 5m
      flaps: {max: 4, window: 24h}
      restartJobs: true
      handOff: {keepNode: false}
`

const deadTaint = "pitcrew.dev/unhealthy=Ready:NoSchedule"

func newReadyWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	p, err := policy.Parse([]byte(readyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	w.policy = p
	kubelet(corev1.ConditionTrue)(w)
	return w
}

// kubelet reports Ready, with a heartbeat.
func kubelet(status corev1.ConditionStatus) step {
	return says("Ready", string(status), "kubelet is "+string(status))
}

// silent is what the node controller makes of a node whose kubelet does not renew its lease: a status without a heartbeat
// (kubernetes pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth).
func silent(w *world) {
	for i := range w.node.Status.Conditions {
		if c := &w.node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(w.now)
		}
	}
}

func (w *world) run(steps ...step) {
	w.t.Helper()
	for _, s := range steps {
		s(w)
	}
}

// expect compares the phase, the taints and whether jobs are restarted.
func (w *world) expect(phase Phase, taint string, restarts bool) {
	w.t.Helper()
	got, tainted := Phase(""), ""
	if r := w.record(); r != nil {
		got = r.Phase
	}
	for _, taint := range w.node.Spec.Taints {
		tainted += taint.ToString()
	}
	if got != phase || tainted != taint || w.last.RestartJobs != restarts {
		w.t.Fatalf("phase %q, taint %q, restarts %v, want %q, %q, %v; blocked %+v", got, tainted, w.last.RestartJobs, phase, taint, restarts, w.last.Blocked)
	}
}

func TestANodeThatDoesNotAnswerIsQuarantinedAndItsJobsRestart(t *testing.T) {
	for name, fails := range map[string]step{"Unknown": silent, "False": kubelet(corev1.ConditionFalse)} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(passes(time.Hour), fails, decide)
			w.expect(Suspect, "", false)
			w.run(starves(2*time.Minute - time.Second))
			w.expect(Suspect, "", false)
			w.run(starves(time.Second))
			w.expect(Quarantined, deadTaint, true)
			if len(w.node.Annotations) != 1 {
				t.Errorf("an autoscaler is kept from replacing a dead node: %v", w.node.Annotations)
			}
			w.run(starves(100 * time.Hour))
			w.expect(Quarantined, deadTaint, true)
		})
	}
}

func TestANodeThatAnswersAgainIsReleasedAfterItsTime(t *testing.T) {
	for name, test := range map[string]struct{ boot string }{"the node was away": {"boot-1"}, "the node has rebooted": {"boot-2"}} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(passes(time.Hour), silent, decide, starves(2*time.Minute))
			w.expect(Quarantined, deadTaint, true)
			w.node.Status.NodeInfo.BootID = test.boot
			w.run(kubelet(corev1.ConditionTrue), decide, starves(5*time.Minute-time.Second))
			w.expect(Quarantined, deadTaint, true)
			w.run(starves(time.Second))
			w.expect(Released, "", false)
		})
	}
}

func TestAFlappingNodeIsQuarantinedUntilAPersonReleasesIt(t *testing.T) {
	w := newReadyWorld(t)
	for range 3 {
		w.run(silent, decide, starves(time.Minute), kubelet(corev1.ConditionTrue), decide, starves(time.Hour))
		w.expect(Suspect, "", false)
	}
	w.run(silent, decide)
	w.expect(Quarantined, deadTaint, true)
	w.run(kubelet(corev1.ConditionTrue), decide, starves(24*time.Hour))
	w.expect(Quarantined, deadTaint, true)
}

// A node that is rebooted on purpose is not Ready for a while.
func TestANodeUnderMaintenanceMayBeNotReady(t *testing.T) {
	w := newReadyWorld(t)
	w.run(taints(maintenance), silent, decide, starves(time.Hour))
	w.expect("", maintenance.ToString(), false)
	w.run(kubelet(corev1.ConditionTrue), untaints, decide, starves(time.Hour))
	w.expect("", "", false)
	w.run(taints(maintenance), silent, decide, starves(time.Minute), untaints, decide)
	w.expect(Suspect, "", false)
	w.run(starves(2 * time.Minute))
	w.expect(Quarantined, deadTaint, true)
}

func TestANodeOfTheControlPlaneIsNotQuarantined(t *testing.T) {
	w := newReadyWorld(t)
	w.node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	w.run(silent, decide, starves(time.Hour))
	w.expect("", "", false)
}

// No heartbeat comes from a dead node, and its clock may have been wrong. Nothing of that may hide that it is dead.
func TestADeadNodeIsSeenWhateverItsLastHeartbeatWas(t *testing.T) {
	for name, last := range map[string]step{
		"the clock of the node was ahead": func(w *world) { w.node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now.AddDate(1, 0, 0)) },
		"it never reported":               mute,
		"its last report is old":          passes(50 * time.Hour),
		// The remediator learns of the boot only after the node has died in it.
		"it rebooted while no remediator ran": func(w *world) {
			w.run(gpu(lost), decide)
			w.expect(Quarantined, gpuTaint, true)
			reboots(w)
			w.run(gpuFine, decide, lasts(20*time.Minute))
			w.expect(Released, "", false)
			reboots(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(last, silent, passes(time.Minute), decide, starves(2*time.Minute))
			w.expect(Quarantined, deadTaint, true)
		})
	}
}

// An outage of the API server makes all nodes silent. It ends the leader, too.
func TestAfterAnOutageEveryKubeletHasTimeToReport(t *testing.T) {
	elected := func(w *world) { w.seen, w.leadingSince = Seen{}, w.now }
	t.Run("a node that died before the outage", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(silent, decide, passes(time.Hour), elected, decide, starves(2*time.Minute-time.Second))
		w.expect(Suspect, "", false)
		w.run(starves(time.Second))
		w.expect(Quarantined, deadTaint, true)
	})
	t.Run("a node that was due", func(t *testing.T) {
		w := newReadyWorld(t)
		w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
		w.run(silent, decide, starves(time.Hour))
		w.expect(Suspect, "", false)
		w.peers = nil
		w.run(elected, decide, starves(2*time.Minute-time.Second))
		w.expect(Suspect, "", false)
		w.run(starves(time.Second))
		w.expect(Quarantined, deadTaint, true)
	})
	t.Run("a node that flaps", func(t *testing.T) {
		w := newReadyWorld(t)
		for range 3 {
			w.run(silent, decide, starves(time.Minute), kubelet(corev1.ConditionTrue), decide, starves(time.Minute))
		}
		w.run(silent, elected, decide, starves(2*time.Minute-time.Second))
		w.expect(Suspect, "", false)
		w.run(starves(time.Second))
		w.expect(Quarantined, deadTaint, true)
	})
	t.Run("a node that says itself that it is not Ready", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(kubelet(corev1.ConditionFalse), decide, passes(time.Hour), elected, decide)
		w.expect(Quarantined, deadTaint, true)
	})
	t.Run("a quarantine stands", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(silent, decide, starves(2*time.Minute), passes(time.Hour), elected, decide)
		w.expect(Quarantined, deadTaint, true)
	})
}

// A driver or a kernel that hangs is often the first sign of a node that dies. Its rule may leave jobs alone.
func TestADeadNodeDoesNotHideBehindAWorseFault(t *testing.T) {
	w := newReadyWorld(t)
	w.run(says("KernelDeadlock", "True", "x"), decide)
	w.expect(Quarantined, "pitcrew.dev/unhealthy=KernelDeadlock:NoSchedule", false)
	w.run(silent, decide, starves(2*time.Minute))
	w.expect(Quarantined, deadTaint, true)
	if got := w.record().Worst(); got != conditions.Reboot {
		t.Errorf("the node needs %s", got)
	}
	w.run(kubelet(corev1.ConditionTrue), says("KernelDeadlock", "False", ""), decide, lasts(time.Hour))
	w.expect(Quarantined, deadTaint, true)
	w.run(reboots, kubelet(corev1.ConditionTrue), says("KernelDeadlock", "False", ""), decide, lasts(20*time.Minute))
	w.expect(Released, "", false)
}

// A cluster may have machines that were switched off long ago. Quarantines of all of them would use up the limits.
func TestAParkedNodeIsNotQuarantined(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, passes(7*24*time.Hour), decide, starves(time.Hour))
	w.expect("", "", false)
	w.run(kubelet(corev1.ConditionTrue), decide, silent, decide, starves(2*time.Minute))
	w.expect(Quarantined, deadTaint, true)
	w.run(starves(8 * 24 * time.Hour))
	w.expect(Quarantined, deadTaint, true)
}

func TestADeadNodeThatWaitsForAPlaceIsNotParked(t *testing.T) {
	w := newReadyWorld(t)
	w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
	w.run(silent, decide, starves(time.Hour), passes(8*24*time.Hour), decide)
	w.expect(Suspect, "", false)
	w.peers = nil
	w.run(decide)
	w.expect(Quarantined, deadTaint, true)
}

func TestAQuarantinedNodeThatIsDeadForLongUsesUpNoBudget(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, decide, starves(2*time.Minute))
	for age, want := range map[time.Duration]string{time.Hour: limits.Quarantined, 8 * 24 * time.Hour: ""} {
		peer := PeerOf(w.policy, w.node)
		got := ""
		for _, use := range limits.Uses(w.policy, []limits.Peer{peer}, w.now.Add(age)) {
			for _, n := range use.Nodes {
				got += n.Why
			}
		}
		if got != want {
			t.Errorf("after %s it counts as %q, want %q", age, got, want)
		}
	}
	w.run(reboots, kubelet(corev1.ConditionTrue)) // it is back, and the quarantine stands
	if peer := PeerOf(w.policy, w.node); !peer.ParkedSince.IsZero() {
		t.Error("a node that answers is parked")
	}
}

// What people read about a node that does not answer.
func TestTheMessageNamesADeadNodeAndNotItsDetectors(t *testing.T) {
	const ready = "Ready is Unknown since 2026-11-20T12:00:00Z "
	withoutRule := func(w *world) {
		w.policy.Rules = slices.DeleteFunc(w.policy.Rules, func(r policy.Rule) bool { return r.Condition == corev1.NodeReady })
	}
	for name, test := range map[string]struct {
		steps []step
		want  string
	}{
		"a quarantine": {[]step{silent, passes(time.Second), decide, starves(2*time.Minute - time.Second), passes(time.Second), decide}, ready + "(rule dead: Kubelet stopped posting node status.); tainted " + deadTaint},
		"long after":   {[]step{gpuFine, silent, decide, starves(time.Hour), decide}, ""},
		"observe mode": {[]step{switchedOff, gpuFine, silent, decide, starves(time.Hour), decide},
			ready + "(rule dead: Kubelet stopped posting node status.); observe mode: would taint " + deadTaint + " and restart its jobs"},
		"no rule acts on it": {[]step{withoutRule, gpuFine, silent, decide, starves(time.Hour), decide},
			ready + "(Kubelet stopped posting node status.), and no rule of the policy acts on that; no heartbeat of GPUXidError for 60m"},
		"it is parked": {[]step{gpuFine, silent, passes(8 * 24 * time.Hour), decide},
			ready + "(Kubelet stopped posting node status.), longer than budget.parkedAfter, so the node is taken for switched off; no heartbeat of GPUXidError for 8d"},
		"the node is Ready": {[]step{gpuFine, passes(time.Hour), decide},
			"no heartbeat of GPUXidError for 60m, so nothing is decided about the node; is node-problem-detector running there?"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(test.steps...)
			got := ""
			if w.last.Blocked != nil {
				got = w.last.Blocked.Message
			}
			for _, e := range w.last.Events {
				got += e.Message
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// newReadyFleet makes n nodes in three zones, all Ready.
func newReadyFleet(t *testing.T, n int) *fleet {
	f := &fleet{T: t}
	for i := range n {
		w := newReadyWorld(t)
		if i > 0 {
			w.policy = f.worlds[0].policy // one policy for all nodes
		}
		w.node.Name, w.node.UID = fmt.Sprintf("n%d", i), types.UID(fmt.Sprintf("uid-%d", i))
		w.node.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("z%d", i%3)}
		gpuFine(w)
		f.worlds = append(f.worlds, w)
	}
	return f
}

// die has nodes die together, and all nodes decided until the rule has long been due.
func (f *fleet) die(nodes ...int) {
	for _, i := range nodes {
		silent(f.worlds[i])
	}
	for range 2 {
		for _, i := range nodes {
			f.decide(i)
			f.worlds[i].now = f.worlds[i].now.Add(3 * time.Minute)
		}
	}
}

func TestManyDeadNodesAtOnce(t *testing.T) {
	every := func(n, step int) (nodes []int) {
		for i := range n {
			nodes = append(nodes, i*step)
		}
		return nodes
	}
	for name, test := range map[string]struct {
		before  func(f *fleet)
		dead    []int
		want    int // quarantined
		blocked string
	}{
		"one":            {nil, []int{7}, 1, ""},
		"three":          {nil, []int{7, 8, 9}, 3, ""},
		"thirty":         {nil, every(30, 1), 3, "3 nodes are out of service and the budget is 3: n0 (quarantined), n1 (quarantined), n2 (quarantined)"},
		"a zone":         {nil, every(66, 3), 0, "66 of 67 nodes of topology.kubernetes.io/zone=z0 are not Ready, all within 2m0s: more likely the network or the control plane than the nodes"},
		"half of a zone": {nil, every(33, 3), 3, "the budget is 3"},
		"the cluster":    {nil, every(200, 1), 0, "200 of 200 nodes of the cluster are not Ready, all within 2m0s: more likely the network or the control plane than the nodes"},
		"beside cordoned ones": {func(f *fleet) { cordoned(f.worlds[100]); cordoned(f.worlds[101]) }, []int{7, 8}, 1,
			"3 nodes are out of service and the budget is 3: n100 (cordoned), n101 (cordoned), n7 (quarantined)"},
		"one of them is cordoned": {func(f *fleet) { cordoned(f.worlds[9]) }, []int{7, 8, 9}, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newReadyFleet(t, 200)
			if test.before != nil {
				test.before(f)
			}
			f.die(test.dead...)
			got, why := strings.Count(f.phases(), "q"), ""
			for _, i := range test.dead {
				if b := f.worlds[i].last.Blocked; b != nil {
					why = b.Message
				}
			}
			if got != test.want || !strings.Contains(why, test.blocked) || (why == "") != (test.blocked == "") {
				t.Errorf("%d are quarantined, want %d; blocked: %s", got, test.want, why)
			}
			if strings.Contains(why, "detector") {
				t.Errorf("a detector is blamed: %s", why)
			}
		})
	}
}

// To the rules about hardware a node that is not Ready is out of service, as before.
func TestDeadNodesHoldBackOtherQuarantines(t *testing.T) {
	f := newReadyFleet(t, 200)
	for _, i := range []int{7, 8, 9} {
		silent(f.worlds[i])
	}
	f.worlds[0].run(gpu(ecc))
	f.decide(0)
	if b := f.worlds[0].last.Blocked; b == nil || b.Message != "GPUXidError needs a GPU reset (rule gpu: "+ecc+"), but 3 nodes are out of service and the budget is 3: n7 (not Ready), n8 (not Ready), n9 (not Ready)" {
		t.Errorf("blocked %+v", b)
	}
}

// However nodes die, come back and break, what we take out of service stays within the budget, and a rule on Ready takes no place
// that a cordon or a quarantine has.
func TestNoFleetOfDyingNodesExceedsItsBudget(t *testing.T) {
	const limit = 3
	back := func(w *world) { w.node.Spec.Unschedulable = false }
	alive := kubelet(corev1.ConditionTrue)
	fine := says("KernelDeadlock", "False", "")
	events := []step{says("KernelDeadlock", "True", "x"), says("KernelDeadlock", "True", "x"), fine, silent, silent, kubelet(corev1.ConditionFalse), alive, reboots, cordoned, back, untaints}
	byRule, blocked := map[string]int{}, 0
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 15))
		f := newReadyFleet(t, 30)
		for i := range f.worlds[0].policy.Rules { // of all nodes
			f.worlds[0].policy.Rules[i].Flaps = policy.Flaps{} // else every node soon waits for a person
		}
		for range 300 {
			pass := time.Duration(random.IntN(300)) * time.Second
			for _, w := range f.worlds {
				w.now = w.now.Add(pass)
				beats(w)
			}
			i := random.IntN(len(f.worlds))
			repaired := random.IntN(len(f.worlds))
			f.worlds[repaired].run(back, alive, fine, reboots)
			f.decide(repaired)
			events[random.IntN(len(events))](f.worlds[i])
			w := f.decide(i)
			if w.last.Blocked != nil && w.last.Blocked.Reason == BlockedByBudget {
				blocked++
			}
			if !slices.ContainsFunc(w.last.Events, func(e Event) bool { return e.Reason == NodeQuarantined }) {
				continue
			}
			rule := w.record().Taint.Rule
			byRule[rule]++
			out := 0
			for _, other := range f.worlds {
				r := other.record()
				dead := other.node.Status.Conditions[0].Status != corev1.ConditionTrue
				if r != nil && r.Phase == Quarantined || other.node.Spec.Unschedulable || dead && rule != "dead" {
					out++
				}
			}
			if out > limit {
				t.Fatalf("seed %d: %d nodes are out of service after a quarantine by rule %s", seed, out, rule)
			}
		}
	}
	if byRule["dead"] < 40 || byRule["deadlock"] < 5 || blocked < 100 {
		t.Errorf("only %v quarantines, %d blocked: the walks prove little", byRule, blocked)
	}
}
