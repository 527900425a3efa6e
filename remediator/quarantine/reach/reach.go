// Package reach finds whether the faults of a node reach the node or single GPUs of it. It is pure.
package reach

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
)

// Find finds what the problems reach by whose rules devices are isolated. The causes of the record are up to date.
func Find(a *causes.Assessment, r *causes.Record, on isolate.Devices) {
	problems := a.Problems
	together := map[bool][]string{} // by whether the rules only observe
	for condition, p := range problems {
		if !p.Rule.Isolate || !p.IsActionable() {
			continue
		}
		p.Reach, p.Gpus = isolate.Reach{}, nil
		gpus, all := devices.Addresses(p.Condition.Message)
		switch {
		case p.Role != "" && len(a.Policy.Domains) > 0:
			p.Reach.WhyNode = "faults of a link are also those of other GPUs"
		case p.Class == conditions.Reboot:
			p.Reach.WhyNode = "a reboot is of the whole node"
		case !all:
			p.Reach.WhyNode = "the message does not name GPUs alone, or not all of them"
		default:
			p.Gpus = gpus
			if a.IsDue(r, p) {
				together[p.Rule.Observe] = isolate.Union(together[p.Rule.Observe], gpus)
			}
		}
		problems[condition] = p
	}
	fault := isolate.Fault{Isolation: r.Isolation, UnknownSince: r.DevicesUnknownSince}
	var isolated []string
	if r.IsIsolated() {
		taint := r.Taint.NodeTaint()
		isolated, fault.Taint = r.Isolation.Addresses(), &taint
	}
	for condition, p := range problems {
		if len(p.Gpus) > 0 {
			fault.GPUs, fault.MaxDevices = p.Gpus, p.Rule.MaxDevices
			fault.Together = isolate.Union(isolate.Union(together[p.Rule.Observe], p.Gpus), isolated)
			p.Reach = on.Reach(fault, a.Now)
			problems[condition] = p
		}
	}
}

// NoteUnknown keeps the time from which the devices are unknown.
func NoteUnknown(r *causes.Record, a *causes.Assessment, next *causes.Schedule) {
	if r == nil || r.Phase == causes.Released {
		return
	}
	for _, p := range a.Problems {
		if p.Reach.Wait != "" && !r.IsCovered(p) {
			if r.DevicesUnknownSince.IsZero() {
				r.DevicesUnknownSince = a.Now
			}
			next.RequeueAt(a.Now.Add(isolate.Recheck))
			return
		}
	}
	r.DevicesUnknownSince = time.Time{}
}

// NeedsDevices reports whether a decision needs the devices of a node: a rule isolates, or may isolate, GPUs of it.
func NeedsDevices(p *policy.Policy, n *corev1.Node, r *causes.Record) bool {
	switch {
	case node.Excluded(n):
		return false
	case r != nil && r.Isolation != nil:
		return true
	case r != nil && r.Phase == causes.Quarantined:
		return false // no devices of it are isolated any more
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		rule, class, ok := p.Match(n.Labels, c)
		return ok && rule.Isolate && !rule.AlertOnly && class != conditions.Reboot
	})
}
