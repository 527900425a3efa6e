package status

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestAQuarantinedNodeUnderMaintenanceIsShownAsRepairing(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	n, err := quarantine.QuarantineManually(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}, quarantine.Manual{Reason: "smoke"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if got := RowOf(n, now).Status; got != Quarantined {
		t.Errorf("got %s", got)
	}
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: "sweep", Effect: corev1.TaintEffectNoSchedule})
	if got := RowOf(n, now).Status; got != Repairing {
		t.Errorf("in maintenance, got %s", got)
	}
	n.Spec.Taints[len(n.Spec.Taints)-1].Value = conditions.MaintenanceValidation
	if got := RowOf(n, now).Status; got != Validating {
		t.Errorf("in its validation, got %s", got)
	}
}
