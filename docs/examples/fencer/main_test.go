package main

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestWhatTheFencerDoesWithANode(t *testing.T) {
	const unknown, no, yes = corev1.ConditionUnknown, corev1.ConditionFalse, corev1.ConditionTrue
	theirs := corev1.Taint{Key: fenced.Key, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	tests := map[string]struct {
		ready   corev1.ConditionStatus
		state   string
		status  string // label pitcrew.dev/status
		taints  []corev1.Taint
		machine string
		want    string
	}{
		"terminated":                     {unknown, "terminated", "quarantined", nil, "p", "deleted"},
		"stopped":                        {unknown, "stopped", "quarantined", nil, "p", "fencer"},
		"stopped, the kubelet said so":   {no, "stopped", "quarantined", nil, "p", "fencer"},
		"running":                        {unknown, "running", "quarantined", nil, "p", ""},
		"the provider does not say":      {unknown, "", "quarantined", nil, "p", ""},
		"stopped and fenced":             {unknown, "stopped", "quarantined", []corev1.Taint{fenced}, "p", "fencer"},
		"stopped and fenced by a person": {unknown, "stopped", "quarantined", []corev1.Taint{theirs}, "p", "nodeshutdown"},
		"Ready, whatever is said":        {yes, "terminated", "quarantined", nil, "p", ""},
		"Ready again":                    {yes, "running", "quarantined", []corev1.Taint{fenced}, "p", ""},
		"Ready again, a person's taint":  {yes, "running", "quarantined", []corev1.Taint{theirs}, "p", "nodeshutdown"},
		"not quarantined":                {unknown, "terminated", "suspect", nil, "p", ""},
		"no provider id":                 {unknown, "terminated", "quarantined", nil, "", ""},
		"it never reported":              {"", "terminated", "quarantined", nil, "p", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"pitcrew.dev/status": test.status}},
				Spec:       corev1.NodeSpec{ProviderID: test.machine, Taints: test.taints},
			}
			if test.ready != "" {
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: test.ready}}
			}
			api := fake.NewClientBuilder().WithObjects(node).Build()
			f := &fencer{client: api, state: func(_ context.Context, machine string) (string, error) {
				if machine != test.machine || test.ready == yes {
					t.Errorf("asked for machine %q of a node whose Ready is %s", machine, test.ready)
				}
				return test.state, nil
			}}
			for range 2 {
				if err := f.fence(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var after corev1.Node
			err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &after)
			got := ""
			switch {
			case apierrors.IsNotFound(err):
				got = "deleted"
			case err != nil:
				t.Fatal(err)
			case len(after.Spec.Taints) > 0:
				got = after.Spec.Taints[0].Value
			}
			if got != test.want || len(after.Spec.Taints) > 1 {
				t.Errorf("got %q, want %q; taints %v", got, test.want, after.Spec.Taints)
			}
		})
	}
}

func TestANodeThatHasChangedSinceIsNotDeleted(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"pitcrew.dev/status": "quarantined"}},
		Spec:       corev1.NodeSpec{ProviderID: "p"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}},
	}
	asked := false
	api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(node).Build(), interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			var o client.DeleteOptions
			o.ApplyOptions(opts)
			asked = true
			if p := o.Preconditions; p == nil || *p.UID != "u" || *p.ResourceVersion != "7" {
				t.Errorf("asked for %+v", o)
			}
			return nil
		},
	})
	f := &fencer{client: api, state: func(context.Context, string) (string, error) { return "terminated", nil }}
	if err := f.fence(t.Context()); err != nil || !asked {
		t.Errorf("asked for the deletion: %t, %v", asked, err)
	}
}
