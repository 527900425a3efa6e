package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// walk sums up all nodes but one, as a decision must not.
func (r rig) walk(p *policy.Policy, except string) limits.Peers {
	memory, present, fleet := r.breaker.Remembered(), map[string]bool{}, limits.NewFleet()
	for i := range r.client.nodes {
		n := r.client.nodes[i].DeepCopy()
		if node.Excluded(n) {
			continue
		}
		present[n.Name] = true
		peer := peers.With(p, n, memory[n.Name], limits.Domain{})
		if w := r.pending.All()[n.Name]; w.Record != nil && w.UID == n.UID && w.Over == n.ResourceVersion {
			quarantine.Overlay(n, w.Record)
			// What gives a place back may still fail.
			if written := peers.With(p, n, memory[n.Name], limits.Domain{}); (written.OutOfService || !peer.OutOfService) && (written.Soft || !peer.Soft) {
				peer = written
			}
		}
		fleet.Put(peer)
	}
	for _, gone := range memory.GonePeers(func(name string) bool { return present[name] }) {
		fleet.Put(gone)
	}
	return fleet.Others(except)
}

// answers are what the limits say about every rule, in every rack.
func answers(p *policy.Policy, peers limits.Peers, now time.Time) (all []string) {
	for _, use := range limits.Uses(p, peers, now) {
		all = append(all, fmt.Sprint(use))
	}
	for _, rule := range p.Rules {
		c := corev1.NodeCondition{Type: rule.Condition, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}
		for rack := range 3 {
			labels := map[string]string{"rack": fmt.Sprint(rack)}
			all = append(all, limits.ExceededBudget(p, limits.Held{}, rule, labels, peers, now), limits.Correlated(p, c, limits.Peer{Labels: labels}, peers))
		}
	}
	open := &limits.BreakerState{OpenedAt: now.Add(-30 * time.Minute)}
	return append(all, fmt.Sprint(
		limits.TripBreaker(p.Breaker, nil, peers, now).Reason, limits.TripBreaker(p.Breaker, open, peers, now).Reason, open.MayClose(p.Breaker, peers, now)))
}

func fleetPolicy(t *testing.T, r *rand.Rand) *policy.Policy {
	t.Helper()
	p, err := policy.Parse(fmt.Appendf(nil, `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: %d, scope: %q, window: %dm, parkedAfter: 1h}
  breaker: {maxNodes: %d, window: 20m, coolDown: 10m, pace: 5m}
  correlated: {minNodes: %d, maxPercent: 40, window: 2m, scopes: [rack]}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [%s]}
      clearAfter: 1m
      budget: {maxNodes: 3}
    disk:
      match: {condition: DiskFailing, repair: [Replace]}
      taint: {effect: PreferNoSchedule}
    down:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Reboot]}
`, 1+r.IntN(4), []string{"", "rack"}[r.IntN(2)], r.IntN(90), 2+r.IntN(4), 2+r.IntN(4), []string{"Reboot, Replace", "Replace"}[r.IntN(2)]))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A release may fail, and the quarantine of another node may reach the API server before it.
func TestAPlaceIsFreeOnceTheCacheShowsTheRelease(t *testing.T) {
	r := newRig(t, "a", "b")
	r.policy.Policy().Rules[1].ClearAfter = 0
	r.reconcile(t, "a")
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	r.client.nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
	r.reconcile(t, "a") // the cache does not show the release
	r.reconcile(t, "b")
	want := []string{causes.NodeQuarantined, causes.NodeReleased, causes.QuarantineBlocked}
	if diff := gocmp.Diff(want, r.reasons()); diff != "" {
		t.Error(diff)
	}
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	r.reconcile(t, "b")
	if diff := gocmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

// What has a node reconciled is noted before, so that each decision knows of it and of all that came before. What has none reconciled
// is noted, too.
func TestAChangeIsNotedBeforeItHasANodeReconciled(t *testing.T) {
	for what, change := range map[string]func(r rig, told predicate.Predicate) (reconciles bool){
		"a new node": func(r rig, told predicate.Predicate) bool {
			r.client.nodes = append(r.client.nodes, *r.client.nodes[0].DeepCopy())
			n := &r.client.nodes[2]
			n.Name, n.UID, n.Spec.Unschedulable = "c", "c", true
			return told.Create(event.CreateEvent{Object: n})
		},
		"a cordon": func(r rig, told predicate.Predicate) bool {
			before := r.client.nodes[0].DeepCopy()
			r.client.nodes[0].Spec.Unschedulable = true
			return told.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: &r.client.nodes[0]})
		},
		"a heartbeat": func(r rig, told predicate.Predicate) bool {
			r.client.nodes[0].Spec.Unschedulable = true // as an earlier change has left it
			return told.Update(event.UpdateEvent{ObjectOld: &r.client.nodes[0], ObjectNew: &r.client.nodes[0]})
		},
	} {
		r := newRig(t, "a", "b")
		told := r.follow(t.Context())
		r.client.nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
		if _, err := r.fleet.others(t.Context(), r.policy.Policy(), "b"); err != nil { // the fleet is summed up
			t.Fatal(err)
		}
		if got := change(r, told); got != (what != "a heartbeat") {
			t.Errorf("%s: reconciles %v", what, got)
		}
		if _, err := r.Controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "b"}}); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]string{causes.QuarantineBlocked}, r.reasons()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// Whatever happens to the nodes, the writes, the policy and the clock, the limits say what a walk over all nodes says, though a node is
