package node

import (
	"github.com/spf13/cobra"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// recordAndEvent is where the reason of an order is noted.
const recordAndEvent = "the node's record and an Event"

func RepairCommand(c *cli.Target) *cobra.Command {
	var approve, stop bool
	var file string
	cmd := &cobra.Command{
		Use:   "repair NODE",
		Short: "Show how a quarantined node would be repaired; --approve has it repaired, --stop ends that",
		Long: `Show how a quarantined node would be repaired, and what that waits for.

--approve has it repaired, where the policy says mode: approve, or after a repair that was given up. --stop ends the repair or the check
that is under way, and no other one begins for this quarantine. An action that runs on the node is given time to end in order.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteNodes,
	}
	order := ordersOf(c, cmd, recordAndEvent, func(by cli.Actor, names []string) ([]cli.Change, error) {
		kind := request.Repair
		if stop {
			kind = request.Stop
		}
		return orders(c, by, names, kind, file)
	})
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if approve || stop {
			return order(cmd, names)
		}
		api, err := c.Client()
		if err != nil {
			return err
		}
		return showRepair(cmd.Context(), c, cmd.OutOrStdout(), api, names[0], file)
	}
	cmd.Flags().BoolVar(&approve, "approve", false, "have the node repaired")
	cmd.Flags().BoolVar(&stop, "stop", false, "end the repair or the check")
	cmd.MarkFlagsMutuallyExclusive("approve", "stop")
	cli.PolicyFlag(cmd, &file)
	return cmd
}

func CheckCommand(c *cli.Target) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check NODE",
		Short: "Have a node checked under load, as a sweep does, once no pod on it has an accelerator",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: c.CompleteNodes,
	}
	cmd.RunE = ordersOf(c, cmd, recordAndEvent, func(by cli.Actor, names []string) ([]cli.Change, error) {
		return orders(c, by, names, request.Check, file)
	})
	cli.PolicyFlag(cmd, &file)
	return cmd
}
