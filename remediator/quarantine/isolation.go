package quarantine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
)

// Isolation and IsolatedGPU are those of package isolate, as the record has them.
type (
	Isolation   = isolate.Isolation
	IsolatedGPU = isolate.GPU
)

// DeviceRules are the rules that a node must have, and no other ones of ours.
type DeviceRules struct{ Want []resourceapi.DeviceTaintRule }

// devices are those that the rules name.
func (r *DeviceRules) devices() []devices.Device {
	all := []devices.Device{} // none is not the whole node
	if r == nil {
		return all
	}
	for i := range r.Want {
		all = append(all, devices.Of(&r.Want[i]))
	}
	return all
}

// IsIsolated reports whether the quarantine is one of single GPUs.
func (q *Quarantine) IsIsolated() bool { return q.Phase == Quarantined && q.Isolation != nil }

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
	return hasTaint(o.Node.Spec.Taints, r.Taint)
}

// findReach finds what the problems reach by whose rules devices are isolated. The causes of the record are up to date.
func findReach(a *assessment, r *Record, on isolate.Devices) {
	problems := a.problems
	together := map[bool][]string{} // by whether the rules only observe
	for condition, p := range problems {
		if !p.rule.Isolate || !p.isActionable() {
			continue
		}
		p.reach, p.gpus = isolate.Reach{}, nil
		gpus, all := devices.Addresses(p.condition.Message)
		switch {
		case p.role != "" && len(a.policy.Domains) > 0:
			p.reach.WhyNode = "faults of a link are also those of other GPUs"
		case p.class == conditions.Reboot:
			p.reach.WhyNode = "a reboot is of the whole node"
		case !all:
			p.reach.WhyNode = "the message does not name GPUs alone, or not all of them"
		default:
			p.gpus = gpus
			if a.isDue(r, p) {
				together[p.rule.Observe] = isolate.Union(together[p.rule.Observe], gpus)
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
		if len(p.gpus) > 0 {
			fault.GPUs, fault.MaxDevices = p.gpus, p.rule.MaxDevices
			fault.Together = isolate.Union(isolate.Union(together[p.rule.Observe], p.gpus), isolated)
			p.reach = on.Reach(fault, a.now)
			problems[condition] = p
		}
	}
}

// isDue reports whether a problem is a cause of the record that acts now: neither a fault that has not lasted for its rule's `for`, nor
// one that a person has released, counts against what other faults may isolate.
func (a *assessment) isDue(r *Record, p problem) bool {
	for i := range r.Causes {
		if c := &r.Causes[i]; c.Condition == p.condition.Type {
			return !a.now.Before(a.dueAt(r, c, p)) && !r.isCovered(p)
		}
	}
	return false
}

// dueGPUs are the addresses of the GPUs of all problems that filter accepts, that are due and whose devices are known.
func (s *situation) dueGPUs(filter func(problem) bool) (addresses []string) {
	for i := range s.record.Causes {
		c := &s.record.Causes[i]
		p, isProblem := s.conditions.problems[c.Condition]
		if isProblem && c.Due && p.reach.Extent == isolate.SomeDevices && filter(p) && !s.record.isCovered(p) {
			addresses = isolate.Union(addresses, p.gpus)
		}
	}
	return addresses
}

// hasMoreGPUs reports whether GPUs have a fault now beside those that are isolated.
func (s *situation) hasMoreGPUs(worst problem) bool {
	if !s.record.IsIsolated() || worst.reach.Extent == isolate.WholeNode {
		return false
	}
	isolated := s.record.Isolation.Addresses()
	return slices.ContainsFunc(s.dueGPUs(problem.isEnforced), func(address string) bool { return !slices.Contains(isolated, address) })
}

// isolate makes the quarantine one of the GPUs that have a fault now, and of those that are isolated already.
func (d *decider) isolate() {
	var gpus []IsolatedGPU
	if d.record.IsIsolated() {
		gpus = d.record.Isolation.GPUs
	}
	d.record.Isolation = &Isolation{GPUs: d.devices().With(gpus, d.dueGPUs(problem.isEnforced)), PendingSince: d.now}
	d.record.HandOff = nil
	d.next.requeueAt(d.now.Add(isolate.Recheck))
}

// updateIsolation brings an isolation up to date with the devices: a boot gives them other names.
func (d *decider) updateIsolation() {
	r := d.record
	if !r.IsIsolated() || d.conditions.maintained {
		return
	}
	updated, isNew, again := d.devices().Update(*r.Isolation, r.Taint.NodeTaint(), d.confirmed(), r.Boot.Seen, d.now)
	if r.Isolation = &updated; isNew {
		r.Taint.Since = d.now
	}
	d.next.requeueAt(again)
}

// observeDevices shows what a rule that only observes would do, by rules without effect.
func (d *decider) observeDevices(p problem) {
	switch p.reach.Extent {
	case isolate.DevicesUnknown:
	case isolate.WholeNode:
		d.record.Isolation = nil
	case isolate.SomeDevices:
		d.observing = &corev1.Taint{Key: p.rule.Taint.Key, Value: p.rule.Taint.Value}
		updated, again := d.devices().Observe(d.record.Isolation, d.dueGPUs(problem.isObserved), *d.observing, d.now)
		d.record.Isolation = &updated
		d.next.requeueAt(again)
	}
}

// noteUnknownDevices keeps the time from which the devices are unknown.
func noteUnknownDevices(r *Record, a *assessment, next *schedule) {
	if r == nil || r.Phase == Released {
		return
	}
	for _, p := range a.problems {
		if p.reach.Wait != "" && !r.isCovered(p) {
			if r.DevicesUnknownSince.IsZero() {
				r.DevicesUnknownSince = a.now
			}
			next.requeueAt(a.now.Add(isolate.Recheck))
			return
		}
	}
	r.DevicesUnknownSince = time.Time{}
}

// deviceRules are the rules that the node must have after the decision; nil: those that it has.
func deviceRules(s *situation, observing *corev1.Taint) *DeviceRules {
	look, r := s.observed.Devices, s.record
	switch {
	case look == nil, look.RulesErr != "", s.conditions.maintained:
		return nil
	case r == nil, r.Isolation == nil, r.Phase == Released:
		return &DeviceRules{}
	case r.Phase == Suspect && observing == nil:
		return nil // its condition is not current just now
	case r.Phase == Suspect:
		return &DeviceRules{Want: s.devices().Rules(r.Isolation, *observing)}
	case !s.confirmed() || s.devices().HaveLostRules(r.Isolation):
		return nil
	}
	return &DeviceRules{Want: s.devices().Rules(r.Isolation, r.Taint.NodeTaint())}
}
