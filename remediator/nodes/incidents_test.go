package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// newIncidentRig makes five nodes of domain x, and so many of y and of z. Those of z have no fault.
func newIncidentRig(t *testing.T) rig {
	t.Helper()
	p, err := policy.Parse([]byte(strings.Replace(testPolicy, "  rules:", `  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [clique]}
  domains: [{label: clique, incidents: {}}]
  rules:
    ports: {match: {condition: HCAPortDown, repair: [Inspect]}}`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 15 {
		names = append(names, fmt.Sprintf("%c%d", 'x'+i/5, i%5))
	}
	r := newRig(t, names...)
	r.policy = policy.Fixed(p)
	for i, name := range names {
		n := &r.client.nodes[i]
		n.Labels = map[string]string{"clique": name[:1]}
		if name[:1] == "z" {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		} else {
			r.portsDown(i)
		}
	}
	return r
}

func (r rig) portsDown(i int) {
	n := &r.client.nodes[i]
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: conditions.HCAPortDown, Status: corev1.ConditionTrue, Message: "Inspect mlx5_0 port 1: link is down",
		LastHeartbeatTime: metav1.NewTime(r.clock.Now()), LastTransitionTime: metav1.NewTime(r.clock.Now()),
	})
}

// written names the nodes that were quarantined.
func (r rig) written() string {
	var names []string
	for name, n := range r.client.live {
		if record, err := causes.RecordOf(n); err == nil && record != nil && record.Phase == causes.Quarantined {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Two racks fail at once, and the cache shows nothing of what is written: the one that is decided first is the incident, the other waits.
func TestTheFirstOfTwoRacksIsTheIncident(t *testing.T) {
	r := newIncidentRig(t)
	for i := range 5 { // in turn
		r.reconcile(t, r.names[i])
		r.reconcile(t, r.names[5+i])
	}
	if got := r.written(); got != "x0 x1 x2 x3 x4" {
		t.Errorf("quarantined are %s", got)
	}
	if err := r.breaker.SaveStarts(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored := r.breaker.Remembered().String()
	if got := strings.Count(stored, `"i":{"label":"clique","value":"x"}`); got != 5 {
		t.Errorf("remembered is %s", stored)
	}
	// A process that begins anew goes by that, and by the nodes.
	again := newIncidentRig(t)
	for name, n := range r.client.live {
		again.client.nodes[slices.Index(again.names, name)] = *n.DeepCopy()
	}
	again.clock.SetTime(r.clock.Now())
	again.keeps(memory.Options{Client: again.client, Reader: configMap{data: map[string]string{limits.StartsKey: stored}}})
	p := *again.policy.Policy()
	p.Budget.MaxNodes = 20 // the budget holds back none
	again.policy = policy.Fixed(&p)
	for _, name := range slices.Backward(again.names) {
		again.reconcile(t, name)
	}
	if got := again.written(); got != "" {
		t.Errorf("quarantined after the restart are %s", got)
	}
}

// configMap is an API server with one ConfigMap.
type configMap struct {
	client.Reader
	data map[string]string
}

func (c configMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.(*corev1.ConfigMap).Data = c.data
	return nil
}

// Nodes that were suspected, because too few of their domain had failed, are decided again when more have.
func TestSuspectedNodesFollowTheirDomain(t *testing.T) {
	r := newIncidentRig(t)
	for i := range 10 {
		r.client.nodes[i].Status.Conditions = r.client.nodes[i].Status.Conditions[:1]
	}
	for i := range 3 {
		r.portsDown(i)
	}
	for i := range 10 {
		r.reconcile(t, r.names[i])
	}
	if got := r.written(); got != "" {
		t.Fatalf("quarantined are %s", got)
	}
	if names, err := r.findRetries(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("%v %v go on before anything has changed", names, err)
	}
	r.portsDown(3)
	r.reconcile(t, r.names[3])
	names, err := r.findRetries(t.Context())
	if got := strings.Join(names, " "); err != nil || got != "x0 x1 x2" {
		t.Errorf("%s %v go on when the domain has failed", got, err)
	}
	for _, name := range names {
		r.reconcile(t, name)
	}
	if got := r.written(); got != "x0 x1 x2 x3" {
		t.Errorf("quarantined are %s", got)
	}
}

// The label of a domain vanishes before the node fails.
func TestAnIncidentIsOfTheLastDomainOfItsNodes(t *testing.T) {
	r := newIncidentRig(t)
	for i := range 5 {
		r.client.nodes[i].Status.Conditions[0].Status, r.client.nodes[i].Status.Conditions[1].Status = corev1.ConditionFalse, corev1.ConditionFalse
		r.reconcile(t, r.names[i])
	}
	for i := range 5 {
		r.client.nodes[i].Labels = nil
		r.reconcile(t, r.names[i])
	}
	for i := range 5 {
		r.client.nodes[i].Status.Conditions[0].Status, r.client.nodes[i].Status.Conditions[1].Status = corev1.ConditionTrue, corev1.ConditionTrue
	}
	for range 2 {
		for i := range 5 {
			r.reconcile(t, r.names[i])
		}
	}
	if got := r.written(); got != "x0 x1 x2 x3 x4" {
		t.Errorf("quarantined are %s", got)
	}
}

// A rack is the incident from the decision on: its first write may be slow, or its answer lost.
func TestAnIncidentBeginsWithTheDecision(t *testing.T) {
	r := newIncidentRig(t)
	p := *r.policy.Policy()
	p.Budget.MaxNodes = 20 // the budget holds back none
	r.policy = policy.Fixed(&p)
	r.client.unanswered = errors.New("timeout")
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "x0"}}); err == nil {
		t.Fatal("the write is answered")
	}
	r.client.unanswered = nil
	r.reconcile(t, "y0")
	if got := r.written(); got != "" {
		t.Errorf("quarantined are %s", got)
	}
}
