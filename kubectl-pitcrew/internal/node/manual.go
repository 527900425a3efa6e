package node

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

func QuarantineCommand(c *cli.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine NODE...",
		Short: "Taint nodes until `kubectl pitcrew release`; pods on them are left alone, and jobs unless a rule restarts them",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: c.CompleteNodes,
	}
	cmd.RunE = ordersOf(c, cmd, recordAndEvent, func(by cli.Actor, names []string) ([]cli.Change, error) {
		return orders(c, by, names, request.Quarantine, "")
	})
	return cmd
}

func ReleaseCommand(c *cli.Target) *cobra.Command {
	var o releaseOptions
	cmd := &cobra.Command{
		Use:   "release NODE...",
		Short: "Remove our taint from nodes; they stay released until the present faults have cleared",
		Long: `Remove our taint from nodes. The faults that they have now do not quarantine them again before they have cleared. A new fault does:
that of another GPU, another one of the same class or a worse one.

Where the rule of a fault says validate: true, the node is checked under load first, and released when it has passed, unless it has passed
in this boot already. --without-validation releases it at once.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.CompleteNodes,
	}
	cmd.RunE = ordersOf(c, cmd, recordAndEvent+"; wrong, repaired or other, alone or before a colon, is also counted",
		func(by cli.Actor, names []string) ([]cli.Change, error) { return release(c, by, names, o) })
	cmd.Flags().BoolVar(&o.alsoClear, "clear", false, "also clear the faults in the plugins on the nodes")
	cmd.Flags().BoolVar(&o.unvalidated, "without-validation", false, "release the nodes at once, also where the policy has them checked first")
	cli.PolicyFlag(cmd, &o.policyFile)
	npdFlag(c, cmd)
	return cmd
}

// releaseOptions are the flags of release.
type releaseOptions struct {
	// alsoClear clears the faults in the plugins on the nodes, too.
	alsoClear bool
	// unvalidated releases nodes at once that the policy has checked first.
	unvalidated bool
	policyFile  string
}

// release are the changes that have nodes released, at once or after their check.
func release(c *cli.Target, by cli.Actor, names []string, o releaseOptions) ([]cli.Change, error) {
	kind := request.Release
	if o.unvalidated {
		kind = request.ReleaseNow
	}
	changes, err := orders(c, by, names, kind, o.policyFile)
	if err != nil || !o.alsoClear {
		return changes, err
	}
	cleared, err := clearCauses(c, by, names)
	return append(cleared, changes...), err
}

// clearCauses are the changes that clear what the nodes' records blame.
func clearCauses(c *cli.Target, by cli.Actor, names []string) ([]cli.Change, error) {
	var changes []cli.Change
	for _, name := range names {
		var n corev1.Node
		if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		types, err := latched(&n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		for _, conditionType := range types {
			cleared, err := clearCondition(c, by, name, conditionType)
			if err != nil {
				return nil, err
			}
			changes = append(changes, cleared)
		}
	}
	return changes, nil
}
