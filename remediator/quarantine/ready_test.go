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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
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
	w.policy = policyOf(t, readyPolicy)
	w.node.CreationTimestamp = metav1.NewTime(w.now.AddDate(0, -1, 0))
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
func (w *world) expect(phase causes.Phase, taint string, restarts bool) {
	w.t.Helper()
	got, tainted := causes.Phase(""), ""
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
			w.expect(causes.Suspect, "", false)
			w.run(starves(2*time.Minute - time.Second))
			w.expect(causes.Suspect, "", false)
			w.run(starves(time.Second))
			w.expect(causes.Quarantined, deadTaint, true)
			if len(w.node.Annotations) != 1 {
				t.Errorf("an autoscaler is kept from replacing a dead node: %v", w.node.Annotations)
			}
			w.run(starves(100 * time.Hour))
			w.expect(causes.Quarantined, deadTaint, true)
		})
	}
}

func TestANodeThatAnswersAgainIsReleasedAfterItsTime(t *testing.T) {
	for name, test := range map[string]struct {
		boot     string
		restarts bool
	}{
		"the node was away, and its jobs run on":        {"boot-1", false},
		"the node has rebooted, and its ranks are dead": {"boot-2", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(passes(time.Hour), silent, decide, starves(2*time.Minute))
			w.expect(causes.Quarantined, deadTaint, true)
			w.node.Status.NodeInfo.BootID = test.boot
			w.run(kubelet(corev1.ConditionFalse), decide, passes(10*time.Second), kubelet(corev1.ConditionTrue), decide, starves(5*time.Minute-time.Second))
			w.expect(causes.Quarantined, deadTaint, test.restarts)
			w.run(starves(time.Second))
			w.expect(causes.Released, "", false)
		})
	}
}

func TestANodeThatWasQuarantinedOftenIsReleasedByAPersonOnly(t *testing.T) {
	w := newReadyWorld(t)
	for range 3 {
		w.run(silent, decide, starves(2*time.Minute), kubelet(corev1.ConditionTrue), decide, starves(time.Hour))
		w.expect(causes.Released, "", false)
	}
	w.run(silent, decide, starves(2*time.Minute-time.Second))
	w.expect(causes.Suspect, "", false)
	w.run(starves(time.Second))
	w.expect(causes.Quarantined, deadTaint, true)
	w.run(kubelet(corev1.ConditionTrue), decide, starves(24*time.Hour))
	w.expect(causes.Quarantined, deadTaint, false)
}

