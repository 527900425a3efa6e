package limits

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/ring"
)

// GoneFor is how long a quarantined node that is gone counts in a budget, from the start of its quarantine. A longer window
// of the budget counts it for longer. Replacing nodes would reset the budgets else.
const GoneFor = time.Hour

// StartsKey is the key of the ConfigMap of the breaker that holds the memory; no value: nothing is remembered.
const StartsKey = "starts"

// maxPerNode is how many starts are kept of the nodes of one name, so that none evicts those of others.
const maxPerNode = 8

// maxText bounds the text of the memory in bytes, whatever is in the entries, with room for the rest of the ConfigMap.
const maxText = 900 << 10

// Memory holds the starts of quarantines by node, beyond the life of the node and of its record. It is never changed:
// [Memory.With] and [Memory.Prune] return another one.
type Memory map[string]*NodeStarts

// NodeStarts are the remembered starts of the nodes of one name: the latest for each rule, and few.
type NodeStarts struct {
	starts []Entry
}

// Entry is a remembered start. Its short keys keep the ConfigMap small.
type Entry struct {
	Node string    `json:"n" max:"253"`
	UID  types.UID `json:"u" max:"64"`
	Rule string    `json:"r" max:"63"`
	At   time.Time `json:"t"`
	Soft bool      `json:"s,omitempty"`
	// Scopes are the node's labels that are scopes of budgets.
	Scopes map[string]string `json:"l,omitempty"`
	// Incident is [Start.Incident].
	Incident Domain `json:"i,omitzero"`
}

// EntryOf is the start of a quarantine of a node as it is remembered.
func (s Start) EntryOf(p *policy.Policy, n *corev1.Node) Entry {
	return Entry{Node: n.Name, UID: n.UID, Rule: s.Rule, At: s.At, Soft: s.Soft, Scopes: ScopesOf(p, n.Labels), Incident: s.Incident}
}

// rememberIncident is how long the start of a quarantine for an incident is remembered, unless the policy asks for longer: while the
// node is out of service, it tells that the node has no place of its own. A rack is repaired within days.
const rememberIncident = policy.DefaultParkedAfter

// isKept reports whether an entry is remembered, of others for keep.
func (e Entry) isKept(keep time.Duration, now time.Time) bool {
	if e.Incident != (Domain{}) {
		keep = max(keep, rememberIncident)
	}
	return Start{At: e.At}.isWithin(keep, now)
}

// StartedAt returns the time of the start; zero: the entry is of no node, so that [Memory.With] did not take it.
func (e Entry) StartedAt() time.Time {
	if e.Node == "" {
		return time.Time{}
	}
	return e.At
}

// RememberFor is how long the policy needs the start of a quarantine; zero when it has no limits.
func RememberFor(p *policy.Policy) time.Duration {
	keep, limited := GoneFor, p.Breaker != nil
	if limited {
		keep = max(keep, p.Breaker.Window, p.Breaker.Pace)
	}
	for b := range budgetsOf(p) {
		limited, keep = true, max(keep, b.Window)
	}
	limited = limited || slices.ContainsFunc(p.Domains, func(d policy.Domain) bool { return d.Incidents != nil })
	if !limited {
		return 0
	}
	return keep
}

// budgetsOf are the limited budgets of a policy.
func budgetsOf(p *policy.Policy) iter.Seq[policy.Budget] {
	return func(yield func(policy.Budget) bool) {
		if !p.Budget.IsUnlimited() && !yield(p.Budget) {
			return
		}
		for i := range p.Rules {
			if b := p.Rules[i].Budget; !b.IsUnlimited() && !yield(b) {
				return
			}
		}
	}
}

// ScopesOf are the labels of a node that are scopes of the policy's budgets.
func ScopesOf(p *policy.Policy, labels map[string]string) map[string]string {
	var scopes map[string]string
	for b := range budgetsOf(p) {
		if value, ok := labels[b.Scope]; ok && b.Scope != "" {
			if scopes == nil {
				scopes = map[string]string{}
			}
			scopes[b.Scope] = value
		}
	}
	return scopes
}

// ParseMemory reads the text of the ConfigMap, see [ring.Parse]. A text that cannot be read is an error, and an empty memory.
func ParseMemory(text string, now time.Time) (Memory, error) {
	entries, err := ring.Parse[Entry](text, now)
	if err != nil || text == "" {
		return nil, err
	}
	m := Memory{}
	for _, e := range entries {
		m.add(e)
	}
	return m, nil
}

func latestFirst(a, b Entry) int {
	return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Rule, b.Rule))
}

