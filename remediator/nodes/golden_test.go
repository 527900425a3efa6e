package nodes

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const goldenPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, window: 6h}
  breaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 1m}
  handOff: {labels: {example.com/broken: "yes"}}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}, restartJobs: true}
`

// laterPolicy no longer hands off.
var laterPolicy = strings.Replace(goldenPolicy, "  handOff: {labels: {example.com/broken: \"yes\"}}\n", "", 1)

// keptCluster is all that a remediator keeps in a cluster about nodes.
type keptCluster struct {
	Now        time.Time
	Policy     string
	Nodes      []corev1.Node
	ConfigMaps []corev1.ConfigMap
}

type answeredCluster struct {
	// First is what a new process does, Healthy what it has done an hour after the faults are over, Again what it does when they are back:
	// the starts in the ConfigMap count in the budget.
	First, Healthy, Again []answeredNode
	Events                []string
	// Breaker and Starts are whether the ConfigMap has these keys, Evidence are how many snapshots of each node there are.
	Breaker, Starts bool
	Evidence        map[string]int
	Restarts        int
	Applied         conditions.Applied
}

type answeredNode struct {
	Name, Status, Marked string
	Taints               []string `json:",omitempty"`
}

const goldenNamespace = "pitcrew"

// newGoldenRig is a controller that has just started in a cluster with these objects.
func newGoldenRig(t *testing.T, text string, now time.Time, nodes []corev1.Node, objects []corev1.ConfigMap) (rig, client.Client) {
	t.Helper()
	var names []string
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	r, api := newRig(t, names...), fake.NewFakeClient()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r.clock.SetTime(now)
	for i := range nodes {
		if err := api.Create(t.Context(), nodes[i].DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range objects {
		if err := api.Create(t.Context(), objects[i].DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	r.Controller.client, r.apiReader, r.policy, r.namespace = api, api, policy.Fixed(p), goldenNamespace
	r.evidence = evidence.New(api, api, evidence.Options{Namespace: conditions.EvidenceNamespace, Clock: r.clock})
	kept := memory.Options{Client: api, Reader: api, Namespace: goldenNamespace, Clock: r.clock}
	r.keeps(kept)
	r.known = memory.NewKnown(kept)
	return r, api
}

// beats is a heartbeat of each condition, after it has changed.
func beats(t *testing.T, r rig, api client.Client, status corev1.ConditionStatus) {
	t.Helper()
	for _, n := range nodesOf(t, api) {
		for i := range n.Status.Conditions {
			c := &n.Status.Conditions[i]
			if c.Status != status {
				c.LastTransitionTime = metav1.NewTime(r.clock.Now())
			}
			c.Status, c.LastHeartbeatTime = status, metav1.NewTime(r.clock.Now())
		}
		if err := api.Status().Update(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
	}
}

// all reconciles each node, and writes what is written beside the decisions.
func (r rig) all(t *testing.T, api client.Client) {
	t.Helper()
	for _, n := range nodesOf(t, api) {
		r.reconcile(t, n.Name)
	}
	if err := r.breaker.SaveStarts(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func nodesOf(t *testing.T, api client.Client) []corev1.Node {
	t.Helper()
	var list corev1.NodeList
	if err := api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func configMapsOf(t *testing.T, api client.Client) []corev1.ConfigMap {
	t.Helper()
	var list corev1.ConfigMapList
	if err := api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// openBreaker is a cluster in which two nodes of five were quarantined, a third has opened the breaker, and one of the two is gone.
func openBreaker(t *testing.T) keptCluster {
	faulty := newRig(t, "a", "b", "c", "d", "e")
	r, api := newGoldenRig(t, goldenPolicy, faulty.clock.Now(), faulty.client.nodes, nil)
	r.all(t, api)
	if err := api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}); err != nil {
		t.Fatal(err)
	}
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	beats(t, r, api, corev1.ConditionTrue)
	r.all(t, api)
	elected := make(chan struct{})
	close(elected)
	r.elected = elected
	(&reloader{Controller: r.Controller}).showApplied(t.Context(), nil)
	k := keptCluster{Now: r.clock.Now(), Policy: goldenPolicy, Nodes: nodesOf(t, api), ConfigMaps: configMapsOf(t, api)}
	for i := range k.Nodes {
		k.Nodes[i].ResourceVersion = ""
	}
	for i := range k.ConfigMaps {
		k.ConfigMaps[i].ResourceVersion = ""
	}
	return k
}

func TestGoldenClusters(t *testing.T) {
	for name, text := range map[string]string{"open": goldenPolicy, "open-later-policy": laterPolicy} {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "clusters/"+name, openBreaker)
			goldentest.Answer(t, "clusters/"+name, k.goesOn(t, text))
		})
	}
}

func (k keptCluster) goesOn(t *testing.T, text string) (a answeredCluster) {
	r, api := newGoldenRig(t, text, k.Now, k.Nodes, k.ConfigMaps)
	r.all(t, api)
	a.First = answerOf(t, api)
	lasts := func(times int, every time.Duration, status corev1.ConditionStatus) []answeredNode {
		for range times {
			r.clock.SetTime(r.clock.Now().Add(every))
			beats(t, r, api, status)
			r.all(t, api)
		}
		return answerOf(t, api)
	}
	a.Healthy = lasts(12, 5*time.Minute, corev1.ConditionFalse)
	a.Again = lasts(5, time.Minute, corev1.ConditionTrue)
	a.Events, a.Restarts = r.reasons(), len(r.restarts.quarantines)
	a.Evidence = map[string]int{}
	for _, object := range configMapsOf(t, api) {
		switch {
		case object.Namespace == conditions.EvidenceNamespace:
			a.Evidence[object.Name] = len(object.Data)
		case object.Name == conditions.KnownConfigMap:
			if err := json.Unmarshal([]byte(object.Data[conditions.AppliedKey]), &a.Applied); err != nil {
				t.Error(err)
			}
		case object.Name == conditions.BreakerConfigMap:
			a.Breaker, a.Starts = object.Data["state"] != "", object.Data["starts"] != ""
		}
	}
	return a
}

func answerOf(t *testing.T, api client.Client) (all []answeredNode) {
	t.Helper()
	for _, n := range nodesOf(t, api) {
		a := answeredNode{Name: n.Name, Status: n.Labels[conditions.LabelStatus], Marked: n.Labels["example.com/broken"]}
		for _, taint := range n.Spec.Taints {
			a.Taints = append(a.Taints, taint.ToString())
		}
		all = append(all, a)
	}
	return all
}
