package visits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/observe"
)

// decide observes what the next step of a node needs, and has it decided. Unless it is live, n is from the cache: then no request is
// made, and the step only shows whether there is something to do. excess is what the cache has no room for of the node, if anything.
func (c *Controller) decide(ctx context.Context, n *corev1.Node, excess string, live bool) (repair.Step, error) {
	p := c.policy.Policy()
	f, err := c.observer().Facts(ctx, n, live)
	if err != nil {
		return repair.Step{}, err
	}
	f.TooLarge = excess
	f.OrphanSince = c.orphans.since(n.Name, visit.OrphanOf(n, f.Record) != nil, c.clock.Now().UTC())
	if p.Repair != nil {
		if err := c.starts.load(ctx); err != nil {
			return repair.Step{}, err
		}
		f.Earlier = c.starts.earlier(n, f.Record)
	}
	if name := f.Record.JobName(n); name != "" && f.Job == nil {
		f.JobProblem, f.Created = c.problems.Get(n.Name), c.created.of(n.Name, name)
	}
	c.sweeper.facts(n.Name, &f)
	step := repair.Next(p, f, c.clock.Now().UTC())
	if !live || !step.NeedsLive {
		return step, nil
	}
	f.Live, err = c.observer().Read(ctx, p, f)
	if isUnderWay := f.Record != nil && f.Record.Current != nil; isUnderWay && errors.Is(err, slim.ErrTooLarge) {
		// A kubelet writes the status of the pods on its node, and adds any number of static ones.
		f.TooLarge, f.Live, err = err.Error(), &repair.Live{}, nil
	}
	if err != nil {
		return repair.Step{}, err
	}
	return c.next(ctx, p, f)
}

func (c *Controller) observer() observe.Reader {
	return observe.Reader{
		Cache: c.client, Live: c.apiReader, Namespace: c.namespace, Jobs: c.jobs, Failures: c.failures, Clock: c.clock,
	}
}

// next decides by live facts. Where other nodes matter, one node is decided at a time; the place under the limits is taken before the
// write.
func (c *Controller) next(ctx context.Context, p *policy.Policy, f repair.Facts) (repair.Step, error) {
	now := c.clock.Now().UTC()
	if f.Record == nil || f.Record.Current == nil {
		c.deciding.Lock()
		defer c.deciding.Unlock()
		var err error
		if f.Live.Peers, err = c.peersOf(ctx, p, &f, now); err != nil {
			return repair.Step{}, err
		}
	}
	step := repair.Next(p, f, now)
	if changes(step, f.Node) {
		c.pending.Add(f.Node, step.Record)
	}
	return step, nil
}

// indexCounts finds the nodes that may count for the limits of others. Of a fleet that is swept all nodes have a record.
const indexCounts = "pitcrew.visits"

// counts reports whether a visit to the node is under way, or repairs of it are remembered. It may say so of one that does not count, and
// parses nothing: a cache asks for every update of a node.
func counts(node client.Object) []string {
	text := node.GetAnnotations()[conditions.AnnotationRepair]
	return []string{strconv.FormatBool(strings.Contains(text, `"current"`) || strings.Contains(text, `"repairs"`))}
}

// peersOf returns what sums up all other nodes that count, from the cache and from the visits that were just begun.
func (c *Controller) peersOf(ctx context.Context, p *policy.Policy, f *repair.Facts, now time.Time) ([]peers.Peer, error) {
	// In this order: a write that is not pending now is in the cache, and one that is counts by this copy, whoever sees it in the cache
	// meanwhile.
	written := c.pending.All()
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.MatchingFields{indexCounts: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { _, isWritten := written[n.Name]; return isWritten })
	for name, write := range written {
		var n corev1.Node
		if err := c.client.Get(ctx, client.ObjectKey{Name: name}, &n); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		nodes.Items = append(nodes.Items, *c.pending.With(&n, write)) // one that is gone has no record
	}
	return peers.All(p, f.Node, f.Record, nodes.Items, c.records.of, c.starts.all(), now), nil
}

// changes reports whether a step changes a node.
func changes(s repair.Step, n *corev1.Node) bool {
	if s.NeedsLive {
		return false
	}
	after := n.DeepCopy()
	s.Apply(after)
	return quarantine.Differ(after, n)
}
