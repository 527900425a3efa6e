package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// kind is a kind of job.
type kind struct {
	apiVersion, name string
	// podLabel has the job's name on its pods.
	podLabel string
	// suspend is a merge patch that stops or starts it.
	suspend  string
	manifest string
	methods  []method
}

// method is a way to restart a job.
type method struct {
	name string
	// optedIn: the remediator restarts the job. bare: the bench does what a remediator cannot do without, and nothing else.
	optedIn, bare bool
	// limit is how many failures the job survives.
	limit int
}

const (
	byLabel = "pods deleted by label"
	bare    = "cordon, suspend, wait until all pods are gone, resume"
)

var kinds = []kind{
	// This is what kcover restarts: the operator creates new pods immediately.
	{"kubeflow.org/v1", "PyTorchJob", "training.kubeflow.org/job-name", `{"spec":{"runPolicy":{"suspend":%t}}}`, `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train, namespace: $NAME, labels: {$OPTIN: "$IN"}}
spec:
  runPolicy: {backoffLimit: $LIMIT}
  pytorchReplicaSpecs: {Worker: {replicas: $RANKS, restartPolicy: OnFailure, template: {
    metadata: {annotations: {e2e.pitcrew.dev/term-delay: $DEATH}}, spec: {nodeSelector: {$LABEL: $POOL},
    containers: [{name: pytorch, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]}}}}
`, []method{{"remediator", true, false, 0}, {bare, false, true, 0}, {byLabel, false, false, 1 << 20}}},
	{"jobset.x-k8s.io/v1alpha2", "JobSet", "jobset.sigs.k8s.io/jobset-name", `{"spec":{"suspend":%t}}`, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: $NAME, labels: {$OPTIN: "$IN"}}
spec:
  replicatedJobs: [{name: rank, template: {spec: {parallelism: $RANKS, completions: $RANKS, backoffLimit: $LIMIT, template: {
    metadata: {annotations: {e2e.pitcrew.dev/term-delay: $DEATH}}, spec: {restartPolicy: Never, nodeSelector: {$LABEL: $POOL},
    containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]}}}}}]
