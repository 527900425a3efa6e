package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func abortCommand(c *target) *cobra.Command {
	var agreed consent
	var namespace string
	cmd := &cobra.Command{
		Use:   "abort TYPE/NAME",
		Short: "Put a job back as it was before its restart, and do not restart it again for this fault",
		Long: `Put a job back as it was before its restart, and do not restart it again for the nodes that are quarantined now. A restart that
waits for pods which do not end is given up: the job starts beside them, unless it is of a kind that this could fail for good.`,
		Example: `  kubectl pitcrew abort jobset/train --job-namespace team-a
  kubectl pitcrew abort jobs.batch.volcano.sh/train`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if namespace == "" {
				if namespace, err = c.ownNamespace(); err != nil {
					return err
				}
			}
			job, err := find(cmd.Context(), api, args[0], namespace)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("%s %s/%s", job.Kind, job.Namespace, job.Name)
			says := "Abort the restart of " + name
			if job.Labels[conditions.LabelRestarting] != "true" {
				says = name + " is not being restarted. Call the next restart off before it begins"
			}
			before := job.DeepCopy()
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, conditions.AnnotationAbortRestart, fieldOwner)
			return agreed.apply(cmd, []change{{says: says, do: func(ctx context.Context) error {
				return api.Patch(ctx, job, client.MergeFrom(before), client.FieldOwner(fieldOwner))
			}}})
		},
	}
	cmd.Flags().StringVar(&namespace, "job-namespace", "", "`namespace` of the job (default: that of the kubeconfig's context)")
	agreed.flags(cmd)
	return cmd
}

// ownNamespace is the namespace that kubectl works in by itself.
func (c *target) ownNamespace() (string, error) {
	namespace, _, err := c.kubeconfig().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace of the kubeconfig's context: %w", err)
	}
	return namespace, nil
}

// find reads the metadata of an object that is named as kubectl names it: job/train, jobset.jobset.x-k8s.io/train.
func find(ctx context.Context, api client.Client, what, namespace string) (*metav1.PartialObjectMetadata, error) {
	resource, name, found := strings.Cut(what, "/")
	if !found || resource == "" || name == "" {
		return nil, fmt.Errorf("%q is not TYPE/NAME, as in jobset/train", what)
	}
	kind, err := api.RESTMapper().KindFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return nil, fmt.Errorf("find the type %q: %w", resource, err)
	}
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(kind)
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object); err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	return &object, nil
}
