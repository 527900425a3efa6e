package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func quarantineCommand(c *target) *cobra.Command {
	var confirm confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "quarantine NODE...",
		Short: "Taint nodes until `kubectl pitcrew release`; pods on them are left alone, and jobs unless a rule restarts them",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			by := c.actor(cmd, api, reason)
			changes, err := nodeChanges(cmd.Context(), api, names, "Quarantine", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.QuarantineManually(n, by.Manual, c.now().UTC())
			})
			if err != nil {
				return err
			}
			by.announceAll(changes, quarantine.NodeQuarantined, "quarantined manually")
			return confirm.apply(cmd, changes)
		},
	}
	reasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.flags(cmd)
	return cmd
}

func releaseCommand(c *target) *cobra.Command {
	var confirm confirmation
	var alsoClear bool
	var reason string
	cmd := &cobra.Command{
		Use:   "release NODE...",
		Short: "Remove our taint from nodes; they stay released until the present faults have cleared",
		Long: `Remove our taint from nodes. The faults that they have now do not quarantine them again before they have cleared. A new fault does:
that of another GPU, another one of the same class or a worse one.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			by := c.actor(cmd, api, reason)
			changes, err := nodeChanges(cmd.Context(), api, names, "Release", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.ReleaseManually(n, by.Manual, c.now().UTC())
			})
			if err != nil {
				return err
			}
			by.announceAll(changes, quarantine.ReleaseByHand, "released manually")
			if alsoClear {
				cleared, err := c.clearCauses(by, names)
				if err != nil {
					return err
				}
				changes = append(cleared, changes...)
			}
			return confirm.apply(cmd, changes)
		},
	}
	reasonFlag(cmd, &reason, "the node's record and an Event")
	cmd.Flags().BoolVar(&alsoClear, "clear", false, "also clear the faults in the plugins on the nodes")
	c.npdFlag(cmd)
	confirm.flags(cmd)
	return cmd
}

// announceAll has each change of a node written as an Event once it is made.
func (a actor) announceAll(changes []change, reason, what string) {
	for i, do := range changes {
		changes[i].do = func(ctx context.Context) error {
			if err := do.do(ctx); err != nil {
				return err
			}
			a.announce(ctx, do.about, reason, "Quarantine", what)
			return nil
		}
	}
}

// clearCauses are the changes that clear what the nodes' records blame.
func (c *target) clearCauses(by actor, names []string) ([]change, error) {
	var changes []change
	for _, name := range names {
		var n corev1.Node
		if err := by.api.Get(by.cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		types, err := latched(&n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		for _, conditionType := range types {
			cleared, err := c.clearCondition(by, name, conditionType)
			if err != nil {
				return nil, err
			}
			changes = append(changes, cleared)
		}
	}
	return changes, nil
}

// nodeChanges change each node. A node that was written since the change was printed is read and decided about again.
func nodeChanges(ctx context.Context, api client.Client, names []string, verb string, to func(*corev1.Node) (*corev1.Node, error)) ([]change, error) {
	var changes []change
	for _, name := range names {
		var before corev1.Node
		if err := api.Get(ctx, client.ObjectKey{Name: name}, &before); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		after, err := to(&before)
		if err != nil {
			return nil, err
		}
		changes = append(changes, change{
			text:  fmt.Sprintf("%s node %s: %s", verb, name, taintChanges(&before, after)),
			about: referenceTo(&before),
			do:    func(ctx context.Context) error { return changeNode(ctx, api, &before, to) },
		})
	}
	return changes, nil
}

// changeNode patches a node. A heartbeat between the read and the patch is a conflict, and kubelets send them all the time: the node
// is then read again, a few times at most, and to decides about what was read.
func changeNode(ctx context.Context, api client.Client, n *corev1.Node, to func(*corev1.Node) (*corev1.Node, error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		after, err := to(n)
		if err != nil {
			return err
		}
		if err = patch(ctx, api, n, after); !apierrors.IsConflict(err) {
			return err
		}
		fresh := &corev1.Node{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(n), fresh); err != nil {
			return fmt.Errorf("get node %s: %w", n.Name, err)
		}
		n = fresh
		return err
	})
}

func patch(ctx context.Context, api client.Client, before, after *corev1.Node) error {
	return api.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
}

func taints(n *corev1.Node) string {
	var all []string
	for _, t := range n.Spec.Taints {
		all = append(all, t.ToString())
	}
	return strings.Join(all, " ")
}

// taintChanges says which taints are added and removed, and what of a quarantine that ends stays.
func taintChanges(before, after *corev1.Node) string {
	var all []string
	for _, t := range missing(after.Spec.Taints, before.Spec.Taints) {
		all = append(all, "add taint "+t)
	}
	for _, t := range missing(before.Spec.Taints, after.Spec.Taints) {
		all = append(all, "remove taint "+t)
	}
	if len(all) == 0 {
		all = append(all, "change no taint")
	}
	if before.Spec.Unschedulable && !after.Spec.Unschedulable {
		all = append(all, "uncordon")
	}
	for _, what := range quarantine.Left(before, after) {
		all = append(all, fmt.Sprintf("leave %q, which the record names but only a person may remove", quarantine.Clip(what, conditions.MaxMessage)))
	}
	return strings.Join(all, ", ")
}

// missing are the taints that the others have not.
func missing(taints, others []corev1.Taint) []string {
	var all []string
	for _, t := range taints {
		if !slices.ContainsFunc(others, func(o corev1.Taint) bool { return o.ToString() == t.ToString() }) {
			all = append(all, t.ToString())
		}
	}
	return all
}
