package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// The controller reads what the visits have found out from the node, and a validation that is waited for is no alarm.
func TestANodeIsReleasedWithTheValidationOnIt(t *testing.T) {
	r := newRig(t, "a")
	p, err := policy.Parse([]byte(strings.Replace(testPolicy, "restartJobs: true", "validate: true", 1) + "  repair: {validate: {template: check}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r.policy = policy.Fixed(p)
	reconcile := func(after time.Duration, change func(*corev1.Node)) {
		t.Helper()
		r.clock.SetTime(r.clock.Now().Add(after))
		n := &r.client.nodes[0]
		if written := r.client.live["a"]; written != nil {
			*n = *written
		}
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
		change(n)
		r.reconcile(t, "a")
	}
	nothing := func(*corev1.Node) {}
	reconcile(0, nothing)
	reconcile(time.Minute, func(n *corev1.Node) {
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(r.clock.Now())
	})
	r.reasons()
	reconcile(10*time.Minute, nothing)
	if len(r.recorder.Events) != 1 {
		t.Fatalf("%d Events", len(r.recorder.Events))
	}
	if said := <-r.recorder.Events; !strings.HasPrefix(said, "Normal "+causes.QuarantineBlocked+" GPUXidError has cleared; the node waits for its validation") {
		t.Error(said)
	}
	if b := r.report.BlockedNodes()["a"]; b.Reason != causes.BlockedByValidation || b.Rule != "gpu" {
		t.Errorf("%+v", b)
	}
	record, err := causes.RecordOf(r.client.live["a"])
	if err != nil {
		t.Fatal(err)
	}
	reconcile(time.Second, func(n *corev1.Node) {
		n.Annotations[conditions.AnnotationRepair] = `{"v":1,"nodeUID":"a","checked":{"at":"2026-11-20T12:05:00Z","bootID":"boot-1","quarantine":"` + record.ID + `"}}`
	})
	if said := r.reasons(); !slices.Equal(said, []string{causes.NodeReleased}) || len(r.client.live["a"].Spec.Taints) > 0 {
		t.Errorf("said %q, taints %v", said, r.client.live["a"].Spec.Taints)
	}
}
