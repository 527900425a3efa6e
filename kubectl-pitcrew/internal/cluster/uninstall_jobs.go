package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// quietPeriod is how long no job must be under restart. The remediator reads a pause sooner than that, and a restart that it began
	// before is visible by then.
	quietPeriod = 5 * time.Second
)

// jobKeys are the annotations and labels that the remediator, and jobs on its behalf, write on jobs. The opt-in labels are not among
// them: users set those.
var (
	JobAnnotations = []string{
		conditions.AnnotationRestart, conditions.AnnotationAbortRestart,
		conditions.AnnotationCheckpointBy, conditions.AnnotationCheckpointed, conditions.AnnotationRestartStep,
	}
	jobLabels = []string{conditions.LabelRestarting}
)

// kueueWorkload is what the remediator stops and starts in place of a job that Kueue manages.
var kueueWorkload = schema.GroupKind{Group: "kueue.x-k8s.io", Kind: "Workload"}

// JobKinds are the kinds that the remediator restarts: the built-in ones and those of the policy. unknown says why those of the policy
// are missing; it is empty when they are not.
func JobKinds(
	ctx context.Context, c *cli.Target, api client.Client, policyFile string,
) (found []schema.GroupVersionKind, unknown string, err error) {
	p, from, err := c.PolicyInForce(ctx, api, policyFile)
	if err != nil {
		return nil, "", err
	}
	var named []jobkind.Kind
	if p != nil {
		named, from = p.JobKinds, ""
	}
	return cli.GvksOf(kinds.All(named)), from, nil
}

// mayList are the kinds that this account may list. The chart's hook has the rights for the built-in kinds only.
func mayList(
	ctx context.Context, warn io.Writer, api client.Client, kinds []schema.GroupVersionKind,
) (may []schema.GroupVersionKind, err error) {
	for _, kind := range kinds {
		switch err := cli.EachJob(ctx, api, []schema.GroupVersionKind{kind}, func(*metav1.PartialObjectMetadata) {}); {
		case apierrors.IsForbidden(err):
			cli.Fprintf(warn, "Objects of kind %s are left as they are: %v\n", kind.Kind, err)
		case err != nil:
			return nil, err
		default:
			may = append(may, kind)
		}
	}
	return may, nil
}

// finishRestarts are the changes that let no restart begin and wait for those under way: a job that the remediator has stopped stays
// stopped without it. Only what is seen after the pause counts. If they do not end in time, nothing is removed, and the pause ends if it
// began here.
func finishRestarts(
	ctx context.Context, c *cli.Target, warn io.Writer, api client.Client, kinds []schema.GroupVersionKind, timeout time.Duration,
) ([]cli.Change, error) {
	var began *corev1.ConfigMap
	changes := []cli.Change{{
		Text: fmt.Sprintf("Pause: create ConfigMap %s/%s", c.Namespace, conditions.PauseConfigMap),
		Gate: true,
		Do: func(ctx context.Context) error {
			pause := configMap(c, conditions.PauseConfigMap)
			pause.Data = map[string]string{"reason": "uninstall"}
			err := api.Create(ctx, pause, client.FieldOwner(cli.FieldOwner))
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("create ConfigMap %s: %w", conditions.PauseConfigMap, err)
			}
			began = pause
			return nil
		},
	}}
	underWay, err := cli.Restarting(ctx, api, kinds)
	if err != nil {
		return nil, err
	}
	for _, job := range underWay {
		if !checkpointing(job) {
			continue
		}
		changes = append(changes, cli.Change{
			Text: fmt.Sprintf("Abort the restart of %s: it waits for a checkpoint, and the job was not stopped", cli.JobName(job)),
			Do:   func(ctx context.Context) error { return abortIfCheckpointing(ctx, api, job) },
		})
	}
	return append(changes, cli.Change{
		Text: fmt.Sprintf("Wait for jobs that are being restarted, at most %s, and abort restarts that wait for a checkpoint", timeout),
		Gate: true,
		Do: func(ctx context.Context) error {
			since := c.Now()
			var last error
			err := wait.PollUntilContextTimeout(ctx, time.Second, timeout, true, func(ctx context.Context) (bool, error) {
				var underWay []*metav1.PartialObjectMetadata
				if underWay, last = cli.Restarting(ctx, api, kinds); last == nil {
					last = wouldStayStopped(underWay)
				}
				for _, job := range underWay {
					last = errors.Join(last, abortIfCheckpointing(ctx, api, job))
				}
				if last != nil {
					since = c.Now()
				}
				return c.Now().Sub(since) >= quietPeriod, nil
			})
			if err = errors.Join(err, last); err != nil && began != nil {
				err = errors.Join(err, endPause(ctx, warn, api, began))
			}
			return err
		},
	}), nil
}

// endPause ends a pause of this command, also when the command was interrupted. A pause that has replaced it stays.
func endPause(ctx context.Context, warn io.Writer, api client.Client, pause *corev1.ConfigMap) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := api.Delete(ctx, pause, client.Preconditions{UID: &pause.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("the remediator stays paused until kubectl pitcrew resume: %w", err)
	}
	cli.Fprintf(warn, "Nothing was removed, and the pause of this command is over: the remediator goes on (deleted ConfigMap %s/%s)\n",
		pause.Namespace, pause.Name)
	return nil
}

