package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const (
	// devicesSettle is how long the devices of a GPU may be unknown, or its rules missing, before the node is quarantined instead. A
	// driver that restarts publishes its devices again within seconds. But a kubelet that starts deletes all slices of its node, and a driver
	// that has published them just before publishes them again after 60 to 90 s: for a minute it takes what it has created for present, and it
	// looks 30 s after the last change (Kubernetes, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go and DefaultMutationCacheTTL in
	// dynamic-resource-allocation/resourceslice/resourceslicecontroller.go).
	devicesSettle = 2 * time.Minute
	// devicesRecheck is how often they are read meanwhile.
	devicesRecheck = 5 * time.Second
	// devicesAfterBoot is how long they are read as often after a boot: the driver may not have published the new names yet.
	devicesAfterBoot = 5 * time.Minute
)

// Isolation is what keeps pods off single GPUs of a node. It names them by what a boot does not change. The names of their devices are
// found anew in each decision, and a record that is forged adds no GPU of another node.
type Isolation struct {
	GPUs []IsolatedGPU `json:"gpus,omitempty"`
	// PendingSince is since when the rules are to be written; zero: they were all seen. One that is missing then was deleted by others.
	PendingSince time.Time `json:"pendingSince,omitzero"`
	// Withdrawn is set when others have deleted a rule of a suspect, which is not written again.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// IsolatedGPU is a GPU of an [Isolation].
type IsolatedGPU struct {
	// Address is the PCI address, as in the messages of conditions.
	Address string `json:"address"`
	// UUID is that of the card when its devices were found first; empty: its driver publishes none. Another card at the address is
	// never isolated for this one.
	UUID string `json:"uuid,omitempty"`
	// Devices are the names of the devices as they were found last, for people.
	Devices []string `json:"devices,omitempty"`
	// Replaced is set once another card was at the address: its rules are deleted by us then, not by others, until they are seen again.
	Replaced bool `json:"replaced,omitempty"`
}

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

// IsIsolated tells whether the quarantine is one of single GPUs.
func (q *Quarantine) IsIsolated() bool { return q.Phase == Quarantined && q.Isolation != nil }

// NeedsDevices tells whether [Decide] needs the devices of a node: a rule isolates, or may isolate, GPUs of it.
func NeedsDevices(p *policy.Policy, n *corev1.Node, r *Record) bool {
	switch {
	case Excluded(n):
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

// reach is what a quarantine keeps pods off.
type reach int

const (
	wholeNode reach = iota
	// someDevices are those of the GPUs that the problem names.
	someDevices
	// devicesUnknown is someDevices, once these are known.
	devicesUnknown
)

// assessDevices finds what the problems reach by whose rules devices are isolated. The causes of the record are up to date.
func (d *decider) assessDevices() {
	problems := d.conditions.problems
	together := map[bool][]string{} // by whether the rules only observe
	for condition, p := range problems {
		if !p.rule.Isolate || !p.isActionable() {
			continue
		}
		p.reach, p.whyNode, p.gpus, p.waitsFor = wholeNode, "", nil, ""
		gpus, all := devices.Addresses(p.condition.Message)
		switch {
		case p.role != "" && len(d.policy.Domains) > 0:
			p.whyNode = "faults of a link are also those of other GPUs"
		case p.class == conditions.Reboot:
			p.whyNode = "a reboot is of the whole node"
		case !all:
			p.whyNode = "the message does not name GPUs alone, or not all of them"
		default:
			p.gpus = gpus
			if d.isDue(p) {
				together[p.rule.Observe] = union(together[p.rule.Observe], gpus)
			}
		}
		problems[condition] = p
	}
	for condition, p := range problems {
		if len(p.gpus) > 0 {
			d.assessReach(&p, union(union(together[p.rule.Observe], p.gpus), d.isolatedGPUs()))
			problems[condition] = p
		}
	}
}

// isDue tells whether a problem is a cause of the record that acts now: neither a fault that has not lasted for its rule's `for`, nor
// one that a person has released, counts against what other faults may isolate.
func (d *decider) isDue(p problem) bool {
	for i := range d.record.Causes {
		if c := &d.record.Causes[i]; c.Condition == p.condition.Type {
			return !d.now.Before(d.conditions.dueAt(d.record, c, p)) && !d.record.isCovered(p)
		}
	}
	return false
}

// assessReach finds what a problem reaches that names GPUs. together are all GPUs that would be isolated with them.
func (d *decider) assessReach(p *problem, together []string) {
	look := d.observed.Devices
	wait, parts := "", 0
	for _, address := range together {
		card := look.Card(d.observed.Node.Name, address, d.uuidOf(address))
		parts += len(card.Devices)
		if !slices.Contains(p.gpus, address) {
			continue
		}
		if card.Refused != "" {
			p.whyNode = card.Refused
			return
		}
		if card.Wait != "" {
			wait = card.Wait
		}
	}
	if look != nil && look.RulesErr != "" {
		wait = look.RulesErr
	}
	p.waitsFor = wait
	switch {
	case len(together) > p.rule.MaxDevices:
		p.whyNode = fmt.Sprintf("%d GPUs of it have a fault, and maxDevices is %d", len(together), p.rule.MaxDevices)
	case parts > devices.MaxRules:
		p.whyNode = fmt.Sprintf("the GPUs have %d devices, and a node may have %d rules", parts, devices.MaxRules)
	case look != nil && look.Refused != "":
		p.whyNode = look.Refused
	case wait != "" && d.isOverdue(d.devicesUnknownSince()):
		p.whyNode = wait
	case d.record != nil && d.record.IsIsolated() && d.isOverdue(d.record.Isolation.PendingSince) && !d.hasRules():
		p.whyNode = "the rules for its devices could not be written"
	case wait != "":
		p.reach = devicesUnknown
	default:
		p.reach = someDevices
	}
}

func (d *decider) devicesUnknownSince() time.Time {
	if d.record == nil {
		return time.Time{}
	}
	return d.record.DevicesUnknownSince
}

func (d *decider) isOverdue(since time.Time) bool {
	return !since.IsZero() && d.now.Sub(since) >= devicesSettle
}

// noteUnknownDevices keeps the time from which the devices are unknown.
func (d *decider) noteUnknownDevices() {
	if d.record == nil || d.record.Phase == Released {
		return
	}
	for _, p := range d.conditions.problems {
		if p.waitsFor != "" && !d.record.isCovered(p) {
			if d.record.DevicesUnknownSince.IsZero() {
				d.record.DevicesUnknownSince = d.now
			}
			d.next.requeueAt(d.now.Add(devicesRecheck))
			return
		}
	}
	d.record.DevicesUnknownSince = time.Time{}
}

// waitsForDevices tells whether a problem waits until its devices are known, and notes it.
func (d *decider) waitsForDevices(p problem) bool {
	if p.reach != devicesUnknown {
		return false
	}
	d.block(p.rule.Name, BlockedByDevices, "%s, but %s; the whole node is quarantined if that lasts for %s", describe(p), p.waitsFor, devicesSettle)
	return true
}

// isolatedGPUs are the addresses of those that are isolated.
func (d *decider) isolatedGPUs() (addresses []string) {
	if d.record == nil || !d.record.IsIsolated() {
		return nil
	}
	for _, g := range d.record.Isolation.GPUs {
		addresses = append(addresses, g.Address)
	}
	return addresses
}

// uuidOf is the recorded UUID of the GPU at an address; empty: none is.
func (d *decider) uuidOf(address string) string {
	if d.record == nil || d.record.Isolation == nil {
		return ""
	}
	for _, g := range d.record.Isolation.GPUs {
		if g.Address == address {
			return g.UUID
		}
	}
	return ""
}

func union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// dueGPUs are the addresses of the GPUs of all problems that filter accepts, that are due and whose devices are known.
func (d *decider) dueGPUs(filter func(problem) bool) (addresses []string) {
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		if p, isProblem := d.conditions.problems[c.Condition]; isProblem && c.Due && p.reach == someDevices && filter(p) && !d.record.isCovered(p) {
			addresses = union(addresses, p.gpus)
		}
	}
	return addresses
}

// hasMoreGPUs tells whether GPUs have a fault now beside those that are isolated.
func (d *decider) hasMoreGPUs(worst problem) bool {
	return d.record.IsIsolated() && worst.reach != wholeNode &&
		slices.ContainsFunc(d.dueGPUs(problem.isEnforced), func(address string) bool { return !slices.Contains(d.isolatedGPUs(), address) })
}

// isolate makes the quarantine one of the GPUs that have a fault now, and of those that are isolated already.
func (d *decider) isolate() {
	var gpus []IsolatedGPU
	if d.record.IsIsolated() {
		gpus = d.record.Isolation.GPUs
	}
	d.record.Isolation = &Isolation{GPUs: gpus, PendingSince: d.now}
	d.addGPUs(d.dueGPUs(problem.isEnforced))
	d.record.HandOff = nil
	d.next.requeueAt(d.now.Add(devicesRecheck))
}

// addGPUs adds GPUs to the isolation, and brings what is recorded of their devices up to date.
func (d *decider) addGPUs(addresses []string) {
	i := d.record.Isolation
	for _, address := range addresses {
		if !slices.ContainsFunc(i.GPUs, func(g IsolatedGPU) bool { return g.Address == address }) {
			i.GPUs = append(i.GPUs, IsolatedGPU{Address: address})
		}
	}
	for n := range i.GPUs {
		g := &i.GPUs[n]
		card := d.observed.Devices.Card(d.observed.Node.Name, g.Address, g.UUID)
		if len(card.Devices) == 0 {
			continue
		}
		if g.UUID == "" {
			g.UUID = card.UUID
		}
		g.Devices = nil
		for _, device := range card.Devices {
			g.Devices = append(g.Devices, device.String())
		}
	}
}

// rules are those of the isolation with a taint. The rules of a GPU whose devices are not known now stay as they are.
func (d *decider) rules(taint corev1.Taint) (want []resourceapi.DeviceTaintRule) {
	look, node := d.observed.Devices, devices.Node{Name: d.observed.Node.Name, UID: d.observed.Node.UID}
	for _, g := range d.record.Isolation.GPUs {
		card := look.Card(node.Name, g.Address, g.UUID)
		if card.Wait != "" {
			want = append(want, look.RulesOf(g.Address)...)
		}
		for _, device := range card.Devices {
			want = append(want, node.Rule(g.Address, device, taint))
		}
	}
	return want[:min(len(want), devices.MaxRules)]
}

// taintOfDevices is the taint of the rules: that of the quarantine, or one without effect while a rule only observes.
func (d *decider) taintOfDevices() corev1.Taint {
	if d.record.IsIsolated() {
		return d.record.Taint.NodeTaint()
	}
	return corev1.Taint{Key: d.observing.Key, Value: d.observing.Value}
}

// hasRules tells whether the rules were all seen of the devices that are known now.
func (d *decider) hasRules() bool {
	look := d.observed.Devices
	if look == nil || look.RulesErr != "" || look.SlicesErr != "" {
		return false
	}
	want := d.rules(d.taintOfDevices())
	return len(want) > 0 && !slices.ContainsFunc(want, func(r resourceapi.DeviceTaintRule) bool { return !look.Has(&r) })
}

// isRuled tells whether each GPU of the isolation has its rules, also one whose devices are not known now.
func (d *decider) isRuled() bool {
	look := d.observed.Devices
	return d.hasRules() && !slices.ContainsFunc(d.record.Isolation.GPUs, func(g IsolatedGPU) bool {
		return look.Card(d.observed.Node.Name, g.Address, g.UUID).Wait != "" && len(look.RulesOf(g.Address)) == 0
	})
}

// lacksRules tells whether rules that were seen are gone: a GPU has none, although its devices are known.
func (d *decider) lacksRules() bool {
	look, i := d.observed.Devices, d.record.Isolation
	if look == nil || look.RulesErr != "" || !i.PendingSince.IsZero() {
		return false
	}
	return slices.ContainsFunc(i.GPUs, func(g IsolatedGPU) bool {
		card := look.Card(d.observed.Node.Name, g.Address, g.UUID)
		return !g.Replaced && len(card.Devices) > 0 && len(look.RulesOf(g.Address)) == 0
	})
}

// noteReplaced keeps which GPUs lose their rules because another card is at their address.
func (d *decider) noteReplaced() {
	look := d.observed.Devices
	if look == nil || look.RulesErr != "" {
		return
	}
	for n := range d.record.Isolation.GPUs {
		g := &d.record.Isolation.GPUs[n]
		card := look.Card(d.observed.Node.Name, g.Address, g.UUID)
		g.Replaced = card.Refused != "" || g.Replaced && len(look.RulesOf(g.Address)) == 0
	}
}

// followDevices brings an isolation up to date with the devices: a boot gives them other names.
func (d *decider) followDevices() {
	if !d.record.IsIsolated() || d.conditions.maintained {
		return
	}
	i := d.record.Isolation
	d.addGPUs(nil)
	d.noteReplaced()
	switch {
	case d.isRuled():
		i.PendingSince = time.Time{}
		again := recheck
		if d.now.Sub(d.record.Boot.Seen) < devicesAfterBoot {
			again = devicesRecheck
		}
		d.next.requeueAt(d.now.Add(again))
	case i.PendingSince.IsZero() && !d.lacksRules() && d.confirmed() && d.areDevicesKnown():
		// Pods may have come to the devices under their new names.
		i.PendingSince, d.record.Taint.Since = d.now, d.now
		d.next.requeueAt(d.now.Add(devicesRecheck))
	default:
		d.next.requeueAt(d.now.Add(devicesRecheck))
	}
}

// areDevicesKnown tells whether the devices of a GPU of the isolation can be named, and its rules could be read.
func (d *decider) areDevicesKnown() bool {
	look := d.observed.Devices
	return look != nil && look.RulesErr == "" && slices.ContainsFunc(d.record.Isolation.GPUs, func(g IsolatedGPU) bool {
		return len(look.Card(d.observed.Node.Name, g.Address, g.UUID).Devices) > 0
	})
}

// observeDevices shows what a rule that only observes would do, by rules without effect.
func (d *decider) observeDevices(p problem) {
	if p.reach == devicesUnknown {
		return
	}
	if p.reach == wholeNode {
		d.record.Isolation = nil
		return
	}
	d.observing = &p.rule.Taint
	if d.record.Isolation == nil {
		d.record.Isolation = &Isolation{PendingSince: d.now}
	}
	i := d.record.Isolation
	if i.Withdrawn = i.Withdrawn || d.lacksRules(); i.Withdrawn {
		i.GPUs = nil
		return
	}
	present := d.dueGPUs(problem.isObserved)
	i.GPUs = slices.DeleteFunc(i.GPUs, func(g IsolatedGPU) bool { return !slices.Contains(present, g.Address) })
	if len(i.GPUs) < len(present) {
		i.PendingSince = d.now
	}
	d.addGPUs(present)
	if d.hasRules() {
		i.PendingSince = time.Time{}
		d.next.requeueAt(d.now.Add(recheck))
		return
	}
	d.next.requeueAt(d.now.Add(devicesRecheck))
}

// deviceRules are the rules that the node must have after the decision; nil: those that it has.
func (d *decider) deviceRules() *DeviceRules {
	look, r := d.observed.Devices, d.record
	switch {
	case look == nil, look.RulesErr != "", d.conditions.maintained:
		return nil
	case r == nil, r.Isolation == nil, r.Phase == Released:
		return &DeviceRules{}
	case r.Phase == Suspect && d.observing == nil:
		return nil // its condition is not current just now
	case r.Phase == Quarantined && (!d.confirmed() || d.lacksRules()):
		return nil
	}
	return &DeviceRules{Want: d.rules(d.taintOfDevices())}
}

// isTainted tells whether the taint of the quarantine is where it belongs, or is about to be put there.
func (d *decider) isTainted() bool {
	if d.record.IsIsolated() {
		return d.confirmed() && !d.lacksRules()
	}
	return hasTaint(d.changes.Taints, d.record.Taint)
}

// isInForce tells whether the taint of the quarantine keeps pods off.
func (d *decider) isInForce() bool {
	if d.record.IsIsolated() {
		return d.hasRules()
	}
	return hasTaint(d.changes.Taints, d.record.Taint)
}

// hasPlace tells whether the quarantine of the record is in force as far as the limits are concerned.
func (d *decider) hasPlace() bool {
	if d.record.IsIsolated() {
		return d.confirmed()
	}
	return hasTaint(d.changes.Taints, d.record.Taint)
}

// showsTaint tells whether the cluster shows the taint of a quarantine. A kubelet can write neither taints nor rules.
func (o *Observation) showsTaint(r *Record) bool {
	if !r.IsIsolated() {
		return hasTaint(o.Node.Spec.Taints, r.Taint)
	}
	return o.Devices != nil && slices.ContainsFunc(o.Devices.Rules, func(rule resourceapi.DeviceTaintRule) bool {
		return rule.Spec.Taint.Key == r.Taint.Key && string(rule.Spec.Taint.Effect) == string(r.Taint.Effect)
	})
}

// isolatedBy says which devices are isolated, and how.
func (d *decider) isolatedBy() string {
	return fmt.Sprintf("isolated %s by device taint %s", d.record.Isolation, d.record.Taint)
}

// String names the GPUs and their devices.
func (i *Isolation) String() string {
	var names []string
	for _, g := range i.GPUs {
		names = append(names, fmt.Sprintf("gpu %s (%s)", g.Address, strings.Join(g.Devices, ", ")))
	}
	return Clip(strings.Join(names, ", "), conditions.MaxMessage)
}

// notIsolated says why a problem reaches the node although its rule isolates devices; empty otherwise.
func (p problem) notIsolated() string {
	if p.whyNode == "" {
		return ""
	}
	return " (the whole node, because " + Clip(p.whyNode, conditions.MaxMessage/2) + ")"
}

// wouldDo is what a rule that only observes would do.
func wouldDo(p problem) string {
	if p.reach != wholeNode {
		return fmt.Sprintf("isolate gpu %s by device taint %s", strings.Join(p.gpus, ", "), p.rule.Taint.ToString())
	}
	return "taint " + p.rule.Taint.ToString() + p.notIsolated()
}
