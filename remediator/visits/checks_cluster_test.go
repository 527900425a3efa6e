package visits

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// withSweep is a change of the policy of [newSite], for one pool.
func withSweep(name string) []string {
	return []string{"  rules:\n", fmt.Sprintf(
		"  sweeps:\n    all: {every: 24h, idleFor: 1m, template: check, nodeSelector: {%s: %s}}\n  rules:\n", cluster.LabelPool, name)}
}

// patch changes the node.
func (s *site) patch(change func(*corev1.Node)) {
	s.Helper()
	n := s.read()
	before := n.DeepCopy()
	change(n)
	s.must(s.c.Client.Patch(s.Context(), n, client.MergeFrom(before)))
}

// Every process of the remediator dies after one write, so that each pair of writes has a crash between. The controller of Jobs is the
// real one.
func TestACheckSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	checks := map[visit.Kind]struct {
		policy func(name string) []string
		// asks has the visit begin.
		asks func(s *site)
		done func(r *visit.Record, n *corev1.Node) bool
	}{
		visit.Sweep: {withSweep, func(s *site) {
			n, err := visit.Ask(s.read(), visit.RequestCheck, "", quarantine.Manual{User: "eve"}, s.clock.Now())
			s.must(err)
			s.patch(func(node *corev1.Node) { node.Annotations = n.Annotations })
		}, func(r *visit.Record, _ *corev1.Node) bool { return !r.Swept["all"].IsZero() && r.Request == nil }},
		visit.FirstCheck: {func(string) []string {
			return []string{"  rules:\n", "  firstCheck: {taint: pitcrew.dev/unchecked, conditions: [GPUXidError], template: check}\n  rules:\n"}
		}, func(s *site) {
			s.patch(func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule})
			})
		}, func(_ *visit.Record, n *corev1.Node) bool {
			return !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnchecked })
		}},
	}
	for kind, check := range checks {
		for when, late := range map[string]bool{"after the write": false, "before the next": true} {
			t.Run(string(kind)+" "+when, func(t *testing.T) {
				name := "crash-" + string(kind) + "-" + strings.ReplaceAll(when, " ", "-")
				s := newSite(t, name, check.policy(name)...)
				jobs := s.countJobs()
				check.asks(s)
				deaths := 0
				for passed := false; !passed; deaths++ {
					m := clustertest.NewMortal(1, late)
					stop := s.process(m.Funcs())
					s.until(fmt.Sprintf("process %d dies", deaths+1), func() error {
						select {
						case <-m.Dead:
							return nil
						default:
						}
						if passed = s.last().Phase == visit.Passed; passed {
							return nil
						}
						s.playCheck()
						return fmt.Errorf("record %s", s.record())
					})
					stop()
				}
				if deaths < 5 {
					t.Errorf("%d processes: too few writes", deaths)
				}
				s.process(interceptor.Funcs{})
				s.noJobs()
				r, n := s.record(), s.read()
				if len(r.Last) != 1 || r.Last[0].Kind != kind || r.Last[0].Attempt != 1 || r.Checked == nil || !check.done(r, n) || hasMaintenance(n) {
					t.Errorf("taints %v, record %s", n.Spec.Taints, r)
				}
				if got := jobs(); len(got) != 1 {
					t.Errorf("Jobs %q, want one", got)
				}
			})
		}
	}
}

// playCheck is the hardware during a check that passes. Time passes only while something waits for it.
func (s *site) playCheck() {
	s.Helper()
	v := s.record().Current
	switch {
	case v == nil:
		s.tick(5 * time.Second)
	case v.Phase == visit.Working && s.clock.Now().Sub(v.PhaseSince) < 10*time.Second: // in which a sweep lets the scheduler see the taint
		s.tick(10 * time.Second)
	default:
		s.play()
	}
}

// sweptPod is a pod that could run on the nodes of the site if no other pod were needed beside it.
func (s *site) sweptPod(namespace, name string) *corev1.Pod {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{cluster.LabelPool: s.name},
		Containers:   []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
		Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nowhere"}}, TopologyKey: corev1.LabelHostname,
		}}}},
	}}
}

// countLooks counts how often processes that start from now on list the pods that wait for a node.
func (s *site) countLooks() *atomic.Int64 {
	var n atomic.Int64
	s.cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return jobstest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if r.URL.Path == "/api/v1/pods" && strings.Contains(r.URL.Query().Get("fieldSelector"), "status.phase=Pending") {
				n.Add(1)
			}
			return response, err
		})
	})
	return &n
}

func TestALateSweepMakesNoWayForAPodThatDidNotComeWhileTheNodeWasIdle(t *testing.T) {
	s := newSite(t, "overruled", withSweep("overruled")...)
	team := s.name + "-team"
	s.must(s.c.AddNamespace(t.Context(), team, nil))
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.c.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}); err != nil {
			t.Error(err)
		}
	})
	s.must(s.c.Client.Create(t.Context(), s.sweptPod(team, "early")))
	s.until("the scheduler has seen the pod", func() error {
		pod := s.sweptPod(team, "early")
		if s.must(s.c.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)); len(pod.Status.Conditions) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	s.clock.SetTime(s.clock.Now().Add(48 * time.Hour)) // it is late
	s.report("", "")
	idleSince := s.clock.Now()
	looks, seen := s.countLooks(), int64(0)
	s.process(interceptor.Funcs{})
	s.until("the sweep begins", func() error {
		if v := s.record().Current; v != nil {
			return nil
		}
		if n := looks.Load(); n > seen { // what a node did in five minutes without a look is not known
			seen = n
			s.tick(50 * time.Second) // a node that is selected is so for a minute
		}
		return fmt.Errorf("after %d looks: record %s", seen, s.record())
	})
	if idle := s.clock.Now().Sub(idleSince); idle < sweep.AwaitedIdle {
		t.Errorf("the sweep begins after %s although a pod waits", idle)
	}
	s.tick(10 * time.Second)
	s.runs("check")
	s.must(s.c.Client.Create(t.Context(), s.sweptPod(team, "late")))
	s.hasEvent(repair.SweepYielded, "pod "+team+"/late could run on the node")
	s.until("the node is free", func() error {
		if n := s.read(); !hasMaintenance(n) {
			return nil
		}
		s.tick(time.Second)
		return fmt.Errorf("record %s", s.record())
	})
	if v := s.record().Last[0]; v.Phase != visit.Yielded {
		t.Errorf("visit %+v", v)
	}
	s.noJobs()
}

func TestAnOrphanTaintIsRemovedAfterTenMinutes(t *testing.T) {
	s := newSite(t, "orphan")
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.runs("reset-gpu")
	s.patch(func(n *corev1.Node) { delete(n.Annotations, conditions.AnnotationRepair) })
	s.noJobs() // nothing explains it
	since := s.clock.Now()
	s.until("the taint is removed", func() error {
		// A repair that has begun again sets the taint anew.
		if n, r := s.read(), s.record(); hasMaintenance(n) && r.Current == nil {
			s.tick(20 * time.Second)
			return fmt.Errorf("taints %v, record %s", n.Spec.Taints, r)
		}
		return nil
	})
	if took := s.clock.Now().Sub(since); took < 10*time.Minute {
		t.Errorf("the taint was removed after %s", took)
	}
	s.hasEvent(repair.RepairFailed, "no visit to the node has explained it")
	s.until("the repair begins again", func() error {
		if v := s.record().Current; v == nil {
			s.tick(2 * time.Second)
			return fmt.Errorf("record %s", s.record())
		}
		return nil
	})
}
