package visits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/failures"
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

// A job that is too large to judge is not restarted either, so that its pods have to be evicted.
func TestPodsOfAJobThatIsTooLargeToJudgeAreEvicted(t *testing.T) {
	for name, test := range map[string]struct{ err, want error }{
		"too large": {fmt.Errorf("job: %w", slim.ErrTooLarge), nil},
		"an error":  {io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
	} {
		api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return test.err
			},
		})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "rank", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "u", Controller: ptr.To(true)},
		}}}
		c := &Controller{apiReader: api}
		if is, err := c.isRestarted(t.Context(), kinds.NewOwnerResolver(api, kinds.BuiltIn()), pod); is || !errors.Is(err, test.want) {
			t.Errorf("%s: %t, %v", name, is, err)
		}
	}
}

// A step is decided by live reads, which take their time. A policy that is reloaded meanwhile has it decided anew: it may not repair any more.
func TestAStepOfAPolicyThatWasReloadedIsNotTaken(t *testing.T) {
	const repairs = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  repair: {mode: auto, actions: {ResetGPU: [{template: reset-gpu}]}}
  rules: {xid: {match: {condition: GPUXidError, repair: [ResetGPU]}}}
`
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, reloaded := range map[string]string{
		"the policy stays": repairs, "the policy observes": strings.Replace(repairs, "mode: enforce", "mode: observe", 1),
	} {
		t.Run(name, func(t *testing.T) {
			write(repairs)
			file, err := policy.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			v := visit.Visit{ID: "v", Kind: visit.Repair, Quarantine: "q", Phase: visit.Emptying, Attempt: 1, StartedAt: now, PhaseSince: now, ActionSince: now}
			n := recordedNode("a", visit.Record{Current: &v})
			patched := 0
			api := fake.NewClientBuilder().WithObjects(n).WithInterceptorFuncs(interceptor.Funcs{
				List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
					if _, is := list.(*corev1.PodList); is {
						write(reloaded)
						if _, err := file.Reload(); err != nil {
							t.Error(err)
						}
					}
					return nil
				},
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					patched++
					return nil
				},
			}).Build()
			c := &Controller{
				client: api, apiReader: api, policy: file, clock: clocktesting.NewFakePassiveClock(now), recorder: events.NewFakeRecorder(10),
				pending: newWrites(), records: newRecords(), created: createdJobs{byNode: map[string]createdJob{}}, orphans: orphans{byNode: map[string]time.Time{}},
				metrics: newMetrics(),
			}
			c.failures = failures.New(api, api, "pitcrew", file, c.clock)
			c.starts = newStartsStore(keystore.Key{Client: api, Reader: api, Name: starts.Key}, c.clock)
			c.sweeper = newSweeper(c, nil, 0)
			result, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(n)})
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 1}[reloaded == repairs]; patched != want || want == 0 && (result.RequeueAfter != conflictRetry || len(c.pending.All()) > 0) {
				t.Errorf("patched %d times, again after %s", patched, result.RequeueAfter)
			}
		})
	}
}
