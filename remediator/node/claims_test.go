package node_test

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

func TestClaims(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	says := func(of corev1.NodeConditionType, status corev1.ConditionStatus, since time.Time) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: of, Status: status, Reason: "Window", LastTransitionTime: metav1.NewTime(since)},
		}}}
	}
	gke := func(text string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{node.LabelScheduledMaintenance: text}}}
	}
	ours := func(value string, since time.Time) *corev1.Node {
		n := says("MaintenanceInProgress", "True", since)
		n.Status.Conditions[0].Reason = conditions.ReasonRepair
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: value, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	theirs := ours(conditions.MaintenanceRepair, noon)
	theirs.Status.Conditions[0].Reason = "Window"
	at := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	const ready, fault = corev1.NodeReady, corev1.NodeConditionType("NVLinkDown")
	for name, test := range map[string]struct {
		node *corev1.Node
		// holds is whether there is a claim at noon; absence and other whether it explains a fault that began then.
		holds, absence, other bool
		why                   string
	}{
		"nothing":                {node: &corev1.Node{}},
		"in progress":            {says("MaintenanceInProgress", "True", noon), true, true, true, "condition MaintenanceInProgress is True (Window)"},
		"in progress for long":   {says("MaintenanceInProgress", "True", noon.Add(-119*time.Minute)), true, true, true, "condition MaintenanceInProgress is True (Window)"},
		"for too long":           {node: says("MaintenanceInProgress", "True", noon.Add(-2*time.Hour))},
		"later than the fault":   {node: says("MaintenanceInProgress", "True", noon.Add(time.Second))},
		"without a time":         {node: says("MaintenanceInProgress", "True", time.Time{})},
		"over":                   {node: says("MaintenanceInProgress", "False", noon)},
		"not known":              {node: says("MaintenanceInProgress", "Unknown", noon)},
		"planned":                {says("MaintenancePlanned", "True", noon), true, true, false, "condition MaintenancePlanned is True (Window)"},
		"of Azure":               {says("VMEventScheduled", "True", noon), true, true, false, "condition VMEventScheduled is True (Window)"},
		"of our repair":          {node: ours("repair", noon)},
		"of others meanwhile":    {theirs, true, true, true, "condition MaintenanceInProgress is True (Window)"},
		"ours, forged":           {ours("validation", noon), true, true, true, "condition MaintenanceInProgress is True (RepairByPitcrew)"},
		"ours, forged for long":  {node: ours("validation", noon.Add(-2*time.Hour))},
		"another condition":      {node: says("DrainInProgress", "True", noon)},
		"of Google, soon":        {gke(at(noon.Add(time.Hour))), true, true, false, "label cloud.google.com/scheduled-maintenance-time announces maintenance at 2026-11-28T13:00:00Z"},
		"of Google, some weeks":  {node: gke(at(noon.AddDate(0, 0, 20)))},
		"of Google, in the past": {node: gke(at(noon.Add(-2 * time.Hour)))},
		"of Google, a word":      {node: gke("soon")},
		"of Google, negative":    {node: gke("-1")},
		"of Google, too long":    {node: gke("999999999999")},
	} {
		t.Run(name, func(t *testing.T) {
			claims := node.HoldingClaims(test.node, noon)
			if (len(claims) == 1) != test.holds || test.holds && claims[0].Why != test.why {
				t.Errorf("got %+v", claims)
			}
			absence, other := node.Excuse(node.Claims(test.node), ready, noon), node.Excuse(node.Claims(test.node), fault, noon)
			if (absence != "") != test.absence || (other != "") != test.other {
				t.Errorf("an absence is explained by %q, another fault by %q", absence, other)
			}
		})
	}
}
