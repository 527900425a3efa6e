package handoff

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSuspicion(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	earlier := metav1.NewTime(now.Add(-time.Hour))
	condition := func(status corev1.ConditionStatus, reason, message string) *corev1.NodeCondition {
		return &corev1.NodeCondition{Type: "HardwareIssuesSuspected", Status: status, Reason: reason, Message: message, LastTransitionTime: earlier}
	}
	const theirs = "GPUHealthCheckFailed (Soperator)"
	for name, test := range map[string]struct {
		before  *corev1.NodeCondition
		message string
		// want is the status, the reason and whether the transition is now; empty: no change.
		status corev1.ConditionStatus
		reason string
		since  time.Time
	}{
		"quarantined for the first time":       {nil, "x", "True", "QuarantinedByPitcrew", now},
		"quarantined again":                    {condition("False", Cleared, ""), "x", "True", "QuarantinedByPitcrew", now},
		"still quarantined":                    {condition("True", Suspected, "x"), "x", "", "", now},
		"quarantined for something else":       {condition("True", Suspected, "y"), "x", "True", "QuarantinedByPitcrew", earlier.Time},
		"released":                             {condition("True", Suspected, "x"), "", "False", "ReleasedByPitcrew", now},
		"still in service":                     {condition("False", Cleared, "the node is in service"), "", "", "", now},
		"never quarantined":                    {nil, "", "", "", now},
		"soperator suspects a quarantined one": {condition("True", theirs, ""), "x", "", "", now},
		"soperator suspects a released one":    {condition("True", theirs, ""), "", "", "", now},
		"another writer denies it":             {condition("False", "Fine", ""), "x", "", "", now},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: Suspected}}}}
		if test.before != nil {
			n.Status.Conditions = append(n.Status.Conditions, *test.before)
		}
		got, changes := Suspicion(n, test.message, now)
		if changes != (test.status != "") || changes && (got.Status != test.status || got.Reason != test.reason || !got.LastTransitionTime.Time.Equal(test.since) || got.Message == "") {
			t.Errorf("%s: %v, %+v", name, changes, got)
		}
	}
	if IsOurSuspicion(corev1.NodeCondition{Type: "Ready", Reason: Suspected}) || !IsOurSuspicion(*condition("True", Suspected, "")) || IsOurSuspicion(*condition("True", theirs, "")) {
		t.Error("another condition is ours, or ours is not")
	}
}
