// Package cluster has the commands about the whole installation: pause, resume, reset, uninstall and version.
package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func UninstallCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove everything of Pitcrew from the cluster",
		Long: `Remove everything of Pitcrew from the cluster: the remediator, our Node Problem Detectors, the namespace and roles, on every node
our taints, records, labels and conditions, and on every job our record, annotations and labels. Labels that users set (skip,
restart-on-node-fault) stay. Jobs that repair or check nodes now are stopped.

Restarts of jobs are finished first; a restart that waits for the job's checkpoint is aborted, because the job was not stopped yet.
This includes the jobKinds of the policy.

What Helm has installed goes too, and with the namespace Helm's record of it. If another Node Problem Detector runs our monitors,
remove them from it first, or it writes the conditions again.

This works while no remediator runs, too, but a restart that one has begun waits for it.

With --for-helm, what Helm removes itself stays, but for the programs that would write again. The chart runs this before helm uninstall.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			changes, err := uninstall(cmd.Context(), c, cmd.ErrOrStderr(), api, o)
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, changes)
		},
	}
	cmd.Flags().BoolVar(&o.forHelm, "for-helm", false, "leave what Helm removes itself")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 15*time.Minute,
		"how long to wait for restarts under way; when it is over, nothing is removed")
	cmd.Flags().StringVarP(&o.policyFile, "filename", "f", "",
		"`file` with the policy, for its jobKinds, if it is not the one that the remediator's pods use")
	confirm.Flags(cmd)
	return cmd
}

type uninstallOptions struct {
	policyFile string
	// forHelm leaves what Helm removes itself.
	forHelm bool
	// timeout bounds the wait for the restarts under way.
	timeout time.Duration
}

// uninstall lists what there is to remove. What would write again goes first: the remediator, after the restarts under way, and our
// own Node Problem Detectors.
func uninstall(ctx context.Context, c *cli.Target, warn io.Writer, api client.Client, o uninstallOptions) ([]cli.Change, error) {
	kinds, unknown, err := JobKinds(ctx, c, api, o.policyFile)
	if err != nil {
		return nil, err
	}
	if o.forHelm {
		if kinds, err = mayList(ctx, warn, api, kinds); err != nil {
			return nil, err
		}
	}
	var where []client.ListOption
	if o.forHelm {
		where = append(where, client.InNamespace(c.Namespace))
	}
	programs, err := deletions(ctx, api, where, &appsv1.DeploymentList{}, &appsv1.DaemonSetList{})
	if err != nil {
		return nil, err
	}
	visits, err := stopVisits(ctx, api)
	if err != nil && (!o.forHelm || !apierrors.IsForbidden(err)) { // the chart gives its hook the right where nodes are repaired
		return nil, err
	}
	if o.forHelm {
		programs, visits = notForEver(warn, programs), notForEver(warn, visits)
	}
	jobs, err := cleanJobs(ctx, api, kinds)
	if err != nil {
		return nil, err
	}
	changes := slices.Concat(programs, visits, jobs)
	if present, err := isInstalled(ctx, c, api, o); err != nil {
		return nil, err
	} else if present {
		if unknown != "" {
			cli.Fprintf(warn, "Jobs of the kinds that the policy adds (jobKinds) are left as they are: %s\n", unknown)
		}
		first, err := finishRestarts(ctx, c, warn, api, kinds, o.timeout)
		if err != nil {
			return nil, err
		}
		changes = append(slices.Concat(first, changes), checkJobs(api, kinds))
	}
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	if o.forHelm {
		nodes.Items = withoutVisitsOfOthers(warn, nodes.Items)
	}
	for i := range nodes.Items {
		changes = append(changes, CleanNode(api, &nodes.Items[i])...)
	}
	if o.forHelm {
		return append(changes, ownObjects(c, api)...), nil
	}
	rest, err := installedObjects(ctx, c, api)
	return append(changes, rest...), err
}

// installedObjects deletes the namespace, the roles and the admission policies.
func installedObjects(ctx context.Context, c *cli.Target, api client.Client) (changes []cli.Change, err error) {
	namespace := &corev1.Namespace{}
	if err := api.Get(ctx, client.ObjectKey{Name: c.Namespace}, namespace); err == nil {
		if namespace.Labels[partOf] != pitcrew { // made by Helm or by hand
			changes = append(changes, deletion(api, namespace))
		}
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Namespace %s: %w", c.Namespace, err)
	}
	rest, err := deletions(ctx, api, nil, &corev1.NamespaceList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{},
		// In the namespaces of preflight reports. Those in our own go with it.
		&rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ServiceAccountList{})
	return append(changes, rest...), err
}

// The label that manifests and chart give to everything.
const partOf, pitcrew = "app.kubernetes.io/part-of", "pitcrew"

// deletions deletes all objects of the lists' kinds that are part of Pitcrew.
func deletions(ctx context.Context, api client.Client, where []client.ListOption, lists ...client.ObjectList) ([]cli.Change, error) {
	var changes []cli.Change
	for _, list := range lists {
		if err := api.List(ctx, list, append(where, client.MatchingLabels{partOf: pitcrew})...); err != nil {
			return nil, fmt.Errorf("list our objects: %w", err)
		}
		if err := meta.EachListItem(list, func(object runtime.Object) error {
			changes = append(changes, deletion(api, object.(client.Object)))
			return nil
		}); err != nil {
			return nil, fmt.Errorf("list our objects: %w", err)
		}
	}
	return changes, nil
}

func deletion(api client.Client, object client.Object) cli.Change {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")
	name := strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "/")
	return cli.Change{
		Text: fmt.Sprintf("Delete %s %s", kind, name),
		Do:   func(ctx context.Context) error { return deleted(ctx, api, object) },
	}
}

// notForEver bounds the wait for the end of programs: pods on a node that is off do not end, and a hook must.
func notForEver(warn io.Writer, programs []cli.Change) []cli.Change {
	for i, program := range programs {
		programs[i].Do = func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			err := program.Do(ctx)
			if ctx.Err() != nil {
				cli.Fprintf(warn, "%s: not all pods have ended within a minute. One that still runs may write its conditions again\n", program.Text)
				return nil
			}
			return err
		}
	}
	return programs
}

// stopVisits deletes the Jobs that repair or check nodes.
func stopVisits(ctx context.Context, api client.Client) ([]cli.Change, error) {
	var jobs batchv1.JobList
	if err := api.List(ctx, &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil {
		return nil, fmt.Errorf("list the Jobs of namespace %s: %w", conditions.RepairNamespace, err)
	}
	var changes []cli.Change
	for i := range jobs.Items {
		job := &jobs.Items[i]
		stop := deletion(api, job)
		if node := job.Annotations[conditions.AnnotationNode]; node != "" {
			stop.Text += " on node " + node
		}
		changes = append(changes, stop)
	}
	return changes, nil
}

// isInstalled reports whether there may be a remediator, whose restarts are to be finished.
func isInstalled(ctx context.Context, c *cli.Target, api client.Client, o uninstallOptions) (bool, error) {
	if o.forHelm { // the hook runs in that namespace, and may not read it
		return true, nil
	}
	err := api.Get(ctx, client.ObjectKey{Name: c.Namespace}, &corev1.Namespace{})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get Namespace %s: %w", c.Namespace, err)
	}
	return err == nil, nil
}

// ownObjects are the deletions of what the remediator and this plugin have made in the namespace, which Helm does not know. The pause is
// among them: a remediator that is installed later must not find it.
func ownObjects(c *cli.Target, api client.Client) []cli.Change {
	objects := []client.Object{
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: quarantine.ControllerName}},
	}
	for _, name := range []string{conditions.BreakerConfigMap, conditions.KnownConfigMap, conditions.PauseConfigMap} {
		objects = append(objects, configMap(c, name))
	}
	var changes []cli.Change
	for _, object := range objects {
		changes = append(changes, deletion(api, object))
	}
	return changes
}

// deleted deletes an object with all that belongs to it, and returns when it is gone.
func deleted(ctx context.Context, api client.Client, object client.Object) error {
	if err := api.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		return client.IgnoreNotFound(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	// Most objects are gone after some milliseconds, namespaces and what has pods after seconds.
	growing := wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Steps: 7, Cap: time.Second}
	return growing.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		err := api.Get(ctx, client.ObjectKeyFromObject(object), object)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// withoutVisitsOfOthers returns the nodes without those where another installation is at work, which Helm leaves in the cluster: a node
// would get pods back in the middle of a reset. Charts have the Jobs of visits in one namespace.
func withoutVisitsOfOthers(warn io.Writer, nodes []corev1.Node) []corev1.Node {
	return slices.DeleteFunc(nodes, func(n corev1.Node) bool {
		record, err := visit.RecordOf(&n)
		if err != nil || record.OfOthers(conditions.RepairNamespace) == "" {
			return false
		}
		cli.Fprintf(warn, "Node %s is left as it is: an installation with Jobs in namespace %s repairs or checks it\n",
			n.Name, record.OfOthers(conditions.RepairNamespace))
		return true
	})
}

// CleanNode are the changes that remove what is ours from a node.
func CleanNode(api client.Client, n *corev1.Node) []cli.Change {
	var changes []cli.Change
	strip := func(n *corev1.Node) *corev1.Node { return visit.Strip(quarantine.Strip(n)) }
	if after := strip(n); !equality.Semantic.DeepEqual(n, after) {
		changes = append(changes, cli.Change{
			Text: fmt.Sprintf("Clean node %s: %s, remove our records and labels", n.Name, cli.TaintChanges(n, after)),
			Do: func(ctx context.Context) error {
				to := func(n *corev1.Node) (*corev1.Node, error) { return strip(n), nil }
				return client.IgnoreNotFound(cli.ChangeNode(ctx, api, n, to))
			},
		})
	}
	if stale := conditionsOfOurs(n); len(stale) > 0 {
		changes = append(changes, cli.Change{
			Text: fmt.Sprintf("Clean node %s: remove conditions %s", n.Name, strings.Join(stale, ", ")),
			Do:   func(ctx context.Context) error { return removeConditions(ctx, api, n) },
		})
	}
	return changes
}

func conditionsOfOurs(n *corev1.Node) (types []string) {
	for _, condition := range n.Status.Conditions {
		if t := string(condition.Type); conditions.Ours(t) || handoff.IsOurSuspicion(condition) || node.IsOwnMaintenance(condition) {
			types = append(types, t)
		}
	}
	return types
}

// removeConditions removes the conditions that are ours now: others may have written one since it was listed.
func removeConditions(ctx context.Context, api client.Client, n *corev1.Node) error {
	return client.IgnoreNotFound(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh := &corev1.Node{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(n), fresh); err != nil {
			return fmt.Errorf("get node %s: %w", n.Name, err)
		}
		var deletes []string
		for _, t := range conditionsOfOurs(fresh) {
			deletes = append(deletes, fmt.Sprintf(`{"type":%q,"$patch":"delete"}`, t))
		}
		if len(deletes) == 0 {
			return nil
		}
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"conditions":[%s]}}`, fresh.ResourceVersion,
			strings.Join(deletes, ","))
		return api.Status().Patch(ctx, fresh, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.FieldOwner(cli.FieldOwner))
	}))
}
