// Package evidence has the evidence of a node collected, and fetches the bundle.
package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// longest is how long a Job may take, with the start of its pod.
const longest = 5 * time.Minute

func Command(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	f := &fetch{logs: c.Logs, every: time.Second, now: c.Now}
	cmd := &cobra.Command{
		Use:   "collect NODE",
		Short: "Collect the evidence of a node, and fetch the bundle for its vendor",
		Long: `Collect the evidence of a node, and fetch the bundle for its vendor: creates a Job from PodTemplate ` + bundle.Template + `, then
one from PodTemplate ` + bundle.PrintTemplate + ` for each 6 MiB of the bundle. With --bundle it fetches a bundle that is there, as
describe names it. A bundle on a PersistentVolumeClaim is not fetched: the command says where it is.

It needs what the remediator has, the verb create on repairjobs.` + conditions.Domain + `, and works while no remediator runs, too.`,
		Example: `  kubectl pitcrew collect gpu-17
  kubectl pitcrew collect gpu-17 --bundle gpu-17-20261128T033000Z.tar.gz -o for-the-vendor.tar.gz`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			f.api, f.out = api, cmd.OutOrStdout()
			changes, err := f.changes(cmd.Context(), names[0])
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, changes)
		},
	}
	cmd.Flags().StringVar(&f.bundle, "bundle", "", "`name` of a bundle of the node that is fetched; nothing is collected then")
	cmd.Flags().StringVarP(&f.file, "output", "o", "", "`file` for the bundle (default: its name, in the working directory)")
	confirm.Flags(cmd)
	return cmd
}

// changes are what the command does about a node.
func (f *fetch) changes(ctx context.Context, name string) ([]cli.Change, error) {
	if f.bundle != "" && !bundle.IsName(f.bundle, name) {
		return nil, fmt.Errorf("--bundle %s is no bundle of node %s: their names are %s-TIME.tar.gz, such as %s-20261128T033000Z.tar.gz",
			f.bundle, name, name, name)
	}
	if err := f.api.Get(ctx, client.ObjectKey{Name: name}, &f.node); err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	if err := mayRun(&f.node); err != nil {
		return nil, err
	}
	var collect corev1.PodTemplate
	for template, into := range map[string]*corev1.PodTemplate{bundle.Template: &collect, bundle.PrintTemplate: &f.print} {
		err := f.api.Get(ctx, client.ObjectKey{Namespace: conditions.RepairNamespace, Name: template}, into)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no PodTemplate %s in namespace %s: set repair.collect.enabled of the chart",
				template, conditions.RepairNamespace)
		}
		if err != nil {
			return nil, fmt.Errorf("get PodTemplate %s: %w", template, err)
		}
	}
	var changes []cli.Change
	if f.bundle == "" {
		changes = append(changes, cli.Change{
			Text: fmt.Sprintf("Collect the evidence of node %s: a Job from PodTemplate %s runs the vendor's tools there", name, collect.Name),
			Do:   func(ctx context.Context) error { return f.collect(ctx, &collect) },
			Gate: true,
		})
	}
	if claim := claimOf(&collect); claim != "" {
		return append(changes, cli.Change{
			Text: fmt.Sprintf("Say where the bundle is on PersistentVolumeClaim %s/%s", conditions.RepairNamespace, claim),
			Do: func(context.Context) error {
				cli.Fprintf(f.out, "Bundle %s is on PersistentVolumeClaim %s/%s\n", f.bundle, conditions.RepairNamespace, claim)
				return nil
			},
		}), nil
	}
	return append(changes, cli.Change{
		Text: fmt.Sprintf("Fetch the bundle into %s: Jobs from PodTemplate %s print it", cmp.Or(f.file, "a file of its name"), f.print.Name),
		Do:   f.fetch,
	}), nil
}

// mayRun is an error if no Job may run on a node, or if it would have open the GPUs that a repair resets.
func mayRun(n *corev1.Node) error {
	if why := node.WhyExcluded(n); why != "" {
		return fmt.Errorf("node %s: no Job runs there: %s", n.Name, why)
	}
	r, err := visit.RecordOf(n)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if r != nil && r.Current != nil && r.Current.Phase != visit.Emptying {
		return fmt.Errorf("node %s is being visited (%s, %s), and the tools would keep its GPUs open: `kubectl pitcrew describe %s` "+
			"shows when that has ended", n.Name, r.Current.Kind, r.Current.Phase, n.Name)
	}
	return nil
}

// claimOf is the PersistentVolumeClaim on which a template writes bundles; empty: a folder of the node.
func claimOf(t *corev1.PodTemplate) string {
	for _, v := range t.Template.Spec.Volumes {
		if v.Name == "evidence" && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// collect runs the Job that writes a bundle.
func (f *fetch) collect(ctx context.Context, t *corev1.PodTemplate) error {
	job := bundle.NewJob(t, f.node.Name, f.jobName(bundle.Template), longest)
	_, result, err := f.run(ctx, job)
	switch {
	case err != nil:
		return err
	case !bundle.IsName(result.Bundle, f.node.Name):
		return fmt.Errorf("the Job %s/%s has written no bundle of the node, but %q", job.Namespace, job.Name, result.Bundle)
	}
	f.bundle = result.Bundle
	cli.Fprintf(f.out, "%s\n", result.Message)
	return nil
}

// jobName is a name that no other Job of the template has.
func (f *fetch) jobName(template string, more ...string) string {
	return template + "-" + visit.ShortHash(append(more, string(f.node.UID), f.now().Format(time.RFC3339Nano))...)
}

// run creates a Job, and returns its pod and its result once it has ended.
func (f *fetch) run(ctx context.Context, job *batchv1.Job) (pod *corev1.Pod, result repairresult.Result, err error) {
	if err := f.api.Create(ctx, job, client.FieldOwner(cli.FieldOwner)); err != nil {
		return nil, result, fmt.Errorf("create Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	waits := "its pod has not begun"
	err = wait.PollUntilContextTimeout(ctx, f.every, longest, true, func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := f.api.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
			return false, fmt.Errorf("list the pods of Job %s/%s: %w", job.Namespace, job.Name, err)
		}
		if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return messageOf(&p) != "" }); i >= 0 {
			pod = &pods.Items[i]
			return true, nil
		}
		if len(pods.Items) > 0 {
			waits = "its pod is " + strings.ToLower(string(pods.Items[0].Status.Phase))
		}
		if err := f.api.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return false, fmt.Errorf("get Job %s/%s: %w", job.Namespace, job.Name, err)
		}
		if bundle.HasEnded(job) && (len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning) {
			return false, fmt.Errorf("the Job %s/%s has ended without a result", job.Namespace, job.Name)
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the Job %s/%s has no result after %s: %s", job.Namespace, job.Name, longest, waits)
	}
	if err != nil {
		return nil, result, err
	}
	if result, err = repairresult.Parse(messageOf(pod)); err == nil && result.Result != repairresult.Done {
		err = fmt.Errorf("%s: %s", result.Result, result.Message)
	}
	return pod, result, err
}

// messageOf is what the container of a pod has left; empty: it has not ended, or has left nothing.
func messageOf(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated != nil {
			return s.State.Terminated.Message
		}
	}
	return ""
}
