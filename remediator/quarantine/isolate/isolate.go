// Package isolate keeps pods off single GPUs of a node instead of the whole node: which GPUs a fault reaches, and the rules for their
// devices. It is pure.
package isolate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

const (
	// Settle is how long the devices of a GPU may be unknown, or its rules missing, before the node is quarantined instead. A driver that
	// restarts publishes its devices again within seconds. But a kubelet that starts deletes all slices of its node, and a driver that has
	// published them just before publishes them again after 60 to 90 s: for a minute it takes what it has created for present, and it
	// looks 30 s after the last change (Kubernetes, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go and DefaultMutationCacheTTL in
	// dynamic-resource-allocation/resourceslice/resourceslicecontroller.go).
	Settle = 2 * time.Minute
	// Recheck is how often they are read meanwhile.
	Recheck = 5 * time.Second
	// afterBoot is how long they are read as often after a boot: the driver may not have published the new names yet.
	afterBoot = 5 * time.Minute
	// recheckRuled is how often they are read else.
	recheckRuled = time.Minute
	// shown is how many devices of a GPU are named. A kubelet may publish thousands, and the record has to stay one that is read.
	shown = 32
)

// Isolation is what keeps pods off single GPUs of a node. It names them by what a boot does not change. The names of their devices are
// found again in each decision, and a record that is forged adds no GPU of another node.
type Isolation struct {
	GPUs []GPU `json:"gpus,omitempty"`
	// PendingSince is since when the rules are to be written; zero: they were all seen. One that is missing then was deleted by others.
	PendingSince time.Time `json:"pendingSince,omitzero"`
}

// GPU is a GPU of an [Isolation].
type GPU struct {
	// Address is the PCI address, as in the messages of conditions.
	Address string `json:"address"`
	// UUID is that of the card when its devices were found first; empty: its driver publishes none. Another card at the address is
	// never isolated for this one.
	UUID string `json:"uuid,omitempty"`
	// Devices are the names of the devices as they were found last, for people; of very many the first.
	Devices []string `json:"devices,omitempty"`
	// Replaced is set once another card was at the address: its rules are deleted by us then, not by others, until they are seen again.
	Replaced bool `json:"replaced,omitempty"`
}

// Addresses are those of the GPUs; nil has none.
func (i *Isolation) Addresses() (addresses []string) {
	if i == nil {
		return nil
	}
	for _, g := range i.GPUs {
		addresses = append(addresses, g.Address)
	}
	return addresses
}

// uuidOf is the recorded UUID of the GPU at an address; empty: none is.
func (i *Isolation) uuidOf(address string) string {
	if i == nil {
		return ""
	}
	for _, g := range i.GPUs {
		if g.Address == address {
			return g.UUID
		}
	}
	return ""
}

// String names the GPUs and their devices.
func (i *Isolation) String() string {
	var names []string
	for _, g := range i.GPUs {
		names = append(names, fmt.Sprintf("gpu %s (%s)", g.Address, strings.Join(g.Devices, ", ")))
	}
	return strings.Join(names, ", ")
}

// Devices are those of a node, as the cluster shows them, and their rules. Look is nil if nothing was read.
type Devices struct {
	Node devices.Node
	Look *devices.Look
}

func (d Devices) card(g GPU) devices.Card { return d.Look.Card(d.Node.Name, g.Address, g.UUID) }

// hasReadRules reports whether the rules could be read.
func (d Devices) hasReadRules() bool { return d.Look != nil && d.Look.RulesErr == "" }

// Rules are those of the isolation with a taint. The rules of a GPU whose devices are not known now stay as they are.
func (d Devices) Rules(i *Isolation, taint corev1.Taint) (want []resourceapi.DeviceTaintRule) {
	for _, g := range i.GPUs {
		card := d.card(g)
		if card.Wait != "" {
			want = append(want, d.Look.RulesOf(g.Address)...)
		}
		for _, device := range card.Devices {
			want = append(want, d.Node.Rule(g.Address, device, taint))
		}
	}
	return want[:min(len(want), devices.MaxRules)]
}

