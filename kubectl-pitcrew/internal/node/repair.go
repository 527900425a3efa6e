package node

import (
	"github.com/spf13/cobra"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

func RepairCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var approve, stop bool
	var reason, file string
	cmd := &cobra.Command{
		Use:   "repair NODE",
		Short: "Show how a quarantined node would be repaired; --approve has it repaired, --stop ends that",
		Long: `Show how a quarantined node would be repaired, and what that waits for.

--approve has it repaired, where the policy says mode: approve, or after a repair that was given up. --stop ends the repair or the check
that is under way, and no other one begins for this quarantine. An action that runs on the node is given time to end in order.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			if !approve && !stop {
				return showRepair(cmd.Context(), c, cmd.OutOrStdout(), api, names[0], file)
			}
			kind := request.Repair
			if stop {
				kind = request.Stop
			}
			changes, err := orders(c, c.Actor(cmd, api, reason), names, kind, file)
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, changes)
		},
	}
	cmd.Flags().BoolVar(&approve, "approve", false, "have the node repaired")
	cmd.Flags().BoolVar(&stop, "stop", false, "end the repair or the check")
	cmd.MarkFlagsMutuallyExclusive("approve", "stop")
	cli.PolicyFlag(cmd, &file)
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event")
	timeoutFlag(c, cmd)
	confirm.Flags(cmd)
	return cmd
}

func CheckCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var reason, file string
	cmd := &cobra.Command{
		Use:   "check NODE",
		Short: "Have a node checked under load, as a sweep does, once no pod on it has an accelerator",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: c.CompleteNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			changes, err := orders(c, c.Actor(cmd, api, reason), names, request.Check, file)
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, changes)
		},
	}
	cli.PolicyFlag(cmd, &file)
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event")
	timeoutFlag(c, cmd)
	confirm.Flags(cmd)
	return cmd
}