func TestShortAbsencesAreNoFlaps(t *testing.T) {
	w := newReadyWorld(t)
	for range 5 {
		w.run(silent, decide, starves(time.Minute), kubelet(corev1.ConditionTrue), decide)
		w.expect("", "", false)
	}
	w.run(silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
	if w.record().ManualReleaseOnly {
		t.Error("only a person releases the node")
	}
}

// The network may be away whenever a node is quarantined for something else.
func TestAbsencesDuringOtherQuarantinesAreNoFlaps(t *testing.T) {
	w := newReadyWorld(t)
	for range 3 {
		w.run(says("KernelDeadlock", "True", "x"), decide, silent, decide, starves(3*time.Minute), reboots, kubelet(corev1.ConditionTrue),
			says("KernelDeadlock", "False", ""), decide, lasts(20*time.Minute))
		w.expect(causes.Released, "", false)
	}
	w.run(silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
	if w.record().ManualReleaseOnly {
		t.Error("only a person releases the node")
	}
}

// The guard against common causes needs the time of the rule to see the other nodes, also of one that was just released.
func TestANodeThatIsAwayAgainGetsTheWholeTimeOfTheRule(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, decide, starves(2*time.Minute), kubelet(corev1.ConditionTrue), decide, starves(5*time.Minute))
	w.expect(causes.Released, "", false)
	w.run(silent, decide, starves(2*time.Minute-time.Second))
	w.expect(causes.Suspect, "", false)
	w.run(starves(time.Second))
	w.expect(causes.Quarantined, deadTaint, true)
}

// A node that is rebooted on purpose is not Ready for a while.
func TestANodeUnderMaintenanceMayBeNotReady(t *testing.T) {
	w := newReadyWorld(t)
	w.run(taints(maintenance), silent, decide, starves(time.Hour))
	w.expect("", maintenance.ToString(), false)
	w.run(kubelet(corev1.ConditionTrue), untaints, decide, starves(time.Hour))
	w.expect("", "", false)
	w.run(taints(maintenance), silent, decide, starves(time.Minute), untaints, decide)
	w.expect(causes.Suspect, "", false)
	w.run(starves(2 * time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
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
			w.expect(causes.Quarantined, gpuTaint, true)
			reboots(w)
			w.run(gpuFine, decide, lasts(20*time.Minute))
			w.expect(causes.Released, "", false)
			reboots(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(last, silent, passes(time.Minute), decide, starves(2*time.Minute))
			w.expect(causes.Quarantined, deadTaint, true)
		})
	}
}

// An outage of the API server makes all nodes silent. It ends the leader, too.
func TestAfterAnOutageEveryKubeletHasTimeToReport(t *testing.T) {
	elected := func(w *world) { w.seen, w.leadingSince = seen.Seen{}, w.now }
	t.Run("a node that died before the outage", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(silent, decide, passes(time.Hour), elected, decide, starves(2*time.Minute-time.Second))
		w.expect(causes.Suspect, "", false)
		w.run(starves(time.Second))
		w.expect(causes.Quarantined, deadTaint, true)
	})
	t.Run("a node that was due", func(t *testing.T) {
		w := newReadyWorld(t)
		w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
		w.run(silent, decide, starves(time.Hour))
		w.expect(causes.Suspect, "", false)
		w.peers = nil
		w.run(elected, decide, starves(2*time.Minute-time.Second))
		w.expect(causes.Suspect, "", false)
		w.run(starves(time.Second))
		w.expect(causes.Quarantined, deadTaint, true)
	})
	t.Run("a node that says itself that it is not Ready", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(kubelet(corev1.ConditionFalse), decide, passes(time.Hour), elected, decide)
		w.expect(causes.Quarantined, deadTaint, true)
	})
	t.Run("a quarantine stands", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(silent, decide, starves(2*time.Minute), passes(time.Hour), elected, decide)
		w.expect(causes.Quarantined, deadTaint, true)
	})
}

// A driver or a kernel that hangs is often the first sign of a node that dies. Its rule may leave jobs alone.
func TestTheJobsOfANodeThatDiesDuringAnotherQuarantineRestart(t *testing.T) {
	const deadlock = "pitcrew.dev/unhealthy=KernelDeadlock:NoSchedule"
	reason := func(w *world) string {
		rule, _ := w.policy.Rule(w.last.RestartRule)
		return w.record().JobRestart(w.node, rule, nil).Reason
	}
	w := newReadyWorld(t)
	w.run(says("KernelDeadlock", "True", "x"), decide)
	w.expect(causes.Quarantined, deadlock, false)
	w.run(silent, decide, starves(2*time.Minute-time.Second))
	w.expect(causes.Quarantined, deadlock, false)
	w.run(starves(time.Second))
	w.expect(causes.Quarantined, deadlock, true)
	if got := reason(w); got != "Ready: Kubelet stopped posting node status." {
		t.Errorf("the jobs restart for %q", got)
	}
	w.run(func(w *world) { w.seen = seen.Seen{} }, decide) // a new remediator
	w.expect(causes.Quarantined, deadlock, true)
	w.run(kubelet(corev1.ConditionTrue), decide) // it was away
	w.expect(causes.Quarantined, deadlock, false)
	w.run(starves(time.Hour), silent, decide, starves(2*time.Minute-time.Second))
	w.expect(causes.Quarantined, deadlock, false)
	w.run(starves(time.Second))
	w.expect(causes.Quarantined, deadlock, true)
	w.run(reboots, kubelet(corev1.ConditionTrue), says("KernelDeadlock", "False", ""), decide, lasts(20*time.Minute))
	w.expect(causes.Released, "", false)
}

