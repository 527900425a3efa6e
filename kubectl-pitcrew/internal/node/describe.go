// Package node has the commands about one node: describe, quarantine, release, repair, check and clear.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/evidence"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/job"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/outlook"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

func DescribeCommand(c *cli.Target) *cobra.Command {
	var file, namespace string
	cmd := &cobra.Command{
		Use:   "describe NODE | KIND/NAME | KIND NAME",
		Short: "Show what is known about a node or a job, what happens next, and why nothing happened",
		Long: `Show what is known about a node, what happens next, and why nothing happened.

Of a job, named as for kubectl get (jobset/train, pytorchjobs.kubeflow.org/train, job train, pod/train-0), show why it was or was not
restarted: what opts it in, which of its owners counts, the preconditions of a restart one by one, the restart under way and those of
the past, the limits of the policy, and what happens next. If no node under it is quarantined, the preconditions are evaluated as if
one were.

--namespace (-n) is the namespace of the job; --pitcrew-namespace is the one that Pitcrew runs in. For a node both mean the latter.`,
		Example: `  kubectl pitcrew describe gpu-17
  kubectl pitcrew describe jobset/train -n team-a
  kubectl pitcrew describe pod train-worker-0 -n team-a`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteDescribe,
		RunE: func(cmd *cobra.Command, args []string) error {
			resource, name, isJob, err := cli.JobArgument(args)
			if err != nil {
				return err
			}
			api, err := c.Client()
			if err != nil {
				return err
			}
			if !isJob {
				if cmd.Flags().Changed("namespace") && !cmd.Flags().Changed("pitcrew-namespace") {
					c.Namespace = namespace
				}
				return describe(cmd.Context(), c, cmd.OutOrStdout(), api, name, file)
			}
			if namespace == "" {
				if namespace, err = c.ContextNamespace(); err != nil {
					return err
				}
			}
			return job.Describe(cmd.Context(), c, cmd.OutOrStdout(), api, resource, name, namespace, file)
		},
	}
	cli.PolicyFlag(cmd, &file)
	c.JobFlags(cmd, &namespace)
	npdFlag(c, cmd)
	return cmd
}

func describe(ctx context.Context, c *cli.Target, out io.Writer, api client.Client, name, file string) error {
	nodes, n, err := cli.NodesWith(ctx, api, name)
	switch {
	case err != nil:
		return err
	case n == nil:
		return fmt.Errorf("there is no node %s (a job is named as KIND/NAME, as in jobset/train)", name)
	}
	now := c.Now().UTC()
	ago := func(t time.Time) string {
		return t.Format(time.RFC3339) + ", " + duration.HumanDuration(now.Sub(t)) + " ago"
	}
	r := status.RowOf(n, now)
	cli.Fprintf(out, "Node:     %s, boot %s\n", n.Name, n.Status.NodeInfo.BootID)
	status := r.Status
	if r.Repair != 0 {
		status += ", needs " + needs(r.Repair)
	}
	if !r.Since.IsZero() {
		status += ", since " + ago(r.Since)
	}
	cli.Fprintf(out, "Status:   %s\n", status)
	if c, ok := node.NotReady(n); ok {
		cli.Fprintf(out, "Ready:    %s since %s: %s\n", c.Status, ago(c.LastTransitionTime.UTC()), cmp.Or(c.Message, c.Reason))
	}
	next, blocked, err := nextOf(ctx, c, api, nodes, name, file)
	if err != nil {
		return err
	}
	cli.Fprintf(out, "Next:     %s\n", next)
	record, err := causes.RecordOf(n)
	switch {
	case err != nil:
		cli.Fprintf(out, "Record:   %v\n", err)
	case record == nil:
		cli.Fprintln(out, "Record:   none: the remediator has done nothing about the node")
	default:
		describeRecord(out, n, record, blocked, ago)
		if err := describeJobs(ctx, out, api, n, record, ago); err != nil {
			return err
		}
		describeOptIns(ctx, c, out, api, n, record, file)
	}
	if err := describeRepair(ctx, c, out, api, nodes, n, file); err != nil {
		return err
	}
	if err := errors.Join(describeEvidence(ctx, out, api, n), evidence.Describe(ctx, out, api, n, ago)); err != nil {
		return err
	}
	detectors, err := detectors(ctx, c, api, name)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	for _, pod := range detectors {
		cli.Fprintf(out, "Detector: pod %s/%s\n", pod.Namespace, pod.Name)
	}
	return describeConditions(out, n, record, now)
}

