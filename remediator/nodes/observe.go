package nodes

import (
	"context"
	"slices"
	"sync"
	"time"

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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// keptWhole are the annotations that are kept whole or not at all, because they are read.
var keptWhole = []string{conditions.AnnotationQuarantine, conditions.AnnotationRepair, conditions.AnnotationRequest,
	conditions.AnnotationGPUs, handoff.AWSResults, handoff.AWSQuarantineResult}

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

// follow passes the changes of nodes in the cache that can change a decision, and notes all of them before, heartbeats included: a decision
// knows of what came before the change that it was made for. While the fleet is summed up and no decision is being made, it is brought up
// to date at once, so that the next decision need not do it for all.
func (c *Controller) follow(ctx context.Context) predicate.Predicate {
	return predicate.And(predicate.NewPredicateFuncs(func(n client.Object) bool {
		c.pending.Touch(n.GetName())
		if c.deciding.TryLock() {
			defer c.deciding.Unlock()
			if p := c.fleet.policy; p != nil {
				_ = c.fleet.refresh(ctx, p) // the next decision reports it, and tries again
			}
		}
		return true
	}), changed, c.counted())
}

// counted tells the burst of the nodes that will be reconciled.
func (c *Controller) counted() predicate.Predicate {
	every := predicate.NewPredicateFuncs(func(n client.Object) bool {
		c.burst.Change(n.GetName(), n.GetResourceVersion())
		return true
	})
	changes := every.CreateFunc
	every.CreateFunc = func(e event.CreateEvent) bool {
		if !e.IsInInitialList {
			return changes(e)
		}
		c.burst.Recheck(e.Object.GetName())
		return true
	}
	return every
}

// indexQuarantined finds quarantined nodes by the rule that decided, and all of them by [anyRule].
const (
	indexQuarantined = "pitcrew.quarantined"
	anyRule          = ""
)

func indexNode(object client.Object) []string {
	record, err := causes.RecordOf(object.(*corev1.Node))
	if err != nil {
		return nil // no rule is known to have quarantined it
	}
	return indexRecord(record)
}

func indexRecord(r *causes.Record) []string {
	if r == nil || r.Phase != causes.Quarantined {
		return nil
	}
	return []string{anyRule, r.Taint.Rule}
}

// observe gathers all that [quarantine.Decide] needs, without a request to the API server.
func (c *Controller) observe(ctx context.Context, p *policy.Policy, n *corev1.Node) (quarantine.Observation, error) {
	o := quarantine.Observation{
		Node: n, Breaker: c.breaker.State(p), Delivered: c.delivered(n.Name), Seen: c.seen[n.Name], Known: c.known.Of(p),
		LeadingSince: c.leadingSince,
	}
	o.Record, o.RecordErr = causes.RecordOf(n)
	o.Domain = c.fleet.domains.of(n)
	c.fleet.domains.note(n, causes.DomainOf(p, n, o.Domain))
	o.Visits = visit.Of(n, o.Record, c.clock.Now())
	var err error
	if peers.AreNeeded(p, n, o.Record, o.Breaker) {
		if o.Peers, err = c.fleet.others(ctx, p, n.Name); err != nil {
			return o, err
		}
	}
	o.Paused, err = pause.Reason(ctx, c.client, c.namespace)
	return o, err
}

// basis is what a decision is made by, beside the nodes: the policy, why everything is paused as the cache shows it, and the devices of the
// node; nil while everything is paused, or if no policy has ever isolated devices.
type basis struct {
	policy  *policy.Policy
	paused  string
	devices *devices.Look
}

func (c *Controller) basis(ctx context.Context, n *corev1.Node) (by basis, err error) {
	by.policy = c.policy.Policy()
	by.paused, err = pause.Reason(ctx, c.client, c.namespace)
	if err == nil && c.devices != nil && by.paused == "" && c.known.Of(by.policy).CanIsolate() {
		by.devices = c.devices.Look(ctx, by.policy, n)
	}
	return by, err
}

// confirm returns [errOutdated] if a decision must not be written any more. That the cache shows no pause proves nothing: its watch may be
// late.
func (c *Controller) confirm(ctx context.Context, by basis) error {
	if c.dryRun || by.paused != "" && c.policy.Policy() == by.policy {
		return nil
	}
	paused, err := c.livePause.reason(ctx, c.apiReader, c.namespace, c.clock.Now())
	if err == nil && (paused != "" || c.policy.Policy() != by.policy) {
		return errOutdated
	}
	return err
}

// livePause is why everything is paused, as the API server says. In a burst of faults one answer is for all nodes that are written in its
// time.
type livePause struct {
	mu    sync.Mutex
	at    time.Time
	known string
}

// livePauseFor is how long an answer counts.
const livePauseFor = 200 * time.Millisecond

func (l *livePause) reason(ctx context.Context, live client.Reader, namespace string, now time.Time) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && now.Sub(l.at).Abs() < livePauseFor {
		return l.known, nil
	}
	known, err := pause.Reason(ctx, live, namespace)
	if err == nil {
		l.known, l.at = known, now
	}
	return known, err
}

// canIsolate returns what reports whether a policy has ever isolated devices.
func canIsolate(c *Controller) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		p := c.policy.Policy()
		if !c.policy.Known() {
			return false, nil
		}
		if err := c.known.Refresh(ctx, p); err != nil {
			return false, err
		}
		return c.known.Of(p).CanIsolate(), nil
	}
}
