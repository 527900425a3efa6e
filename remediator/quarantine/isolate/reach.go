package isolate

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// Extent is what a quarantine keeps pods off.
type Extent int

// The extents.
const (
	WholeNode Extent = iota
	// SomeDevices are those of the GPUs that the fault names.
	SomeDevices
	// DevicesUnknown is SomeDevices, once these are known.
	DevicesUnknown
)

// Reach is what a fault reaches.
type Reach struct {
	Extent Extent
	// WhyNode is why it is the node although the rule isolates devices, Wait why the devices are not known now.
	WhyNode, Wait string
}

// Fault is one that names GPUs, and whose rule isolates devices.
type Fault struct {
	// GPUs are the addresses of those that it names, Together of all that would be isolated with them.
	GPUs, Together []string
	// MaxDevices is the most that the rule isolates.
	MaxDevices int
	// Isolation is what the record has, nil: nothing. Taint is that of a quarantine that is an isolation, nil: there is none.
	Isolation *Isolation
	Taint     *corev1.Taint
	// UnknownSince is since when the devices are unknown; zero: they are known.
	UnknownSince time.Time
}

// Reach finds what a fault reaches.
func (d Devices) Reach(f Fault, now time.Time) (r Reach) {
	parts := 0
	for _, address := range f.Together {
		card := d.card(GPU{Address: address, UUID: f.Isolation.uuidOf(address)})
		parts += len(card.Devices)
		if !slices.Contains(f.GPUs, address) {
			continue
		}
		if card.Refused != "" {
			return Reach{WhyNode: card.Refused}
		}
		if card.Wait != "" {
			r.Wait = card.Wait
		}
	}
	if d.Look != nil && d.Look.RulesErr != "" {
		r.Wait = d.Look.RulesErr
	}
	isOverdue := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) >= Settle }
	switch {
	case len(f.Together) > f.MaxDevices:
		r.WhyNode = fmt.Sprintf("%d GPUs of it have a fault, and maxDevices is %d", len(f.Together), f.MaxDevices)
	case parts > devices.MaxRules:
		r.WhyNode = fmt.Sprintf("the GPUs have %d devices, and a node may have %d rules", parts, devices.MaxRules)
	case d.Look != nil && d.Look.Refused != "":
		r.WhyNode = d.Look.Refused
	case r.Wait != "" && isOverdue(f.UnknownSince):
		r.WhyNode = r.Wait
	case f.Taint != nil && isOverdue(f.Isolation.PendingSince) && !d.HasRules(f.Isolation, *f.Taint):
		r.WhyNode = "the rules for its devices could not be written"
	case r.Wait != "":
		r.Extent = DevicesUnknown
	default:
		r.Extent = SomeDevices
	}
	return r
}
