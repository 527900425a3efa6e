package nodes

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// ordered gives the node a an order, healthy unless the fault is to stay.
func ordered(t *testing.T, kind request.Kind) rig {
	t.Helper()
	r := newRig(t, "a")
	r.client.nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
	(&request.Request{ID: "r", Kind: kind, User: "ann", Reason: "smoke"}).Put(&r.client.nodes[0])
	return r
}

func TestAnOrderIsCarriedOutAndAnsweredInOnePatch(t *testing.T) {
	r := ordered(t, request.Quarantine)
	r.reconcile(t, "a")
	n := r.client.live["a"]
	if n == nil || len(r.client.patched) != 1 || len(n.Spec.Taints) != 1 {
		t.Fatalf("node %+v, patched %v", n, r.client.patched)
	}
	asked, err := request.Of(n)
	if err != nil || asked.Waits() || !asked.Answer.Done || asked.ID != "r" {
		t.Errorf("%+v, %v", asked, err)
	}
	if got := r.reasons(); !slices.Equal(got, []string{causes.NodeQuarantined}) {
		t.Errorf("Events %v", got)
	}
	// The cache is behind: the order is not carried out a second time.
	r.reconcile(t, "a")
	if len(r.client.patched) != 1 {
		t.Errorf("patched %v", r.client.patched)
	}
}

// The budget is one node. The cache shows neither write.
func TestAnOrderTakesAPlaceAtOnce(t *testing.T) {
	for name, refuse := range map[string]error{"carried out": nil, "refused": apierrors.NewForbidden(schema.GroupResource{}, "a", nil)} {
		r := newRig(t, "a", "b")
		r.client.nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
		(&request.Request{ID: "r", Kind: request.Quarantine, User: "ann", Reason: "smoke"}).Put(&r.client.nodes[0])
		r.client.refuse = refuse
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}); (err != nil) != (refuse != nil) {
			t.Errorf("%s: %v", name, err)
		}
		r.client.refuse = nil
		r.reconcile(t, "b")
		if n := r.client.live["b"]; (n != nil && len(n.Spec.Taints) > 0) != (refuse != nil) {
			t.Errorf("%s: node b became %+v", name, n)
		}
	}
}

func TestAnOrderThatMakesNoSenseIsRefused(t *testing.T) {
	r := ordered(t, request.Release)
	r.reconcile(t, "a")
	asked, err := request.Of(r.client.live["a"])
	if err != nil || asked.Waits() || asked.Answer.Done || !strings.Contains(asked.Answer.Text, "not quarantined") {
		t.Errorf("%+v, %v", asked, err)
	}
	if got := r.reasons(); len(got) > 0 {
		t.Errorf("Events %v", got)
	}
}

func TestADryRunCarriesOutNoOrder(t *testing.T) {
	r := ordered(t, request.Quarantine)
	r.dryRun, r.pending.DryRun = true, true
	r.reconcile(t, "a")
	if len(r.client.patched) > 0 {
		t.Errorf("patched %v", r.client.patched)
	}
}

func TestAnUnreadableOrderStopsNothing(t *testing.T) {
	r := newRig(t, "a")
	r.client.nodes[0].Annotations = map[string]string{conditions.AnnotationRequest: "{"}
	r.reconcile(t, "a")
	if got := r.reasons(); !slices.Contains(got, causes.NodeQuarantined) {
		t.Errorf("Events %v", got)
	}
}

func TestAnOrderIsTriedAgainAfterAConflict(t *testing.T) {
	r := ordered(t, request.Quarantine)
	r.client.locks, r.client.live = true, map[string]*corev1.Node{"a": r.client.nodes[0].DeepCopy()}
	r.client.refuse = apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil {
		t.Error(err)
	}
	r.client.refuse = nil
	r.reconcile(t, "a")
	if asked, err := request.Of(r.client.live["a"]); err != nil || asked.Waits() {
		t.Errorf("%+v, %v", asked, err)
	}
}
