package visits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func recordedNode(name string, r visit.Record) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	r.V, r.NodeUID = 1, n.UID
	n.Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
	return n
}

func TestRecordsAreParsedOnce(t *testing.T) {
	records := newRecords()
	of := func(n *corev1.Node) *visit.Record {
		t.Helper()
		r, err := records.of(n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	n := recordedNode("a", visit.Record{Request: &visit.Request{Kind: visit.RequestCheck}})
	first := of(n)
	if first == nil || of(n) != first {
		t.Errorf("the same text is parsed twice: %s", first)
	}
	if r := of(recordedNode("a", visit.Record{Request: &visit.Request{Kind: visit.RequestStop}})); r.Request.Kind != visit.RequestStop {
		t.Errorf("after a change: %s", r)
	}
	again := n.DeepCopy()
	again.UID = "anew"
	if r := of(again); r != nil {
		t.Errorf("of the node before: %s", r)
	}
	n.Annotations[conditions.AnnotationRepair] = "{"
	for range 2 {
		if _, err := records.of(n); err == nil {
			t.Error("no error")
		}
	}
	delete(n.Annotations, conditions.AnnotationRepair)
	if r := of(n); r != nil || len(records.byNode) > 0 {
		t.Errorf("without an annotation: %s, and %d are kept", r, len(records.byNode))
	}
}

func TestNodesThatNeedALook(t *testing.T) {
	c := &Controller{policy: policy.Fixed(&policy.Policy{}), records: newRecords()}
	v := visit.Visit{ID: "v", Kind: visit.Sweep, Phase: visit.Proving}
	for name, want := range map[string]bool{"past": false, "current": true, "request": true, "quarantined": true, "bad": true, "none": false} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		switch name {
		case "past", "quarantined":
			n = recordedNode(name, visit.Record{Swept: map[string]time.Time{"weekly": {}}})
		case "current":
			n = recordedNode(name, visit.Record{Current: &v})
		case "request":
			n = recordedNode(name, visit.Record{Request: &visit.Request{Kind: visit.RequestCheck}})
		case "bad":
			n.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
		}
		if name == "quarantined" {
			n.Labels = map[string]string{conditions.LabelStatus: "quarantined"}
		}
		if got := c.needsRecheck(n); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestPeersAreThoseOfAllNodes compares what counts for the limits with a walk over all nodes, while some writes are not in the cache yet.
func TestPeersAreThoseOfAllNodes(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p := &policy.Policy{Repair: &policy.Repair{Scope: "rack"}}
	v := visit.Visit{ID: "v", Kind: visit.Validation, Phase: visit.Working, StartedAt: now, PhaseSince: now, Attempt: 1, Quarantine: "q"}
	done := visit.Visit{ID: "w", Kind: visit.Sweep, Phase: visit.Passed, StartedAt: now, PhaseSince: now, EndedAt: now}
	begun := []visit.Action{{At: now.Add(-time.Hour), Quarantine: "q"}}
	records := []visit.Record{{Swept: map[string]time.Time{"weekly": now}}, {Last: []visit.Visit{done}}, {Current: &v}, {Repairs: begun}, {Current: &v, Repairs: begun}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		c := &Controller{pending: newWrites(), records: newRecords()}
		cache := fake.NewClientBuilder().WithIndex(&corev1.Node{}, indexCounts, counts)
		var want []peers.Peer
		for i := range 40 {
			n := recordedNode(fmt.Sprint("n", i), records[rng.IntN(len(records))])
			n.Labels = map[string]string{"rack": fmt.Sprint("r", i)}
			n.ResourceVersion = "7"
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: string(v.Kind), Effect: corev1.TaintEffectNoSchedule}}
			switch rng.IntN(4) {
			case 0:
				n.Annotations = nil
			case 1:
				n.Annotations[conditions.AnnotationRepair] = "{"
			}
			cache.WithObjects(n)
			if rng.IntN(3) == 0 {
				shown := n
				n = recordedNode(n.Name, records[rng.IntN(len(records))])
				n.Labels, n.Spec.Taints = shown.Labels, shown.Spec.Taints
				r, err := visit.RecordOf(n)
				if err != nil {
					t.Fatal(err)
				}
				c.pending.Add(shown, r)
			}
			if peer := peers.Of(p, n, now); i > 0 && (peer.Active || peer.Repairs > 0) {
				want = append(want, peer)
			}
		}
		c.pending.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, &visit.Record{Current: &v})
		c.client = cache.Build()
		got, err := c.peersOf(t.Context(), p, &repair.Facts{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}}, now)
		if err != nil {
			t.Fatal(err)
		}
		got = slices.DeleteFunc(got, func(peer peers.Peer) bool { return !peer.Active && peer.Repairs == 0 })
		order := func(a, b peers.Peer) int { return strings.Compare(a.Scope, b.Scope) }
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Fatal(diff)
		}
	}
}