// describeRecord prints the record. blocked is the reason that holds back what would be done next; empty: none does.
func describeRecord(out io.Writer, n *corev1.Node, record *causes.Record, blocked string, ago func(time.Time) string) {
	past := record.Last
	if record.Phase == causes.Released && !record.ManualReleaseActive { // it is over; the next one moves it to the others
		past = append([]causes.Quarantine{record.Quarantine}, past...)
		record.Causes = nil
	}
	if t := record.Taint; t != nil && record.Phase == causes.Quarantined {
		cli.Fprintf(out, "Taint:    %s by rule %s, %s\n", t, t.Rule, ago(t.Since))
		if record.IsIsolated() {
			cli.Fprintf(out, "On:       %s; the node is in service\n", record.Isolation.String())
		}
	}
	for _, cause := range record.Causes {
		by := ""
		if cause.User != "" {
			by = "; by " + cause.User
		}
		cli.Fprintf(out, "Cause:    %s: %s\n          first seen %s%s; needs %s; %s\n",
			cause.Condition, cause.Message, ago(cause.FirstSeen), by, needs(cause.Repair), waits(n, record, cause, ago))
	}
	if record.Phase == causes.Quarantined {
		cli.Fprintf(out, "Release:  %s\n", howReleased(n.Name, record, blocked))
	}
	for _, r := range record.Repairs {
		cli.Fprintf(out, "Repaired: %s of gpu %s for %s, %s\n", r.Repair, r.GPU, r.Code, ago(r.At))
	}
	for _, q := range past {
		cli.Fprintf(out, "Before:   %s, released by %s%s %s\n", q.Causes[0].Message, q.ReleasedBy, releaser(&q), ago(q.ReleasedAt))
	}
}

// releaser returns who released a node manually, and why, as far as that is known.
func releaser(q *causes.Quarantine) string {
	if q.ReleaseUser == "" && q.ReleaseReason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s: %s)", cmp.Or(q.ReleaseUser, quarantine.UnknownUser), cmp.Or(q.ReleaseReason, quarantine.NoReason))
}

// needs names what a class asks for, and the class.
func needs(class conditions.Repair) string {
	return fmt.Sprintf("%s (%s)", causes.Needs(class), class)
}

// howReleased is the one advice on how the quarantine of a node ends.
func howReleased(node string, r *causes.Record, blocked string) string {
	if r.ManualReleaseOnly || blocked == causes.BlockedByMissingRule || blocked == causes.BlockedByUnconfirmed ||
		slices.ContainsFunc(r.Causes, func(c causes.Cause) bool {
			return c.Rule == policy.ByHand || c.Repair == conditions.Replace
		}) {
		return "only by `kubectl pitcrew release " + node + "`, when the node is fit again"
	}
	if t := r.Taint; t != nil && t.HeldFor != "" {
		return "automatic, once the quarantine of node " + t.HeldFor + " has ended, whose broken link caused the faults, " +
			"or the causes have been gone for the policy's clearAfter; before that: `kubectl pitcrew release " + node + "`"
	}
	return "automatic, once the causes have been gone for the policy's clearAfter; before that: `kubectl pitcrew release " + node + "`"
}

// waits returns what the release of a cause waits for.
func waits(n *corev1.Node, r *causes.Record, c causes.Cause, ago func(time.Time) string) string {
	const manually = "not released automatically"
	switch {
	case r.Phase == causes.Released && r.ReleasedBy == causes.ByPitcrew && c.Link.Origin != "":
		return "released " + ago(r.ReleasedAt) + " with node " + c.Link.Origin +
			", whose broken link caused it; stays in service until it has cleared"
	case r.Phase == causes.Released:
		return "a user released the node" + releaser(&r.Quarantine) + " " + ago(r.ReleasedAt)
	case r.Phase != causes.Quarantined:
		return "not quarantined"
	case r.ManualReleaseOnly:
		return manually + ": it came and went too often"
	case c.Rule == policy.ByHand:
		return manually + ": a user quarantined the node"
	case c.Repair == conditions.Replace:
		return manually + ": the part has to be replaced"
	case c.Repair == conditions.Reboot && c.BootID == n.Status.NodeInfo.BootID:
		return "waits for a reboot"
	case c.HealthySince.IsZero() && c.Link.Origin != "":
		return "waits for the repair of node " + c.Link.Origin + ", whose broken link caused it"
	case c.HealthySince.IsZero() && c.Link.SwitchSide:
		return "waits for the condition to clear; several nodes or GPUs report it and none a broken link: inspect the switches"
	case c.HealthySince.IsZero() && c.Condition == corev1.NodeReady:
		return "waits for the node to be Ready again"
	case c.HealthySince.IsZero():
		return "waits for the condition to clear"
	}
	return "healthy since " + ago(c.HealthySince)
}