// The nodes of a zone that is away run on, whatever else they are quarantined for.
func TestTheJobsOfAQuarantinedNodeInAZoneThatIsAwayAreLeftAlone(t *testing.T) {
	f := newReadyFleet(t, 60)
	f.worlds[0].run(says("KernelDeadlock", "True", "x"))
	f.decide(0)
	var zone []int
	for i := 0; i < len(f.worlds); i += 3 {
		zone = append(zone, i)
	}
	f.die(zone...)
	w := f.decide(0)
	w.expect(causes.Quarantined, "pitcrew.dev/unhealthy=KernelDeadlock:NoSchedule", false)
	if b := w.last.Blocked; b == nil || !strings.HasPrefix(b.Message, "the jobs of the node are not restarted: Ready is Unknown") {
		t.Errorf("blocked %+v", b)
	}
}

// A rule that only asks the scheduler to avoid a node leaves it in service, so jobs that restart could come back to it.
func TestTheJobsOfADeadNodeRestartOnceItIsOutOfService(t *testing.T) {
	w := newReadyWorldWith(t, "match: {condition: KernelDeadlock, repair: [Reboot]}", "match: {condition: KernelDeadlock, repair: [Reboot]}\n      taint: {effect: PreferNoSchedule}")
	full := slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
	w.run(says("KernelDeadlock", "True", "x"), decide, func(w *world) { w.peers = full }, silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, "pitcrew.dev/unhealthy=KernelDeadlock:PreferNoSchedule", false)
	w.run(func(w *world) { w.peers = nil }, decide)
	w.expect(causes.Quarantined, deadTaint, true)
}

// Whoever has cordoned a node may be working on it. If not, a quarantine by hand restarts its jobs.
func TestPlannedWorkIsNoFaultOfANode(t *testing.T) {
	const said = "Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.)"
	deleted := func(key string) step {
		return func(w *world) { w.node.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	for name, test := range map[string]struct {
		mark step
		want string
	}{
		"cordoned":                    {cordoned, "; the node was cordoned by someone else, so this is taken for planned work"},
		"to be removed by Karpenter":  {deleted("karpenter.sh/disrupted"), "; the node has taint karpenter.sh/disrupted, so this is taken for planned work"},
		"to be removed by Autoscaler": {deleted("ToBeDeletedByClusterAutoscaler"), "; the node has taint ToBeDeletedByClusterAutoscaler, so this is taken for planned work"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(gpuFine, silent, test.mark, decide, starves(time.Hour))
			if r := w.record(); r != nil || w.last.RestartJobs {
				t.Errorf("%+v, restarts %v", r, w.last.RestartJobs)
			}
			if b := w.last.Blocked; b == nil || !strings.HasPrefix(b.Message, said+test.want+";") {
				t.Errorf("blocked %+v", b)
			}
			n, err := QuarantineManually(w.node, Manual{Reason: "it is dead"}, w.now)
			if err != nil {
				t.Fatal(err)
			}
			w.node = n
			w.run(decide, starves(2*time.Minute))
			if !w.last.RestartJobs || w.last.RestartRule != "dead" {
				t.Errorf("quarantined by hand, jobs restart: %v, by rule %q", w.last.RestartJobs, w.last.RestartRule)
			}
		})
	}
	t.Run("a quarantine that stands", func(t *testing.T) {
		w := newReadyWorld(t)
		w.run(silent, decide, starves(2*time.Minute), cordoned, decide, starves(time.Hour))
		w.expect(causes.Quarantined, deadTaint, true)
	})
	t.Run("our own cordon", func(t *testing.T) {
		w := newReadyWorldWith(t, "match: {condition: KernelDeadlock, repair: [Reboot]}", "match: {condition: KernelDeadlock, repair: [Reboot]}\n      handOff: {cordon: true}")
		w.run(says("KernelDeadlock", "True", "x"), decide, silent, decide, starves(2*time.Minute))
		if !w.node.Spec.Unschedulable || !w.last.RestartJobs {
			t.Errorf("cordoned %v, jobs restart: %v", w.node.Spec.Unschedulable, w.last.RestartJobs)
		}
	})
}

// Hundreds may wait for days.
func TestADeadNodeThatWaitsForALimitIsTriedAgainAfterAMinute(t *testing.T) {
	for name, wait := range map[string]step{
		causes.BlockedByBudget: func(w *world) {
			w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
		},
		causes.BlockedByBreaker: func(w *world) {
			w.policy.Breaker, w.broken = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Hour}, &limits.BreakerState{OpenedAt: w.now}
		},
	} {
		w := newReadyWorld(t)
		w.run(wait, silent, decide, starves(2*time.Minute))
		if b := w.last.Blocked; b == nil || b.Reason != name || w.last.RequeueAfter != time.Minute {
			t.Errorf("%s: blocked %+v, decided again after %s", name, b, w.last.RequeueAfter)
		}
	}
}

