package soperator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// A Node of the same name that was created since keeps its conditions, and a Node that is gone is no error.
func TestNothingIsWrittenToAnotherNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	api := fake.NewClientBuilder().WithObjects(n).WithStatusSubresource(n).Build()
	f := New(api, api, clock.RealClock{})
	for _, name := range []string{"n", "gone"} {
		f.Follow(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "before"}}, "broken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it ends when nothing is left to do
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var now corev1.Node
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(n), &now); err != nil || len(now.Status.Conditions) > 0 || f.Len() > 0 {
		t.Errorf("conditions %v, left %d: %v", now.Status.Conditions, f.Len(), err)
	}
}
