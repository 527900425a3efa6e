//go:build operators

package operators

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
)

// These tests run without the remediator. They measure the traps that docs/jobs.md describes. One that fails after an
// update means that the page, and what the remediator does about the trap, have to be looked at again. Old ranks end when the test
// lets them, not after a time: a busy machine would miss it.

var (
	kubernetes = &operator{start: func(*cluster.Cluster, context.Context) error { return nil }}

	batchJob = job{
		operator: kubernetes, kind: jobstest.Kind("batch/v1", "Job"), container: "main", ranks: 4,
		manifest: `
apiVersion: batch/v1
kind: Job
metadata: ` + optedIn + `
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 0
  template: {` + dying + `, spec: {restartPolicy: Never, RANK}}
`,
	}
	jobSet = job{
		operator: kubernetes, kind: jobstest.Kind("jobset.x-k8s.io/v1alpha2", "JobSet"), container: "main", ranks: 4,
		manifest: `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: ` + optedIn + `
spec:
  replicatedJobs:
  - name: rank
    template: {spec: {completions: 4, parallelism: 4, backoffLimit: 0, template: {` + dying + `, spec: {restartPolicy: Never, RANK}}}}
`,
	}
)

const (
	stop   = `{"spec":{"suspend":true}}`
	resume = `{"spec":{"suspend":false}}`
)

func (g gang) patch(o client.Object, patch string) {
	g.Helper()
	if err := g.c.Client.Patch(g.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		g.Fatal(err)
	}
}

// becomes waits until a field of the object has a value; "" is a field that is not there.
func (g gang) becomes(read func() *unstructured.Unstructured, want string, field ...string) {
	g.Helper()
	clustertest.Until(g, patience, fmt.Sprintf("wait for %v %s", field, want), func() error {
		o := read()
		got, _, err := unstructured.NestedFieldNoCopy(o.Object, field...)
		if err != nil {
			return err
		}
		if got != nil && fmt.Sprint(got) == want || got == nil && want == "" {
			return nil
		}
		return fmt.Errorf("it is %v of %v", got, o.Object["status"])
	})
}

// reports waits until the object has a condition that is True.
func (g gang) reports(read func() *unstructured.Unstructured, condition string) {
	g.Helper()
	clustertest.Until(g, patience, "wait for condition "+condition, func() error {
		o := read()
		if !conditionTrue(o, condition) {
			return fmt.Errorf("status %v", o.Object["status"])
		}
		return nil
	})
}

func conditionTrue(o *unstructured.Unstructured, condition string) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		fields, ok := c.(map[string]any)
		return ok && fields["type"] == condition && fields["status"] == "True"
	})
}

// gone waits until no pod is listed.
func (g gang) gone() {
	g.Helper()
	clustertest.Until(g, patience, "wait for all pods to be gone", func() error {
		if n := len(g.listed()); n > 0 {
			return fmt.Errorf("%d pods are listed", n)
		}
		return nil
	})
}

func (g gang) listed() []corev1.Pod {
	g.Helper()
	var list corev1.PodList
	if err := g.c.Client.List(g.Context(), &list, client.InNamespace(g.namespace)); err != nil {
		g.Fatal(err)
	}
	return list.Items
}

// runTogether waits until pods of the second incarnation run, and reports whether one of the first was still there.
func (g gang) runTogether() bool {
	g.Helper()
	var overlap bool
	clustertest.Until(g, patience, "wait for the second incarnation to run", func() error {
		lives := g.pods.Lives()
		fresh := lives[min(g.ranks, len(lives)):]
		if n := len(slices.DeleteFunc(slices.Clone(fresh), func(l clustertest.Life) bool { return l.Running == 0 })); n < g.ranks {
			return fmt.Errorf("%d of %d ranks run: %+v", n, g.ranks, lives)
		}
		for _, old := range lives[:g.ranks] {
			overlap = overlap || slices.ContainsFunc(fresh, func(l clustertest.Life) bool { return old.Gone == 0 || old.Gone > l.Running })
		}
		return nil
	})
	return overlap
}

