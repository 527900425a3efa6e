package jobs

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// native has the Job controller make a PodGroup, without which the scheduler starts no pod of the Job.
func native(spec *batchv1.JobSpec) {
	spec.Scheduling = &batchv1.JobSchedulingConfiguration{
		SchedulingPolicy: &schedulingv1alpha3.WorkloadPodGroupSchedulingPolicy{Gang: &schedulingv1alpha3.WorkloadPodGroupGangSchedulingPolicy{}},
	}
}

// podGroups lists the team's PodGroups.
func (tm team) podGroups() []schedulingv1beta1.PodGroup {
	tm.Helper()
	var list schedulingv1beta1.PodGroupList
	if err := tm.c.Client.List(tm.Context(), &list, client.InNamespace(tm.name)); err != nil {
		tm.Fatal(err)
	}
	return list.Items
}

// Gangs of scheduling.k8s.io, as Kubernetes 1.37 has them behind feature gates.
func TestNativeGangs(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{
		FeatureGates: "GenericWorkload=true,WorkloadWithJob=true", APIServerFlags: []string{"--runtime-config=scheduling.k8s.io/v1beta1=true"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	inGroup := func(tm team, ranks []corev1.Pod) {
		t.Helper()
		groups := tm.podGroups()
		if len(groups) != 1 || groups[0].Spec.SchedulingPolicy.Gang == nil {
			t.Fatalf("%d PodGroups: %+v", len(groups), groups)
		}
		for _, p := range ranks {
			if g := p.Spec.SchedulingGroup; g == nil || g.PodGroupName == nil || *g.PodGroupName != groups[0].Name {
				t.Errorf("pod %s is in no gang: %+v", p.Name, g)
			}
		}
	}
	t.Run("is restarted whole and once", func(t *testing.T) {
		tm := newTeamIn(t, c, 5, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4, native))
		inGroup(tm, g.runs())
		q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
		for range 3 {
			restartJobs(t, r, q)
		}
		if closed := g.closes(); closed.Phase != restart.Done {
			t.Errorf("record %+v", closed)
		}
		g.restartedOnce(q.Node)
		inGroup(tm, g.runs())
	})
	// KEP-5547 plans that a suspend deletes the PodGroup: 1.37 does not, so the test does.
	t.Run("is restarted without its PodGroup", func(t *testing.T) {
		tm := newTeamIn(t, c, 5, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4, native))
		q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
		restartJobs(t, r, q)
		if err := tm.c.Client.DeleteAllOf(t.Context(), &schedulingv1beta1.PodGroup{}, client.InNamespace(tm.name)); err != nil {
			t.Fatal(err)
		}
		if closed := g.closes(); closed.Phase != restart.Done {
			t.Errorf("record %+v", closed)
		}
		g.restartedOnce(q.Node)
		for _, p := range g.runs() {
			if p.Spec.SchedulingGroup != nil || len(tm.podGroups()) > 0 {
				t.Errorf("pod %s is in a gang again: %+v, %d PodGroups", p.Name, p.Spec.SchedulingGroup, len(tm.podGroups()))
			}
		}
	})
	t.Run("of which an index has ended is left alone", func(t *testing.T) {
		tm := newTeamIn(t, c, 5, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4, native))
		g.complete(g.runs()[0])
		ranks := g.runs()
		q := tm.quarantineOf(ranks[0].Spec.NodeName)
		for range 3 {
			restartJobs(t, r, q)
		}
		tm.event("JobRestartBlocked", g.read().Object.GetUID(), "Job train is a gang of 4 pods and only 3 are left")
		g.unharmed(ranks)
		if slices.ContainsFunc(tm.podGroups(), func(p schedulingv1beta1.PodGroup) bool { return p.DeletionTimestamp != nil }) {
			t.Errorf("a PodGroup is being deleted: %+v", tm.podGroups())
		}
	})
}
