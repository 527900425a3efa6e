//go:build operators

package operators

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// with changes the manifest of a job.
func (j job) with(old, replacement string) job {
	if !strings.Contains(j.manifest, old) {
		panic(fmt.Sprintf("the manifest of the %s has no %q", j.kind.GVK.Kind, old))
	}
	j.manifest = strings.Replace(j.manifest, old, replacement, 1)
	return j
}

func TestWhatWouldHarmAJobIsRefusedAndSaid(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		job
		text string
	}{
		"a RayJob that would not take the stop": {
			rayJob.with("shutdownAfterJobFinishes: true", "shutdownAfterJobFinishes: false"), "shutdownAfterJobFinishes"},
		"a Volcano Job at its last retry": {volcanoJob.with("minAvailable: 4", "minAvailable: 4\n  maxRetry: 1"), "maxRetry"},
		"a LeaderWorkerSet that keeps its groups": {
			leaderWorkerSet("1", 4).with("RecreateGroupOnPodRestart", "None"), "restartPolicy is None"},
		"a queued Job with a podFailurePolicy": {queuedJob.with("backoffLimit: 0",
			"backoffLimit: 0\n  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [143]}}]}"), "podFailurePolicy rule 0"},
		"a PyTorchJob that tolerates the taint": {pyTorchJob("Never").with("spec: {RANK}",
			"spec: {tolerations: [{key: pitcrew.dev/unhealthy, operator: Exists}], RANK}"), "tolerates the taint"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, test.job)
			before, generation := g.runs(), g.get().GetGeneration()
			r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
			// The rank that tolerates the taint is one of many; the call is about the one on the node.
			q := g.quarantine(before[0].Spec.NodeName)
			restartJobs(t, r, q)
			g.says("JobRestartBlocked", g.get().GetUID(), test.text)
			g.says("JobRestartBlocked", q.NodeUID, test.text)
			if diff := cmp.Diff(uids(before), uids(g.runs())); diff != "" {
				t.Error("the ranks before and after:", diff)
			}
			if _, found := g.get().GetAnnotations()[conditions.AnnotationRestart]; found || g.get().GetGeneration() != generation {
				t.Errorf("the job was changed: %v", g.get())
			}
		})
	}
}

func uids(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for _, pod := range pods {
		all = append(all, pod.UID)
	}
	slices.Sort(all)
	return all
}

// Each group is a gang of its own.
func TestOnlyTheGroupOnTheNodeIsRestarted(t *testing.T) {
	t.Parallel()
	g := start(t, leaderWorkerSet("2", 8))
	before := g.runs()
	const label = "leaderworkerset.sigs.k8s.io/group-index"
	hit := before[0].Labels[label]
	r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
	q := g.quarantine(before[0].Spec.NodeName)
	restartJobs(t, r, q)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	after := uids(g.runs())
	for _, pod := range before {
		if stayed, want := slices.Contains(after, pod.UID), pod.Labels[label] != hit; stayed != want {
			t.Errorf("pod %s of group %s stayed: %t, want %t", pod.Name, pod.Labels[label], stayed, want)
		}
	}
	if lives := g.pods.Lives(); len(lives) != 12 {
		t.Errorf("%d pods were created, want two groups of four and one group again: %+v", len(lives), lives)
	}
}

// The mpi-operator neither deletes nor replaces a worker that had failed before the stop.
func TestADeadWorkerDoesNotComeBackAsARank(t *testing.T) {
	t.Parallel()
	g := start(t, mpiJob)
	ranks := g.runs()
	dead := ranks[slices.IndexFunc(ranks, func(p corev1.Pod) bool { return p.Name == "train-worker-1" })]
	fail := []byte(`{"status":{"phase":"Failed"}}`)
	if err := g.c.Client.Status().Patch(t.Context(), dead.DeepCopy(), client.RawPatch(types.MergePatchType, fail)); err != nil {
		t.Fatal(err)
	}
	r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
	other := ranks[slices.IndexFunc(ranks, func(p corev1.Pod) bool { return p.Name == "train-worker-0" })]
	q := g.quarantine(other.Spec.NodeName)
	restartJobs(t, r, q)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	if slices.Contains(uids(g.runs()), dead.UID) {
		t.Errorf("the dead worker is still a rank")
	}
}

func TestAPersonWithTheWorkloadOfAQueuedJobWins(t *testing.T) {
	t.Parallel()
	g := start(t, queuedJob.lasting())
	r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
	old := g.runs()
	q := g.quarantine(old[0].Spec.NodeName)
	restartJobs(t, r, q)
	clustertest.Until(t, patience, "wait until the Workload is inactive", func() error {
		workload := g.workload()
		if active, found, err := unstructured.NestedBool(workload.Object, "spec", "active"); err != nil || !found || active {
			return fmt.Errorf("active %t, %t, %w", active, found, err)
		}
		return g.c.Client.Patch(t.Context(), workload, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"active":true}}`)))
	})
	if closed := g.closes(); closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, "spec.active") {
		t.Errorf("closed as %+v", closed)
	}
	g.release(old)
	g.runs()
}

func (g gang) workload() *unstructured.Unstructured {
	g.Helper()
	var list unstructured.UnstructuredList
	list.SetAPIVersion("kueue.x-k8s.io/v1beta2")
	list.SetKind("WorkloadList")
	if err := g.c.Client.List(g.Context(), &list, client.InNamespace(g.namespace)); err != nil {
		g.Fatal(err)
	}
	if len(list.Items) != 1 {
		g.Fatalf("%d Workloads, want 1", len(list.Items))
	}
	return &list.Items[0]
}

// The training-operator fails a job for good whose old ranks are still there when it starts.
func TestAnAbortFailsNoJobThatMustNotMeetItsOldRanks(t *testing.T) {
	t.Parallel()
	g := start(t, pyTorchJob("Never").lasting())
	r, _ := run(t, g.config(), interceptor.Funcs{}, func(o *jobs.Options) { o.StopTimeout = time.Second })
	old := g.runs()
	q := g.quarantine(old[0].Spec.NodeName)
	restartJobs(t, r, q)
	job := g.get()
	g.says("JobRestartBlocked", job.GetUID(), "has not ended")
	abort := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:""}}}`, conditions.AnnotationAbortRestart)
	if err := g.c.Client.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, abort)); err != nil {
		t.Fatal(err)
	}
	g.release(old)
	if closed := g.closes(); closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, "aborted") {
		t.Errorf("closed as %+v", closed)
	}
	g.restartedOnce(q.Node)
}
