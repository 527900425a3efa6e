package limits

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// minClaims and maxClaimsPercent are how many nodes may claim at a time that others maintain them, the larger of the two: kubelets write
// such claims, and faults of many nodes are no plan.
const minClaims, maxClaimsPercent = 2, 10

// HonouredClaims are the claims of maintenance of a node that hold at a time; none if too many nodes have claimed that before. Of self,
// Name and Claims are read.
func (p Peers) HonouredClaims(self Peer, at time.Time) []node.Claim {
	if self.claimedAt(at).IsZero() || !p.honoured(&self, at)[&self] {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(self.Claims), func(c node.Claim) bool { return !c.Holds(at) })
}

// honoured are the peers whose claims count at a time: those who have claimed first. self takes the place of the node that asks; nil: the
// fleet has it, too.
func (p Peers) honoured(self *Peer, at time.Time) maintained {
	var claiming []*Peer
	if self != nil {
		claiming = append(claiming, self)
	}
	if p.fleet != nil {
		for m := range p.fleet.claiming {
			if (self == nil || m != p.except) && !m.claimedAt(at).IsZero() {
				claiming = append(claiming, &m.Peer)
			}
		}
	}
	slices.SortFunc(claiming, func(a, b *Peer) int {
		return cmp.Or(a.claimedAt(at).Compare(b.claimedAt(at)), cmp.Compare(a.Name, b.Name))
	})
	there := p.in("", nil)
	limit := max(minClaims, (1+there.checked+there.unchecked)*maxClaimsPercent/100)
	honoured := maintained{}
	for _, peer := range claiming[:min(len(claiming), limit)] {
		honoured[peer] = true
	}
	return honoured
}

// maintained are peers whose claims count.
type maintained map[*Peer]bool

// explain reports whether a claim of a peer explains a fault that began at a time.
func (m maintained) explain(p *Peer, condition corev1.NodeConditionType, began time.Time) bool {
	return m[p] && node.Excuse(p.Claims, condition, began) != ""
}

// claimedAt is since when a node has had a claim that holds at a time; zero: it has none.
func (p *Peer) claimedAt(at time.Time) (from time.Time) {
	for _, c := range p.Claims {
		if c.Holds(at) && (from.IsZero() || c.From.Before(from)) {
			from = c.From
		}
	}
	return from
}
