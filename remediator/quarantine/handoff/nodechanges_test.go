package handoff

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestAHandOffIsNoTaintTooMany(t *testing.T) {
	theirs := corev1.Taint{Key: "example.com/fan", Value: "theirs", Effect: corev1.TaintEffectNoSchedule}
	m := NodeChanges{Taints: []corev1.Taint{theirs}}
	put := m.AddHandOff(policy.HandOff{Taints: []corev1.Taint{{Key: theirs.Key, Value: "ours", Effect: theirs.Effect}}})
	if diff := cmp.Diff((*Added)(nil), put); diff != "" || !slices.Equal(m.Taints, []corev1.Taint{theirs}) {
		t.Errorf("put %v, taints %v", put, m.Taints)
	}
}
