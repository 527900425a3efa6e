// Package permit decides whether an action of a restart may begin now that was decided under an earlier policy, or before a pause.
package permit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Gate knows the present policy and the pause.
type Gate struct {
	// Cached reads Nodes and the ConfigMap of the pause, which is in Namespace, from a cache. Live asks the API server for both.
	Cached, Live client.Reader
	Namespace    string
	// Policy may be nil: there are no rules then, and no limits.
	Policy *policy.File
}

// Paused returns why everything is paused, by the cache or by the API server; empty: it is not.
func (g Gate) Paused(ctx context.Context) (string, error) {
	return pause.ReasonOf(ctx, g.Namespace, g.Cached, g.Live)
}

// Begins returns an error if no restart of a job with these pods on the node of a trigger may begin any more: since that was decided,
// everything was paused, or the policy was changed, or others have begun to work on the node. Whether it may is decided anew then.
func (g Gate) Begins(ctx context.Context, t restart.Trigger, onNode []corev1.Pod, now time.Time) error {
	if paused, err := g.Paused(ctx); paused != "" || err != nil {
		return cmp.Or(err, fmt.Errorf("no restart begins while everything is paused: %s", paused))
	}
	if t.Kind != restart.NodeQuarantined {
		return nil
	}
	if held, err := g.Held(ctx, onNode, now); held || err != nil {
		return cmp.Or(err, fmt.Errorf("no restart begins for node %s: the policy or the node has changed since it was decided", t.Node))
	}
	return nil
}

// Held reports whether no job may be stopped now, after it had its time to save its state, because of the nodes of these pods: everything
// is paused, or no rule of the present policy restarts jobs for any of them, or others work on the nodes.
func (g Gate) Held(ctx context.Context, affected []corev1.Pod, now time.Time) (bool, error) {
	paused, err := g.Paused(ctx)
	if paused != "" || err != nil || g.Policy == nil {
		return paused != "", err
	}
	for i := range affected {
		name := affected[i].Spec.NodeName
		if i > 0 && name == affected[i-1].Spec.NodeName {
			continue // it was asked for
		}
		// That the cache lacks a node, or shows it as it was, proves nothing: what cannot be undone is asked of the API server, too.
		may, err := g.mayStop(ctx, g.Cached, name, now)
		if may {
			may, err = g.mayStop(ctx, g.Live, name, now)
		}
		if may || err != nil {
			return false, err
		}
	}
	return true, nil
}

// mayStop is [MayStop] of the node of a name; a node that is gone forbids nothing.
func (g Gate) mayStop(ctx context.Context, reader client.Reader, name string, now time.Time) (bool, error) {
	n, err := podreader.GetNode(ctx, reader, name)
	return err == nil && (n == nil || MayStop(g.Policy.Policy(), n, now)), err
}

// Limits are those of the policy for a pod on a node; nil: the node is gone. Without a permission no pod is deleted by force that may
// still run. What is proven to have ended needs none. Before a deletion it has to be live: a pause is asked for then.
func (g Gate) Limits(ctx context.Context, n *corev1.Node, live bool) (limits policy.Restart, err error) {
	if g.Policy == nil {
		return limits, nil
	}
	limits = g.Policy.Policy().Restart
	readers := []client.Reader{g.Cached}
	if live {
		readers = append(readers, g.Live)
	}
	paused, err := pause.ReasonOf(ctx, g.Namespace, readers...)
	if paused != "" || n != nil && !mayForce(g.Policy.Policy(), n) {
		limits.ForceDelete = policy.ForceNever
	}
	return limits, err
}

// MayStop reports whether the present policy restarts jobs for the quarantine of a node.
func MayStop(p *policy.Policy, n *corev1.Node, now time.Time) bool {
	return !node.Excluded(n) && !node.Maintained(n, now) && enforced(p, n, func(r policy.Rule) bool { return r.RestartJobs })
}

// mayForce reports whether the present policy deletes pods of a node by force that may still run.
func mayForce(p *policy.Policy, n *corev1.Node) bool {
	return !p.Observe && !node.Excluded(n) && enforced(p, n, func(policy.Rule) bool { return true })
}

// enforced reports whether a rule by which the node is quarantined acts by the present policy, and does what is asked. A node without a
// quarantine has none that forbids it; what a record that cannot be read would say is not known, so nothing is done by it.
func enforced(p *policy.Policy, n *corev1.Node, does func(policy.Rule) bool) bool {
	q, err := causes.RecordOf(n)
	if err != nil || q == nil || q.Phase != causes.Quarantined || q.Taint == nil {
		return err == nil
	}
	acts := func(name string) bool {
		rule, found := p.Rule(name)
		return found && !rule.Observe && does(rule)
	}
	return acts(q.Taint.Rule) || slices.ContainsFunc(q.Causes, func(c causes.Cause) bool { return c.Due && acts(c.Rule) })
}
