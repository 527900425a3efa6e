package visits

import (
	"context"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// indexNode finds the Jobs for a node.
const indexNode = "pitcrew.node"

func nodeOfJob(job client.Object) []string {
	return []string{job.GetAnnotations()[conditions.AnnotationNode]}
}

// jobsOf are the Jobs of visits to a node, from the cache.
func (c *Controller) jobsOf(ctx context.Context, node string) ([]batchv1.Job, error) {
	var jobs batchv1.JobList
	if err := c.client.List(ctx, &jobs, client.InNamespace(c.jobs), client.MatchingFields{indexNode: node}); err != nil {
		return nil, fmt.Errorf("list the repair Jobs of node %s: %w", node, err)
	}
	return slices.DeleteFunc(jobs.Items, func(job batchv1.Job) bool { return !belongsToVisit(&job) }), nil
}

// create creates the Job of an attempt. That it exists is fine: another process may have created it, and only its answer was lost. A
// refusal is remembered, and tried again until the visit is given up.
func (c *Controller) create(ctx context.Context, n *corev1.Node, job *batchv1.Job) error {
	err := c.client.Create(ctx, job, client.FieldOwner(quarantine.ControllerName))
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		c.created.set(n.Name, job)
		c.problems.Note(n.Name, "")
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		c.problems.Note(n.Name, fmt.Sprintf("its Job cannot be created: %v", err))
		ctrl.LoggerFrom(ctx).Error(err, "Failed to create the Job of a visit; retrying", "node", n.Name, "job", job.Name)
		return nil
	}
	return fmt.Errorf("create Job %s: %w", job.Name, err)
}

// deleteJobs deletes all Jobs for a node but one. The node was read live: no Job is deleted because of an old copy of the record.
func (c *Controller) deleteJobs(ctx context.Context, node, keep string) error {
	if c.dryRun {
		return nil
	}
	jobs, err := c.jobsOf(ctx, node)
	if err != nil {
		return err
	}
	var errs []error
	for i := range jobs {
		job := &jobs[i]
		if job.Name == keep || job.DeletionTimestamp != nil {
			continue
		}
		err := c.client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &job.UID})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete Job %s: %w", job.Name, err))
		}
	}
	return errors.Join(errs...)
}

// evict evicts the pods that are in the way, but for those that the restart of their job moves. A PodDisruptionBudget may refuse; then it
// is tried again when the pods are listed again.
func (c *Controller) evict(ctx context.Context, n *corev1.Node, pods []corev1.Pod) error {
	resolver := kinds.NewOwnerResolver(c.apiReader, kinds.All(c.policy.Policy().JobKinds))
	restarts := c.restartsJobs(n)
	var errs []error
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		if restarts {
			moved, err := c.isRestarted(ctx, resolver, pod)
			if err != nil {
				errs = append(errs, err)
			}
			if moved || err != nil {
				continue
			}
		}
		eviction := &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
		}
		err := c.client.SubResource("eviction").Create(ctx, pod, eviction)
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		case apierrors.IsTooManyRequests(err), apierrors.IsForbidden(err):
			ctrl.LoggerFrom(ctx).Info("Failed to evict a pod in the way of a repair; retrying",
				"node", n.Name, "pod", client.ObjectKeyFromObject(pod), "reason", err.Error())
		default:
			errs = append(errs, fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return errors.Join(errs...)
}

// restartsJobs reports whether the quarantine of a node restarts the jobs on it.
func (c *Controller) restartsJobs(n *corev1.Node) bool {
	q, err := causes.RecordOf(n)
	if err != nil || q == nil || q.Taint == nil {
		return false
	}
	rule, ok := c.policy.Policy().Rule(q.Taint.Rule)
	return ok && rule.RestartJobs
}

// isRestarted reports whether a pod belongs to a job that is restarted because of the quarantine: it leaves the node with its whole job,
// which may save its state first.
func (c *Controller) isRestarted(ctx context.Context, resolver kinds.OwnerResolver, pod *corev1.Pod) (bool, error) {
	workload, err := resolver.OfPod(ctx, pod)
	if errors.Is(err, slim.ErrTooLarge) {
		return false, nil // such a job is not restarted
	}
	if err != nil || workload.Job == nil || workload.Unsupported != nil {
		return false, err
	}
	opt, err := kinds.ReadOptIn(ctx, c.apiReader, workload)
	return opt.In, err
}