// overtaken shows a node as it was, and a newer version of it to the sweeper right after that.
type overtaken struct {
	client.Client
	old   *corev1.Node
	after func()
}

func (o overtaken) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	o.old.DeepCopyInto(object.(*corev1.Node))
	o.after()
	return nil
}

func (overtaken) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// The sweeper needs no lock of a decision to drop a write that the cache shows.
func TestAVisitCountsThatTheSweeperSeesFirst(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	v := visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Emptying, StartedAt: now, PhaseSince: now, Attempt: 1, Quarantine: "q"}
	shown := recordedNode("x", visit.Record{Current: &v})
	shown.ResourceVersion = "8"
	shown.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: string(v.Kind), Effect: corev1.TaintEffectNoSchedule}}
	old := shown.DeepCopy()
	old.ResourceVersion, old.Annotations = "7", nil
	r, err := visit.RecordOf(shown)
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{pending: newWrites(), records: newRecords()}
	c.pending.Add(old, r)
	c.client = overtaken{old: old, after: func() { c.pending.Overlaid(shown) }}
	me := &repair.Facts{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "me"}}}
	all, err := c.peersOf(t.Context(), &policy.Policy{Repair: &policy.Repair{}}, me, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Repairs != 1 {
		t.Errorf("these repairs count: %+v", all)
	}
	if len(c.pending.All()) != 0 {
		t.Error("the write is still pending though the cache shows it")
	}
}

// Of a fleet that was swept all nodes have a record.
func TestNodesThatWereOnlySweptAreNotReadForTheLimits(t *testing.T) {
	now := time.Now()
	done := visit.Visit{ID: "v", Kind: visit.Sweep, Phase: visit.Passed, StartedAt: now}
	swept := recordedNode("swept", visit.Record{Swept: map[string]time.Time{"weekly": now}, Last: []visit.Visit{done}})
	if got := counts(swept); !slices.Equal(got, []string{"false"}) {
		t.Errorf("%v: %s", got, swept.Annotations)
	}
}

// TestOnlyPeersTakeTheLock decides about a node while another decision counts nodes.
func TestOnlyPeersTakeTheLock(t *testing.T) {
	c := &Controller{policy: policy.Fixed(&policy.Policy{}), pending: newWrites(), clock: clocktesting.NewFakePassiveClock(time.Now())}
	c.deciding.Lock()
	defer c.deciding.Unlock()
	done := make(chan error)
	go func() {
		visited := &visit.Record{Current: &visit.Visit{Kind: visit.Repair, Phase: visit.Ending, PhaseSince: c.clock.Now()}}
		_, err := c.next(t.Context(), c.policy.Policy(), repair.Facts{Node: &corev1.Node{}, Record: visited, Live: &repair.Live{}})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the decision waits for the lock")
	}
}

// BenchmarkPeers sums up 10,000 nodes that were visited eight times and repaired, which is the worst case: with what is kept of their records, and without.
func BenchmarkPeers(b *testing.B) {
	now := time.Now().UTC()
	var last []visit.Visit
	for i := range 8 {
		last = append(last, visit.Visit{
			ID: fmt.Sprintf("aaaaaaaaaa%02d", i), Kind: visit.Sweep, Phase: visit.Passed, Sweep: "weekly", StartedAt: now, PhaseSince: now, EndedAt: now,
			Attempt: 1, Template: "check", Args: []string{"check", "-level", "2"}, ActionSince: now, JobUID: "7b1c6f3e-0000-0000-0000-000000000000",
			Verdict: []string{"DCGMDiagFailed"}, BootID: "7b1c6f3e-0000-0000-0000-000000000000", JobEndedAt: now, Outcome: "passed",
		})
	}
	var nodes []corev1.Node
	for i := range 10000 {
		nodes = append(nodes, *recordedNode(fmt.Sprint("n", i), visit.Record{Last: last, Repairs: []visit.Action{{At: now}}}))
	}
	p := &policy.Policy{Repair: &policy.Repair{}}
	c := &Controller{client: cachedNodes{nodes: nodes}, pending: newWrites(), records: newRecords()}
	all := func() ([]peers.Peer, error) {
		return c.peersOf(b.Context(), p, &repair.Facts{Node: &corev1.Node{}}, now)
	}
	if _, err := all(); err != nil {
		b.Fatal(err)
	}
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			if got, err := all(); err != nil || len(got) != len(nodes) {
				b.Fatal(len(got), err)
			}
		}
	})
	b.Run("parsed", func(b *testing.B) {
		for b.Loop() {
			for i := range nodes {
				peers.Of(p, &nodes[i], now)
			}
		}
	})
}
