package visits

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// cachedNodes is a cache with nodes and nothing else.
type cachedNodes struct {
	client.Client
	nodes []corev1.Node
}

func (c cachedNodes) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (c cachedNodes) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.NodeList).Items = slices.Clone(c.nodes)
	return nil
}

// counted counts the lists of pods. There are none.
type counted struct {
	client.Reader
	lists *int
}

func (c counted) List(context.Context, client.ObjectList, ...client.ListOption) error {
	*c.lists++
	return nil
}

func TestRequestsOfSweeps(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p, err := policy.Parse(fmt.Appendf(nil, weekPolicy, weekEvery, 50))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []corev1.Node
	for i := range 100 {
		nodes = append(nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint(i)), CreationTimestamp: metav1.NewTime(now)},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	lists, due := 0, 0
	c := &Controller{policy: policy.Fixed(p), client: cachedNodes{nodes: nodes}, apiReader: counted{lists: &lists}, pending: newWrites(), records: newRecords()}
	clock := clocktesting.NewFakePassiveClock(now)
	c.clock = clock
	s := newSweeper(c, func(context.Context, string) { due++ }, 0)
	tick := func(d time.Duration) int {
		lists = 0
		clock.SetTime(clock.Now().Add(d))
		if err := s.tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		return lists
	}
	for range 12 {
		if n := tick(5 * time.Second); n > 0 {
			t.Errorf("%d requests while nothing is due", n)
		}
	}
	if n := tick(weekEvery); n != 11 { // one of them lists the pods that wait
		t.Errorf("%d requests when all nodes are due", n)
	}
	for range 5 {
		if n := tick(5 * time.Second); n > 0 {
			t.Errorf("%d requests between two looks", n)
		}
	}
	if n := tick(5 * time.Second); n != 11 {
		t.Errorf("%d requests 30 s later", n)
	}
	for range 18 {
		tick(30 * time.Second)
	}
	// The first ten were seen idle 10 min ago, and are so still.
	if n := tick(30 * time.Second); n != 11 || due != 10 {
		t.Errorf("%d requests, %d nodes", n, due)
	}
}

// waitingPods has pods that wait, and those on each of the nodes; nil: none. Each node has the addresses.
type waitingPods struct {
	client.Reader
	pods, there func() []corev1.Pod
	addresses   []corev1.NodeAddress
}

func (w waitingPods) Get(_ context.Context, _ client.ObjectKey, n client.Object, _ ...client.GetOption) error {
	n.(*corev1.Node).Status.Addresses = w.addresses
	return nil
}

func (w waitingPods) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	if strings.Contains(o.FieldSelector.String(), string(corev1.PodPending)) {
		list.(*corev1.PodList).Items = w.pods()
	} else if w.there != nil {
		list.(*corev1.PodList).Items = w.there()
	}
	return nil
}

// largeLists has lists of pods that are too large to judge: that of the pods that wait, and that of one node.
type largeLists struct{ waitingPods }

func (l largeLists) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	selector := (&client.ListOptions{}).ApplyOptions(options).FieldSelector.String()
	if strings.Contains(selector, "n00") {
		return fmt.Errorf("the pods of node n00: %w", slim.ErrTooLarge)
	}
	return l.waitingPods.List(ctx, list, options...)
}