// add keeps the later of two starts by one rule, and the latest of each node. It reports whether e is among them. The entry of
// the node is replaced and not changed.
func (m Memory) add(e Entry) bool {
	kept, isLatest := NodeStarts{}, true
	if before := m[e.Node]; before != nil {
		for _, other := range before.starts {
			if other.Rule != e.Rule || other.Soft != e.Soft {
				kept.starts = append(kept.starts, other)
			} else if other.At.After(e.At) {
				e, isLatest = other, false
			}
		}
	}
	if len(kept.starts) >= maxPerNode && !e.At.After(kept.starts[maxPerNode-1].At) {
		return false
	}
	kept.starts = append(kept.starts, e)
	slices.SortStableFunc(kept.starts, latestFirst)
	kept.starts = kept.starts[:min(len(kept.starts), maxPerNode)]
	m[e.Node] = &kept
	return isLatest
}

// String is the text of the ConfigMap, with the latest start first and no more than fit; empty when nothing is remembered.
func (m Memory) String() string { return ring.Text(m.entries(), maxText) }

func (m Memory) entries() (list []Entry) {
	for _, n := range m {
		list = append(list, n.starts...)
	}
	slices.SortFunc(list, latestFirst)
	return list[:min(len(list), ring.MaxEntries)]
}

// With is the memory with one more start, without those that are older than keep. It is the same memory, and false, if it
// has the start already or later ones in its place, or if the start is older than keep, in the future or no possible one.
func (m Memory) With(e Entry, keep time.Duration, now time.Time) (Memory, bool) {
	if !ring.IsValid(e) || !e.isKept(keep, now) {
		return m, false
	}
	if before := m[e.Node]; before != nil && slices.ContainsFunc(before.starts, func(b Entry) bool {
		return b.Rule == e.Rule && b.Soft == e.Soft && b.UID == e.UID && !b.At.Before(e.At)
	}) {
		return m, false
	}
	more, _ := m.Prune(keep, now)
	if all, _ := more.size(keep, now); all >= ring.MaxEntries && !e.At.After(more.entries()[ring.MaxEntries-1].At) {
		return m, false // it would be the first to be left out
	}
	if more = maps.Clone(more); more == nil {
		more = Memory{}
	}
	if !more.add(e) {
		return m, false
	}
	return more, true
}

// Prune is the memory without the starts that are older than keep, and without the oldest of very many. It is the same
// memory, and false, if there are none.
func (m Memory) Prune(keep time.Duration, now time.Time) (Memory, bool) {
	if all, old := m.size(keep, now); old == 0 && all <= ring.MaxEntries {
		return m, false
	}
	entries := slices.DeleteFunc(m.entries(), func(e Entry) bool { return !e.isKept(keep, now) })
	kept := Memory{}
	for _, e := range entries {
		kept.add(e)
	}
	for name, n := range kept {
		if before := m[name]; len(before.starts) == len(n.starts) {
			kept[name] = before // none of them is left out
		}
	}
	return kept, true
}

// size counts the entries, and those among them that are older than keep or in the future.
func (m Memory) size(keep time.Duration, now time.Time) (all, old int) {
	for _, n := range m {
		for _, e := range n.starts {
			all++
			if !e.isKept(keep, now) {
				old++
			}
		}
	}
	return all, old
}

// AddTo adds what is remembered to the peer of a node of the same name. uid is that of the node, and known the latest start
// or change of a quarantine that the record of the node has. n may be nil.
func (n *NodeStarts) AddTo(peer *Peer, uid types.UID, known time.Time) {
	if n == nil {
		return
	}
	for _, e := range n.starts {
		for i := range peer.Starts {
			if s := &peer.Starts[i]; s.At.Equal(e.At) && e.UID == uid && s.Incident == (Domain{}) {
				s.Incident = e.Incident // the record tells of the same start
			}
		}
		isGone := e.UID != uid || known.Before(e.At)
		peer.Starts = append(peer.Starts, Start{Rule: e.Rule, At: e.At, Soft: e.Soft, Proven: true, Gone: isGone, Incident: e.Incident})
	}
}

// GonePeers are the nodes that are remembered and that isPeer does not know.
func (m Memory) GonePeers(isPeer func(node string) bool) []Peer {
	var peers []Peer
	for name, n := range m {
		if !isPeer(name) {
			peers = append(peers, n.GonePeer(name))
		}
	}
	return peers
}

// GonePeer is what is remembered of the nodes of a name when none of them is a peer any more.
func (n *NodeStarts) GonePeer(name string) Peer {
	p := Peer{Name: name, Labels: n.starts[0].Scopes, Gone: true}
	n.AddTo(&p, "", time.Time{})
	return p
}

// Is reports whether two memories are one.
func (m Memory) Is(other Memory) bool {
	return reflect.ValueOf(m).UnsafePointer() == reflect.ValueOf(other).UnsafePointer()
}

// Differing names the nodes of which two memories, one made from the other, hold different starts.
func (m Memory) Differing(other Memory) map[string]bool {
	names := map[string]bool{}
	for name, n := range m {
		if other[name] != n {
			names[name] = true
		}
	}
	for name := range other {
		if m[name] == nil {
			names[name] = true
		}
	}
	return names
}
