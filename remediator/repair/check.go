package repair

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// settleTaint is how long after the taint of a sweep the pods of the node are listed once more, before its Job is created: the
// scheduler may have chosen the node just before it saw the taint.
const settleTaint = 5 * time.Second

// Selection is that a sweep has chosen a node.
type Selection struct {
	Sweep string
	At    time.Time
}

func labelsOf(n *corev1.Node) labels.Set { return labels.Set(n.Labels) }

// NewSweepNode sums up a node for [PlanSweeps], with what [RecordOf] returns for it. The record is not changed.
func NewSweepNode(p *policy.Policy, n *corev1.Node, r *visit.Record, err error, idle sweep.Idle, now time.Time) sweep.Node {
	s := sweep.Node{Name: n.Name, Labels: labelsOf(n), Created: n.CreationTimestamp.Time, Idle: idle}
	q, badQuarantine := causes.RecordOf(n)
	if err != nil || badQuarantine != nil {
		s.Unavailable = "a record of the node cannot be read"
		return s
	}
	s.Record = r.Clone(n)
	if q != nil && q.NodeUID == n.UID && q.Phase == causes.Suspect {
		for _, c := range q.Causes {
			if c.HealthySince.IsZero() {
				s.SuspectSince = firstcheck.Later(s.SuspectSince, c.FirstSeen)
			}
		}
	}
	s.Unavailable = unavailable(p, n, s.Record, q, now)
	return s
}

// unavailable says why no sweep may begin on a node, whatever its pods; empty: nothing is in the way.
func unavailable(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record, now time.Time) string {
	switch {
	case node.Excluded(n):
		return "Pitcrew leaves the node alone"
	case len(node.Accelerators(n.Status.Allocatable)) == 0:
		return "the node has no accelerator"
	case !node.IsReady(n):
		return "the node is not Ready"
	case n.Spec.Unschedulable:
		return "the node is cordoned"
	case firstcheck.Waits(p, n):
		return "the node waits for its first check"
	case standing(n, q) != nil:
		return "the node is quarantined"
	case q != nil && q.NodeUID == n.UID && q.IsIsolated():
		return "a GPU of the node is isolated"
	}
	for _, t := range n.Spec.Taints {
		if t.Key == conditions.TaintUnhealthy || t.Key == conditions.TaintUnchecked {
			return "the node has taint " + t.ToString()
		}
	}
	return otherRepairer(n, r, now)
}

// beginSweep begins the check that a sweep, or a person, has chosen the node for.
func (d *decider) beginSweep() {
	s := d.facts.Selected
	if d.requested(visit.RequestCheck) {
		covered := slices.ContainsFunc(d.policy.Sweeps, func(p policy.Sweep) bool { return p.Nodes.Matches(labelsOf(d.facts.Node)) })
		switch why := unavailable(d.policy, d.facts.Node, d.record, d.facts.Quarantine, d.now); {
		case !covered:
			d.refuse("not checked: no sweep of the policy is for this node")
			return
		case s == nil:
			d.waitFor("check", "a check waits: %s",
				cmp.Or(why, "it begins when no pod on the node has an accelerator, none waits for the node, and maxNodes of the sweep allows it"))
		}
	}
	if s == nil || len(d.record.Last) > 0 && !d.record.Last[0].StartedAt.Before(s.At) {
		return
	}
	i := slices.IndexFunc(d.policy.Sweeps, func(p policy.Sweep) bool { return p.Name == s.Sweep })
	if i < 0 || unavailable(d.policy, d.facts.Node, d.record, d.facts.Quarantine, d.now) != "" || d.held() != "" {
		return
	}
	d.openCheck(visit.Visit{Kind: visit.Sweep, Sweep: s.Sweep}, d.policy.Sweeps[i].Check)
}

// openCheck begins a sweep or a first check with its Job, or notes what is in the way.
func (d *decider) openCheck(v visit.Visit, check policy.Check) {
	if d.needs(Needs{Pods: true, Template: check.Template}) || d.step.Needs.Any() {
		return
	}
	if d.facts.Template == nil {
		d.waitFor("template", "%s waits: %s", v.Kind, d.noTemplate())
		return
	}
	if why := firstcheck.Unproven(d.policy, d.facts.Node, d.facts.Template); why != "" {
		d.waitFor(WaitsForProof, "%s waits: %s", v.Kind, why)
		return
	}
	if pods := d.inTheWay(false); len(pods) > 0 {
		if v.Kind == visit.FirstCheck {
			d.requeue(emptyPoll)
		} else { // another check follows, but for what an earlier one has left
			pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Namespace != d.facts.Namespace })
		}
		if len(pods) > 0 {
			d.waitFor("pods", "%s waits: %s", v.Kind, podNames(pods, "has not ended", "have not ended"))
		}
		return
	}
	d.open(v)
	d.begun(d.record.Current, check, false)
	d.event(corev1.EventTypeNormal, SweepStarted, "%s: %s", v.Name(), strings.Join(append([]string{check.Template}, check.Args...), " "))
	if d.requested(visit.RequestCheck) {
		d.record.Request = nil
	}
}

// yield ends a sweep because a pod needs the node. That is no result.
func (d *decider) yield(v *visit.Visit, format string, args ...any) {
	d.event(corev1.EventTypeNormal, SweepYielded, v.Name()+" makes way: "+format, args...)
	d.result(v, ResultYielded)
	d.close(visit.Yielded, "made way: "+format, args...)
}

// madeWay ends a sweep if a pod waits for the node, or has come to it, or the node is being taken out of service.
func (d *decider) madeWay(v *visit.Visit) bool {
	if v.Kind != visit.Sweep {
		return false
	}
	if d.facts.Awaited != "" {
		d.yield(v, "pod %s could run on the node", d.facts.Awaited)
		return true
	}
	if d.facts.Quarantine != nil && standing(d.facts.Node, d.facts.Quarantine) != nil {
		d.yield(v, "the node is quarantined")
		return true
	}
	if d.needs(Needs{Pods: true}) {
		return true
	}
	for _, pod := range d.facts.Pods {
		if pod.Namespace != d.facts.Namespace && sweep.HoldsAccelerator(&pod) {
			d.yield(v, "pod %s/%s has come to the node", pod.Namespace, pod.Name)
			return true
		}
	}
	return false
}

// swept notes that a sweep has found out whether the node is healthy.
func (d *decider) swept(v *visit.Visit) {
	if v.Kind != visit.Sweep {
		return
	}
	kept := map[string]time.Time{v.Sweep: d.now}
	for _, s := range d.policy.Sweeps {
		if at, ok := d.record.Swept[s.Name]; ok && s.Name != v.Sweep {
			kept[s.Name] = at
		}
	}
	d.record.Swept = kept
}