// Whoever may create pods can send so many or so large ones to a node that they cannot be judged. Then that node is not swept, and all
// others are.
func TestANodeWhosePodsAreTooLargeKeepsNoOtherWaiting(t *testing.T) {
	p, err := policy.Parse(fmt.Appendf(nil, weekPolicy, weekEvery, 50))
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	nodes := readyNodes(3, clock.Now().Add(-2*weekEvery))
	c := &Controller{policy: policy.Fixed(p), client: cachedNodes{nodes: nodes}, pending: newWrites(), records: newRecords(), clock: clock}
	c.apiReader = largeLists{waitingPods{pods: func() []corev1.Pod { return nil }}}
	swept := map[string]bool{}
	s := newSweeper(c, func(_ context.Context, name string) { swept[name] = true }, 0)
	for range 24 * 60 {
		clock.SetTime(clock.Now().Add(time.Minute))
		if err := s.tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if swept["n00"] || !swept["n01"] || !swept["n02"] {
		t.Errorf("swept: %v", swept)
	}
}

// readyNodes are idle nodes n00 and so on with accelerators.
func readyNodes(n int, created time.Time) (nodes []corev1.Node) {
	for i := range n {
		nodes = append(nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%02d", i), UID: types.UID(fmt.Sprint(i)), CreationTimestamp: metav1.NewTime(created)},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	return nodes
}

// TestOneNodeKeepsNoOtherWaiting has, of 20 nodes that are late, some that cannot be checked, for a day. One check is made at a time.
func TestOneNodeKeepsNoOtherWaiting(t *testing.T) {
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	pending := func(name string, selector map[string]string) []corev1.Pod {
		return []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}},
			Spec: corev1.PodSpec{SchedulerName: "nobody", NodeSelector: selector, Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
			}}},
		}}
	}
	first := map[string]string{corev1.LabelHostname: "n00"}
	tests := map[string]struct {
		pods  func(now time.Time) []corev1.Pod
		hangs string
		// first is when the first node begins its check, others when the last of the others does at the latest; starts is how often
		// the first is tried.
		first, others time.Duration
		starts        int
	}{
		"nothing is in the way":    {first: 11 * time.Minute, others: 4 * time.Hour, starts: 4},
		"a pod waits for one node": {pods: func(time.Time) []corev1.Pod { return pending("p", first) }, first: 63 * time.Minute, others: 4 * time.Hour, starts: 4},
		"one pod after the other waits for it": {
			pods:  func(now time.Time) []corev1.Pod { return pending(now.Format(time.RFC3339), first) },
			first: 63 * time.Minute, others: 4 * time.Hour, starts: 4,
		},
		"a pod waits for any node": {pods: func(time.Time) []corev1.Pod { return pending("p", nil) }, first: 63 * time.Minute, others: 16 * time.Hour, starts: 4},
		"no scheduler has ever seen the pod that waits": {
			pods: func(time.Time) []corev1.Pod {
				pods := pending("p", first)
				pods[0].Status.Conditions = nil
				return pods
			},
			first: 11 * time.Minute, others: 4 * time.Hour, starts: 4,
		},
		"the check of one does not begin": {hangs: "n00", first: 11 * time.Minute, others: 4 * time.Hour, starts: 24},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Parse(fmt.Appendf(nil, weekPolicy, weekEvery, 1))
			if err != nil {
				t.Fatal(err)
			}
			nodes := make([]corev1.Node, 20)
			for i := range nodes {
				name := fmt.Sprintf("n%02d", i)
				nodes[i] = corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(start.Add(-2 * weekEvery)), Labels: map[string]string{corev1.LabelHostname: name}},
					Status: corev1.NodeStatus{
						Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110")},
						Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
					},
				}
			}
			clock := clocktesting.NewFakePassiveClock(start)
			c := &Controller{policy: policy.Fixed(p), client: cachedNodes{nodes: nodes}, pending: newWrites(), records: newRecords(), clock: clock}
			c.apiReader = waitingPods{pods: func() []corev1.Pod {
				if tt.pods == nil {
					return nil
				}
				return tt.pods(clock.Now())
			}}
			starts := map[string][]time.Duration{}
			put := func(i int, r visit.Record) {
				r.V, r.NodeUID = 1, nodes[i].UID
				nodes[i].Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
			}
			s := newSweeper(c, func(_ context.Context, name string) {
				starts[name] = append(starts[name], clock.Now().Sub(start))
				if i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name }); name != tt.hangs {
					put(i, visit.Record{
						Swept: map[string]time.Time{"all": clock.Now()},
						Last:  []visit.Visit{{ID: "v", Kind: visit.Sweep, Sweep: "all", Phase: visit.Passed, StartedAt: clock.Now(), EndedAt: clock.Now()}},
					})
				}
			}, 0)
			for now := start; now.Before(start.Add(24 * time.Hour)); now = now.Add(30 * time.Second) {
				clock.SetTime(now)
				if err := s.tick(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := starts["n00"]; len(got) == 0 || got[0] > tt.first || len(got) > tt.starts || tt.first > sweep.AwaitedIdle && got[0] < sweep.AwaitedIdle {
				t.Errorf("the first node: %s", got)
			}
			for _, n := range nodes[1:] {
				if got := starts[n.Name]; len(got) == 0 || got[0] > tt.others {
					t.Errorf("%s: %s", n.Name, got)
				}
			}
		})
	}
}