// describeJobs prints for each job how its restart goes, or why there is none: the last Event since the node was quarantined.
func describeJobs(
	ctx context.Context, out io.Writer, api client.Client, n *corev1.Node, record *causes.Record, ago func(time.Time) string,
) error {
	if record.Phase != causes.Quarantined {
		return nil
	}
	var events corev1.EventList
	err := api.List(ctx, &events, client.InNamespace(metav1.NamespaceDefault), // where Events about Nodes are
		client.MatchingFields{"involvedObject.kind": "Node", "involvedObject.name": n.Name})
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("list the Events of node %s: %w", n.Name, err)
	}
	last := map[types.UID]corev1.Event{}
	for _, e := range events.Items {
		if e.Related == nil || !strings.HasPrefix(e.Reason, "Job") || lastSeen(&e).Before(record.QuarantinedAt) {
			continue
		}
		if known, ok := last[e.Related.UID]; !ok || lastSeen(&known).Before(lastSeen(&e)) {
			last[e.Related.UID] = e
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(last), func(a, b corev1.Event) int { return cmp.Compare(a.Message, b.Message) }) {
		reason := e.Reason
		if e.Action != "" && e.Reason == cli.EventBlocked {
			reason += " (" + e.Action + ")" // why, as the runbook names it
		}
		cli.Fprintf(out, "Job:      %s: %s; %s\n", reason, e.Message, ago(lastSeen(&e)))
	}
	return nil
}

// lastSeen is when an Event of events.k8s.io was emitted last.
func lastSeen(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return e.EventTime.Time
}

// describeEvidence names the evidence of the node's quarantines.
func describeEvidence(ctx context.Context, out io.Writer, api client.Client, n *corev1.Node) error {
	var kept corev1.ConfigMap
	err := api.Get(ctx, client.ObjectKey{Namespace: conditions.EvidenceNamespace, Name: n.Name}, &kept)
	if err != nil || len(kept.Data) == 0 {
		// Not every user may read it, and most nodes have none.
		if apierrors.IsForbidden(err) {
			return nil
		}
		return client.IgnoreNotFound(err)
	}
	cli.Fprintf(out, "Evidence: kubectl get configmap -n %s %s -o yaml: %s\n",
		kept.Namespace, kept.Name, strings.Join(slices.Sorted(maps.Keys(kept.Data)), ", "))
	return nil
}

// describeConditions prints the conditions of ours, and those of others for which the node is suspect or quarantined. record is nil
// without one.
func describeConditions(out io.Writer, n *corev1.Node, record *causes.Record, now time.Time) error {
	lines := []cli.Line{{Cells: []string{"CONDITION", "STATUS", "NEEDS", "SINCE", "CONFIRMED", "MESSAGE"}}}
	ours := false
	for _, c := range n.Status.Conditions {
		var cause *causes.Cause
		if record != nil && c.Type != corev1.NodeReady { // which has a line of its own
			if i := slices.IndexFunc(record.Causes, func(known causes.Cause) bool { return known.Condition == c.Type }); i >= 0 {
				cause = &record.Causes[i]
			}
		}
		isOurs := conditions.Ours(string(c.Type))
		if !isOurs && cause == nil {
			continue
		}
		ours = ours || isOurs
		needs, like := "-", ""
		switch m, err := conditions.ParseMessage(c.Message); {
		case !isOurs && cause.HealthySince.IsZero():
			needs, like = cause.Repair.String(), status.Quarantined
		case !isOurs:
		case c.Status == corev1.ConditionTrue && err == nil:
			needs, like = m.Repair.String(), status.Quarantined
		case c.Status == corev1.ConditionUnknown:
			like = status.Unknown
		}
		lines = append(lines, cli.Line{Colour: status.Colours[like], Cells: []string{string(c.Type), string(c.Status), needs,
			duration.HumanDuration(now.Sub(c.LastTransitionTime.Time)), duration.HumanDuration(now.Sub(c.LastHeartbeatTime.Time)), c.Message}})
	}
	if !ours {
		cli.Fprintln(out, "Checks:   none: the node has no condition of ours")
	}
	if len(lines) == 1 {
		return nil
	}
	cli.Fprintln(out)
	return cli.Table(out, lines, cli.IsTerminal(out))
}

// nextOf is what the remediator does about the node, or why it does nothing, and the reason that holds it back.
func nextOf(
	ctx context.Context, c *cli.Target, api client.Client, nodes []corev1.Node, name, file string,
) (text, blocked string, err error) {
	p, from, err := c.PolicyInForce(ctx, api, file)
	if err != nil {
		return "", "", err
	}
	if p == nil {
		return "unknown: " + from, "", nil
	}
	outcomes, err := outlook.WhatIf(ctx, c, api, p, nodes)
	if err != nil {
		return "", "", err
	}
	o := outcomes[slices.IndexFunc(outcomes, func(o simulate.Outcome) bool { return o.Before.Name == name })]
	if o.Blocked != nil {
		blocked = o.Blocked.Reason
	}
	return outlook.Text(o, p, c.Now()) + " (by " + from + ")", blocked, nil
}