// A cluster may have machines that were switched off long ago. Quarantines of all of them would use up the limits.
func TestAParkedNodeIsNotQuarantined(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, passes(7*24*time.Hour), decide, starves(time.Hour))
	w.expect("", "", false)
	w.run(kubelet(corev1.ConditionTrue), decide, silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
	w.run(starves(8 * 24 * time.Hour))
	w.expect(causes.Quarantined, deadTaint, true)
}

func TestADeadNodeThatWaitsForAPlaceIsNotParked(t *testing.T) {
	w := newReadyWorld(t)
	w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Why: limits.Quarantined, Rule: "gpu"}}, 3)
	w.run(silent, decide, starves(time.Hour), passes(8*24*time.Hour), decide)
	w.expect(causes.Suspect, "", false)
	w.peers = nil
	w.run(decide)
	w.expect(causes.Quarantined, deadTaint, true)
}

func TestAQuarantinedNodeThatIsDeadForLongUsesUpNoBudget(t *testing.T) {
	w := newReadyWorld(t)
	w.run(gpuFine, silent, decide, starves(2*time.Minute))
	for age, want := range map[time.Duration]string{time.Hour: limits.Quarantined, 8 * 24 * time.Hour: ""} {
		peer := peers.Of(w.policy, w.node)
		got := ""
		for _, use := range limits.Uses(w.policy, limits.PeersOf(peer), w.now.Add(age)) {
			for _, n := range use.Nodes {
				got += n.Why
			}
		}
		if got != want {
			t.Errorf("after %s it counts as %q, want %q", age, got, want)
		}
	}
	w.run(reboots, kubelet(corev1.ConditionTrue)) // it is back, and the quarantine stands
	if peer := peers.Of(w.policy, w.node); !peer.ParkedSince.IsZero() {
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
		"one of them is cordoned": {func(f *fleet) { cordoned(f.worlds[9]) }, []int{7, 8, 9}, 2, ""},
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
			if w.last.Blocked != nil && w.last.Blocked.Reason == causes.BlockedByBudget {
				blocked++
			}
			if !slices.ContainsFunc(w.last.Events, func(e causes.Event) bool { return e.Reason == causes.NodeQuarantined }) {
				continue
			}
			rule := w.record().Taint.Rule
			byRule[rule]++
			out := 0
			for _, other := range f.worlds {
				r := other.record()
				dead := other.node.Status.Conditions[0].Status != corev1.ConditionTrue
				if r != nil && r.Phase == causes.Quarantined || other.node.Spec.Unschedulable || dead && rule != "dead" {
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

// newReadyWorldWith is newReadyWorld with a changed policy.
func newReadyWorldWith(t *testing.T, from, to string) *world {
	t.Helper()
	text := strings.Replace(readyPolicy, from, to, 1)
	if text == readyPolicy {
		t.Fatalf("%q is not in the policy", from)
	}
	w := newReadyWorld(t)
	w.policy = policyOf(t, text)
	return w
}

// uses names the nodes that use up the policy's budget, as "name (why)".
func (w *world) uses(at time.Time) string {
	var all []string
	for _, use := range limits.Uses(w.policy, limits.PeersOf(peers.Of(w.policy, w.node)), at) {
		for _, n := range use.Nodes {
			all = append(all, n.Why)
		}
	}
	return strings.Join(all, " ")
}

// A kubelet that hangs now and then is Unknown, reports False, and is Unknown again. It is never Ready.
func TestANodeThatIsNotReadyInTurnsOfUnknownAndFalseIsQuarantined(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, decide, starves(90*time.Second), kubelet(corev1.ConditionFalse), decide, starves(29*time.Second))
	w.expect(causes.Suspect, "", false)
	w.run(starves(time.Second))
	w.expect(causes.Quarantined, deadTaint, true)
}

// Outages of the network, which the guard and the rule's time keep from quarantining anything, are no flaps of the nodes.
func TestOutagesOfTheNetworkDoNotCountAsFlapsOfTheNodes(t *testing.T) {
	f := newReadyFleet(t, 20)
	every := func(s step) {
		for i, w := range f.worlds {
			s(w)
			beats(w)
			f.decide(i)
		}
	}
	pass := func(d time.Duration) {
		for _, w := range f.worlds {
			w.now = w.now.Add(d)
		}
	}
	for range 3 {
		every(silent)
		pass(time.Minute) // shorter than the rule's for
		every(kubelet(corev1.ConditionTrue))
		pass(2 * time.Hour)
	}
	if got := f.phases(); strings.Contains(got, "q") {
		t.Fatalf("phases %s", got)
	}
	// Hours later the kubelet of one node is restarted, and is not Ready for five seconds.
	w := f.worlds[7]
	w.run(kubelet(corev1.ConditionFalse))
	f.decide(7)
	w.run(passes(5*time.Second), kubelet(corev1.ConditionTrue))
	f.decide(7)
	if r := w.record(); r != nil && r.Phase == causes.Quarantined {
		t.Errorf("a healthy node is quarantined; by a person's release only: %v; said %s", r.ManualReleaseOnly, w.reasons)
	}
}

// A cordoned node that is parked, and holds no place, is switched off at last.
func TestAParkedNodeThatIsSwitchedOffDoesNotTakeAPlaceForEver(t *testing.T) {
	w := newReadyWorld(t)
	w.run(cordoned, func(w *world) {
		added := metav1.NewTime(w.now)
		w.node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &added}}
	}, passes(30*24*time.Hour), decide)
	if got := w.uses(w.now); got != "" {
		t.Fatalf("it uses a place before: %s", got)
	}
	w.run(silent, decide, starves(10*time.Minute))
	if got := w.uses(w.now); got != "" {
		t.Errorf("switched off, it uses a place: %s", got)
	}
	if got := w.uses(w.now.Add(365 * 24 * time.Hour)); got != "" {
		t.Errorf("after a year it uses a place: %s", got)
	}
}

// The cordon of the quarantine itself is no reason to count a dead node for ever.
func TestACordonByTheQuarantineDoesNotUnparkADeadNode(t *testing.T) {
	w := newReadyWorldWith(t, "handOff: {keepNode: false}", "handOff: {keepNode: false, cordon: true}")
	w.run(silent, decide, starves(2*time.Minute))
	if !w.node.Spec.Unschedulable {
		t.Fatal("not cordoned")
	}
	if got := w.uses(w.now.Add(8 * 24 * time.Hour)); got != "" {
		t.Errorf("dead for longer than parkedAfter, it uses a place: %s", got)
	}
}

// A person has released the node although its fault stands. That says nothing about a node that dies later.
func TestAManualReleaseOfAnotherFaultDoesNotHideADeadNode(t *testing.T) {
	w := newReadyWorld(t)
	w.run(says("KernelDeadlock", "True", "x"), decide, untaints, decide, untaints, decide)
	if r := w.record(); r == nil || !r.ManualReleaseActive {
		t.Fatalf("not released by hand: %+v", r)
	}
	w.run(silent, decide, starves(24*time.Hour))
	if got := w.node.Spec.Taints; len(got) != 1 {
		t.Errorf("the node has been dead for a day: taints %v, requeue after %s, blocked %+v", got, w.last.RequeueAfter, w.last.Blocked)
	}
}

// A rule may be about Unknown alone. A node that then reports that it is not Ready has not recovered.
func TestANodeThatIsNotReadyIsNotReleased(t *testing.T) {
	w := newReadyWorldWith(t, `status: [Unknown, "False"]`, "status: Unknown")
	w.run(silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
	w.run(kubelet(corev1.ConditionFalse), decide, starves(time.Hour))
	w.expect(causes.Quarantined, deadTaint, false)
}

func TestANodeThatNeverReportedHasYetToStart(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, func(w *world) { w.node.Status.Conditions[0].Reason = "NodeStatusNeverUpdated" }, decide, starves(time.Hour))
	w.expect("", "", false)
	if got := causes.Unhandled(w.policy, w.node, w.now); !strings.HasSuffix(got, ", as it has been since it was created, so the node is taken for one that has yet to start") {
		t.Error(got)
	}
}

// A GPU node that was just added takes longer than two minutes to become Ready: driver, CNI, images.
func TestANodeThatHasNeverBeenReadyTakesNoPlace(t *testing.T) {
	f := newReadyFleet(t, 40)
	for i := range 3 { // the autoscaler adds three
		w := f.worlds[i]
		w.node.Status.Conditions, w.node.CreationTimestamp = nil, metav1.NewTime(w.now)
		w.run(passes(time.Minute), kubelet(corev1.ConditionFalse), passes(-time.Minute))
		w.node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}
	for range 4 {
		for i := range 3 {
			f.decide(i)
		}
		for _, w := range f.worlds {
			w.now = w.now.Add(time.Minute)
		}
	}
	if got := f.phases()[:3]; got != "---" {
		t.Errorf("nodes that boot for the first time: %s", got)
	}
	// They come up; for five minutes more a real fault waits for a place.
	for i := range 3 {
		f.worlds[i].run(kubelet(corev1.ConditionTrue), gpuFine)
		f.decide(i)
	}
	f.worlds[20].run(gpu(lost))
	if w := f.decide(20); w.last.Blocked != nil {
		t.Errorf("a GPU fault: %s", w.last.Blocked.Message)
	}
}

// The kubelet takes the time of a transition to False from the clock of the node, which may be wrong after a boot.
func TestAWrongClockOfTheNodeDoesNotParkIt(t *testing.T) {
	w := newReadyWorld(t)
	w.run(decide, kubelet(corev1.ConditionFalse), func(w *world) {
		w.node.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.node.CreationTimestamp.AddDate(-1, 0, 0))
	}, decide, starves(time.Hour))
	w.expect(causes.Quarantined, deadTaint, true)
	if peer := peers.Of(w.policy, w.node); !peer.ParkedSince.IsZero() {
		t.Error("its peers take it for parked")
	}
}

