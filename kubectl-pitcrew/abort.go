package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func abortCommand(c *target) *cobra.Command {
	var confirm confirmation
	var namespace string
	cmd := &cobra.Command{
		Use:   "abort KIND/NAME",
		Short: "Abort the restart of a job, and do not restart the job again for this fault",
		Long: `Abort the restart of a job: start the job again as it was, and do not restart it again for the nodes that are quarantined now. A
restart that waits for pods which do not end is given up: the job starts beside them, unless it is of a kind that this could fail
for good.`,
		Example: `  kubectl pitcrew abort jobset/train --job-namespace team-a
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
			name := fmt.Sprintf("%s %s/%s", job.Kind, job.Namespace, job.Name)
			text := "Abort the restart of " + name
			if job.Labels[conditions.LabelRestarting] != "true" {
				text = name + " is not being restarted. Abort the next restart before it begins"
			}
			before := job.DeepCopy()
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, conditions.AnnotationAbortRestart, fieldOwner)
			return confirm.apply(cmd, []change{{text: text, do: func(ctx context.Context) error {
				return api.Patch(ctx, job, client.MergeFrom(before), client.FieldOwner(fieldOwner))
			}}})
		},
	}
	cmd.Flags().StringVar(&namespace, "job-namespace", "", "`namespace` of the job (default: that of the kubeconfig's context)")
	confirm.flags(cmd)
	return cmd
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
