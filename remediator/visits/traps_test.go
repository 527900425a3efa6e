package visits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// NVIDIA's Cluster Readiness Engine hangs without a reason where a node has 7 of its 8 GPUs.
func TestASweepOfANodeWithSevenOfEightGPUsEndsWithAReason(t *testing.T) {
	const asksForEight = `
apiVersion: v1
kind: PodTemplate
metadata: {name: check, namespace: %s, annotations: {pitcrew.dev/verdict: GPUXidError}}
template: {spec: {automountServiceAccountToken: false, containers: [{name: repair, image: npd-plugins, args: [check], resources: {limits: {nvidia.com/gpu: 8}}}]}}
`
	for name, test := range map[string]struct {
		template string
		ends     func(s *site, pod corev1.Pod)
		outcome  string
	}{
		// KWOK admits every pod: the status is that of the kubelet (v1.37.1, pkg/kubelet/lifecycle/predicate.go).
		"the kubelet refuses the pod": {asksForEight, func(s *site, pod corev1.Pod) {
			before := pod.DeepCopy()
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "OutOfnvidia.com/gpu",
				Message: "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 0, capacity: 7",
			}
			s.must(s.c.Client.Status().Patch(s.Context(), &pod, client.MergeFrom(before)))
		}, "nvidia.com/gpu, requested: 8, used: 0, capacity: 7"},
		"the program counts": {"", func(s *site, pod corev1.Pod) {
			s.ends(pod, 0, `{"result":"problem","message":"7 of 8 GPUs"}`)
		}, "found a fault: 7 of 8 GPUs"},
		"the program hangs": {"", func(s *site, _ corev1.Pod) {
			s.clock.SetTime(s.record().Current.Deadline)
			s.report("", "")
		}, "its Job has not ended in time"},
	} {
		t.Run(name, func(t *testing.T) {
			site := "seven-" + strings.ReplaceAll(name, " ", "-")
			s := newSite(t, site, withSweep(site)...)
			if test.template != "" {
				s.must(s.c.Apply(t.Context(), fmt.Appendf(nil, test.template, s.name)))
			}
			s.patchStatus(func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("7") })
			n, err := visit.Ask(s.read(), visit.RequestCheck, "", quarantine.Manual{User: "eve"}, s.clock.Now())
			s.must(err)
			s.patch(func(node *corev1.Node) { node.Annotations = n.Annotations })
			s.process(interceptor.Funcs{})
			s.until("the sweep begins", func() error {
				if s.record().Current != nil {
					return nil
				}
				s.tick(5 * time.Second)
				return errors.New("not yet")
			})
			s.tick(10 * time.Second) // in which the scheduler sees the taint
			test.ends(s, s.runs("check"))
			s.until("the sweep has ended", func() error {
				if v := s.last(); v.Phase == visit.Failed {
					return nil
				}
				s.tick(time.Second)
				return fmt.Errorf("record %s", s.record())
			})
			if v := s.last(); !strings.Contains(v.Outcome, test.outcome) {
				t.Errorf("outcome %q", v.Outcome)
			}
			s.hasEvent(repair.NodeChecked, strings.TrimPrefix(test.outcome, "found a fault: "))
			s.noJobs()
			if n := s.read(); hasMaintenance(n) {
				t.Errorf("taints %v", n.Spec.Taints)
			}
		})
	}
}

// NVSentinel acted on old records at a cold start (its issue 1280). A node that has a quarantine and a visit of a year ago may have been
// repaired since: nothing runs on it before it reports a fault anew.
func TestWhatIsLeftOfAVisitForAYearRunsNothing(t *testing.T) {
	for name, leave := range map[string]func(s *site){
		"before it was empty": func(s *site) {
			gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			train := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "train"}, Spec: corev1.PodSpec{
				NodeName: s.node, Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
			}}
			s.must(s.c.Client.Create(s.Context(), train))
			stop := s.process(interceptor.Funcs{})
			s.untilPhase(visit.Emptying)
			stop()
			s.must(s.c.Client.Delete(s.Context(), train))
		},
		"before its Job": func(s *site) {
			stop := s.process(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if _, isJob := o.(*batchv1.Job); isJob {
					return errors.New("the process ends here")
				}
				return c.Create(ctx, o, opts...)
			}})
			s.untilPhase(visit.Working)
			stop()
		},
		"while its Job ran": func(s *site) {
			stop := s.process(interceptor.Funcs{})
			s.runs("reset-gpu")
			s.until("the Job is in the record", func() error {
				if v := s.record().Current; v == nil || v.JobUID == "" {
					return fmt.Errorf("record %s", s.record())
				}
				return nil
			})
			stop()
			s.must(s.c.Client.DeleteAllOf(s.Context(), &batchv1.Job{}, client.InNamespace(s.name), client.PropagationPolicy(metav1.DeletePropagationBackground)))
		},
		"before its proof": func(s *site) {
			stop := s.process(interceptor.Funcs{})
			s.ends(s.runs("reset-gpu"), 0, reset)
			s.untilPhase(visit.Proving)
			s.noJobs()
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "year-"+strings.ToLower(strings.ReplaceAll(name, " ", "-")))
			s.report("True", ecc)
			s.engine()
			leave(s)
			s.until("nothing is left of it but records", func() error {
				if n := len(s.pods()); n > 0 {
					return fmt.Errorf("%d pods", n)
				}
				return nil
			})
			left := s.record()
			s.noJobs()
			jobs := s.countJobs()

			s.clock.SetTime(s.clock.Now().AddDate(1, 0, 0))
			s.engine()
			s.process(interceptor.Funcs{})
			s.hasEvent(repair.RepairFailed, "no remediator has gone on with it since")
			s.until("the visit has ended", func() error {
				if v := s.last(); v.Phase == visit.Yielded {
					return nil
				}
				s.clock.SetTime(s.clock.Now().Add(time.Second)) // nothing reports a condition
				return fmt.Errorf("record %s", s.record())
			})
			s.engine()
			n := s.read()
			if q, err := causes.RecordOf(n); err != nil || q.Phase != causes.Quarantined || hasMaintenance(n) {
				t.Errorf("%v, %s, taints %v", err, q, n.Spec.Taints)
			}
			if r := s.record(); len(r.Last) != 1 || len(r.Repairs) != len(left.Repairs) || len(jobs()) > 0 {
				t.Errorf("Jobs %q, record %s, which was %s", jobs(), r, left)
			}
			// What is reported now counts.
			s.report("True", ecc)
			s.engine()
			s.until("an action begins", func() error {
				if v := s.record().Current; v != nil && v.Phase == visit.Working {
					return nil
				}
				s.tick(time.Second)
				return fmt.Errorf("record %s", s.record())
			})
			done := slices.ContainsFunc(left.Repairs, func(a visit.Action) bool { return a.Template == "reset-gpu" })
			if v := s.record().Current; done != (v.Template == "reboot") {
				t.Errorf("next is %s after %+v", v.Template, left.Repairs)
			}
		})
	}
}
