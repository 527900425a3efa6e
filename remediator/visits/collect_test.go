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

func TestAPauseHoldsTheEvidenceOfAHandOff(t *testing.T) {
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
	api := fake.NewClientBuilder().WithObjects(paused, template).Build()
	c := &Controller{
		client: api, apiReader: api, policy: policy.Fixed(p), namespace: "pitcrew", jobs: "repair", clock: testclock.NewFakePassiveClock(now),
	}
	for want := range 2 {
		c.client = fake.NewClientBuilder().Build() // a cache that is late shows no pause
		if want == 1 {
			c.client = api
		}
		c.collectHandedOff(t.Context(), n)
		var jobs batchv1.JobList
		if err := c.client.List(t.Context(), &jobs); err != nil || len(jobs.Items) != want {
			t.Errorf("%d Jobs, want %d, %v", len(jobs.Items), want, err)
		}
		if want == 0 {
			if err := api.Delete(t.Context(), paused); err != nil {
				t.Fatal(err)
			}
		}
	}
}
