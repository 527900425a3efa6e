package visits

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// A kubelet that makes its Node larger than what is kept of one, in the middle of its repair, keeps the one place of the limit no longer.
func TestANodeThatGrowsTooLargeKeepsNoPlace(t *testing.T) {
	s := newSiteOf(t, "grown", 2)
	s.process(interceptor.Funcs{})
	grown, other := s.nodes[0], s.nodes[1]
	s.report("True", ecc)
	s.engine()
	s.runs("reset-gpu")
	cfg, err := s.c.Config("system:node:"+grown, "system:nodes")
	s.must(err)
	kubelet, err := client.New(cfg, client.Options{Scheme: s.c.Client.Scheme()})
	s.must(err)
	n := s.read()
	before := n.DeepCopy()
	for i := range 500 {
		n.Annotations[fmt.Sprint("example.com/", i)] = strings.Repeat("x", 200)
	}
	s.must(kubelet.Patch(t.Context(), n, client.MergeFrom(before)))
	s.hasEvent(repair.RepairFailed, "repair stopped because the node is too large to judge: annotations has no room")
	s.until("the visit has ended", func() error {
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		if n := s.read(); s.record().Current != nil || hasMaintenance(n) {
			return fmt.Errorf("record %s, taints %v", s.record(), n.Spec.Taints)
		}
		return nil
	})
	if jobs := s.pods(); len(jobs) > 0 {
		t.Errorf("%d pods of Jobs", len(jobs))
	}
	s.node = other
	s.report("True", ecc)
	s.engine()
	s.runs("reset-gpu")
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
