package nodes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/webhooks"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/tally"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

// cached is a client that reads nodes as the manager's cache does: one by its name, or all of them without a copy.
type cached struct {
	laggard
	byName map[string]*corev1.Node
}

func (c *cached) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if n, ok := object.(*corev1.Node); ok && c.byName[key.Name] != nil {
		*n = *c.byName[key.Name]
		return nil
	}
	return c.laggard.Get(context.Background(), key, object)
}

// benchPolicy has every limit, and none that holds back a fault.
const benchPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100, scope: topology.kubernetes.io/rack}
  breaker: {maxNodes: 9000, window: 10m, coolDown: 10m, pace: 1m}
  correlated: {minNodes: 9000, maxPercent: 99, window: 2m, scopes: [topology.kubernetes.io/rack]}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      budget: {maxNodes: 900}
      restartJobs: true
`

// BenchmarkDecision decides about one more fault while 500 faults stand. What it costs must not depend on the number of nodes.
func BenchmarkDecision(b *testing.B) {
	for _, size := range []int{1_000, 5_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) { benchmarkDecision(b, size, 500) })
	}
}

func benchmarkDecision(b *testing.B, size, faults int) {
	p, err := policy.Parse([]byte(benchPolicy))
	if err != nil {
		b.Fatal(err)
	}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	api := &cached{byName: map[string]*corev1.Node{}}
	clock := clocktesting.NewFakePassiveClock(now)
	c := &Controller{
		client: api, policy: policy.Fixed(p), clock: clock, pending: newWrites(false),
		report: newReporter(events.NewFakeRecorder(0), clock), breaker: memory.NewBreaker(memory.Options{Clock: clock}), tally: tally.New(), seen: map[string]seen.Seen{},
	}
	c.fleet = newFleet(c)
	if c.webhooks, err = webhooks.New(c.policy, clock, func(context.Context, string) {}, prometheus.NewRegistry()); err != nil {
		b.Fatal(err)
	}
	for i := range size {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%d", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "7",
			Labels: map[string]string{"topology.kubernetes.io/rack": fmt.Sprint(i / 16)},
		}}
		for k := range 20 {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint("Other", k)), Status: "False"})
		}
		status, message := corev1.ConditionFalse, "no fault"
		if i <= faults {
			status, message = corev1.ConditionTrue, lost
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Ready", Status: "True"}, corev1.NodeCondition{
			Type: "GPUXidError", Status: status, Message: message, LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		})
		api.nodes = append(api.nodes, n)
	}
	for i := range api.nodes {
		api.byName[api.nodes[i].Name] = &api.nodes[i]
	}
	decide := func(n *corev1.Node) quarantine.Decision {
		d, err := c.decideAlone(b.Context(), p, n, nil, now)
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	for i := range faults { // they are quarantined, and the cache shows it
		n := &api.nodes[i+1]
		d := decide(n.DeepCopy())
		d.State.Apply(n)
		n.ResourceVersion = "8"
		c.pending.Touch(n.Name)
	}
	fault := &api.nodes[0]
	b.ReportAllocs()
	for b.Loop() {
		d := decide(fault.DeepCopy())
		if d.Blocked != nil || d.Started == nil {
			b.Fatalf("%+v", d.Blocked)
		}
		c.pending.Discard(fault.Name)
	}
}
