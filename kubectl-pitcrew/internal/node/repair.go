package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
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
			kind, text, may := visit.RequestRepair, "Have node "+names[0]+" repaired", mayRepair
			if stop {
				kind, may = visit.RequestStop, mayStop
				text = "Stop the repair or the check of node " + names[0] + "; if it is quarantined, no other begins in this quarantine"
			}
			asked, err := request(c, c.Actor(cmd, api, reason), names[0], kind, text, may)
			if err != nil {
				return err
			}
			if approve {
				if err := wouldRepair(c, cmd, api, file); err != nil {
					return err
				}
			}
			return confirm.Apply(cmd, []cli.Change{asked})
		},
	}
	cmd.Flags().BoolVar(&approve, "approve", false, "have the node repaired")
	cmd.Flags().BoolVar(&stop, "stop", false, "end the repair or the check")
	cmd.MarkFlagsMutuallyExclusive("approve", "stop")
	cli.PolicyFlag(cmd, &file)
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event")
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
			asked, err := request(c, c.Actor(cmd, api, reason), names[0], visit.RequestCheck, "Have node "+names[0]+" checked", mayCheck)
			if err != nil {
				return err
			}
			if err := wouldCheck(c, cmd, api, names[0], file); err != nil {
				return err
			}
			return confirm.Apply(cmd, []cli.Change{asked})
		},
	}
	cli.PolicyFlag(cmd, &file)
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.Flags(cmd)
	return cmd
}

// request is the change that writes what a person asks for into the node's record. may tells why that makes no sense now.
func request(c *cli.Target, by cli.Actor, name, kind, text string, may func(*visit.Record, *causes.Record) error) (cli.Change, error) {
	to := func(n *corev1.Node) (*corev1.Node, error) {
		q, err := causes.RecordOf(n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		if q != nil && q.Phase != causes.Quarantined {
			q = nil
		}
		visits, err := visit.RecordOf(n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		if visits == nil {
			visits = &visit.Record{}
		}
		if err := may(visits, q); err != nil {
			return nil, fmt.Errorf("node %s %w", name, err)
		}
		about := ""
		if q != nil {
			about = q.ID
		}
		if v := visits.Current; v != nil && kind == visit.RequestStop {
			about = v.Quarantine // a sweep is for none, also when a fault has come meanwhile
		}
		if r := visits.Request; r != nil && r.Kind == kind && r.Quarantine == about {
			return nil, fmt.Errorf("node %s: %s has asked for this already, %s", name, cmp.Or(r.User, quarantine.UnknownUser), c.Ago(r.At))
		}
		return visit.Ask(n, kind, about, quarantine.Manual{User: cli.Text(by.User), Reason: cli.Text(by.Reason)}, c.Now())
	}
	var n corev1.Node
	if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		return cli.Change{}, fmt.Errorf("get node %s: %w", name, err)
	}
	if _, err := to(&n); err != nil {
		return cli.Change{}, err
	}
	return cli.Change{
		Text: text,
		Do: func(ctx context.Context) error {
			if err := cli.ChangeNode(ctx, by.Api, &n, to); err != nil {
				return err
			}
			by.Announce(ctx, cli.ReferenceTo(&n), cli.EventRequested[kind], "Repair", kind+" requested")
			return nil
		},
	}, nil
}

var errNotQuarantined = errors.New("is not quarantined")

func mayRepair(_ *visit.Record, q *causes.Record) error {
	if q == nil {
		return errNotQuarantined
	}
	return nil
}

func mayStop(visits *visit.Record, q *causes.Record) error {
	if q == nil && visits.Current == nil && visits.Request == nil {
		return errors.New("is not quarantined, and nothing is done to it: there is nothing to stop")
	}
	return nil
}

func mayCheck(visits *visit.Record, q *causes.Record) error {
	switch {
	case q != nil:
		return errors.New("is quarantined: `kubectl pitcrew repair` shows how it is repaired and checked")
	case visits.Current != nil:
		return fmt.Errorf("is being visited already (%s)", visits.Current.Kind)
	}
	return nil
}

// wouldVisit is an error if no remediator would do what is asked for, as far as that is known.
func wouldVisit(c *cli.Target, cmd *cobra.Command, api client.Client) error {
	var i health.Installation
	if err := health.ReadInstallation(cmd.Context(), c, api, &i); err != nil {
		return err
	}
	switch namespace, known := i.RepairNamespace(); {
	case !known:
		cli.Fprintf(cmd.ErrOrStderr(), "Whether a remediator does this is not known: none was found in namespace %s\n", c.Namespace)
	case namespace == "":
		return fmt.Errorf("the remediator repairs and checks no nodes: it runs without -repair-namespace (%s)", health.EnableRepair)
	}
	return nil
}

// wouldRepair is [target.wouldVisit] for a repair, which the policy has to allow, too.
func wouldRepair(c *cli.Target, cmd *cobra.Command, api client.Client, file string) error {
	if err := wouldVisit(c, cmd, api); err != nil {
		return err
	}
	p, _, err := c.PolicyInForce(cmd.Context(), api, file)
	switch {
	case err != nil:
		return err
	case p != nil && (p.Repair == nil || p.Repair.Mode == policy.RepairOff):
		return errors.New("the policy repairs no nodes: spec.repair.mode has to be approve or auto")
	}
	return nil
}

// wouldCheck is [wouldVisit] for a check, which the remediator refuses where no sweep of the policy is for the node.
func wouldCheck(c *cli.Target, cmd *cobra.Command, api client.Client, name, file string) error {
	if err := wouldVisit(c, cmd, api); err != nil {
		return err
	}
	p, _, err := c.PolicyInForce(cmd.Context(), api, file)
	if err != nil || p == nil {
		return err
	}
	var n corev1.Node
	if err := api.Get(cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	swept := func(s policy.Sweep) bool { return s.Nodes.Matches(labels.Set(n.Labels)) }
	if !slices.ContainsFunc(p.Sweeps, swept) && !firstcheck.Waits(p, &n) {
		return fmt.Errorf("node %s cannot be checked: no sweep of the policy is for it (spec.sweeps)", name)
	}
	return nil
}
