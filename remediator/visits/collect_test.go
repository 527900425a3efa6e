package visits

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// The cache may be late: it shows neither a pause nor that a person has the node left alone.
func TestWhatTheCacheDoesNotShowHoldsTheEvidenceOfAHandOff(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	p := &policy.Policy{
		Rules:  []policy.Rule{{Name: "xid"}},
		Repair: &policy.Repair{Collect: &policy.Collect{Check: policy.Check{Template: "collect", Timeout: time.Minute}, HandOff: true}},
	}
	q := &causes.Record{V: 1, NodeUID: "u"}
	q.ID, q.Phase = "q", causes.Quarantined
	q.Taint = &causes.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule, Since: now}
	q.Causes = []causes.Cause{{Rule: "xid", Repair: conditions.Replace, Due: true}}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", UID: "u", Annotations: map[string]string{conditions.AnnotationQuarantine: q.String()},
	}}
	paused := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "repair", Name: "collect"}, Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "collect"}}},
	}}
	skipped := n.DeepCopy()
	skipped.Labels = map[string]string{conditions.LabelSkip: "true"}
	api := fake.NewClientBuilder().WithObjects(paused, template, skipped).Build()
	late := fake.NewClientBuilder().Build()
	c := &Controller{
		client: late, apiReader: api, policy: policy.Fixed(p), namespace: "pitcrew", jobs: "repair", clock: testclock.NewFakePassiveClock(now),
	}
	for _, step := range []struct {
		when  string
		then  func() error
		begun int
	}{
		{"paused", func() error { return api.Delete(t.Context(), paused) }, 0},
		{"left alone", func() error { return api.Delete(t.Context(), skipped) }, 0},
		{"gone", func() error { return api.Create(t.Context(), n.DeepCopy()) }, 0},
		{"there", func() error { return nil }, 1},
		{"there, once more", func() error { return nil }, 1},
	} {
		c.collectHandedOff(t.Context(), n)
		var jobs batchv1.JobList
		if err := late.List(t.Context(), &jobs); err != nil || len(jobs.Items) != step.begun {
			t.Errorf("%s: %d Jobs, want %d, %v", step.when, len(jobs.Items), step.begun, err)
		}
		if err := step.then(); err != nil {
			t.Fatal(err)
		}
	}
}
