//go:build operators

package operators

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// inNativeGang is the Job with a PodGroup of scheduling.k8s.io.
func (j job) inNativeGang() job {
	j.operator = nativeGangs
	return j.with("backoffLimit: 0", "backoffLimit: 0\n  scheduling: {schedulingPolicy: {gang: {}}}")
}

// leaderWorkerSetInNativeGang has a PodGroup that a person has made: LeaderWorkerSet v0.9.0 makes those of Volcano only.
func leaderWorkerSetInNativeGang() job {
	j := leaderWorkerSet("1", 4).with("spec: {RANK}", "spec: {schedulingGroup: {podGroupName: train}, RANK}")
	j.operator = nativeGangs
	j.manifest = `
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: train, namespace: NAMESPACE}
spec: {schedulingPolicy: {gang: {minCount: 4}}}
---` + j.manifest
	return j
}

// inOneGang checks that the pods are in the only PodGroup of the namespace, which waits for as many.
func (g gang) inOneGang(ranks []corev1.Pod) {
	g.Helper()
	var groups schedulingv1beta1.PodGroupList
	if err := g.c.Client.List(g.Context(), &groups, client.InNamespace(g.namespace)); err != nil {
		g.Fatal(err)
	}
	if len(groups.Items) != 1 || groups.Items[0].Spec.SchedulingPolicy.Gang == nil || int(groups.Items[0].Spec.SchedulingPolicy.Gang.MinCount) != g.ranks {
		g.Fatalf("%d PodGroups: %+v", len(groups.Items), groups.Items)
	}
	for _, p := range ranks {
		if of := p.Spec.SchedulingGroup; of == nil || of.PodGroupName == nil || *of.PodGroupName != groups.Items[0].Name {
			g.Errorf("pod %s is in no gang: %+v", p.Name, of)
		}
	}
}

// Kueue and LeaderWorkerSet beside the gangs of Kubernetes 1.37. Those of a Job alone are in package jobs.
func TestNativeGangsBesideOthers(t *testing.T) {
	if os.Getenv(components.VariableKubernetes) != "" {
		t.Skip("Kubernetes before 1.37 has no gangs of Jobs")
	}
	t.Parallel()
	for name, job := range map[string]job{
		"Job queued by Kueue": queuedJob.inNativeGang(),
		"Job placed by Kueue": queuedJob.placed().inNativeGang(),
		"LeaderWorkerSet":     leaderWorkerSetInNativeGang(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, job)
			g.inOneGang(g.runs())
			counted := g.count()
			r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
			q := g.quarantine(g.runs()[0].Spec.NodeName)
			for range 3 {
				restartJobs(t, r, q)
			}
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			g.restartedOnce(q.Node)
			g.inOneGang(g.runs())
			if added := g.count() - counted; added != 0 {
				t.Errorf("the restart added %d to what the owners count", added)
			}
		})
	}
	t.Run("of which an index has ended", func(t *testing.T) {
		t.Parallel()
		g := start(t, queuedJob.inNativeGang())
		done := g.runs()[0]
		g.patch(&done, `{"metadata":{"labels":{"e2e.pitcrew.dev/complete":"true"}}}`)
		g.becomes(g.get, "1", "status", "succeeded")
		left := slices.DeleteFunc(g.listed(), func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
		r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
		q := g.quarantine(left[0].Spec.NodeName)
		for range 3 {
			restartJobs(t, r, q)
		}
		g.says("JobRestartBlocked", g.get().GetUID(), "is a gang of 4 pods and only 3 are left")
		g.untouched(left)
		if active, found, err := unstructured.NestedBool(g.workload().Object, "spec", "active"); err != nil || found && !active {
			t.Errorf("the Workload is active: %t, %v", active, err)
		}
	})
}

// untouched checks that a job has no record of a restart, and that these ranks run on.
func (g gang) untouched(ranks []corev1.Pod) {
	g.Helper()
	if record, found := g.get().GetAnnotations()[conditions.AnnotationRestart]; found {
		g.Errorf("the job has the record %s", record)
	}
	running := slices.DeleteFunc(g.listed(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning })
	if diff := cmp.Diff(uids(ranks), uids(running)); diff != "" {
		g.Error("the ranks before and after:", diff)
	}
}

