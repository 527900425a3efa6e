// Package starts remembers the last starts of repairs longer than the Node, its record and the leader live: a limit that counts
// starts must not forget those of a Node that was deleted. The package is pure.
package starts

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/ring"
)

// Key is the key of ConfigMap [conditions.KnownConfigMap] that holds a [Ring].
const Key = "repairs"

const (
	// day is the window of [policy.Repair.MaxPerDay].
	day = 24 * time.Hour
	// maxText bounds the text of a ring in bytes: a ConfigMap holds 1 MiB, and this one has other keys.
	maxText = 700 << 10
)

// Start is the start of one action of a repair. Its short keys keep the ConfigMap small.
type Start struct {
	Node string    `json:"n" max:"253"`
	UID  types.UID `json:"u" max:"64"`
	// Machine is the SystemUUID of the node; empty: it has none.
	Machine    string    `json:"m,omitempty" max:"64"`
	Quarantine string    `json:"q" max:"64"`
	Template   string    `json:"a" max:"253"`
	At         time.Time `json:"t"`
	// ScopeLabel and Scope are the label of [policy.Repair.Scope] and its value on the node; empty: the policy had none.
	ScopeLabel string `json:"k,omitempty" max:"317"`
	Scope      string `json:"s,omitempty" max:"63"`
}

// Of is the start of an action on a node.
func Of(p *policy.Repair, n *corev1.Node, quarantine, template string, at time.Time) Start {
	machine := node.Identity(n.Status.NodeInfo.SystemUUID)
	s := Start{Node: n.Name, UID: n.UID, Machine: machine, Quarantine: quarantine, Template: template, At: at}
	if p != nil && p.Scope != "" {
		s.ScopeLabel, s.Scope = p.Scope, n.Labels[p.Scope]
	}
	return s
}

// isOf reports whether the start was on this machine. A name can be given to another machine; only a different SystemUUID shows that.
func (s Start) isOf(n *corev1.Node) bool {
	other := node.Identity(n.Status.NodeInfo.SystemUUID)
	return s.Node == n.Name && (s.Machine == "" || other == "" || s.Machine == other)
}

func (s Start) is(other Start) bool {
	return s.Node == other.Node && s.UID == other.UID && s.Quarantine == other.Quarantine && s.At.Equal(other.At)
}

// Ring holds the last starts, the latest first. It is never changed.
type Ring []Start

// StartedAt returns the time of the start; zero: it is of no node or of no quarantine, so that no remediator has written it.
func (s Start) StartedAt() time.Time {
	if s.Node == "" || s.Quarantine == "" {
		return time.Time{}
	}
	return s.At
}

// Parse reads a ring, see [ring.Parse].
func Parse(text string, now time.Time) (Ring, error) { return ring.Parse[Start](text, now) }

// String is the text that [Parse] reads, with no more starts than fit.
func (r Ring) String() string { return ring.Text(r, maxText) }

// Has reports whether the ring has the start.
func (r Ring) Has(s Start) bool { return slices.ContainsFunc(r, s.is) }

// Count is how many starts there were on the machine of a node since some time.
func (r Ring) Count(n *corev1.Node, since time.Time) (count int) {
	for _, s := range r {
		if s.isOf(n) && s.At.After(since) {
			count++
		}
	}
	return count
}

// With is the ring with one more start, without those that the policy no longer needs.
func (r Ring) With(s Start, p *policy.Repair, now time.Time) Ring {
	keep := day
	if p != nil {
		keep = max(keep, p.Lemon.Window)
	}
	kept := slices.DeleteFunc(slices.Clone(r), func(old Start) bool { return old.is(s) || now.Sub(old.At) >= keep })
	return ring.Latest(append(kept, s))
}

// Without is the ring without a start: the action has done nothing.
func (r Ring) Without(s Start) Ring { return slices.DeleteFunc(slices.Clone(r), s.is) }

// Today are the starts that count for [policy.Repair.MaxPerDay] of a node. One from a time when the policy had another scope counts
// in each.
func (r Ring) Today(p *policy.Repair, n *corev1.Node, now time.Time) Ring {
	return slices.DeleteFunc(slices.Clone(r), func(s Start) bool {
		return now.Sub(s.At) >= day || p.Scope != "" && s.ScopeLabel == p.Scope && s.Scope != n.Labels[p.Scope]
	})
}

// ByNode are the starts by the name of the node.
func (r Ring) ByNode() map[string]Ring {
	by := map[string]Ring{}
	for _, s := range r {
		by[s.Node] = append(by[s.Node], s)
	}
	return by
}

// Unknown are the starts on nodes of a name that its record does not have: the Node was deleted and is back, or somebody has
// removed the record.
func (r Ring) Unknown(node string, recorded func(quarantine string, at time.Time) bool) (unknown Ring) {
	for _, s := range r {
		if s.Node == node && !recorded(s.Quarantine, s.At) {
			unknown = append(unknown, s)
		}
	}
	return unknown
}
