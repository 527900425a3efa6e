package jobstest

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Noon is when [Recorded] was quarantined.
var Noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Rules are those of a policy by which [Recorded] and [Quarantine] restart jobs.
var Rules = []policy.Rule{{Name: "xid", RestartJobs: true}}

// Recorded returns a node with a quarantine in its record.
func Recorded(name string) *corev1.Node {
	record := causes.Record{V: 1, NodeUID: types.UID(name + "-uid"), Quarantine: causes.Quarantine{
		ID: "q-" + name, Phase: causes.Quarantined, QuarantinedAt: Noon,
		Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: "xid", Repair: conditions.Reboot, FirstSeen: Noon, Due: true}},
		Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule, Rule: "xid", Since: Noon},
	}}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid"), Annotations: map[string]string{conditions.AnnotationQuarantine: record.String()}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}}},
	}
}

// CauseOn returns the cause that the record of [Recorded] has.
func CauseOn(name string) restart.Cause {
	return restart.Cause{ID: "q-" + name, Node: name, NodeUID: types.UID(name + "-uid"), Taint: corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}}
}

// Value returns the value of a gauge or a counter.
func Value(t *testing.T, m interface{ Write(*dto.Metric) error }) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}