`, []method{{"remediator", true, false, 0}, {bare, false, true, 0}, {byLabel + ", backoffLimit 1048576", false, false, 1 << 20}, {byLabel + ", backoffLimit 6, the default", false, false, 6}}},
}

func (r row) manifest(namespace string) string {
	return strings.NewReplacer("$NAME", namespace, "$OPTIN", conditions.LabelRestartOnNodeFault, "$IN", strconv.FormatBool(r.method.optedIn),
		"$RANKS", strconv.Itoa(r.ranks), "$LIMIT", strconv.Itoa(r.method.limit), "$DEATH", death.String(),
		"$LABEL", cluster.LabelPool, "$POOL", pool).Replace(r.kind.manifest)
}

// outcome is the result of one fault.
type outcome struct {
	// end is how the job ended, unless all ranks ran again.
	end  string
	took time.Duration
	// gone is when the last pod of the first incarnation was gone.
	gone time.Duration
	// beside is the most pods of the new incarnation that ran while one of the old was left.
	beside int
	// failures are those that Jobs have counted.
	failures int
}

func (o outcome) String() string {
	if o.end != "" {
		return o.end
	}
	return fmt.Sprintf("%s, old ones gone after %s, %d beside old ones, %d failures counted", seconds(o.took), seconds(o.gone), o.beside, o.failures)
}

// measure runs a job, breaks the node of one rank and waits until the job runs elsewhere.
func measure(ctx context.Context, c *cluster.Cluster, namespace string, r row, limit time.Duration) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	if err := c.AddNamespace(ctx, namespace, nil); err != nil {
		return outcome{}, err
	}
	pods, err := watch(ctx, c, namespace)
	if err != nil {
		return outcome{}, err
	}
	if err := c.Apply(ctx, []byte(r.manifest(namespace))); err != nil {
		return outcome{}, err
	}
	if err := poll(ctx, func() (bool, error) { return pods.count().running == r.ranks, nil }); err != nil {
		return outcome{}, fmt.Errorf("wait for all ranks to run: %w", err)
	}
	bad := pods.mark()
	begun := time.Now()
	if err := fault(ctx, c, bad); err != nil {
		return outcome{}, err
	}
	switch {
	case r.method.bare:
		if err := r.suspendAndResume(ctx, c, bad, namespace, pods); err != nil {
			return outcome{}, err
		}
	case !r.method.optedIn:
		if err := deleteByLabel(ctx, c, bad, namespace, r.kind.podLabel); err != nil {
			return outcome{}, err
		}
	}
	var o outcome
	if err := poll(ctx, func() (bool, error) {
		if o.took = time.Since(begun); o.took > limit {
			o.end = fmt.Sprintf("%d of %d ranks run after %s", pods.count().running, r.ranks, limit)
			return true, nil
		}
		if pods.count() == (counts{old: 0, running: r.ranks}) {
			return true, nil
		}
		failed, _, err := r.status(ctx, c, namespace)
		if failed {
			o.end = fmt.Sprintf("the job failed for good after %s", seconds(o.took))
		}
		return failed, err
	}); err != nil {
		return outcome{}, fmt.Errorf("wait for all ranks to run again: %w", err)
	}
	o.beside, o.gone = pods.most(), pods.goneAt().Sub(begun)
	if n := pods.onNode(bad); o.end == "" && n > 0 {
		return outcome{}, fmt.Errorf("%d ranks run on the faulty node %s", n, bad)
	}
	if _, o.failures, err = r.status(ctx, c, namespace); err != nil {
		return outcome{}, err
	}
	// The next job needs the nodes.
	if err := c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return outcome{}, err
	}
	return o, poll(ctx, func() (bool, error) { return pods.count() == counts{}, nil })
}

// fault has the node-problem-detector of a node report a fault.
func fault(ctx context.Context, c *cluster.Cluster, node string) error {
	const message = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	return c.Report(ctx, node, conditions.GPUXidError, corev1.ConditionTrue, message, time.Now())
}

// suspendAndResume stops the job, and starts it again as soon as a watch shows no pod of the first incarnation.
func (r row) suspendAndResume(ctx context.Context, c *cluster.Cluster, node, namespace string, pods *pods) error {
	if err := cordon(ctx, c, node); err != nil {
		return err
	}
	for _, suspend := range []bool{true, false} {
		job := r.job(namespace)
		if err := c.Client.Patch(ctx, job, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, r.kind.suspend, suspend))); err != nil {
			return fmt.Errorf("suspend %t: %w", suspend, err)
		}
		if err := poll(ctx, func() (bool, error) { return !suspend || pods.count().old == 0, nil }); err != nil {
			return fmt.Errorf("wait for the pods to be gone: %w", err)
		}
	}
	return nil
}

func cordon(ctx context.Context, c *cluster.Cluster, node string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.Client.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		return fmt.Errorf("cordon %s: %w", node, err)
	}
	return nil
}

// deleteByLabel cordons the node and deletes all pods of the job in one request.
func deleteByLabel(ctx context.Context, c *cluster.Cluster, node, namespace, label string) error {
	if err := cordon(ctx, c, node); err != nil {
		return err
	}
	if err := c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.MatchingLabels{label: "train"}); err != nil {
		return fmt.Errorf("delete the pods of the job: %w", err)
	}
	return nil
}

// job is the job without its fields.
func (r row) job(namespace string) *unstructured.Unstructured {
	job := &unstructured.Unstructured{}
	job.SetAPIVersion(r.kind.apiVersion)
	job.SetKind(r.kind.name)
	job.SetNamespace(namespace)
	job.SetName("train")
	return job
}

// status returns whether the job has failed permanently and how many failures the Jobs have counted.
func (r row) status(ctx context.Context, c *cluster.Cluster, namespace string) (failed bool, failures int, err error) {
	job := r.job(namespace)
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
		return false, 0, fmt.Errorf("get the job: %w", err)
	}
	all, _, err := unstructured.NestedSlice(job.Object, "status", "conditions")
	if err != nil {
		return false, 0, fmt.Errorf("read the job: %w", err)
	}
	for _, one := range all {
		condition, _ := one.(map[string]any)
		failed = failed || condition["type"] == "Failed" && condition["status"] == "True"
	}
	var jobs batchv1.JobList
	if err := c.Client.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
		return false, 0, fmt.Errorf("list the Jobs: %w", err)
	}
	for _, job := range jobs.Items {
		failures += int(job.Status.Failed)
	}
	return failed, failures, nil
}

func poll(ctx context.Context, check func() (bool, error)) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
