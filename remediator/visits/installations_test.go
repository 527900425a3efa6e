package visits

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Two installations look for the Jobs of a visit in namespaces of their own: for the second one the Job is missing.
func TestAnotherInstallationLeavesAVisitAlone(t *testing.T) {
	s := newSite(t, "first")
	stop := s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	pod := s.runs("reset-gpu")
	s.until("the Job is in the record", func() error {
		if v := s.record().Current; v == nil || v.JobUID == "" {
			return fmt.Errorf("record %s", s.record())
		}
		return nil
	})
	stop()
	before := s.read()
	second := s.process(interceptor.Funcs{}, func(o *Options) { o.RepairNamespace = s.name + "-b" })
	s.hasEvent(repair.RepairWaiting, "of another installation of Pitcrew, whose Jobs are in namespace first, and this one (first-b) leaves it alone")
	second()
	after := s.read()
	if r := s.record(); r.String() != before.Annotations["pitcrew.dev/repair"] || !hasMaintenance(after) || r.Current.Namespace != "first" {
		t.Errorf("record %s, taints %v", r, after.Spec.Taints)
	}
	s.process(interceptor.Funcs{})
	s.ends(pod, 0, reset)
	s.untilPhase(visit.Proving)
}

func TestAJobThatIsDeletedAtOnceIsNotCreatedAnew(t *testing.T) {
	s := newSite(t, "at-once")
	var mu sync.Mutex
	var created []string
	s.process(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		err := c.Create(ctx, o, opts...)
		if job, is := o.(*batchv1.Job); is && err == nil {
			mu.Lock()
			created = append(created, job.Name)
			mu.Unlock()
			if err := s.c.Client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
				t.Error(err)
			}
		}
		return err //nolint:wrapcheck // as the client returns it
	}})
	s.report("True", ecc)
	s.engine()
	s.hasEvent(repair.RepairFailed, "reset-gpu has not helped: its Job was deleted by others; next is reboot")
	mu.Lock()
	defer mu.Unlock()
	if names := slices.Sorted(slices.Values(created)); len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("created %q", names)
	}
}
