package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

func repairCommand(c *target) *cobra.Command {
	var confirm confirmation
	var approve, stop bool
	var reason, file string
	cmd := &cobra.Command{
		Use:   "repair NODE",
		Short: "Show how a quarantined node would be repaired; --approve has it repaired, --stop ends that",
		Long: `Show how a quarantined node would be repaired, and what that waits for.

--approve has it repaired, where the policy says mode: approve, or after a repair that was given up. --stop ends the repair or the check
that is under way, and no other one begins for this quarantine. An action that runs on the node is given time to end in order.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if !approve && !stop {
				return c.showRepair(cmd.Context(), cmd.OutOrStdout(), api, names[0], file)
			}
			kind, text, may := repair.RequestRepair, "Have node "+names[0]+" repaired", mayRepair
			if stop {
				kind, text, may = repair.RequestStop, "Stop the repair or the check of node "+names[0]+"; if it is quarantined, no other begins in this quarantine", mayStop
			}
			asked, err := c.request(c.actor(cmd, api, reason), names[0], kind, text, may)
			if err != nil {
				return err
			}
			if approve {
				if err := c.wouldRepair(cmd, api, file); err != nil {
					return err
				}
			}
			return confirm.apply(cmd, []change{asked})
		},
	}
	cmd.Flags().BoolVar(&approve, "approve", false, "have the node repaired")
	cmd.Flags().BoolVar(&stop, "stop", false, "end the repair or the check")
	cmd.MarkFlagsMutuallyExclusive("approve", "stop")
	cmd.Flags().StringVarP(&file, "filename", "f", "", "`file` with the policy, if it is not the one that the remediator's pods use")
	reasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.flags(cmd)
	return cmd
}

func checkCommand(c *target) *cobra.Command {
	var confirm confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "check NODE",
		Short: "Have a node checked under load, as a sweep does, once no pod on it has an accelerator",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			asked, err := c.request(c.actor(cmd, api, reason), names[0], repair.RequestCheck, "Have node "+names[0]+" checked", mayCheck)
			if err != nil {
				return err
			}
			if err := c.wouldVisit(cmd, api); err != nil {
				return err
			}
			return confirm.apply(cmd, []change{asked})
		},
	}
	reasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.flags(cmd)
	return cmd
}

// Reasons of the Events about what a person has asked for, by the kind of the request.
var eventRequested = map[string]string{
	repair.RequestRepair:  "RepairRequested",
	repair.RequestStop:    "RepairStopRequested",
	repair.RequestCheck:   "CheckRequested",
	repair.RequestRelease: "ReleaseRequested",
}

// request is the change that writes what a person asks for into the node's record. may tells why that makes no sense now.
func (c *target) request(by actor, name, kind, text string, may func(*repair.Record, *quarantine.Record) error) (change, error) {
	to := func(n *corev1.Node) (*corev1.Node, error) {
		q, err := quarantine.RecordOf(n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		if q != nil && q.Phase != quarantine.Quarantined {
			q = nil
		}
		visits, err := repair.RecordOf(n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		if visits == nil {
			visits = &repair.Record{}
		}
		if err := may(visits, q); err != nil {
			return nil, fmt.Errorf("node %s %w", name, err)
		}
		about := ""
		if q != nil {
			about = q.ID
		}
		if v := visits.Current; v != nil && kind == repair.RequestStop {
			about = v.Quarantine // a sweep is for none, also when a fault has come meanwhile
		}
		if r := visits.Request; r != nil && r.Kind == kind && r.Quarantine == about {
			return nil, fmt.Errorf("node %s: %s has asked for this already, %s", name, cmp.Or(r.User, quarantine.UnknownUser), c.ago(r.At))
		}
		return repair.Ask(n, kind, about, quarantine.Manual{User: cli.Text(by.User), Reason: cli.Text(by.Reason)}, c.now())
	}
	var n corev1.Node
	if err := by.api.Get(by.cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		return change{}, fmt.Errorf("get node %s: %w", name, err)
	}
	if _, err := to(&n); err != nil {
		return change{}, err
	}
	return change{
		text: text,
		do: func(ctx context.Context) error {
			if err := changeNode(ctx, by.api, &n, to); err != nil {
				return err
			}
			by.announce(ctx, referenceTo(&n), eventRequested[kind], "Repair", kind+" requested")
			return nil
		},
	}, nil
}

var errNotQuarantined = errors.New("is not quarantined")

func mayRepair(_ *repair.Record, q *quarantine.Record) error {
	if q == nil {
		return errNotQuarantined
	}
	return nil
}

func mayStop(visits *repair.Record, q *quarantine.Record) error {
	if q == nil && visits.Current == nil && visits.Request == nil {
		return errors.New("is not quarantined, and nothing is done to it: there is nothing to stop")
	}
	return nil
}

func mayCheck(visits *repair.Record, q *quarantine.Record) error {
	switch {
	case q != nil:
		return errors.New("is quarantined: `kubectl pitcrew repair` shows how it is repaired and checked")
	case visits.Current != nil:
		return fmt.Errorf("is being visited already (%s)", visits.Current.Kind)
	}
	return nil
}

// wouldVisit is an error if no remediator would do what is asked for, as far as that is known.
func (c *target) wouldVisit(cmd *cobra.Command, api client.Client) error {
	var i installation
	if err := c.readInstallation(cmd.Context(), api, &i); err != nil {
		return err
	}
	switch namespace, known := i.repairNamespace(); {
	case !known:
		cli.Fprintf(cmd.ErrOrStderr(), "Whether a remediator does this is not known: none was found in namespace %s\n", c.namespace)
	case namespace == "":
		return fmt.Errorf("the remediator repairs and checks no nodes: it runs without -repair-namespace (%s)", enableRepair)
	}
	return nil
}

// wouldRepair is [target.wouldVisit] for a repair, which the policy has to allow, too.
func (c *target) wouldRepair(cmd *cobra.Command, api client.Client, file string) error {
	if err := c.wouldVisit(cmd, api); err != nil {
		return err
	}
	p, _, err := c.policyInForce(cmd.Context(), api, file)
	switch {
	case err != nil:
		return err
	case p != nil && (p.Repair == nil || p.Repair.Mode == policy.RepairOff):
		return errors.New("the policy repairs no nodes: spec.repair.mode has to be approve or auto")
	}
	return nil
}
