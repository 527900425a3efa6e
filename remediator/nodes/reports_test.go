package nodes

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestASuspectDetectorIsReportedOnceForAllNodes(t *testing.T) {
	r := newRig(t, "a", "b", "c", "d")
	r.policy.Policy().Budget = policy.Unlimited
	r.policy.Policy().Correlated = &policy.Correlated{MaxPercent: 50, MinNodes: 3, Window: time.Minute, Scopes: []string{""}}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.reconcile(t, name)
	}
	if said := r.reasons(); !slices.Equal(said, []string{causes.DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
	// Once the rule has acted again, the next suspicion is news.
	guard := r.policy.Policy().Correlated
	r.policy.Policy().Correlated = nil
	r.reconcile(t, "a")
	r.policy.Policy().Correlated = guard
	r.client.nodes[1].Status.Conditions[0].Message = lost
	r.report.Forget("b")
	r.reconcile(t, "b")
	if said := r.reasons(); !slices.Equal(said, []string{causes.NodeQuarantined, causes.DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
}

func TestARuleThatObservesSaysWhatItWouldDo(t *testing.T) {
	r := newRig(t, "a")
	for i := range r.policy.Policy().Rules {
		r.policy.Policy().Rules[i].Observe = true
	}
	r.reconcile(t, "a")
	if said := r.reasons(); !slices.Equal(said, []string{causes.WouldQuarantine}) {
		t.Errorf("said %q", said)
	}
}

// Admission refuses the change of a node: its Events say so, once until a write succeeds.
func TestARefusedWriteIsReportedOnce(t *testing.T) {
	r := newRig(t, "a")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", errors.New("ValidatingAdmissionPolicy 'x' denied request: no cordons"))
	request := ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	for _, err := range []error{apierrors.NewConflict(schema.GroupResource{}, "a", nil), refused, refused, refused} {
		r.client.refuse = err
		_, got := r.Reconcile(t.Context(), request)
		if isDenied(err) != (got != nil) {
			t.Errorf("after %v: %v", err, got)
		}
	}
	if len(r.recorder.Events) != 1 {
		t.Fatalf("%d Events", len(r.recorder.Events))
	}
	for _, part := range []string{"Warning " + causes.QuarantineBlocked, "denied request: no cordons", "would be " + causes.NodeQuarantined} {
		said := <-r.recorder.Events
		if !strings.Contains(said, part) {
			t.Errorf("%q has no %q", said, part)
		}
		r.recorder.Events <- said
	}
	r.reasons()
	r.client.refuse = nil
	r.reconcile(t, "a")
	r.client.nodes[0].UID = "anew"
	r.client.refuse = refused
	if _, err := r.Reconcile(t.Context(), request); err == nil {
		t.Error("the write was not refused")
	}
	if said := r.reasons(); !slices.Equal(said, []string{causes.NodeQuarantined, causes.QuarantineBlocked}) {
		t.Errorf("said %q", said)
	}
}

func TestWhatIsReportedIsForgottenWithItsNode(t *testing.T) {
	r := newRig(t, "a", "b")
	for _, name := range []string{"a", "b"} {
		r.reconcile(t, name)
	}
	r.client.nodes = nil
	for _, name := range []string{"a", "b"} {
		r.reconcile(t, name)
	}
	if blocked := r.report.BlockedNodes(); len(blocked)+len(r.pending.All())+len(r.seen) != 0 {
		t.Errorf("without nodes, memory holds %v, %v and %v", blocked, r.pending.All(), r.seen)
	}
}
