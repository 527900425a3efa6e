package limits

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// Fleet holds the peers of a cluster in such a way that no limit walks over all of them: healthy nodes are only counted, and a limit
// looks at those that may use up a place, are faulty, or have started a quarantine lately. It is not for concurrent use.
type Fleet struct {
	members map[string]*member
	// counts holds the nodes by scope and by the value of its label. A scope is counted from when it is first asked for.
	counts map[string]map[string]population
	// notable are the members that a limit may look at, by the time until which they matter.
	notable []*member
	// failed holds the members that have failed, by domain.
	failed map[Domain]map[*member]bool
	// claiming holds the members with claims.
	claiming map[*member]bool
	// changes counts the changes of peers that a limit may notice.
	changes int
}

// population counts nodes that are not gone: those with checked hardware, and the others.
type population struct{ checked, unchecked int }

type member struct {
	Peer
	key string
	// latest is the start of its latest quarantine, [always] if it matters whatever its starts.
	latest time.Time
}

// always is later than any start.
var always = time.Unix(1<<40, 0)

// NewFleet is a fleet without nodes.
func NewFleet() *Fleet {
	return &Fleet{members: map[string]*member{}, counts: map[string]map[string]population{"": {}}, claiming: map[*member]bool{}}
}

// Put adds a peer, in place of the one of the same name.
func (f *Fleet) Put(p Peer) { f.updatePeer(p.Name, p) }

func (f *Fleet) updatePeer(key string, p Peer) {
	m := &member{Peer: p, key: key}
	if before := f.members[key]; before == nil || !f.isSame(&before.Peer, &p) {
		f.changes++
	}
	f.remove(key)
	f.members[key] = m
	for scope := range f.counts {
		f.addCount(scope, m, 1)
	}
	if m.OutOfService || m.Soft || m.Rule != "" || len(m.Waiting) > 0 || len(m.ProblemSince) > 0 {
		m.latest = always
	}
	for _, s := range m.Starts {
		if s.At.After(m.latest) {
			m.latest = s.At
		}
	}
	if !m.latest.IsZero() {
		f.notable = slices.Insert(f.notable, f.place(m), m)
	}
	if len(m.Claims) > 0 && !m.Gone {
		f.claiming[m] = true
	}
	if m.hasFailed() {
		if f.failed == nil { // without incidents there are none
			f.failed = map[Domain]map[*member]bool{}
		}
		if f.failed[m.Domain] == nil {
			f.failed[m.Domain] = map[*member]bool{}
		}
		f.failed[m.Domain][m] = true
	}
}

func (m *member) hasFailed() bool {
	return !m.Failed.From.IsZero() && m.Domain != (Domain{}) && !m.Gone
}

// isSame reports whether no budget and no suspicion can tell two versions of a peer apart. Of the labels only the scopes count. What a peer
// waits for is left out: it only keeps an open breaker open, and changes with each heartbeat.
func (f *Fleet) isSame(a, b *Peer) bool {
	for scope := range f.counts {
		if !a.sharesScope(scope, b.Labels) {
			return false
		}
	}
	without := *a
	without.Labels, without.Waiting = b.Labels, b.Waiting
	return reflect.DeepEqual(&without, b)
}

// Delete removes the peer of that name, if there is one.
func (f *Fleet) Delete(name string) {
	if f.remove(name) {
		f.changes++
	}
}

func (f *Fleet) remove(key string) bool {
	m, ok := f.members[key]
	if !ok {
		return false
	}
	delete(f.members, key)
	delete(f.claiming, m)
	for scope := range f.counts {
		f.addCount(scope, m, -1)
	}
	if !m.latest.IsZero() {
		at := f.place(m)
		f.notable = slices.Delete(f.notable, at, at+1)
	}
	if delete(f.failed[m.Domain], m); len(f.failed[m.Domain]) == 0 {
		delete(f.failed, m.Domain)
	}
	return true
}

// place is where a member is in the order of the notable ones, or would be.
func (f *Fleet) place(m *member) int {
	at, _ := slices.BinarySearchFunc(f.notable, m, func(a, b *member) int {
		return cmp.Or(a.latest.Compare(b.latest), cmp.Compare(a.key, b.key))
	})
	return at
}

// addCount adds a member so many times to the counts of a scope.
func (f *Fleet) addCount(scope string, m *member, times int) {
	if m.Gone {
		return
	}
	values, value := f.counts[scope], m.Labels[scope]
	n := values[value]
	if m.Unchecked {
		n.unchecked += times
	} else {
		n.checked += times
	}
	if values[value] = n; n == (population{}) {
		delete(values, value)
	}
}

// Changes is how many changes of peers there were that may free a place of a budget or take one: while it is the same, and no time
// passes, a limit says the same.
func (f *Fleet) Changes() int { return f.changes }

// Others are all peers but that of one node.
func (f *Fleet) Others(name string) Peers { return Peers{fleet: f, except: f.members[name]} }

// Peers are the nodes that the limits of one node ask about: those of a [Fleet] as it is then. The zero value is no nodes.
type Peers struct {
	fleet  *Fleet
	except *member // nil: none
	// unit is what fails as one with the node; nil: nothing.
	unit *Unit
}

// PeersOf are the peers of a list, which may have none or the same name.
func PeersOf(list ...Peer) Peers {
	f := NewFleet()
	for i, p := range list {
		key := p.Name
		if key == "" || f.members[key] != nil {
			key = "/" + strconv.Itoa(i) // the name of no node
		}
		f.updatePeer(key, p)
	}
	return Peers{fleet: f}
}

// in counts the peers that have the same value of the scope as labels.
func (p Peers) in(scope string, labels map[string]string) population {
	if p.fleet == nil {
		return population{}
	}
	f := p.fleet
	if f.counts[scope] == nil {
		f.counts[scope] = map[string]population{}
		for m := range maps.Values(f.members) {
			f.addCount(scope, m, 1)
		}
	}
	n := f.counts[scope][labels[scope]]
	if e := p.except; e != nil && !e.Gone && e.sharesScope(scope, labels) {
		if e.Unchecked {
			n.unchecked--
		} else {
			n.checked--
		}
	}
	return n
}

// countNotable is how many peers there are that a limit may look at, at most.
func (p Peers) countNotable() int {
	if p.fleet == nil {
		return 0
	}
	return len(p.fleet.notable)
}

// notable are the peers that matter as they are, and those with a start after a time.
func (p Peers) notable(after time.Time) iter.Seq[*Peer] {
	return func(yield func(*Peer) bool) {
		if p.fleet == nil {
			return
		}
		for _, m := range slices.Backward(p.fleet.notable) {
			if !m.latest.After(after) || m != p.except && !yield(&m.Peer) {
				return
			}
		}
	}
}
