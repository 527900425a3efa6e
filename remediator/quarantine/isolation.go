package quarantine

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

// NeedsDevices reports whether [Decide] needs the devices of a node: a rule isolates, or may isolate, GPUs of it.
func NeedsDevices(p *policy.Policy, n *corev1.Node, r *Record) bool {
	switch {
	case node.Excluded(n):
		return false
	case r != nil && r.Isolation != nil:
		return true
	case r != nil && r.Phase == Quarantined:
		return false // no devices of it are isolated any more
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		rule, class, ok := p.Match(n.Labels, c)
		return ok && rule.Isolate && !rule.AlertOnly && class != conditions.Reboot
	})
}

// devices are those of the node.
func (o *Observation) devices() isolate.Devices {
	return isolate.Devices{Node: devices.Node{Name: o.Node.Name, UID: o.Node.UID}, Look: o.Devices}
}

func (s *situation) devices() isolate.Devices { return s.observed.devices() }

// showsTaint reports whether the cluster shows the taint of a quarantine. A kubelet can write neither taints nor rules.
func (o *Observation) showsTaint(r *Record) bool {
	if r.IsIsolated() {
		return o.devices().HaveTaint(r.Taint.NodeTaint())
	}
	return causes.HasTaint(o.Node.Spec.Taints, r.Taint)
}

// findReach finds what the problems reach by whose rules devices are isolated. The causes of the record are up to date.
func findReach(a *causes.Assessment, r *Record, on isolate.Devices) {
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

// dueGPUs are the addresses of the GPUs of all problems that filter accepts, that are due and whose devices are known.
func (s *situation) dueGPUs(filter func(causes.Problem) bool) (addresses []string) {
	for i := range s.record.Causes {
		c := &s.record.Causes[i]
		p, isProblem := s.conditions.Problems[c.Condition]
		if isProblem && c.Due && p.Reach.Extent == isolate.SomeDevices && filter(p) && !s.record.IsCovered(p) {
			addresses = isolate.Union(addresses, p.Gpus)
		}
	}
	return addresses
}

// hasMoreGPUs reports whether GPUs have a fault now beside those that are isolated.
func (s *situation) hasMoreGPUs(worst causes.Problem) bool {
	if !s.record.IsIsolated() || worst.Reach.Extent == isolate.WholeNode {
		return false
	}
	isolated := s.record.Isolation.Addresses()
	return slices.ContainsFunc(s.dueGPUs(causes.Problem.IsEnforced), func(address string) bool { return !slices.Contains(isolated, address) })
}

// isolate makes the quarantine one of the GPUs that have a fault now, and of those that are isolated already.
func (d *decider) isolate() {
	var gpus []IsolatedGPU
	if d.record.IsIsolated() {
		gpus = d.record.Isolation.GPUs
	}
	d.record.Isolation = &Isolation{GPUs: d.devices().With(gpus, d.dueGPUs(causes.Problem.IsEnforced)), PendingSince: d.now}
	d.record.HandOff = nil
	d.next.RequeueAt(d.now.Add(isolate.Recheck))
}

// updateIsolation brings an isolation up to date with the devices: a boot gives them other names.
func (d *decider) updateIsolation() {
	r := d.record
	if !r.IsIsolated() || d.conditions.Maintained {
		return
	}
	updated, isNew, again := d.devices().Update(*r.Isolation, r.Taint.NodeTaint(), d.confirmed(), r.Boot.Seen, d.now)
	if r.Isolation = &updated; isNew {
		r.Taint.Since = d.now
	}
	d.next.RequeueAt(again)
}

// noteUnknownDevices keeps the time from which the devices are unknown.
func noteUnknownDevices(r *Record, a *causes.Assessment, next *causes.Schedule) {
	if r == nil || r.Phase == Released {
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

// deviceRules are the rules that the node must have after the decision; nil: those that it has.
func deviceRules(s *situation) *DeviceRules {
	look, r := s.observed.Devices, s.record
	switch {
	case look == nil, look.RulesErr != "", s.conditions.Maintained:
		return nil
	case r == nil, !r.IsIsolated():
		return &DeviceRules{}
	case !s.confirmed() || s.devices().HaveLostRules(r.Isolation):
		return nil
	}
	return &DeviceRules{Want: s.devices().Rules(r.Isolation, r.Taint.NodeTaint())}
}
