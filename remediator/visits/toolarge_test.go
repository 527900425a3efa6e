package visits

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// A kubelet adds static pods of megabytes each to its node, in the middle of a visit, so that the pods cannot be listed.
func TestAVisitEndsWhosePodsAreTooLargeToJudge(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if _, is := list.(*corev1.PodList); is {
				return fmt.Errorf("the pods: %w", slim.ErrTooLarge)
			}
			return nil
		},
	})
	c := &Controller{
		client: api, apiReader: api, policy: policy.Fixed(&policy.Policy{Repair: &policy.Repair{}}), clock: clocktesting.NewFakePassiveClock(now),
		pending: newWrites(), records: newRecords(), created: createdJobs{byNode: map[string]createdJob{}}, orphans: orphans{byNode: map[string]time.Time{}},
	}
	c.sweeper = newSweeper(c, nil, 0)
	v := visit.Visit{ID: "v", Kind: visit.Repair, Quarantine: "q", Phase: visit.Working, Attempt: 1, JobUID: "u", StartedAt: now, PhaseSince: now}
	for _, phase := range []visit.Phase{visit.Emptying, visit.Working} {
		v.Phase = phase
		n := recordedNode("a", visit.Record{Current: &v})
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: string(v.Kind), Effect: corev1.TaintEffectNoSchedule}}
		step, err := c.decide(t.Context(), n, "", true)
		if err != nil {
			t.Fatal(err)
		}
		ended := step.Record.Current
		if ended == nil {
			ended = &step.Record.Last[0]
		}
		if !strings.HasPrefix(ended.Outcome, "stopped because the node is too large to judge: list the pods on node a") || ended.Phase == phase || step.KeepJob != "" {
			t.Errorf("%s: %+v", phase, ended)
		}
	}
}
