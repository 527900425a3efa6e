package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

func statusCommand(c *target) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the nodes that are suspect, quarantined or released by a person, and what holds the remediator back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			return status(cmd.Context(), cmd.OutOrStdout(), api, c.namespace, c.now())
		},
	}
}

func status(ctx context.Context, out io.Writer, api client.Client, namespace string, now time.Time) error {
	for _, stop := range []struct{ name, key, says string }{
		{conditions.PauseConfigMap, "reason", "PAUSED: nothing is done at all"},
		{conditions.BreakerConfigMap, "state", "BREAKER OPEN: no node is quarantined"},
	} {
		var object corev1.ConfigMap
		err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: stop.name}, &object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get ConfigMap %s: %w", stop.name, err)
		}
		if err == nil && (stop.name == conditions.PauseConfigMap || object.Data[stop.key] != "") {
			fmt.Fprintf(out, "%s (%s)\n", stop.says, cmp.Or(object.Data[stop.key], "no reason given"))
		}
	}
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tSTATUS\tREPAIR\tSINCE\tCAUSE")
	marked := 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		record, err := node.RecordOf(n)
		if err != nil {
			marked++
			fmt.Fprintf(table, "%s\tunreadable\t-\t-\t%v\n", n.Name, err)
			continue
		}
		if record == nil || record.Phase == node.Released && !record.Holds {
			continue
		}
		marked++
		_, repair := record.Labels()
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, phase(record), repair,
			duration.HumanDuration(now.Sub(cmp.Or(record.ReleasedAt, record.QuarantinedAt, record.Causes[0].FirstSeen))), messages(record))
	}
	if marked == 0 {
		fmt.Fprintf(out, "%d nodes, none suspect or quarantined.\n", len(nodes.Items))
		return nil
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	fmt.Fprintf(out, "%d of %d nodes.\n", marked, len(nodes.Items))
	return nil
}

func phase(r *node.Record) string {
	switch {
	case r.Phase == node.Released:
		return "released by a person"
	case r.Sticky:
		return string(r.Phase) + ", sticky"
	}
	return string(r.Phase)
}

func messages(r *node.Record) string {
	var all []string
	for _, c := range r.Causes {
		all = append(all, string(c.Condition)+": "+c.Message)
	}
	return strings.Join(all, " | ")
}

func describeCommand(c *target) *cobra.Command {
	return &cobra.Command{
		Use:   "describe NODE",
		Short: "Say what the remediator knows about a node and what it waits for",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			var n corev1.Node
			if err := api.Get(cmd.Context(), client.ObjectKey{Name: args[0]}, &n); err != nil {
				return fmt.Errorf("get the node: %w", err)
			}
			return describe(cmd.OutOrStdout(), &n, c.now())
		},
	}
}

func describe(out io.Writer, n *corev1.Node, now time.Time) error {
	record, err := node.RecordOf(n)
	if err != nil {
		return err
	}
	ago := func(t time.Time) string {
		return t.Format(time.RFC3339) + ", " + duration.HumanDuration(now.Sub(t)) + " ago"
	}
	fmt.Fprintf(out, "Node:     %s, boot %s\n", n.Name, n.Status.NodeInfo.BootID)
	if record == nil {
		fmt.Fprintln(out, "Record:   none: nothing is wrong, or the node is nobody's business")
	} else {
		fmt.Fprintf(out, "Phase:    %s\n", phase(record))
		if t := record.Taint; t != nil {
			fmt.Fprintf(out, "Taint:    %s by rule %s, %s\n", t, t.Rule, ago(t.Since))
		}
		for _, cause := range record.Causes {
			fmt.Fprintf(out, "Cause:    %s: %s\n          first seen %s; needs %s; %s\n",
				cause.Condition, cause.Message, ago(cause.FirstSeen), cause.Repair, waits(n, record, cause, ago))
		}
		for _, r := range record.Repairs {
			fmt.Fprintf(out, "Repaired: %s of gpu %s for %s, %s\n", r.Repair, r.GPU, r.Code, ago(r.At))
		}
		for _, q := range record.Last {
			fmt.Fprintf(out, "Before:   %s, released by %s %s\n", q.Causes[0].Message, q.ReleasedBy, ago(q.ReleasedAt))
		}
	}
	for _, condition := range n.Status.Conditions {
		if conditions.Ours(string(condition.Type)) {
			fmt.Fprintf(out, "Says:     %s=%s, confirmed %s: %s\n", condition.Type, condition.Status, ago(condition.LastHeartbeatTime.Time), condition.Message)
		}
	}
	return nil
}

// waits says what the release of a cause waits for.
func waits(n *corev1.Node, r *node.Record, c node.Cause, ago func(time.Time) string) string {
	byPerson := "only `kubectl pitcrew release` ends it"
	switch {
	case r.Phase != node.Quarantined:
		return "no quarantine yet"
	case r.Sticky:
		return "it came and went too often: " + byPerson
	case c.Repair == conditions.Replace, c.Condition == "ByHand":
		return byPerson
	case c.Repair == conditions.Reboot && c.BootID == n.Status.NodeInfo.BootID:
		return "it waits for a reboot"
	case c.HealthySince.IsZero():
		return "it waits for the condition to clear"
	}
	return "healthy since " + ago(c.HealthySince)
}
