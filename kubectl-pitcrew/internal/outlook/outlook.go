// Package outlook says what the remediator would do, by the functions with which it decides.
package outlook

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

// WhatIf decides about all nodes by a policy.
func WhatIf(ctx context.Context, c *cli.Target, api client.Client, p *policy.Policy, nodes []corev1.Node) ([]simulate.Outcome, error) {
	paused, err := pause.Reason(ctx, api, c.Namespace)
	if err != nil {
		return nil, err
	}
	stored, err := Stored(ctx, c, api)
	if err != nil {
		return nil, err
	}
	return simulate.Run(p, nodes, paused, stored, c.Now().UTC()), nil
}

// Stored reads what remediators have remembered that a decision depends on.
func Stored(ctx context.Context, c *cli.Target, api client.Client) (stored simulate.Stored, err error) {
	if stored.Breaker, err = c.Read(ctx, api, conditions.BreakerConfigMap); err == nil {
		stored.Known, err = c.Read(ctx, api, conditions.KnownConfigMap)
	}
	return stored, err
}

// Text describes an outcome.
func Text(o simulate.Outcome, p *policy.Policy, now time.Time) string {
	var words []string
	for _, e := range o.Events {
		words = append(words, e.Reason+": "+e.Message)
	}
	if o.Blocked != nil {
		words = append(words, "blocked by "+o.Blocked.Reason+": "+o.Blocked.Message)
		for _, too := range o.BlockedToo {
			words = append(words, "also blocked by "+too.Reason+": "+too.Message)
		}
	}
	var record *causes.Record
	if o.State != nil {
		record = o.State.Record
	}
	if record != nil && record.Phase == causes.Suspect && o.Blocked == nil {
		words = append(words, quarantines(record, p)...)
	}
	if len(words) == 0 && record != nil && record.Phase == causes.Quarantined {
		words = append(words, "the quarantine stands")
		if o.Blocked == nil {
			if why := quarantine.AwaitsHeartbeat(p, o.Before, now); why != "" {
				words = append(words, why)
			}
		}
	}
	if o.RestartJobs {
		words = append(words, "restart the opted-in jobs with pods on it")
	}
	if len(words) > 0 {
		return strings.Join(words, "; ")
	}
	return whyNothing(o, record, p, now)
}

// quarantines returns when the causes of a suspect node quarantine it. What the limits allow then depends on the nodes that have failed by
// then, so it is left open.
func quarantines(record *causes.Record, p *policy.Policy) (words []string) {
	for _, cause := range record.Causes {
		if rule, ok := p.Rule(cause.Rule); ok && !cause.Due {
			stands, add, restart := string(cause.Condition)+" stands", " and the limits allow it: add", ""
			if cause.Condition == corev1.NodeReady {
				stands = "the node is not Ready"
			}
			if rule.RestartJobs {
				restart = " and restart its jobs"
			}
			if rule.Observe {
				add = ": observe mode, would add"
			}
			words = append(words, fmt.Sprintf("at %s, if %s until then%s taint %s%s",
				cause.FirstSeen.Add(rule.For).Format(time.RFC3339), stands, add, rule.Taint.ToString(), restart))
		}
	}
	return words
}

// whyNothing returns why the remediator does nothing about a node.
func whyNothing(o simulate.Outcome, record *causes.Record, p *policy.Policy, now time.Time) string {
	switch {
	case o.State == nil:
		return "nothing: the node is of the control plane, has label " + conditions.LabelSkip + "=true, or is being deleted"
	case record != nil && record.Phase == causes.Released && record.ManualReleaseActive:
		by := "a user released the node"
		if record.ReleasedBy == causes.ByPitcrew {
			by = "the broken link of another node caused the faults, and the quarantine of that one has ended"
		}
		return "nothing: " + by + "; it stays released until its faults have cleared"
	}
	if why := causes.Unhandled(p, o.Before, now); why != "" {
		return "nothing: " + why
	}
	if why := quarantine.AwaitsHeartbeat(p, o.Before, now); why != "" {
		return why
	}
	return "nothing: no rule matches its conditions"
}
