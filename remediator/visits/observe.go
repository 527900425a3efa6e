package visits

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// decide observes what the next step of a node needs, and has it decided. Unless it is live, n is from the cache: then no request is
// made, and the step only shows whether there is something to do.
func (c *Controller) decide(ctx context.Context, n *corev1.Node, live bool) (repair.Step, error) {
	p := c.policy.Policy()
	f := repair.Facts{Node: n, Namespace: c.jobs}
	f.Record, f.RecordErr = visit.RecordOf(n)
	f.Quarantine, f.QuarantineErr = causes.RecordOf(n)
	f.OrphanSince = c.orphans.since(n.Name, visit.OrphanOf(n, f.Record) != nil, c.clock.Now().UTC())
	if p.Repair != nil {
		if err := c.starts.load(ctx, c.clock.Now()); err != nil {
			return repair.Step{}, err
		}
		f.Earlier = c.starts.earlier(n, f.Record)
	}
	c.sweeper.facts(n.Name, &f)
	var err error
	if f.Paused, err = pause.Reason(ctx, c.client, c.namespace); err != nil {
		return repair.Step{}, err
	}
	if err := c.findJob(ctx, &f, live); err != nil {
		return repair.Step{}, err
	}
	step, err := c.next(p, f, nil)
	if err != nil {
		return repair.Step{}, err
	}
	for live && step.Needs.Any() {
		needs := step.Needs
		if err := c.read(ctx, &f, needs); err != nil {
			return repair.Step{}, err
		}
		if step, err = c.next(p, f, c.peersOf(ctx, p, &f)); err != nil {
			return repair.Step{}, err
		}
		if step.Needs == needs {
			return repair.Step{}, fmt.Errorf("node %s: the next step still needs %+v", n.Name, needs)
		}
	}
	return step, nil
}

// next decides. Where other nodes matter, peers is called and one node is decided at a time; the place under the limits is taken before the write.
func (c *Controller) next(p *policy.Policy, f repair.Facts, peers func(now time.Time) ([]repair.Peer, error)) (repair.Step, error) {
	now := c.clock.Now().UTC()
	if f.Has.Peers && peers != nil {
		c.deciding.Lock()
		defer c.deciding.Unlock()
		var err error
		if f.Peers, err = peers(now); err != nil {
			return repair.Step{}, err
		}
	}
	step := repair.Next(p, f, now)
	if peers != nil && !step.Needs.Any() && changes(step, f.Node) {
		c.pending.add(f.Node, step.Record)
	}
	return step, nil
}

// findJob reads the Job of the present attempt. That there is none must be known for sure before one is created.
func (c *Controller) findJob(ctx context.Context, f *repair.Facts, live bool) error {
	name := f.Record.JobName(f.Node)
	if name == "" {
		return nil
	}
	var job batchv1.Job
	key := client.ObjectKey{Namespace: c.jobs, Name: name}
	err := c.client.Get(ctx, key, &job)
	if apierrors.IsNotFound(err) && live {
		err = c.apiReader.Get(ctx, key, &job)
	}
	if apierrors.IsNotFound(err) {
		f.TemplateProblem, f.Created = c.problems.Get(f.Node.Name), c.created.of(f.Node.Name, name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Job %s: %w", key, err)
	}
	f.Job = &job
	return nil
}

// read reads, live, what a step needs.
func (c *Controller) read(ctx context.Context, f *repair.Facts, needs repair.Needs) error {
	if needs.Pods {
		var pods corev1.PodList
		if err := c.apiReader.List(ctx, &pods, client.MatchingFields{"spec.nodeName": f.Node.Name}); err != nil {
			return fmt.Errorf("list the pods on node %s: %w", f.Node.Name, err)
		}
		f.Pods = pods.Items
	}
	if needs.JobPods && f.Job != nil {
		var pods corev1.PodList
		if err := c.apiReader.List(ctx, &pods, client.InNamespace(c.jobs), client.MatchingLabels{batchv1.ControllerUidLabel: string(f.Job.UID)}); err != nil {
			return fmt.Errorf("list the pods of Job %s: %w", f.Job.Name, err)
		}
		f.JobPods = pods.Items
	}
	if needs.Template != "" {
		if err := c.readTemplate(ctx, f, needs.Template); err != nil {
			return err
		}
	}
	if needs.Breaker {
		var stored corev1.ConfigMap
		err := c.apiReader.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: conditions.BreakerConfigMap}, &stored)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the breaker: %w", err)
		}
		f.BreakerOpen = limits.ParseBreaker(stored.Data[limits.BreakerKey], c.clock.Now()) != nil
		if f.Held, err = c.failures.HeldIn(ctx, stored.Data[breaker.Key]); err != nil {
			return err
		}
	}
	f.Has = f.Has.Plus(needs)
	return nil
}

func (c *Controller) readTemplate(ctx context.Context, f *repair.Facts, name string) error {
	var template corev1.PodTemplate
	key := client.ObjectKey{Namespace: c.jobs, Name: name}
	err := c.apiReader.Get(ctx, key, &template)
	switch {
	case apierrors.IsNotFound(err):
		f.Template = nil
	case apierrors.IsForbidden(err):
		f.Template, f.TemplateProblem = nil, err.Error()
	case err != nil:
		return fmt.Errorf("get PodTemplate %s: %w", key, err)
	default:
		f.Template = &template
	}
	return nil
}

// indexCounts finds the nodes that may count for the limits of others. Of a fleet that is swept all nodes have a record.
const indexCounts = "pitcrew.visits"

// counts tells whether a visit to the node is under way, or repairs of it are remembered. It may say so of one that does not count, and
// parses nothing: a cache asks for every update of a node.
func counts(node client.Object) []string {
	text := node.GetAnnotations()[conditions.AnnotationRepair]
	return []string{strconv.FormatBool(strings.Contains(text, `"current"`) || strings.Contains(text, `"repairs"`))}
}

// peersOf returns what sums up all other nodes that count, from the cache and from the visits that were just begun.
func (c *Controller) peersOf(ctx context.Context, p *policy.Policy, f *repair.Facts) func(time.Time) ([]repair.Peer, error) {
	return func(now time.Time) ([]repair.Peer, error) {
		// In this order: a write that is not pending now is in the cache, and one that is counts by this copy, whoever sees it in the
		// cache meanwhile.
		begun := c.pending.all()
		var nodes corev1.NodeList
		if err := c.client.List(ctx, &nodes, client.MatchingFields{indexCounts: "true"}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { _, isBegun := begun[n.Name]; return isBegun })
		for name, visit := range begun {
			var n corev1.Node
			if err := c.client.Get(ctx, client.ObjectKey{Name: name}, &n); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("get node %s: %w", name, err)
			}
			nodes.Items = append(nodes.Items, *visit.overlay(&n)) // one that is gone has no record
		}
		var peers []repair.Peer
		known := map[string]*visit.Record{f.Node.Name: f.Record}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if n.Name == f.Node.Name {
				continue
			}
			if r, err := c.records.of(n); err == nil && r != nil {
				known[n.Name] = r
				peers = append(peers, repair.PeerWith(p, n, r, now))
			}
		}
		return append(peers, c.starts.peers(p.Repair, f.Node, known, now)...), nil
	}
}

// changes tells whether a step changes a node.
func changes(s repair.Step, n *corev1.Node) bool {
	if s.Needs.Any() {
		return false
	}
	after := n.DeepCopy()
	s.Apply(after)
	return quarantine.Differ(after, n)
}
