// Package permit decides whether an action of a restart may begin now that was decided under an earlier policy, or before a pause.
package permit

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Gate knows the present policy and the pause.
type Gate struct {
	// Cached reads Nodes and the ConfigMap of the pause, which is in Namespace, from a cache.
	Cached    client.Reader
	Namespace string
	// Policy may be nil: there are no rules then, and no limits.
	Policy *policy.File
}

// Held reports whether no job may be stopped now, after it had its time to save its state, because of the nodes of these pods: everything
// is paused, or no rule of the present policy restarts jobs for any of them, or others work on the nodes.
func (g Gate) Held(ctx context.Context, affected []corev1.Pod, now time.Time) (bool, error) {
	paused, err := pause.Reason(ctx, g.Cached, g.Namespace)
	if paused != "" || err != nil || g.Policy == nil {
		return paused != "", err
	}
	for i := range affected {
		n, err := podreader.GetNode(ctx, g.Cached, affected[i].Spec.NodeName)
		if err != nil || n == nil || MayStop(g.Policy.Policy(), n, now) {
			return false, err
		}
	}
	return true, nil
}

// Limits are those of the policy for a pod on a node; nil: the node is gone. Without a permission no pod is deleted by force that may
// still run. What is proven to have ended needs none.
func (g Gate) Limits(ctx context.Context, n *corev1.Node) (limits policy.Restart, err error) {
	if g.Policy == nil {
		return limits, nil
	}
	limits = g.Policy.Policy().Restart
	paused, err := pause.Reason(ctx, g.Cached, g.Namespace)
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