// Dead CPU nodes, of which a policy about GPUs counts none otherwise, do not use up the places of the GPU nodes.
func TestDeadNodesWithoutCheckedHardwareDoNotHoldBackGPUNodes(t *testing.T) {
	f := newReadyFleet(t, 60)
	for _, w := range f.worlds[:30] { // without a GPU
		w.node.Status.Conditions = nil
		kubelet(corev1.ConditionTrue)(w)
	}
	f.die(0, 1, 2)
	for _, w := range f.worlds {
		w.now = f.worlds[0].now
		beats(w)
	}
	f.worlds[40].run(gpu(lost))
	if w := f.decide(40); w.last.Blocked != nil {
		t.Errorf("%s", w.last.Blocked.Message)
	}
}

// The window of a budget is about the same nodes.
func TestOnlyDeadNodesWithCheckedHardwareCountForTheWindow(t *testing.T) {
	for name, test := range map[string]struct {
		has  step
		want string
	}{
		"a GPU": {gpuFine, limits.Recent}, "none": {func(*world) {}, ""},
	} {
		w := newReadyWorldWith(t, "maxPercent: 10}", "maxPercent: 10, window: 1h}")
		w.run(test.has, silent, decide, starves(2*time.Minute), kubelet(corev1.ConditionTrue), decide, starves(5*time.Minute))
		w.expect(causes.Released, "", false)
		if got := w.uses(w.now); got != test.want {
			t.Errorf("%s: the released node counts as %q, want %q", name, got, test.want)
		}
	}
}