// KubeRay writes the PodGroup of a RayCluster once (https://github.com/ray-project/kuberay/issues/5205).
func TestARayClusterWithAStalePodGroup(t *testing.T) {
	t.Parallel()
	inGang := rayCluster.with(`"true"}`, `"true", ray.io/gang-scheduling-enabled: "true"}`)
	inGang.operator = kubeRayGangs
	podGroup := func(g gang) func() *unstructured.Unstructured {
		return func() *unstructured.Unstructured {
			return g.object("scheduling.x-k8s.io/v1alpha1", "PodGroup", "train")
		}
	}
	t.Run("is restarted while the PodGroup is right", func(t *testing.T) {
		t.Parallel()
		g := start(t, inGang)
		g.becomes(podGroup(g), "4", "spec", "minMember")
		before := podGroup(g)().GetUID()
		r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
		q := g.quarantine(g.runs()[0].Spec.NodeName)
		restartJobs(t, r, q)
		if closed := g.closes(); closed.Phase != restart.Done {
			t.Errorf("closed as %+v", closed)
		}
		g.restartedOnce(q.Node)
		if after := podGroup(g)(); after.GetUID() != before {
			t.Errorf("the suspend has deleted the PodGroup: %s is now %s", before, after.GetUID())
		}
	})
	t.Run("is left alone when it was scaled down", func(t *testing.T) {
		t.Parallel()
		g := start(t, inGang)
		scale := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/workerGroupSpecs/0/replicas","value":2}]`))
		if err := g.c.Client.Patch(t.Context(), g.get(), scale); err != nil {
			t.Fatal(err)
		}
		g.ranks = 3
		ranks := g.runs()
		r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
		q := g.quarantine(ranks[0].Spec.NodeName)
		for range 3 {
			restartJobs(t, r, q)
		}
		g.says("JobRestartBlocked", g.get().GetUID(), "its PodGroup waits for 4 pods and it has only 3 by now")
		g.untouched(ranks)
		g.patch(podGroup(g)(), `{"spec":{"minMember":3}}`) // what a person can do
		restartJobs(t, r, q)
		if closed := g.closes(); closed.Phase != restart.Done {
			t.Errorf("closed as %+v", closed)
		}
	})
}

// The trainer runs a failed TrainJob again when its JobSet is gone (https://github.com/kubeflow/trainer/issues/3737).
func TestATrainJobWhoseJobSetIsGone(t *testing.T) {
	t.Parallel()
	jobSetOf := func(g gang) *unstructured.Unstructured {
		return g.object("jobset.x-k8s.io/v1alpha2", "JobSet", "train")
	}
	t.Run("because it had failed", func(t *testing.T) {
		t.Parallel()
		g := start(t, trainJob)
		r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
		ranks, failed := g.runs(), jobSetOf(g)
		g.patch(g.object("batch/v1", "Job", "train-node-0"), `{"spec":{"backoffLimit":0}}`)
		if err := g.c.Client.Status().Patch(t.Context(), ranks[0].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`))); err != nil {
			t.Fatal(err)
		}
		g.reports(g.get, "Failed")
		restartJobs(t, r, g.quarantine(ranks[1].Spec.NodeName))
		if record, found := g.get().GetAnnotations()[conditions.AnnotationRestart]; found {
			t.Errorf("a failed TrainJob is restarted: %s", record)
		}
		g.patch(failed, `{"spec":{"ttlSecondsAfterFinished":0}}`)
		clustertest.Until(t, patience, "wait for the trainer to run it again", func() error {
			var sets unstructured.UnstructuredList
			sets.SetAPIVersion("jobset.x-k8s.io/v1alpha2")
			sets.SetKind("JobSetList")
			if err := g.c.Client.List(t.Context(), &sets, client.InNamespace(g.namespace)); err != nil {
				return err
			}
			if len(sets.Items) != 1 || sets.Items[0].GetUID() == failed.GetUID() || conditionTrue(g.get(), "Failed") {
				return fmt.Errorf("%d JobSets, status %v", len(sets.Items), g.get().Object["status"])
			}
			return nil
		})
		again := g.runs()
		q := g.quarantine(again[0].Spec.NodeName)
		restartJobs(t, r, q)
		if closed := g.closes(); closed.Phase != restart.Done {
			t.Errorf("closed as %+v", closed)
		}
		third := g.runs()
		if lives := g.pods.Lives(); len(lives) != 3*g.ranks {
			t.Errorf("%d pods ran, want three incarnations of %d: %+v", len(lives), g.ranks, lives)
		}
		if n := len(g.record().Last); n != 1 || slices.ContainsFunc(third, func(p corev1.Pod) bool { return p.Spec.NodeName == q.Node }) {
			t.Errorf("%d restarts, nodes of %d ranks", n, len(third))
		}
	})
	t.Run("while it is stopped", func(t *testing.T) {
		t.Parallel()
		g := start(t, trainJob.lasting())
		old := g.runs()
		r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
		q := g.quarantine(old[0].Spec.NodeName)
		restartJobs(t, r, q)
		if err := g.c.Client.Delete(t.Context(), jobSetOf(g), client.PropagationPolicy("Background")); err != nil {
			t.Fatal(err)
		}
		g.release(old)
		if closed := g.closes(); closed.Phase != restart.Done || !strings.Contains(closed.Outcome, "all ranks running") {
			t.Errorf("closed as %+v", closed)
		}
		g.restartedOnce(q.Node)
	})
}