func TestTrapAStatusSaysStoppedBeforeThePodsAreGone(t *testing.T) {
	tests := map[string]struct {
		job
		stopped func(gang)
		// reliable: the status comes after the last pod, and a start in between is put off until then.
		reliable bool
	}{
		"Job":      {job: batchJob, stopped: func(g gang) { g.reports(g.get, "Suspended") }},
		"JobSet":   {job: jobSet, stopped: func(g gang) { g.reports(g.get, "Suspended") }},
		"TrainJob": {job: trainJob, stopped: func(g gang) { g.reports(g.get, "Suspended") }},
		"RayJob": {job: rayJob, stopped: func(g gang) {
			g.becomes(g.get, "Suspended", "status", "jobDeploymentStatus")
			g.becomes(g.get, "", "status", "rayClusterName")
		}},
		"RayCluster": {job: rayCluster, reliable: true, stopped: func(g gang) { g.reports(g.get, "RayClusterSuspending") }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := start(t, test.lasting())
			old := g.runs()
			g.patch(g.get(), stop)
			test.stopped(g) // although all its pods are still there
			if test.reliable && conditionTrue(g.get(), "RayClusterSuspended") {
				t.Error("the status says that it is suspended although pods are listed")
			}
			g.patch(g.get(), resume)
			if !test.reliable {
				g.runBeside(old)
			}
			g.release(old)
			if got := g.runTogether(); got == test.reliable {
				t.Errorf("two incarnations ran together: %t, want %t", got, !test.reliable)
			}
		})
	}
}

// lasting is the job with ranks that run on when they are deleted, see [gang.release].
func (j job) lasting() job {
	const quick = "term-delay: 1s"
	if !strings.Contains(j.manifest, quick) {
		panic(fmt.Sprintf("the manifest of the %s has no %q", j.kind.GVK.Kind, quick))
	}
	j.manifest = strings.ReplaceAll(j.manifest, quick, "term-delay: 1h")
	return j
}

// runBeside waits until a pod of the second incarnation runs. The old ones hold most of the nodes.
func (g gang) runBeside(old []corev1.Pod) {
	g.Helper()
	clustertest.Until(g, patience, "wait for a rank of the second incarnation to run beside the first", func() error {
		pods := g.listed()
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning && !slices.Contains(uids(old), p.UID)
		}) {
			return fmt.Errorf("%d pods are listed, none of it runs", len(pods))
		}
		return nil
	})
}

func TestTrapAJobFailsByItsStop(t *testing.T) {
	// A stopped rank stays listed: the Job controller sees it fail.
	const listed = "term-delay: 1s, e2e.pitcrew.dev/delete-delay: 1h"
	rule := "backoffLimit: 0\n  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [143]}}]}"
	t.Run("podFailurePolicy", func(t *testing.T) {
		g := start(t, batchJob.with("backoffLimit: 0", rule).with("term-delay: 1s", listed))
		g.patch(g.get(), stop)
		g.reports(g.get, "FailureTarget")
		g.release(g.listed())
		g.gone()
		g.patch(g.get(), resume)
		g.reports(g.get, "Failed")
	})
	t.Run("work queue", func(t *testing.T) {
		g := start(t, batchJob.with("  completions: 4\n", "").with("  completionMode: Indexed\n", ""))
		done := g.runs()[0]
		if err := g.c.Client.Status().Patch(t.Context(), &done, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
			t.Fatal(err)
		}
		g.becomes(g.get, "1", "status", "succeeded")
		g.patch(g.get(), stop)
		g.reports(g.get, "Complete")
	})
}

func TestTrapAKubeflowJobEndsWithItsOldRanks(t *testing.T) {
	tests := map[string]struct {
		restartPolicy, exitCode, ends string
	}{
		"Never":                   {"Never", "143", "Failed"},
		"ExitCode, code 1":        {"ExitCode", "1", "Failed"},
		"Never, ranks that end 0": {"Never", "0", "Succeeded"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			j := pyTorchJob(test.restartPolicy)
			for range 2 { // the master and the workers
				j = j.with("term-delay: 1s}", fmt.Sprintf("term-delay: 2s, e2e.pitcrew.dev/exit-code: %q, e2e.pitcrew.dev/delete-delay: 1h}", test.exitCode))
			}
			g := start(t, j)
			g.patch(g.get(), `{"spec":{"runPolicy":{"suspend":true}}}`)
			g.reports(g.get, "Suspended")
			if test.exitCode != "143" { // only an ended rank has an exit code
				clustertest.Until(t, patience, "wait for all ranks to end", func() error {
					for _, pod := range g.listed() {
						if pod.Status.Phase == corev1.PodRunning {
							return fmt.Errorf("%s runs", pod.Name)
						}
					}
					return nil
				})
			}
			g.patch(g.get(), `{"spec":{"runPolicy":{"suspend":false}}}`)
			g.reports(g.get, test.ends)
		})
	}
}

