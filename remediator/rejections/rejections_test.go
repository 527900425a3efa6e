package rejections

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// rejected is a pod as a kubelet leaves it that had no GPU for it.
func rejected(node, namespace string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "train-0", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:containers":{}}}`)},
			},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
			Message: "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"},
	}
}

func TestWhichPodsTellOfTheirNode(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"as it is":        {func(*corev1.Pod) {}, true},
		"not failed":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"another reason":  {func(p *corev1.Pod) { p.Status.Reason = "Evicted" }, false},
		"on no node":      {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"asks for no GPU": {func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }, false},
		"asks by a claim": {func(p *corev1.Pod) {
			p.Spec.Containers, p.Spec.ResourceClaims = nil, []corev1.PodResourceClaim{{Name: "gpus"}}
		}, true},
		"says nothing":     {func(p *corev1.Pod) { p.ManagedFields = nil }, false},
		"was sent by hand": {func(p *corev1.Pod) { p.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{"f:spec":{"f:nodeName":{}}}`) }, false},
		"has an empty entry": {func(p *corev1.Pod) {
			p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: "x"})
		}, true},
	} {
		p := rejected("a", "one")
		test.change(p)
		if r, got := of(p); got != test.want || got && r != (rejection{"a", "one"}) {
			t.Errorf("%s: %v, %+v", name, got, r)
		}
	}
}

func TestHowManyRejectionsAreAFault(t *testing.T) {
	for name, test := range map[string]struct {
		one, two int // rejections of two namespaces
		pause    time.Duration
		want     bool
	}{
		"four of two namespaces":          {3, 1, 0, true},
		"three of two namespaces":         {2, 1, 0, false},
		"a thousand of one":               {1000, 0, 0, false},
		"a thousand of one, one of other": {1000, 1, 0, true},
		"too long ago":                    {3, 1, 10 * time.Minute, false},
		"just within the window":          {3, 1, 10*time.Minute - time.Second, true},
	} {
		c := newTally(4, 10*time.Minute)
		for range test.one {
			c.add(rejection{"a", "one"}, start)
		}
		for range test.two {
			c.add(rejection{"a", "two"}, start)
		}
		c.forget(start.Add(test.pause))
		if got := c.rejects("a"); got != test.want || c.rejects("b") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// 5,000 an hour, of any number of namespaces, cost a bounded number of times.
func TestAFloodIsBounded(t *testing.T) {
	c := newTally(10, 10*time.Minute)
	for i := range 5000 {
		c.add(rejection{"a", fmt.Sprint("namespace-", i%100)}, start.Add(time.Duration(i)*720*time.Millisecond))
		c.add(rejection{"a", "one"}, start.Add(time.Duration(i)*720*time.Millisecond))
	}
	kept := 0
	for _, times := range c.nodes["a"] {
		kept += len(times)
	}
	if kept > mostNamespaces*9 || len(c.nodes["a"]) > mostNamespaces || !c.rejects("a") || len(c.nodes["a"]["one"]) != 9 {
		t.Errorf("%d times of %d namespaces are kept", kept, len(c.nodes["a"]))
	}
	c.forget(start.Add(2 * time.Hour))
	if len(c.nodes) > 0 || !c.isQuiet("a") {
		t.Errorf("not forgotten: %v", c.nodes)
	}
}

// rig is a controller with a clock of the test's.
type rig struct {
	*testing.T
	*Controller
	clock *clocktesting.FakeClock
}

func newRig(t *testing.T, nodes ...client.Object) rig {
	t.Helper()
	api := fake.NewClientBuilder().WithObjects(nodes...).WithStatusSubresource(&corev1.Node{}).Build()
	clock := clocktesting.NewFakeClock(start)
	return rig{t, &Controller{
		Options: Options{Pods: 4, Window: 10 * time.Minute, Clock: clock}, nodes: api,
		tally: newTally(4, 10*time.Minute), flagged: map[string]time.Time{},
	}, clock}
}

func (r rig) see(what watch.EventType, namespaces ...string) {
	r.Helper()
	for _, namespace := range namespaces {
		if err := r.take(watch.Event{Type: what, Object: rejected("a", namespace)}); err != nil {
			r.Fatal(err)
		}
	}
}

// becomes judges, and compares the condition of a node.
func (r rig) becomes(name, want string) {
	r.Helper()
	if err := r.judge(context.Background()); err != nil {
		r.Fatal(err)
	}
	r.shows(name, want)
}

// shows compares the condition of a node, as text.
func (r rig) shows(name, want string) {
	r.Helper()
	var n corev1.Node
	if err := r.nodes.Get(r.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		r.Fatal(err)
	}
	got := ""
	if c, ok := node.ConditionOf(&n, conditions.GPUPodsRejected); ok {
		got = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	if got != want {
		r.Errorf("condition %q, want %q", got, want)
	}
}

const (
	sick = "True GPUPodsNotAdmitted: Inspect node: rejects GPU pods of several namespaces with UnexpectedAdmissionError"
	fine = "False GPUPodsAdmitted: no GPU pod was rejected for 10m0s"
)

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestTheConditionComesAndGoes(t *testing.T) {
	r := newRig(t, nodeNamed("a"))
	// Changes and the end of a pod are no further rejections.
	r.see(watch.Added, "one", "two", "one")
	r.see(watch.Modified, "one", "two")
	r.see(watch.Deleted, "one", "two")
	r.see(watch.Bookmark, "one")
	r.becomes("a", "")
	r.see(watch.Added, "one")
	r.becomes("a", sick)
	r.clock.Step(9 * time.Minute)
	r.see(watch.Added, "one")
	r.clock.Step(9 * time.Minute)
	r.becomes("a", sick)
	r.clock.Step(time.Minute)
	r.becomes("a", fine)
}

func TestWhoIsLeftAlone(t *testing.T) {
	skipped := nodeNamed("a")
	skipped.Labels = map[string]string{conditions.LabelSkip: "true"}
	r := newRig(t, skipped)
	r.see(watch.Added, "one", "two", "one", "two")
	r.becomes("a", "")
	dry := newRig(t, nodeNamed("a"))
	dry.DryRun = true
	dry.see(watch.Added, "one", "two", "one", "two")
	dry.becomes("a", "")
	gone := newRig(t, nodeNamed("b"))
	gone.see(watch.Added, "one", "two", "one", "two")
	gone.becomes("b", "")
}

// A process that starts knows of no rejection: it clears the condition no earlier than it could have seen one.
func TestASuccessorClearsAfterTheWindow(t *testing.T) {
	r := newRig(t, nodeNamed("a"))
	r.see(watch.Added, "one", "two", "one", "two")
	r.becomes("a", sick)
	r.tally, r.flagged = newTally(4, 10*time.Minute), map[string]time.Time{"a": r.clock.Now()}
	r.clock.Step(10*time.Minute - time.Second)
	r.becomes("a", sick)
	r.clock.Step(time.Second)
	r.becomes("a", fine)
}

// While the API server is away no one sees what is rejected. That is no silence of the node.
func TestWhatNoOneHasWatchedIsNoSilence(t *testing.T) {
	for name, test := range map[string]struct {
		version string
		away    time.Duration
	}{"the watch goes on": {"7", 15 * time.Minute}, "it begins anew": {"", time.Second}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nodeNamed("a"))
			r.see(watch.Added, "one", "two", "one", "two")
			r.becomes("a", sick)
			watches := make(chan *watch.FakeWatcher, 1)
			r.pods = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
					w := watch.NewFake()
					watches <- w
					return w, nil
				},
			})
			tick := make(chan time.Time)
			// during has the watch open, and ends it.
			during := func(happens func()) {
				ended := make(chan error)
				go func() { ended <- r.follow(t.Context(), tick) }()
				w := <-watches
				happens()
				w.Stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			judged := func() { tick <- start; tick <- start } // it has judged once the second is taken
			during(judged)
			r.clock.Step(test.away)
			r.version = test.version
			during(func() {
				judged()
				r.shows("a", sick)
				r.clock.Step(10*time.Minute - time.Second)
				judged()
				r.shows("a", sick)
				r.clock.Step(time.Second)
				judged()
				r.shows("a", fine)
			})
		})
	}
}

func TestAnExpiredWatchBeginsAnew(t *testing.T) {
	r := newRig(t)
	r.see(watch.Bookmark, "one")
	if r.version != "7" {
		t.Errorf("the watch would go on at %q", r.version)
	}
	err := r.take(watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "too old resource version", Code: 410}})
	if err == nil || !strings.Contains(err.Error(), "too old") || r.version != "" {
		t.Errorf("%v, version %q", err, r.version)
	}
}

func TestOptions(t *testing.T) {
	for o, want := range map[Options]bool{
		{Window: time.Minute}: true, {Pods: 2, Window: time.Minute}: true, {Pods: 100, Window: time.Hour}: true,
		{Pods: 1, Window: time.Minute}: false, {Pods: 101, Window: time.Minute}: false, {Pods: -1, Window: time.Minute}: false,
		{Pods: 2, Window: time.Second}: false, {Pods: 2, Window: 2 * time.Hour}: false,
	} {
		if err := o.Check(); (err == nil) != want {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
