package nodes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

// keptWhole are the annotations that are kept however long they are, because they are read.
var keptWhole = []string{conditions.AnnotationQuarantine, conditions.AnnotationGPUs, handoff.AWSResults, handoff.AWSQuarantineResult, conditions.AnnotationRepair}

// slimmer is one for the life of the process: it shares what is equal in the versions of a node and in many nodes.
var slimmer = node.NewSlimmer(policy.MaxAnnotation, keptWhole)

// Slim is the cache's transform for Nodes, see [node.Slimmer].
func Slim(object any) (any, error) { return slimmer.Slim(object) }

// changed passes updates that can change a decision. A heartbeat alone cannot: thousands of nodes send one every few
// minutes. That heartbeats stop, or continue, is noticed because [quarantine.Decide] asks to decide again in time.
var changed = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return quarantine.Differ(a, b) || !slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, node.SameCondition)
}}

// indexQuarantined finds quarantined nodes by the rule that decided, and all of them by [anyRule].
const (
	indexQuarantined = "pitcrew.quarantined"
	anyRule          = ""
)

func indexNode(object client.Object) []string {
	record, err := quarantine.RecordOf(object.(*corev1.Node))
	if err != nil {
		return nil // no rule is known to have quarantined it
	}
	return indexRecord(record)
}

func indexRecord(r *quarantine.Record) []string {
	if r == nil || r.Phase != quarantine.Quarantined {
		return nil
	}
	return []string{anyRule, r.Taint.Rule}
}

// observe gathers all that [quarantine.Decide] needs, without a request to the API server.
func (c *Controller) observe(ctx context.Context, p *policy.Policy, n *corev1.Node) (quarantine.Observation, error) {
	o := quarantine.Observation{
		Node: n, Breaker: c.breaker.state(p), Delivered: c.delivered(n.Name), Seen: c.seen[n.Name], Known: c.known.of(p), LeadingSince: c.leadingSince,
	}
	o.Record, o.RecordErr = quarantine.RecordOf(n)
	o.Domain = c.domains.of(n)
	c.domains.note(n, quarantine.DomainOf(p, n, o.Domain))
	o.Visits = repair.VisitsOf(n, o.Record, c.clock.Now())
	var err error
	if quarantine.NeedsPeers(p, n, o.Record, o.Breaker) {
		if o.Peers, err = c.peers(ctx, p, n.Name); err != nil {
			return o, err
		}
	}
	o.Paused, err = pause.Reason(ctx, c.client, c.namespace)
	return o, err
}

// quarantinedBy names the nodes that a rule has quarantined, from the cache and from the pending writes.
func (c *Controller) quarantinedBy(ctx context.Context, rule string) (map[string]bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.MatchingFields{indexQuarantined: rule}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list quarantined nodes: %w", err)
	}
	names := map[string]bool{}
	for i := range nodes.Items {
		names[nodes.Items[i].Name] = true
	}
	for name, write := range c.pending.All() {
		delete(names, name)
		if slices.Contains(indexRecord(write.Record), rule) {
			names[name] = true
		}
	}
	return names, nil
}

// lookAtDevices is [Store.look], but nothing while everything is paused, or if no policy has ever isolated devices.
func (c *Controller) lookAtDevices(ctx context.Context, n *corev1.Node) (*devices.Look, error) {
	if c.devices == nil || !c.known.of(c.policy.Policy()).CanIsolate() {
		return nil, nil
	}
	if reason, err := pause.Reason(ctx, c.client, c.namespace); err != nil || reason != "" {
		return nil, err
	}
	return c.devices.Look(ctx, c.policy.Policy(), n), nil
}

// canIsolate returns what reports whether a policy has ever isolated devices.
func canIsolate(c *Controller) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		p := c.policy.Policy()
		if !c.policy.Known() {
			return false, nil
		}
		if err := c.known.refresh(ctx, p); err != nil {
			return false, err
		}
		return c.known.of(p).CanIsolate(), nil
	}
}