// A rule may be for some nodes only. That the others of the zone are not Ready either is the stronger sign of an outage.
func TestTheGuardCountsNodesThatTheRuleIsNotFor(t *testing.T) {
	f := newReadyFleet(t, 60)
	p, err := policy.Parse([]byte(strings.Replace(readyPolicy, "repair: [Inspect]}", "repair: [Inspect], nodeSelector: {gpu: 'yes'}}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	var zone []int
	for i, w := range f.worlds {
		w.policy = p
		if i%3 == 0 { // the whole zone z0
			zone = append(zone, i)
			if i%9 == 0 {
				w.node.Labels["gpu"] = "yes"
			}
		}
	}
	f.die(zone...)
	if got := strings.Count(f.phases(), "q"); got != 0 {
		t.Errorf("all %d nodes of a zone are not Ready, and %d are quarantined", len(zone), got)
	}
}

// A rolling reboot of cordoned, drained nodes is what kured and every kernel upgrade do.
func TestPlannedRebootsOfCordonedNodesDoNotOpenTheBreaker(t *testing.T) {
	f := newReadyFleet(t, 200)
	text := strings.Replace(readyPolicy, "maxNodes: 3, maxPercent: 10", "maxNodes: 30, maxPercent: 20", 1)
	p, err := policy.Parse([]byte(strings.Replace(text, "  correlated:", "  breaker: {maxNodes: 10, window: 10m, coolDown: 30m, pace: 5m}\n  correlated:", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range f.worlds {
		w.policy = p
	}
	pass := func(d time.Duration) {
		for _, w := range f.worlds {
			w.now = w.now.Add(d)
			if w.node.Status.Conditions[0].Status == corev1.ConditionTrue {
				beats(w)
			}
		}
	}
	for i := range 12 { // people or kured have drained them, and reboot them one after the other
		f.worlds[i].run(cordoned, silent)
		f.decide(i)
		pass(20 * time.Second)
	}
	pass(2 * time.Minute)
	for i := range 12 {
		f.decide(i)
	}
	for i := range 12 { // all is well
		f.worlds[i].run(reboots, kubelet(corev1.ConditionTrue), gpuFine, func(w *world) { w.node.Spec.Unschedulable = false })
		f.decide(i)
	}
	f.worlds[100].run(gpu(lost))
	if w := f.decide(100); w.last.Blocked != nil {
		t.Errorf("a GPU fault after 12 planned reboots: %s; the 12 are %s", w.last.Blocked.Message, f.phases()[:12])
	}
}

// Four planned reboots of one machine within a day, as a firmware upgrade needs them, do not make it one that only a person releases.
func TestPlannedRebootsAreNoFlaps(t *testing.T) {
	w := newReadyWorld(t)
	for range 4 {
		w.run(cordoned, silent, decide, starves(4*time.Minute), reboots, kubelet(corev1.ConditionTrue), decide, starves(20*time.Minute))
	}
	w.node.Spec.Unschedulable = false
	w.run(decide, starves(24*time.Hour))
	if r := w.record(); r != nil && r.Phase == causes.Quarantined {
		t.Errorf("ready for a day, and quarantined: by a person's release only: %v", r.ManualReleaseOnly)
	}
}

// A node waits for a part: it must not be removed, and its hand-off says so. Then it dies.
func TestAMilderFaultThatRestartsJobsDoesNotTakeBackTheHandOffOfAWorseOne(t *testing.T) {
	w := newReadyWorldWith(t, "match: {condition: KernelDeadlock, repair: [Reboot]}", "match: {condition: KernelDeadlock, repair: [Replace]}\n      handOff: {cordon: true, labels: {example.com/rma: wanted}}")
	w.run(says("KernelDeadlock", "True", "x"), decide)
	if !w.node.Spec.Unschedulable || w.node.Labels["example.com/rma"] == "" || len(w.node.Annotations) < 2 {
		t.Fatalf("no hand-off: %v %v", w.node.Labels, w.node.Annotations)
	}
	w.run(silent, decide, starves(2*time.Minute))
	if w.node.Labels["example.com/rma"] == "" {
		t.Error("the hand-off of the rule for a replacement is gone")
	}
	if !w.node.Spec.Unschedulable {
		t.Error("it is uncordoned: Slurm resumes a node that must be replaced")
	}
	for key := range policy.KeepNode {
		if w.node.Annotations[key] == "" {
			t.Errorf("annotation %s is gone: an autoscaler may remove the node with its evidence", key)
		}
	}
	if got := w.record().Taint.Repair; got != conditions.Replace {
		t.Errorf("webhooks and soperator are told that it needs %s", got)
	}
}

// The same without a dead node: a fault for which the node must be replaced comes to a node whose jobs were restarted for a reset.
func TestAWorseFaultIsHandedOffAlsoIfItsRuleRestartsNoJobs(t *testing.T) {
	w := newReadyWorldWith(t, "match: {condition: KernelDeadlock, repair: [Reboot]}", "match: {condition: KernelDeadlock, repair: [Replace]}\n      handOff: {labels: {example.com/rma: wanted}}")
	w.run(gpu(ecc), decide)
	w.expect(causes.Quarantined, gpuTaint, true)
	w.run(says("KernelDeadlock", "True", "x"), decide)
	if w.node.Labels["example.com/rma"] == "" {
		t.Errorf("the node must be replaced, and its taint is %v, its hand-off %v; said %v", w.node.Spec.Taints, w.node.Labels, w.reasons)
	}
}

// A dead machine that the autoscaler replaces is gone; the next dead one must not wait for an hour.
func TestReplacedDeadNodesDoNotHoldBackTheNextDeadNode(t *testing.T) {
	w := newReadyWorld(t)
	for i := range 3 {
		w.peers = append(w.peers, limits.Peer{Name: fmt.Sprintf("gone-%d", i), Gone: true,
			Starts: []limits.Start{{Rule: "dead", At: w.now.Add(-10 * time.Minute), Gone: true, Proven: true}}})
	}
	for i := range 30 {
		w.peers = append(w.peers, limits.Peer{Name: fmt.Sprintf("n%d", i)})
	}
	w.run(silent, decide, starves(2*time.Minute))
	if w.last.Blocked != nil {
		t.Errorf("blocked: %s", w.last.Blocked.Message)
	}
}

// A job that had to wait, for room say, runs on when its node was only away. It needs no restart then.
func TestJobsOfANodeThatIsBackAreNotRestartedForItsAbsence(t *testing.T) {
	w := newReadyWorld(t)
	w.run(silent, decide, starves(2*time.Minute))
	w.expect(causes.Quarantined, deadTaint, true)
	w.run(passes(10*time.Second), kubelet(corev1.ConditionTrue), decide)
	w.expect(causes.Quarantined, deadTaint, false)
	w.run(starves(4 * time.Minute))
	w.expect(causes.Quarantined, deadTaint, false)
}

// The node controller marks the nodes of a failed zone one after the other, and the remediator decides each within milliseconds. A fault
// that is due at once, because it flapped, must not be faster than the guard.
func TestTheGuardIsNotOutrunByFlaps(t *testing.T) {
	f := newReadyFleet(t, 200)
	pass := func(d time.Duration) {
		for _, w := range f.worlds {
			w.now = w.now.Add(d)
		}
	}
	zone := func(s step) {
		for i := 0; i < len(f.worlds); i += 3 {
			s(f.worlds[i])
			f.decide(i)
		}
	}
	for range 3 { // the link of the zone is away for a minute, three times in a day
		zone(silent)
		pass(time.Minute)
		zone(kubelet(corev1.ConditionTrue))
		pass(3 * time.Hour)
	}
	zone(silent) // and again
	if got := strings.Count(f.phases(), "q"); got != 0 {
		t.Errorf("the zone is away for a moment, and %d nodes of it are quarantined, until a person releases them: %v", got, f.worlds[0].record().ManualReleaseOnly)
	}
}