// HasRules reports whether the rules were all seen of the devices that are known now.
func (d Devices) HasRules(i *Isolation, taint corev1.Taint) bool {
	if !d.hasReadRules() || d.Look.SlicesErr != "" {
		return false
	}
	want := d.Rules(i, taint)
	return len(want) > 0 && !slices.ContainsFunc(want, func(r resourceapi.DeviceTaintRule) bool { return !d.Look.Has(&r) })
}

// isRuled reports whether each GPU of the isolation has its rules, also one whose devices are not known now.
func (d Devices) isRuled(i *Isolation, taint corev1.Taint) bool {
	return d.HasRules(i, taint) && !slices.ContainsFunc(i.GPUs, func(g GPU) bool {
		return d.card(g).Wait != "" && len(d.Look.RulesOf(g.Address)) == 0
	})
}

// HaveLostRules reports whether rules that were seen are gone: a GPU has none, although its devices are known.
func (d Devices) HaveLostRules(i *Isolation) bool {
	return d.hasReadRules() && i.PendingSince.IsZero() && slices.ContainsFunc(i.GPUs, func(g GPU) bool {
		return !g.Replaced && len(d.card(g).Devices) > 0 && len(d.Look.RulesOf(g.Address)) == 0
	})
}

// areKnown reports whether the devices of a GPU of the isolation can be named, and its rules could be read.
func (d Devices) areKnown(i *Isolation) bool {
	return d.hasReadRules() && slices.ContainsFunc(i.GPUs, func(g GPU) bool { return len(d.card(g).Devices) > 0 })
}

// HaveTaint reports whether a rule has the key and the effect of a taint. A kubelet can write no rule.
func (d Devices) HaveTaint(taint corev1.Taint) bool {
	return d.Look != nil && slices.ContainsFunc(d.Look.Rules, func(r resourceapi.DeviceTaintRule) bool {
		return r.Spec.Taint.Key == taint.Key && string(r.Spec.Taint.Effect) == string(taint.Effect)
	})
}

// With are GPUs with those at more addresses, and with the names that their devices have now.
func (d Devices) With(gpus []GPU, more []string) []GPU {
	gpus = slices.Clone(gpus)
	for _, address := range more {
		if !slices.ContainsFunc(gpus, func(g GPU) bool { return g.Address == address }) {
			gpus = append(gpus, GPU{Address: address})
		}
	}
	for n := range gpus {
		g := &gpus[n]
		card := d.card(*g)
		if len(card.Devices) == 0 {
			continue
		}
		if g.UUID == "" {
			g.UUID = card.UUID
		}
		g.Devices = nil
		for _, device := range card.Devices[:min(len(card.Devices), shown)] {
			g.Devices = append(g.Devices, device.String())
		}
	}
	return gpus
}

// Update is an isolation brought up to date with the devices: a boot gives them other names. isNew is set if the rules are to be written
// for new names, under which pods may have come to the devices; only a confirmed isolation gets them. again is when to read the devices
// again.
func (d Devices) Update(
	i Isolation, taint corev1.Taint, confirmed bool, bootSeen, now time.Time,
) (updated Isolation, isNew bool, again time.Time) {
	i.GPUs = d.With(i.GPUs, nil)
	if d.hasReadRules() {
		for n := range i.GPUs {
			// It keeps which GPUs lose their rules because another card is at their address.
			g := &i.GPUs[n]
			g.Replaced = d.card(*g).Refused != "" || g.Replaced && len(d.Look.RulesOf(g.Address)) == 0
		}
	}
	switch {
	case d.isRuled(&i, taint):
		i.PendingSince = time.Time{}
		if now.Sub(bootSeen) >= afterBoot {
			return i, false, now.Add(recheckRuled)
		}
	case i.PendingSince.IsZero() && !d.HaveLostRules(&i) && confirmed && d.areKnown(&i):
		i.PendingSince, isNew = now, true
	}
	return i, isNew, now.Add(Recheck)
}

// Union are the addresses of both, sorted.
func Union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}
