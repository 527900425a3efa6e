// Package status shows the fleet: Pitcrew itself, the budgets, and the nodes by pool, the worst first.
package status

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

// poolLabels are the labels by which clouds name node pools; the instance type stands in for one.
var poolLabels = []string{
	cli.LabelPool, "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool",
	"kubernetes.azure.com/agentpool", "alibabacloud.com/nodepool-id", "node.kubernetes.io/instance-type",
}

// statusFlags are the flags of status.
type statusFlags struct {
	output     string
	policy     string
	poolLabels []string
	all, watch bool
}

func Command(c *cli.Target) *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether Pitcrew works, what stops it, and the nodes that need attention",
		Long: `Show whether Pitcrew works, what stops it, and the nodes that need attention, by pool and the worst first.

The lines above the tables are about Pitcrew itself. What is wrong starts with PROBLEM and makes the exit code 2: Pitcrew is not installed
in the namespace, no remediator is ready or leads, one crashes, or the policy is missing, invalid or not in force. Observe mode and a pause
are no problems. What you may not read is shown as "not known". Exit code 1: the command failed.

  quarantined           tainted by Pitcrew
  repairing             quarantined, and a repair or an upgrade works on the node
  validating            quarantined, and checked under load before it returns
  suspect               a fault stands; a timer, a budget or observe mode delays the taint
  released by a person  faults stand, and a user released the node
  alert                 a condition is a problem that the policy only alerts about
  unknown               a check has no result, its condition has no heartbeat any more, or the node is not Ready
  unreadable            the record on the node does not parse: the remediator leaves the node alone

BUDGET counts the nodes that use up each budget of the policy, and names them. VISITS are the sweeps, repairs and checks under way,
APPROVAL the repairs that wait for a person, and SWEEPS how many nodes each sweep has checked in time. -o wide shows when each node was
checked.

Healthy nodes, and nodes without a condition of ours (unchecked), are only counted; --all lists them, too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "wide", "json", "yaml"}, f.output) {
				return fmt.Errorf("-o %s is not wide, json or yaml", f.output)
			}
			api, err := c.Client()
			if err != nil {
				return err
			}
			if f.watch {
				return watchStatus(cmd.Context(), c, cmd.OutOrStdout(), api, f)
			}
			text, is, err := renderStatus(cmd.Context(), c, api, f, cli.IsTerminal(cmd.OutOrStdout()))
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(text); err != nil {
				return fmt.Errorf("write the status: %w", err)
			}
			return cli.ExitBy(is)
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "`format`: wide, json or yaml")
	cmd.Flags().StringVarP(&f.policy, "filename", "f", "", "`file` with the policy whose budgets are shown, instead of the remediator's")
	cmd.Flags().StringSliceVar(&f.poolLabels, "pool-label", poolLabels,
		"node `labels` that name the pool of nodes that no pool of the chart watches; the first that a node has counts")
	cmd.Flags().BoolVar(&f.all, "all", false, "also list healthy and unchecked nodes")
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false,
		"show the status again whenever it changes, in place on a terminal; errors are shown, and it tries again")
	return cmd
}

// renderStatus returns the text, and the worst of what it says about Pitcrew itself.
func renderStatus(ctx context.Context, c *cli.Target, api client.Client, f statusFlags, colour bool) ([]byte, cli.Level, error) {
	fleet, err := readFleet(ctx, c, api, f)
	if err != nil {
		return nil, "", err
	}
	if !f.all {
		fleet.Nodes = slices.DeleteFunc(fleet.Nodes, func(r Row) bool { return r.Status == Healthy || r.Status == Unchecked })
	}
	var out bytes.Buffer
	if f.output == "" || f.output == "wide" {
		err = fleet.print(&out, f.output == "wide", colour, c.Now())
	} else {
		err = cli.Encode(&out, f.output, fleet)
	}
	return out.Bytes(), cli.Worst(fleet.Pitcrew.Facts), err
}

func (f Fleet) print(out io.Writer, wide, colour bool, now time.Time) error {
	cli.PrintFacts(out, f.Pitcrew.Facts, colour)
	if slices.ContainsFunc(f.Pitcrew.Facts, func(f cli.Finding) bool { return f.Name == "nodes" }) { // they are not known
		return nil
	}
	cli.Fprintln(out)
	if len(f.Nodes) > 0 {
		nodes := []cli.Line{{Cells: []string{"POOL", "NODE", "STATUS", "NEEDS", "SINCE", "CAUSE"}}}
		if wide {
			nodes[0].Cells = []string{"POOL", "NODE", "STATUS", "NEEDS", "SINCE", "RULE", "TAINT", "BOOT", "CHECKED", "CAUSE"}
		}
		for _, r := range f.Nodes {
			nodes = append(nodes, cli.Line{Cells: r.cells(wide, now), Colour: Colours[r.Status]})
		}
		if err := cli.Table(out, nodes, colour); err != nil {
			return err
		}
		cli.Fprintln(out)
	}
	pools := []cli.Line{{Cells: []string{"POOL", "NODES", "QUARANTINED", "SUSPECT", "ALERT", "UNKNOWN", "HEALTHY", "UNCHECKED"}}}
	for _, p := range f.Pools {
		cells := []string{p.Name}
		for _, n := range []int{
			p.Nodes, p.Count[Quarantined] + p.Count[Repairing] + p.Count[Validating], p.Count[Suspect], p.Count[Alert] + p.Count[Released],
			p.Count[Unknown] + p.Count[Unreadable], p.Count[Healthy], p.Count[Unchecked],
		} {
			cells = append(cells, strconv.Itoa(n))
		}
		pools = append(pools, cli.Line{Cells: cells})
	}
	return cli.Table(out, pools, colour)
}

func (r Row) cells(wide bool, now time.Time) []string {
	status, since := r.Status, "-"
	if r.Sticky {
		status += ", sticky"
	}
	if !r.Since.IsZero() {
		since = duration.HumanDuration(now.Sub(r.Since))
	}
	cells := []string{r.Pool, r.Node, status, r.Repair.String(), since}
	if wide {
		cells = append(cells, r.Rule, r.Taint, r.BootID, checkedText(r.Checked, now))
	}
	return append(cells, r.Cause)
}

// Colours of the lines, by status. A colour never stands alone: the word is in the line.
var Colours = map[string]string{
	Unreadable: "31", Quarantined: "31", Repairing: "33", Validating: "33", Isolated: "33", Suspect: "33", Released: "33", Alert: "33",
	Unknown: "35",
}
