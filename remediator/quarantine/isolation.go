package quarantine

import (
	"slices"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
)

// devices are those of the node.
func (o *Observation) devices() isolate.Devices {
	return isolate.Devices{Node: devices.Node{Name: o.Node.Name, UID: o.Node.UID}, Look: o.Devices}
}

func (s *situation) devices() isolate.Devices { return s.observed.devices() }

// showsTaint reports whether the cluster shows the taint of a quarantine. A kubelet can write neither taints nor rules.
func (o *Observation) showsTaint(r *causes.Record) bool {
	if r.IsIsolated() {
		return o.devices().HaveTaint(r.Taint.NodeTaint())
	}
	return causes.HasTaint(o.Node.Spec.Taints, r.Taint)
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
	var gpus []causes.IsolatedGPU
	if d.record.IsIsolated() {
		gpus = d.record.Isolation.GPUs
	}
	d.record.Isolation = &causes.Isolation{GPUs: d.devices().With(gpus, d.dueGPUs(causes.Problem.IsEnforced)), PendingSince: d.now}
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

// deviceRules are the rules that the node must have after the decision; nil: those that it has.
func deviceRules(s *situation) *causes.DeviceRules {
	look, r := s.observed.Devices, s.record
	switch {
	case look == nil, look.RulesErr != "", s.conditions.Maintained:
		return nil
	case r == nil, !r.IsIsolated():
		return &causes.DeviceRules{}
	case !s.confirmed() || s.devices().HaveLostRules(r.Isolation):
		return nil
	}
	return &causes.DeviceRules{Want: s.devices().Rules(r.Isolation, r.Taint.NodeTaint())}
}
