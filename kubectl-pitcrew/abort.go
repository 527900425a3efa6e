package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func abortCommand(c *target) *cobra.Command {
	var confirm confirmation
	var namespace, reason string
	cmd := &cobra.Command{
		Use:   "abort KIND/NAME",
		Short: "Abort the restart of a job, and do not restart the job again for this fault",
		Long: `Abort the restart of a job: start the job again as it was, and do not restart it again for the nodes that are quarantined now. A
restart that waits for pods which do not end is given up: the job starts beside them, unless it is of a kind that this could fail
for good.

A job that is not being restarted is left alone. To keep it from being restarted at all, opt it out by the label
pitcrew.dev/restart-on-node-fault=false on the job. To abort its next restart, whenever it begins, set the annotation
pitcrew.dev/abort-restart on the job.

--namespace (-n) is the namespace of the job; --pitcrew-namespace is the one that Pitcrew runs in.`,
		Example: `  kubectl pitcrew abort jobset/train -n team-a
  kubectl pitcrew abort jobs.batch.volcano.sh/train`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if namespace == "" {
				if namespace, err = c.contextNamespace(); err != nil {
					return err
				}
			}
			job, err := c.getJob(cmd.Context(), api, args[0], namespace)
			if err != nil {
				return err
			}
			if job.Labels[conditions.LabelRestarting] != "true" {
				return fmt.Errorf("%s is not being restarted, so there is nothing to abort%s", jobName(job), c.whatRestarts(cmd.Context(), api, job))
			}
			by := c.actor(cmd, api, reason)
			before := job.DeepCopy()
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, conditions.AnnotationAbortRestart, fieldOwner)
			return confirm.apply(cmd, []change{{text: "Abort the restart of " + jobName(job), do: func(ctx context.Context) error {
				kind := job.GroupVersionKind()
				if err := api.Patch(ctx, job, client.MergeFrom(before), client.FieldOwner(fieldOwner)); err != nil {
					return err
				}
				by.announce(ctx, corev1.ObjectReference{
					APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: job.Namespace, Name: job.Name, UID: job.UID,
				}, eventAbortWanted, "Abort", "abort of the restart requested")
				return nil
			}}})
		},
	}
	c.jobFlags(cmd, &namespace)
	reasonFlag(cmd, &reason, "an Event on the job")
	cmd.Flags().StringVar(&namespace, "job-namespace", "", "`namespace` of the job")
	if err := cmd.Flags().MarkDeprecated("job-namespace", "use -n"); err != nil {
		panic(err) // it was defined
	}
	confirm.flags(cmd)
	return cmd
}

// jobFlags are the namespaces of a command about a job: -n is the job's, as for kubectl.
func (c *target) jobFlags(cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", "`namespace` of the job (default: that of the kubeconfig's context)")
	cmd.Flags().StringVar(&c.namespace, "pitcrew-namespace", c.namespace, "`namespace` that Pitcrew runs in")
}

// whatRestarts says what would restart a job, as the end of a sentence; empty if the user may not read what that depends on.
func (c *target) whatRestarts(ctx context.Context, api client.Client, job *metav1.PartialObjectMetadata) string {
	f, err := c.jobFacts(ctx, api, job, "")
	if err != nil || f.workload.Job == nil {
		return ""
	}
	a, err := f.answer()
	if err != nil {
		return ""
	}
	text := ". Next: " + a.next
	if f.optIn.In {
		text += fmt.Sprintf(". To keep it from being restarted, opt it out: kubectl label --overwrite -n %s %s %s=false",
			job.Namespace, f.argument(), conditions.LabelRestartOnNodeFault)
	}
	return text
}

// contextNamespace is the namespace of the kubeconfig's context, in which kubectl works by default.
func (c *target) contextNamespace() (string, error) {
	namespace, _, err := c.kubeconfig().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace of the kubeconfig's context: %w", err)
	}
	return namespace, nil
}

// getJob reads the metadata of a job that is named as kubectl names it: job/train, jobset.jobset.x-k8s.io/train.
func (c *target) getJob(ctx context.Context, api client.Client, argument, namespace string) (*metav1.PartialObjectMetadata, error) {
	resource, name, isJob, err := jobArgument([]string{argument})
	if err != nil || !isJob {
		return nil, fmt.Errorf("%q is not KIND/NAME, as in jobset/train", argument)
	}
	kind, err := c.kindFor(api, resource)
	if err != nil {
		return nil, err
	}
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(kind)
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object); err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	object.SetGroupVersionKind(kind)
	return &object, nil
}
