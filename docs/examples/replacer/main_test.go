package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// sick is a quarantined node with these classes among its causes, and with an advice, as Pitcrew writes it.
func sick(t *testing.T, advice string, classes ...conditions.Repair) *corev1.Node {
	t.Helper()
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	taint := causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: classes[0], Since: at}
	record := causes.Record{V: 1, NodeUID: "u", Quarantine: causes.Quarantine{ID: "q", Phase: causes.Quarantined, QuarantinedAt: at, Taint: &taint}}
	for _, class := range classes {
		record.Causes = append(record.Causes, causes.Cause{Condition: "GPUXidError", Rule: "gpu", Repair: class, Due: true, FirstSeen: at})
	}
	visits := visit.Record{V: 1, NodeUID: "u", Advice: &visit.Advice{Quarantine: "q", Do: advice, At: at}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"pitcrew.dev/status": "quarantined"}, Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{ProviderID: "p", Taints: []corev1.Taint{taint.NodeTaint()}},
	}
	for key, value := range map[string]any{conditions.AnnotationQuarantine: record, conditions.AnnotationRepair: visits} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		node.Annotations[key] = string(text)
	}
	return node
}

// change edits the quarantine record of a node.
func change(n *corev1.Node, from, to string) {
	n.Annotations["pitcrew.dev/quarantine"] = strings.Replace(n.Annotations["pitcrew.dev/quarantine"], from, to, 1)
}

func TestWhichNodesAreReplaced(t *testing.T) {
	const replace, reboot = conditions.Replace, conditions.Reboot
	tests := map[string]struct {
		when string
		node *corev1.Node
		but  func(*corev1.Node)
		want bool
	}{
		"class Replace":              {onClass, sick(t, "", replace), nil, true},
		"class Replace among others": {onClass, sick(t, "", reboot, replace), nil, true},
		"class Reboot":               {onClass, sick(t, "replace", reboot), nil, false},
		"advice replace":             {onAdvice, sick(t, "replace", reboot), nil, true},
		"advice reboot":              {onAdvice, sick(t, "reboot", replace), nil, false},
		"advice for another quarantine": {onAdvice, sick(t, "replace", reboot), func(n *corev1.Node) {
			n.Annotations["pitcrew.dev/repair"] = `{"nodeUID":"u","advice":{"quarantine":"old","do":"replace"}}`
		}, false},
		"advice about an earlier node": {onAdvice, sick(t, "replace", reboot), func(n *corev1.Node) {
			n.Annotations["pitcrew.dev/repair"] = `{"nodeUID":"v","advice":{"quarantine":"q","do":"replace"}}`
		}, false},
		"another node of the name":             {onClass, sick(t, "", replace), func(n *corev1.Node) { n.UID = "v" }, false},
		"the taint is gone":                    {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Spec.Taints = nil }, false},
		"the taint is that of another fault":   {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Spec.Taints[0].Value = "SlowNode" }, false},
		"only the label says so":               {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Annotations = nil }, false},
		"suspect":                              {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Labels["pitcrew.dev/status"] = "suspect" }, false},
		"a repair is under way":                {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Labels["pitcrew.dev/status"] = "repairing" }, false},
		"released, the label is not gone yet":  {onClass, sick(t, "", replace), func(n *corev1.Node) { change(n, `"phase":"quarantined"`, `"phase":"released"`) }, false},
		"the cause is not due":                 {onClass, sick(t, "", replace), func(n *corev1.Node) { change(n, `"due":true`, `"due":false`) }, false},
		"skipped":                              {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Labels["pitcrew.dev/skip"] = "true" }, false},
		"the machine is that of another cloud": {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Spec.ProviderID = "other" }, false},
		"no provider id":                       {onClass, sick(t, "", replace), func(n *corev1.Node) { n.Spec.ProviderID = "" }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.but != nil {
				test.but(test.node)
			}
			machine := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": map[string]any{"name": "claim"},
				"status": map[string]any{"nodeName": "n", "providerID": "p"},
			}}
			if test.node.Spec.ProviderID == "" { // neither has one
				unstructured.RemoveNestedField(machine.Object, "status", "providerID")
			}
			api := fake.NewClientBuilder().WithObjects(test.node, machine).Build()
			r := &replacer{kind: nodeClaim, nodes: api, machines: api, when: test.when, pitcrewNamespace: "pitcrew"}
			if err := r.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := api.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)
			if gone := err != nil; gone != test.want {
				t.Errorf("replaced: %t (%v)", gone, err)
			}
		})
	}
}

func TestARecordThatCannotBeReadReplacesNothingAndHindersNoOther(t *testing.T) {
	broken, good := sick(t, "", conditions.Replace), sick(t, "", conditions.Replace)
	broken.Annotations["pitcrew.dev/quarantine"] = "{"
	good.Name, good.Spec.ProviderID = "o", "o"
	claim := func(node, id string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": map[string]any{"name": node},
			"status": map[string]any{"nodeName": node, "providerID": id},
		}}
	}
	api := fake.NewClientBuilder().WithObjects(broken, good, claim("n", "p"), claim("o", "o")).Build()
	r := &replacer{kind: nodeClaim, nodes: api, machines: api, when: onClass, pitcrewNamespace: "pitcrew"}
	if err := r.look(t.Context()); err == nil {
		t.Error("nothing is said about a broken record")
	}
	left := &unstructured.UnstructuredList{}
	left.SetAPIVersion("karpenter.sh/v1")
	left.SetKind("NodeClaimList")
	if err := api.List(t.Context(), left); err != nil || len(left.Items) != 1 || left.Items[0].GetName() != "n" {
		t.Errorf("left %v, %v", left.Items, err)
	}
}

func TestNothingIsReplacedWhileEverythingIsPaused(t *testing.T) {
	pause := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}
	machine := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": map[string]any{"name": "claim"},
		"status": map[string]any{"nodeName": "n", "providerID": "p"},
	}}
	api := fake.NewClientBuilder().WithObjects(sick(t, "", conditions.Replace), machine, pause).Build()
	r := &replacer{kind: nodeClaim, nodes: api, machines: api, when: onClass, pitcrewNamespace: "pitcrew"}
	if err := r.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(machine), machine); err != nil {
		t.Error(err)
	}
}

func TestAFlagThatIsWrongIsNamed(t *testing.T) {
	for _, test := range []struct{ when, replace, namespace string }{{"", "nodeclaim", ""}, {onClass, "", ""}, {onClass, "machine", ""}, {onClass, "node", "clusters"}} {
		if err := (&replacer{when: test.when}).run(nil, test.replace, test.namespace, "c", ""); err == nil || err.Error()[0] != '-' {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
