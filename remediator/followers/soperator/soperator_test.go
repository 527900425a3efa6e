package soperator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// A condition that the API server refuses, as without a permission or with output.soperator unknown to the admission policy, is tried
// again within a minute, and what is wanted by then is written.
func TestARefusedConditionIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		refused := 0
		api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(n).WithStatusSubresource(n).Build(), interceptor.Funcs{
			SubResourcePatch: func(
				ctx context.Context, api client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				if refused < 20 {
					refused++
					return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes/status"}, o.GetName(), nil)
				}
				return api.SubResource(name).Patch(ctx, o, p, opts...)
			},
		})
		f := New(api, api, clock.RealClock{})
		go func() { _ = f.Start(t.Context()) }()
		f.Want(n, "first")
		<-time.After(5 * time.Minute)
		f.Want(n, "second")
		<-time.After(20 * time.Minute)
		var now corev1.Node
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(n), &now); err != nil {
			t.Fatal(err)
		}
		if c := now.Status.Conditions; len(c) != 1 || c[0].Type != policy.SoperatorCondition || c[0].Message != "second" || c[0].Reason != handoff.Suspected {
			t.Errorf("after %d refusals: %v", refused, c)
		}
		f.Want(&now, "second")
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.wanted) > 0 || f.queue.Len() > 0 {
			t.Errorf("left: %v", f.wanted)
		}
	})
}

// A Node of the same name that was created since keeps its conditions, and a Node that is gone is no error.
func TestNothingIsWrittenToAnotherNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	api := fake.NewClientBuilder().WithObjects(n).WithStatusSubresource(n).Build()
	f := New(api, api, clock.RealClock{})
	for _, name := range []string{"n", "gone"} {
		f.Want(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "before"}}, "broken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it ends when nothing is left to do
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var now corev1.Node
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(n), &now); err != nil || len(now.Status.Conditions) > 0 || len(f.wanted) > 0 {
		t.Errorf("conditions %v, left %v: %v", now.Status.Conditions, f.wanted, err)
	}
}
