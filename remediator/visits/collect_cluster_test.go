package visits

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// collected is what the pod of a bundle of a node leaves.
func collected(node string) string {
	return `{"result":"done","message":"bundle x","bundle":"` + node + `-20261128T033000Z.tar.gz"}`
}

// jobs are how many Jobs of a template there are.
func (s *site) jobs(template string) int {
	s.Helper()
	var jobs batchv1.JobList
	s.must(s.c.Client.List(s.Context(), &jobs, client.InNamespace(s.name), client.MatchingLabels{conditions.LabelTemplate: template}))
	return len(jobs.Items)
}

// The first action of a repair begins when the evidence is collected. The Job that has collected stays, with the name of the bundle.
func TestEvidenceIsCollectedBeforeTheFirstAction(t *testing.T) {
	s := newSite(t, "collect", "drain: {mode: wait}", "drain: {mode: wait}\n    collect: {template: collect, args: [-keep=5]}")
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	v := s.untilPhase(visit.Working)
	pod := s.runs("collect")
	if got := pod.Spec.Containers[0].Args; !slices.Equal(got, []string{"collect", "-node=" + s.node, "-keep=5"}) || pod.Spec.NodeName != s.node {
		t.Errorf("args %q on node %s", got, pod.Spec.NodeName)
	}
	// The controller looks at the node each 200 ms.
	looks := 0
	s.until("the node was looked at", func() error {
		if looks++; looks < 5 {
			return errors.New("not yet")
		}
		return nil
	})
	if n := s.jobs("reset-gpu"); n > 0 || s.jobs("collect") != 1 || s.record().Current.Phase != visit.Working {
		t.Errorf("%d resets have begun, %d Jobs collect, record %s", n, s.jobs("collect"), s.record())
	}
	s.ends(pod, 0, collected(s.node))
	reseted := s.runs("reset-gpu")
	s.ends(reseted, 0, reset)
	s.untilPhase(visit.Proving)
	s.report("False", "")
	s.untilPassed(visit.Repair)
	if got, want := s.record().Last[0].Bundle, s.node+"-20261128T033000Z.tar.gz"; got != want {
		t.Errorf("the record names bundle %q, want %q", got, want)
	}
	if n := s.jobs("collect"); n != 1 || v.Attempt != 1 {
		t.Errorf("%d Jobs that have collected, attempt %d", n, v.Attempt)
	}
}

// What hangs, is not allowed or is missing blocks no repair.
func TestEvidenceNeverBlocksARepair(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		s := newSite(t, "collect-hangs", "drain: {mode: wait}", "drain: {mode: wait}\n    collect: {template: collect, timeout: 2m}")
		s.process(interceptor.Funcs{})
		s.report("True", ecc)
		s.engine()
		s.untilPhase(visit.Working)
		s.runs("collect")
		s.tick(2*time.Minute - time.Second)
		s.tick(2 * time.Second)
		s.runs("reset-gpu")
	})
	t.Run("is missing", func(t *testing.T) {
		s := newSite(t, "collect-missing", "drain: {mode: wait}", "drain: {mode: wait}\n    collect: {template: none}")
		s.process(interceptor.Funcs{})
		s.report("True", ecc)
		s.engine()
		s.runs("reset-gpu")
	})
}

// A quarantine that a person or the provider ends is collected for once, by policy, and nothing else is done to the node.
func TestEvidenceIsCollectedAtAHandOff(t *testing.T) {
	s := newSite(t, "collect-handoff", "drain: {mode: wait}", "drain: {mode: wait}\n    collect: {template: collect, handOff: true}")
	s.process(interceptor.Funcs{})
	s.report("True", "Replace gpu 0000:1b:00: Xid 79 GPU has fallen off the bus")
	s.until("the node is quarantined", func() error {
		s.tick(time.Second)
		if q, err := causes.RecordOf(s.read()); err != nil || q == nil || q.Phase != causes.Quarantined {
			return fmt.Errorf("%+v %w", q, err)
		}
		return nil
	})
	pod := s.runs("collect")
	s.ends(pod, 0, collected(s.node))
	s.until("the Job has ended", func() error {
		var job batchv1.Job
		s.must(s.c.Client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: metav1.GetControllerOf(&pod).Name}, &job))
		if job.Status.Succeeded != 1 || job.Spec.TTLSecondsAfterFinished == nil {
			return fmt.Errorf("%+v", job.Status)
		}
		return nil
	})
	s.tick(10 * time.Second)
	if n := s.jobs("collect"); n != 1 || s.record().Current != nil {
		t.Errorf("%d Jobs, record %s", n, s.record())
	}
	var pods corev1.PodList
	if s.must(s.c.Client.List(t.Context(), &pods, client.InNamespace(s.name))); len(pods.Items) != 1 {
		t.Errorf("%d pods", len(pods.Items))
	}
}
