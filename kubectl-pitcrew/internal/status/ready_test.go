package status

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestStatusSaysThatANodeIsDeadAndNotThatItsDetectorIsSilent(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const want = "Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.)"
	n := clitest.Died(at)
	if r := RowOf(n, at.Add(time.Hour)); r.Status != Unknown || r.Cause != want || !r.Since.Equal(at) {
		t.Errorf("%+v", r)
	}
	n, err := quarantine.QuarantineManually(n, quarantine.Manual{Reason: "smells of smoke"}, at)
	if err != nil {
		t.Fatal(err)
	}
	if r := RowOf(n, at.Add(time.Hour)); r.Status != Quarantined || r.Cause != "ByHand: smells of smoke | "+want {
		t.Errorf("%+v", r)
	}
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	if r := RowOf(n, at.Add(time.Hour)); r.Cause != "ByHand: smells of smoke" {
		t.Errorf("%+v", r)
	}
}