func TestTrapAFailedWorkerOfAnMPIJobStays(t *testing.T) {
	g := start(t, mpiJob)
	ranks := g.runs()
	dead := ranks[slices.IndexFunc(ranks, func(p corev1.Pod) bool { return p.Name == "train-worker-1" })]
	if err := g.c.Client.Status().Patch(t.Context(), dead.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`))); err != nil {
		t.Fatal(err)
	}
	g.patch(g.get(), `{"spec":{"runPolicy":{"suspend":true}}}`)
	clustertest.Until(t, patience, "wait for all other pods to be gone", func() error {
		if pods := g.listed(); len(pods) != 1 || pods[0].UID != dead.UID {
			return fmt.Errorf("%d pods are listed", len(pods))
		}
		return nil
	})
	g.patch(g.get(), `{"spec":{"runPolicy":{"suspend":false}}}`)
	clustertest.Until(t, patience, "wait for the other ranks to run", func() error {
		running := 0
		for _, pod := range g.listed() {
			if pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running < g.ranks-1 {
			return fmt.Errorf("%d run", running)
		}
		return nil
	})
	if !slices.ContainsFunc(g.listed(), func(p corev1.Pod) bool { return p.UID == dead.UID && p.Status.Phase == corev1.PodFailed }) {
		t.Error("the failed worker was replaced")
	}
}

func TestTrapASuspendOfAnInvalidRayJobFailsItForGood(t *testing.T) {
	g := start(t, rayJob.with("shutdownAfterJobFinishes: true", "shutdownAfterJobFinishes: false"))
	before := uids(g.runs())
	g.patch(g.get(), stop)
	g.becomes(g.get, "ValidationFailed", "status", "jobDeploymentStatus")
	g.patch(g.get(), `{"spec":{"suspend":false,"shutdownAfterJobFinishes":true}}`)
	// The operator has taken in this change when it has begun a job that was created later.
	later := g.get()
	later.Object = map[string]any{"apiVersion": "ray.io/v1", "kind": "RayJob",
		"metadata": map[string]any{"name": "later", "namespace": g.namespace}, "spec": later.Object["spec"]}
	if err := g.c.Client.Create(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	g.becomes(func() *unstructured.Unstructured { return g.object("ray.io/v1", "RayJob", "later") }, "Initializing", "status", "jobDeploymentStatus")
	if status, _, _ := unstructured.NestedString(g.get().Object, "status", "jobDeploymentStatus"); status != "ValidationFailed" {
		t.Errorf("it is %s again", status)
	}
	var still []types.UID
	for _, pod := range g.listed() {
		if slices.Contains(before, pod.UID) && pod.DeletionTimestamp == nil {
			still = append(still, pod.UID)
		}
	}
	if len(still) != g.ranks {
		t.Errorf("%d of its %d pods run on", len(still), g.ranks)
	}
}

func TestTrapOnlyTheDeletedWorkerIsReplaced(t *testing.T) {
	g := start(t, rayCluster)
	before := g.runs()
	worker := before[slices.IndexFunc(before, func(p corev1.Pod) bool { return p.Labels["ray.io/node-type"] == "worker" })]
	if err := g.c.Client.Delete(t.Context(), &worker); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "wait for the worker to be replaced", func() error {
		if after := uids(g.runs()); slices.Contains(after, worker.UID) {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
	if lives := g.pods.Lives(); len(lives) != g.ranks+1 {
		t.Errorf("%d pods were created, want one more than %d: %+v", len(lives), g.ranks, lives)
	}
}

// command sends a Command of Volcano.
func (g gang) command(name string, uid types.UID) {
	g.Helper()
	if err := g.c.Apply(g.Context(), fmt.Appendf(nil, `
apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: %s, namespace: %s}
action: RestartJob
target: {apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: train, uid: %s, controller: true}
`, name, g.namespace, uid)); err != nil {
		g.Fatal(err)
	}
}

func TestTrapVolcanoCountsEachCommand(t *testing.T) {
	t.Run("the last retry fails the job", func(t *testing.T) {
		g := start(t, volcanoJob.with("minAvailable: 4", "minAvailable: 4\n  maxRetry: 1"))
		g.command("last", g.get().GetUID())
		g.becomes(g.get, "Failed", "status", "state", "phase")
	})
	// Up to v1.10 the job was Pending at once, and then a second Command counted while the first was still carried out.
	t.Run("two Commands are two retries", func(t *testing.T) {
		g := start(t, volcanoJob.lasting())
		old := g.runs()
		g.command("first", g.get().GetUID())
		g.becomes(g.get, "Restarting", "status", "state", "phase")
		g.command("during", g.get().GetUID())
		g.carriedOut("during")
		g.release(old)
		g.becomes(g.get, "Running", "status", "state", "phase")
		g.becomes(g.get, "1", "status", "retryCount")
		g.command("second", g.get().GetUID())
		g.becomes(g.get, "2", "status", "retryCount")
	})
	t.Run("the UID of the target is ignored", func(t *testing.T) {
		g := start(t, volcanoJob)
		g.command("other", "00000000-0000-0000-0000-000000000000")
		g.becomes(g.get, "1", "status", "retryCount")
	})
}

// The remediator creates a Command without a target, and gives it one later.
func TestTrapVolcanoTakesACommandWhenItHasATarget(t *testing.T) {
	g := start(t, volcanoJob)
	if err := g.c.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: bus.volcano.sh/v1alpha1\nkind: Command\nmetadata: {name: none, namespace: %s}\naction: RestartJob\n", g.namespace)); err != nil {
		t.Fatal(err)
	}
	g.command("first", g.get().GetUID())
	g.becomes(g.get, "1", "status", "retryCount")
	command := g.object("bus.volcano.sh/v1alpha1", "Command", "none") // it was created before the first, and is still there
	g.runs()
	g.patch(command, fmt.Sprintf(`{"target":{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","name":"train","uid":%q}}`, g.get().GetUID()))
	g.becomes(g.get, "2", "status", "retryCount")
	g.carriedOut("none")
}

// carriedOut waits until Volcano has deleted a Command, which it does when it takes it.
func (g gang) carriedOut(name string) {
	g.Helper()
	clustertest.Until(g, patience, "wait for Volcano to take Command "+name, func() error {
		command := &unstructured.Unstructured{}
		command.SetAPIVersion("bus.volcano.sh/v1alpha1")
		command.SetKind("Command")
		err := g.c.Client.Get(g.Context(), client.ObjectKey{Namespace: g.namespace, Name: name}, command)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// Up to LeaderWorkerSet v0.7 a leader that was deleted in the background restarted its group twice.
func TestTrapADeletedLeaderRestartsItsGroup(t *testing.T) {
	g := start(t, leaderWorkerSet("1", 4).lasting())
	before := g.runs()
	leader := before[slices.IndexFunc(before, func(p corev1.Pod) bool { return p.Labels["leaderworkerset.sigs.k8s.io/worker-index"] == "0" })]
	if err := g.c.Client.Delete(t.Context(), &leader, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	g.release([]corev1.Pod{leader})
	clustertest.Until(t, patience, "wait for the rest of the group to be deleted", func() error {
		for _, pod := range g.listed() {
			if pod.DeletionTimestamp == nil && slices.Contains(uids(before), pod.UID) {
				return fmt.Errorf("%s is not", pod.Name)
			}
		}
		return nil
	})
	g.release(before)
	clustertest.Until(t, patience, "wait for the old group to be gone and a new one to run", func() error {
		after := uids(g.runs())
		for _, old := range before {
			if slices.Contains(after, old.UID) {
				return fmt.Errorf("%s is still there", old.Name)
			}
		}
		return nil
	})
	if lives := g.pods.Lives(); len(lives) != 2*g.ranks {
		t.Errorf("%d pods were created, want two groups of %d", len(lives), g.ranks)
	}
}

func TestTrapAnotherControllerUndoesTheSuspend(t *testing.T) {
	childJobSet := func(g gang) func() *unstructured.Unstructured {
		return func() *unstructured.Unstructured { return g.object("jobset.x-k8s.io/v1alpha2", "JobSet", "train") }
	}
	own := func(g gang) func() *unstructured.Unstructured { return g.get }
	tests := map[string]struct {
		job
		object func(gang) func() *unstructured.Unstructured
	}{
		"the JobSet of a TrainJob": {trainJob, childJobSet},
		"a Job queued by Kueue":    {queuedJob, own},
		"a JobSet queued by Kueue": {queuedJobSet, own},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := start(t, test.job)
			read := test.object(g)
			o := read()
			g.patch(o, stop) // o is what the API server answered
			stopped := o.GetGeneration()
			clustertest.Until(t, patience, "wait for the suspend to be undone", func() error {
				o := read()
				if suspended, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend"); suspended || o.GetGeneration() <= stopped {
					return fmt.Errorf("suspend is %t in generation %d", suspended, o.GetGeneration())
				}
				return nil
			})
		})
	}
}

func TestTrapAnEvictedWorkloadStillHasPods(t *testing.T) {
	for name, j := range map[string]job{"Job": queuedJob, "JobSet": queuedJobSet} {
		t.Run(name, func(t *testing.T) {
			g := start(t, j.lasting())
			old := g.runs()
			g.patch(g.workload(), `{"spec":{"active":false}}`)
			g.reports(g.workload, "Evicted") // although all its pods are still there
			g.patch(g.workload(), `{"spec":{"active":true}}`)
			g.runBeside(old)
			g.release(old)
			if !g.runTogether() {
				t.Error("the second incarnation waited for the first")
			}
		})
	}
}
