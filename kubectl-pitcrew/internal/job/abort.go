// Package job has the commands about one job: why it is or is not restarted, and how to abort a restart.
package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

func AbortCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var namespace, reason string
	cmd := &cobra.Command{
		Use:   "abort KIND/NAME",
		Short: "Abort the restart of a job, and do not restart the job again for this fault",
		Long: `Abort the restart of a job: start the job again as it was, and do not restart it again for the nodes that are quarantined now. A
restart that waits for pods which do not end is given up: the job starts beside them, unless it is of a kind that this could fail
for good. The remediator carries this out.

A job that is not being restarted is left alone. To keep it from being restarted at all, opt it out by the label
pitcrew.dev/restart-on-node-fault=false on the job. To abort its next restart, whenever it begins, set the annotation
pitcrew.dev/abort-restart on the job.

--namespace (-n) is the namespace of the job; --pitcrew-namespace is the one that Pitcrew runs in.`,
		Example: `  kubectl pitcrew abort jobset/train -n team-a
  kubectl pitcrew abort jobs.batch.volcano.sh/train`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			if namespace == "" {
				if namespace, err = c.ContextNamespace(); err != nil {
					return err
				}
			}
			job, err := c.GetJob(cmd.Context(), api, args[0], namespace)
			if err != nil {
				return err
			}
			if job.Labels[conditions.LabelRestarting] != "true" {
				return fmt.Errorf("%s is not being restarted, so there is nothing to abort%s",
					cli.JobName(job), whatRestarts(cmd.Context(), c, api, job))
			}
			by := c.Actor(cmd, api, reason)
			before := job.DeepCopy()
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, conditions.AnnotationAbortRestart, cli.FieldOwner)
			return confirm.Apply(cmd, []cli.Change{{Text: "Abort the restart of " + cli.JobName(job), Do: func(ctx context.Context) error {
				kind := job.GroupVersionKind()
				if err := api.Patch(ctx, job, client.MergeFrom(before), client.FieldOwner(cli.FieldOwner)); err != nil {
					return err
				}
				by.Announce(ctx, corev1.ObjectReference{
					APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: job.Namespace, Name: job.Name, UID: job.UID,
				}, cli.EventAbortWanted, "Abort", "abort of the restart requested")
				return nil
			}}})
		},
	}
	c.JobFlags(cmd, &namespace)
	cli.ReasonFlag(cmd, &reason, "an Event on the job")
	cmd.Flags().StringVar(&namespace, "job-namespace", "", "`namespace` of the job")
	if err := cmd.Flags().MarkDeprecated("job-namespace", "use -n"); err != nil {
		panic(err) // it was defined
	}
	confirm.Flags(cmd)
	return cmd
}

// whatRestarts returns what would restart a job, as the end of a sentence; empty if the user may not read what that depends on.
func whatRestarts(ctx context.Context, c *cli.Target, api client.Client, job *metav1.PartialObjectMetadata) string {
	f, err := readJob(ctx, c, api, job, "")
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
			job.Namespace, argument(f.workload.Job), conditions.LabelRestartOnNodeFault)
	}
	return text
}