// TestSweepsAndNamespacesWhosePodsDoNotCome has one node, whose check is late, and a namespace with a new pod each few minutes that could
// run on it, and never does.
func TestSweepsAndNamespacesWhosePodsDoNotCome(t *testing.T) {
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for every, most := range map[time.Duration]time.Duration{time.Minute: 2 * time.Hour, 12 * time.Minute: 6 * time.Hour} {
		t.Run(every.String(), func(t *testing.T) {
			p, err := policy.Parse(fmt.Appendf(nil, weekPolicy, weekEvery, 1))
			if err != nil {
				t.Fatal(err)
			}
			clock := clocktesting.NewFakePassiveClock(start)
			pod := func(namespace, name string) corev1.Pod {
				return corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(clock.Now())},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
					}}},
				}
			}
			nodes := []corev1.Node{*gpuNode("n", "uid", start)}
			n := &nodes[0]
			n.CreationTimestamp = metav1.NewTime(start.Add(-2 * weekEvery))
			n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("110")
			var honest []corev1.Pod
			c := &Controller{policy: policy.Fixed(p), client: cachedNodes{nodes: nodes}, pending: newWrites(), records: newRecords(), clock: clock}
			var there []corev1.Pod
			c.apiReader = waitingPods{pods: func() []corev1.Pod {
				return append([]corev1.Pod{pod("liar", clock.Now().Truncate(every).String())}, honest...)
			}, there: func() []corev1.Pod { return there }}
			var s *sweeper
			var last []visit.Visit
			var current *visit.Visit
			ending := false
			end := func(phase visit.Phase) {
				v := *current
				v.Phase, v.EndedAt = phase, clock.Now()
				last, current, n.Spec.Taints = append([]visit.Visit{v}, last...), nil, nil
			}
			put := func() {
				r := visit.Record{V: 1, NodeUID: n.UID, Current: current, Last: last[:min(len(last), 8)]}
				n.Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
			}
			s = newSweeper(c, func(context.Context, string) {
				switch {
				case current != nil && s.awaited["n"] != "" && !ending:
					ending = true // until its Job has ended
				case ending:
					ending = false
					end(visit.Yielded)
				case current == nil:
					current = &visit.Visit{ID: fmt.Sprint("v", len(last)), Kind: visit.Sweep, Sweep: "all", Phase: visit.Working, Attempt: 1, StartedAt: clock.Now()}
					n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: string(visit.Sweep), Effect: corev1.TaintEffectNoSchedule}}
				}
				put()
			}, 0)
			pass := func(until func() bool) time.Duration {
				begins := clock.Now()
				for !until() {
					clock.SetTime(clock.Now().Add(5 * time.Second))
					if err := s.tick(t.Context()); err != nil {
						t.Fatal(err)
					}
					if clock.Now().Sub(begins) > 24*time.Hour {
						t.Fatalf("%d visits, yields %v", len(last), s.yields)
					}
				}
				return clock.Now().Sub(begins)
			}
			took := pass(func() bool { return current != nil && clock.Now().Sub(current.StartedAt) >= 20*time.Minute })
			if took > most || len(last) != maxYields {
				t.Errorf("the check goes on for 20 min after %s and %d that yielded", took, len(last))
			}
			// A pod of another namespace gets the node at once.
			honest = []corev1.Pod{pod("team", "gang")}
			if took := pass(func() bool { return current == nil }); took > 15*time.Second {
				t.Errorf("another pod waits for %s", took)
			}
			honest = nil
			// A check that has ended begins a new count.
			pass(func() bool { return current != nil })
			end(visit.Passed)
			put()
			if took := pass(func() bool { return len(s.yields) == 0 }); took > sweep.LookEvery {
				t.Errorf("yields are forgotten after %s", took)
			}
			// So does a pod that has come to the node.
			pass(func() bool { return len(s.yields) > 0 && current == nil })
			there = []corev1.Pod{pod("liar", "there")}
			if took := pass(func() bool { return len(s.yields) == 0 }); took > 10*time.Minute {
				t.Errorf("yields are forgotten after %s", took)
			}
		})
	}
}