// checkpointing reports whether the restart of a job waits until the job has saved its state: nothing is stopped yet, and while paused the
// remediator does not go on.
func checkpointing(job *metav1.PartialObjectMetadata) bool {
	_, waits := job.Annotations[conditions.AnnotationCheckpointBy]
	return waits && job.Labels[conditions.LabelRestarting] != ""
}

// abortIfCheckpointing asks the remediator to close a restart, if it still waits for the checkpoint. Once the job was stopped, the
// restart is to be finished instead; the patch fails if the job was stopped meanwhile, by its resourceVersion.
func abortIfCheckpointing(ctx context.Context, api client.Client, job *metav1.PartialObjectMetadata) error {
	if _, asked := job.Annotations[conditions.AnnotationAbortRestart]; asked || !checkpointing(job) {
		return nil
	}
	before := job.DeepCopy()
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, conditions.AnnotationAbortRestart, cli.FieldOwner)
	err := api.Patch(ctx, job, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(cli.FieldOwner))
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // changed meanwhile: the wait reads it again
		return nil
	}
	return fmt.Errorf("abort the restart of %s: %w", cli.JobName(job), err)
}

// wouldStayStopped is the error that names one of the jobs under restart; nil when there is none.
func wouldStayStopped(underWay []*metav1.PartialObjectMetadata) error {
	if len(underWay) == 0 {
		return nil
	}
	return fmt.Errorf("%s is being restarted and would stay stopped", cli.JobName(underWay[0]))
}

// cleanJobs are the changes that remove what is ours from jobs and from the Workloads of Kueue.
func cleanJobs(ctx context.Context, api client.Client, kinds []schema.GroupVersionKind) ([]cli.Change, error) {
	if mapping, err := api.RESTMapper().RESTMapping(kueueWorkload); err == nil {
		kinds = append(slices.Clone(kinds), mapping.GroupVersionKind)
	} else if !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("find the kind %s: %w", kueueWorkload, err)
	}
	var changes []cli.Change
	err := cli.EachJob(ctx, api, kinds, func(job *metav1.PartialObjectMetadata) {
		ours := KeysOn(job)
		if len(ours) == 0 {
			return
		}
		changes = append(changes, cli.Change{
			Text: fmt.Sprintf("Clean %s: remove %s", cli.JobName(job), strings.Join(ours, ", ")),
			Do:   func(ctx context.Context) error { return cleanJob(ctx, api, job) },
		})
	})
	return changes, err
}

// checkJobs fails if a restart was cut off in spite of the wait, and cleans the jobs that were restarted since they were listed.
func checkJobs(api client.Client, kinds []schema.GroupVersionKind) cli.Change {
	return cli.Change{
		Text: "Check that no job is left stopped",
		Do: func(ctx context.Context) error {
			underWay, err := cli.Restarting(ctx, api, kinds)
			if err != nil {
				return err
			}
			missed, err := cleanJobs(ctx, api, kinds)
			errs := []error{wouldStayStopped(underWay), err}
			for _, change := range missed {
				errs = append(errs, change.Do(ctx))
			}
			return errors.Join(errs...)
		},
	}
}

// KeysOn lists what is ours on a job.
func KeysOn(job *metav1.PartialObjectMetadata) []string {
	var found []string
	for _, key := range JobAnnotations {
		if _, has := job.Annotations[key]; has {
			found = append(found, "annotation "+key)
		}
	}
	for _, key := range jobLabels {
		if _, has := job.Labels[key]; has {
			found = append(found, "label "+key)
		}
	}
	return found
}

// cleanJob removes what is ours from a job. A job whose restart was not finished keeps it: the record says what was done to it.
func cleanJob(ctx context.Context, api client.Client, job *metav1.PartialObjectMetadata) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh := &metav1.PartialObjectMetadata{}
		fresh.SetGroupVersionKind(job.GroupVersionKind())
		if err := api.Get(ctx, client.ObjectKeyFromObject(job), fresh); err != nil {
			return client.IgnoreNotFound(err)
		}
		if unfinished(fresh) {
			return fmt.Errorf("its restart was not finished: start it again, remove its label %s, and repeat uninstall", conditions.LabelRestarting)
		}
		before := fresh.DeepCopy()
		for _, key := range JobAnnotations {
			delete(fresh.Annotations, key)
		}
		for _, key := range jobLabels {
			delete(fresh.Labels, key)
		}
		// With its resourceVersion: a restart that begins in this moment must not lose its record.
		err := api.Patch(ctx, fresh, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(cli.FieldOwner))
		return client.IgnoreNotFound(err)
	})
}

// unfinished reports whether a job is being restarted by its record. Without the label no remediator goes on with that.
func unfinished(job *metav1.PartialObjectMetadata) bool {
	if _, labelled := job.Labels[conditions.LabelRestarting]; !labelled {
		return false
	}
	record, err := restart.ReadRecord(job)
	return err == nil && record.Current != nil
}
