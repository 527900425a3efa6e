// Package peers reports which limits over all nodes keep a visit from beginning. It is pure.
package peers

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const day = 24 * time.Hour

// Peer is another node, as far as limits are about it.
type Peer struct {
	// Scope is the value of the label of [policy.Repair.Scope].
	Scope string
	// Active reports whether a repair or a validation is under way there.
	Active bool
	// FirstCheck reports whether its first check under load is under way there.
	FirstCheck bool
	// Repairs are how many began there within 24 hours.
	Repairs int
	// HasName is set for what is remembered of the name of the node that asks, beside its record.
	HasName bool
}

// Of sums up a node. A record that does not parse counts for nothing: no visit is made to its node.
func Of(p *policy.Policy, n *corev1.Node, now time.Time) Peer {
	r, err := visit.RecordOf(n)
	if err != nil {
		return Peer{}
	}
	return With(p, n, r, now)
}

// With is [Of], with the node's record; nil: it has none. The record is not changed.
func With(p *policy.Policy, n *corev1.Node, r *visit.Record, now time.Time) Peer {
	if r == nil {
		return Peer{}
	}
	r = &visit.Record{Current: record.Clone(r.Current), Repairs: slices.Clone(r.Repairs)} // what counts
	r.ClampTimes(now)
	peer := Peer{Repairs: r.RepairsWithin(day, now)}
	if r.Current != nil { // else the quarantine does not matter
		q, err := causes.RecordOf(n)
		peer.Active = err == nil && isActive(p, r, n, q)
		peer.FirstCheck = r.Current.Kind == visit.FirstCheck && (firstcheck.Waits(p, n) || slices.ContainsFunc(n.Spec.Taints, r.SetsTaint))
	}
	if p.Repair != nil {
		peer.Scope = n.Labels[p.Repair.Scope]
	}
	return peer
}

// All sums up all nodes but n, of which r is the record, and the starts of repairs that no record has, as of nodes that are gone. of
// returns the record of a node; others may have n, too.
func All(p *policy.Policy, n *corev1.Node, r *visit.Record, others []corev1.Node, of func(*corev1.Node) (*visit.Record, error),
	ring starts.Ring, now time.Time,
) (all []Peer) {
	records := map[string]*visit.Record{n.Name: r}
	for i := range others {
		other := &others[i]
		if other.Name == n.Name {
			continue
		}
		if r, err := of(other); err == nil && r != nil {
			records[other.Name] = r
			all = append(all, With(p, other, r, now))
		}
	}
	if p.Repair == nil {
		return all
	}
	for name, list := range ring.Today(p.Repair, n, now).ByNode() {
		missing := map[string]bool{}
		for _, start := range list {
			missing[start.Quarantine] = true
		}
		if r := records[name]; r != nil {
			for _, a := range r.Repairs {
				delete(missing, a.Quarantine)
			}
			if r.Current != nil && r.Current.Kind == visit.Repair {
				delete(missing, r.Current.Quarantine)
			}
		}
		all = append(all, Peer{Scope: n.Labels[p.Repair.Scope], Repairs: len(missing), HasName: name == n.Name})
	}
	return all
}

// isActive reports whether a repair or a validation is under way. Without a taint of the quarantine that the policy sets, and without that
// of the visit, the record does not count: a kubelet can forge it, with a taint of others, and would keep the place from other nodes.
func isActive(p *policy.Policy, r *visit.Record, n *corev1.Node, q *causes.Record) bool {
	v, isTainted := r.Current, proof.Standing(n, q) != nil && q.IsTainted(p, n)
	return v != nil && (v.Kind == visit.Repair || v.Kind == visit.Validation) && (isTainted || slices.ContainsFunc(n.Spec.Taints, r.SetsTaint))
}

// Count returns how many of the peers are repaired or validated, and how many repairs have begun there, within the scope of a node.
func Count(p *policy.Repair, n *corev1.Node, peers []Peer) (active, repairs int) {
	for _, peer := range peers {
		if p.Scope != "" && peer.Scope != n.Labels[p.Scope] {
			continue
		}
		repairs += peer.Repairs
		if peer.Active {
			active++
		}
	}
	return active, repairs
}

// shareOf is how many of the repairs of a day nodes of one name may have: a kubelet that reports a fault again and again must not use up
// those of all others. It writes the SystemUUID by which a lemon is known.
func shareOf(maxPerDay int) int { return max(3, maxPerDay/4) }

// Exceeded returns which limit keeps a visit from beginning; empty: none does.
func Exceeded(p *policy.Repair, v visit.Visit, n *corev1.Node, r *visit.Record, peers []Peer, now time.Time) string {
	before := r.RepairsWithin(day, now)
	after := *r
	after.Current = &v
	active, repairs := Count(p, n, peers)
	repairs += before
	own := before
	for _, peer := range peers {
		if peer.HasName {
			own += peer.Repairs
		}
	}
	within := ""
	if p.Scope != "" {
		within = fmt.Sprintf(" with the same %s", p.Scope)
	}
	isCounted := after.RepairsWithin(day, now) > before && p.MaxPerDay > 0
	switch {
	case active >= p.MaxConcurrent:
		return fmt.Sprintf("%d nodes%s are repaired or validated, and repair.maxConcurrent is %d", active, within, p.MaxConcurrent)
	case isCounted && own >= shareOf(p.MaxPerDay):
		return fmt.Sprintf("%d repairs of nodes of its name have begun within 24 hours, which is the share of one name in repair.maxPerDay (%d)",
			own, p.MaxPerDay)
	case isCounted && repairs >= p.MaxPerDay:
		return fmt.Sprintf("%d repairs%s have begun within 24 hours, and repair.maxPerDay is %d", repairs, within, p.MaxPerDay)
	}
	return ""
}
