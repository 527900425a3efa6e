package nodes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// The rule's time counts from the first decision of the process, not from the first one about the node: a leader that lost its
// lease during an outage has ended.
func TestANodeThatIsSilentSinceBeforeTheElectionGetsTheTimeOfItsRule(t *testing.T) {
	r := newRig(t, "a", "b")
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m}
  rules:
    dead:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 2m
`))
	if err != nil {
		t.Fatal(err)
	}
	r.policy = policy.Fixed(p)
	for i, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown} {
		r.client.nodes[i].Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(r.clock.Now().Add(-time.Hour)),
		}}
	}
	r.reconcile(t, "b")
	r.leadingSince = time.Time{} // another process takes over, after an hour
	r.clock.SetTime(r.clock.Now().Add(time.Hour))
	r.reconcile(t, "a")
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	if got := r.reconcile(t, "b"); got.RequeueAfter != time.Minute {
		t.Errorf("decided again after %s, one minute after the election", got.RequeueAfter)
	}
	if said := r.reasons(); len(said) > 0 {
		t.Fatalf("said %q, one minute after the election", said)
	}
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	r.reconcile(t, "b")
	if said := r.reasons(); len(said) != 1 || said[0] != causes.NodeQuarantined {
		t.Errorf("said %q, two minutes after the election", said)
	}
}
