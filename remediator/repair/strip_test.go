package repair

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestStripRemovesTheTaintOfOurVisitsOnly(t *testing.T) {
	const theirs = "example.com/theirs"
	record := func(phase, kind string) string {
		return `{"v":1,"nodeUID":"u","current":{"id":"v","kind":"` + kind + `","phase":"` + phase + `","attempt":1,"startedAt":"2026-11-22T12:00:00Z","phaseSince":"2026-11-22T12:00:00Z"}}`
	}
	for name, test := range map[string]struct {
		record, taint string
		stays         bool
	}{
		"working":                    {record("Working", "repair"), "repair", false},
		"of another value":           {record("Working", "repair"), "firmware", true},
		"of a visit of another kind": {record("Working", "sweep"), "repair", true},
		"without a record":           {"", "repair", true},
		"an unreadable record":       {"{", "validation", false},
		"an unreadable one, foreign": {"{", "firmware", true},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{theirs: "x"}}}
		n.Spec.Taints = []corev1.Taint{{Key: theirs}, {Key: conditions.TaintMaintenance, Value: test.taint, Effect: corev1.TaintEffectNoSchedule}}
		if test.record != "" {
			n.Annotations[conditions.AnnotationRepair] = test.record
		}
		after := visit.Strip(n)
		if _, has := after.Annotations[conditions.AnnotationRepair]; has || len(after.Annotations) != 1 {
			t.Errorf("%s: annotations %v", name, after.Annotations)
		}
		if stays := len(after.Spec.Taints) == 2; stays != test.stays || after.Spec.Taints[0].Key != theirs {
			t.Errorf("%s: taints %v", name, after.Spec.Taints)
		}
	}
}
