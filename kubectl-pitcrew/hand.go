package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func quarantineCommand(c *target) *cobra.Command {
	var agreed consent
	var reason string
	cmd := &cobra.Command{
		Use:   "quarantine NODE...",
		Short: "Taint nodes until `kubectl pitcrew release`; their pods and jobs stay as they are",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			changes, err := nodeChanges(cmd.Context(), api, names, "Quarantine", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.QuarantineManually(n, reason, c.now().UTC())
			})
			if err != nil {
				return err
			}
			return agreed.apply(cmd, changes)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", noReason, "`why`, for those who find the node tainted")
	agreed.flags(cmd)
	return cmd
}

func releaseCommand(c *target) *cobra.Command {
	var agreed consent
	var alsoClear bool
	cmd := &cobra.Command{
		Use:               "release NODE...",
		Short:             "Remove our taint from nodes; it comes back only for a fault after the present ones have cleared",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			changes, err := nodeChanges(cmd.Context(), api, names, "Release", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.ReleaseManually(n, c.now().UTC())
			})
			if err != nil {
				return err
			}
			if alsoClear {
				cleared, err := c.clearCauses(cmd, api, names)
				if err != nil {
					return err
				}
				changes = append(cleared, changes...)
			}
			return agreed.apply(cmd, changes)
		},
	}
	cmd.Flags().BoolVar(&alsoClear, "clear", false, "have the plugins on the nodes forget the faults, too")
	agreed.flags(cmd)
	return cmd
}

// clearCauses are the changes that clear what the nodes' records blame.
func (c *target) clearCauses(cmd *cobra.Command, api client.Client, names []string) ([]change, error) {
	var changes []change
	for _, name := range names {
		var n corev1.Node
		if err := api.Get(cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		types, err := latched(&n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		for _, conditionType := range types {
			cleared, err := c.clears(cmd, api, name, conditionType)
			if err != nil {
				return nil, err
			}
			changes = append(changes, cleared)
		}
	}
	return changes, nil
}

// nodeChanges change each node if it is still as it was when the change was announced.
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
			says: fmt.Sprintf("%s node %s: taints [%s] become [%s]", verb, name, taints(&before), taints(after)),
			do:   func(ctx context.Context) error { return patch(ctx, api, &before, after) },
		})
	}
	return changes, nil
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