// summed up only when the cache tells of it, or we have written it.
func TestTheFleetIsWhatAllNodesAre(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	quarantined, doubtful, gone := 0, 0, 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t)
		r.client.locks, r.client.live = true, map[string]*corev1.Node{}
		version := 0
		// A client writes a node, and the cache may tell of it later.
		write := func(n *corev1.Node) {
			version++
			n.ResourceVersion = fmt.Sprint(version)
			r.client.live[n.Name] = n.DeepCopy()
		}
		tell := r.follow(t.Context())
		show := func(name string) {
			i := slices.IndexFunc(r.client.nodes, func(n corev1.Node) bool { return n.Name == name })
			live := r.client.live[name]
			switch {
			case live == nil && i >= 0:
				old := r.client.nodes[i]
				r.client.nodes = slices.Delete(slices.Clone(r.client.nodes), i, i+1)
				tell.Delete(event.DeleteEvent{Object: &old})
			case live == nil:
			case i < 0:
				r.client.nodes = append(slices.Clone(r.client.nodes), *live.DeepCopy())
				tell.Create(event.CreateEvent{Object: live})
			default:
				old := r.client.nodes[i]
				r.client.nodes = slices.Clone(r.client.nodes)
				r.client.nodes[i] = *live.DeepCopy()
				tell.Update(event.UpdateEvent{ObjectOld: &old, ObjectNew: live})
			}
		}
		r.policy = policy.Fixed(fleetPolicy(t, random))
		for step := range 120 {
			name := fmt.Sprintf("n%d", random.IntN(8))
			now := r.clock.Now()
			live := r.client.live[name]
			switch op := random.IntN(12); {
			case live == nil && op < 6:
				write(&corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprint(seed, step)), Labels: map[string]string{"rack": fmt.Sprint(random.IntN(3))}},
					Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}},
				})
			case live == nil:
			case op == 0:
				delete(r.client.live, name)
			case op == 1:
				n := live.DeepCopy()
				n.Spec.Unschedulable = !n.Spec.Unschedulable
				write(n)
			case op == 2:
				n := live.DeepCopy()
				n.Labels = map[string]string{"rack": fmt.Sprint(random.IntN(3)), conditions.LabelSkip: fmt.Sprint(random.IntN(4) == 0)}
				write(n)
			case op < 6:
				n := live.DeepCopy()
				status, message := corev1.ConditionFalse, "no fault"
				if random.IntN(3) > 0 {
					status, message = corev1.ConditionTrue, []string{lost, "Replace disk sda: failed"}[random.IntN(2)]
				}
				at := metav1.NewTime(now.Add(-time.Duration(random.IntN(180)) * time.Second))
				kind := []corev1.NodeConditionType{"GPUXidError", "DiskFailing", corev1.NodeReady}[random.IntN(3)]
				n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind }),
					corev1.NodeCondition{Type: kind, Status: status, Message: message, LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: at})
				write(n)
			}
			switch random.IntN(12) {
			case 0:
				r.clock.SetTime(now.Add(time.Duration(random.IntN(40)-5) * time.Minute))
			case 1:
				r.policy = policy.Fixed(fleetPolicy(t, random))
			case 2:
				r.breaker.Prune(time.Hour)
			}
			if random.IntN(3) > 0 {
				show(name)
			}
			if random.IntN(3) == 0 {
				name = fmt.Sprintf("n%d", random.IntN(8))
			}
			// A decision, with a write that is refused, or whose answer is lost, or that succeeds.
			r.client.refuse, r.client.unanswered, r.client.arrives = nil, nil, random.IntN(2) == 0
			switch random.IntN(6) {
			case 0:
				r.client.refuse = apierrors.NewConflict(resource, name, errors.New("changed"))
			case 1:
				r.client.unanswered = syscall.ECONNRESET
			}
			// The error is the one that was arranged.
			_, _ = r.Controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
			r.client.refuse, r.client.unanswered = nil, nil
			r.reasons()
			for _, w := range r.pending.All() {
				if w.Lost != nil {
					doubtful++
				}
			}
			asking := cmp.Or(map[bool]string{true: name}[random.IntN(2) == 0], "n0")
			p := r.policy.Policy()
			peers, err := r.fleet.others(t.Context(), p, asking)
			if err != nil {
				t.Fatal(err)
			}
			want := answers(p, r.walk(p, asking), r.clock.Now())
			if diff := gocmp.Diff(want, answers(p, peers, r.clock.Now())); diff != "" {
				t.Fatalf("seed %d, step %d, asked for %s: %s", seed, step, asking, diff)
			}
			for _, use := range limits.Uses(p, peers, r.clock.Now()) {
				for _, by := range use.Nodes {
					switch by.Why {
					case limits.Quarantined:
						quarantined++
					case limits.Gone:
						gone++
					}
				}
			}
		}
	}
	t.Logf("%d quarantined, %d doubtful, %d gone", quarantined, doubtful, gone)
	if quarantined < 100 || doubtful < 100 || gone < 100 {
		t.Error("the histories show too little")
	}
}
