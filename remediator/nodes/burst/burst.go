// Package burst has the jobs and the evidence of quarantined nodes come after the taints of nodes that have changed at the same time.
package burst

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const (
	// AfterTaints is how soon a node is reconciled again at the earliest whose jobs and evidence come after the taints of others,
	// unless the cache shows its own taint before: the cache of a busy API server is late.
	AfterTaints = 500 * time.Millisecond
	// JobsWait is how long the jobs of a node come after the taints of others. Then the jobs of some nodes at a time are looked at
	// between the taints of others, and after JobsLatest those of all: a rank may end by itself in that time, and then its job is not
	// restarted as a whole.
	JobsWait   = 5 * time.Second
	JobsLatest = 15 * time.Second
	// LooksBetween is how many nodes at a time have their jobs looked at between taints: a look costs three requests or more, and a
	// taint one.
	LooksBetween = 2
	// EvidenceWait is how long after its quarantine the evidence of a node comes after the taints of others at the latest. The taints of a
	// thousand nodes need less.
	EvidenceWait = 30 * time.Second
	// BigBurst is how many nodes that have changed wait in a big burst, which ends when a tenth is left. Those that are looked at
	// again count when a tenth of it has been written meanwhile.
	BigBurst = 100
)

// Burst knows which nodes wait for a decision. It is safe for concurrent use.
type Burst struct {
	mu sync.Mutex
	// changed are the nodes that have changed, or are to be looked at again, since their last reconcile began, running those that are being
	// reconciled, looking those of them whose jobs are looked at between the taints of others.
	changed, running, looking map[string]bool
	// fresh is how many of the changed nodes have changed themselves; their value in changed is true. writes is how many writes there were
	// while nodes waited.
	fresh, writes int
	// postponed is when the jobs of a node came after a taint first, by node.
	postponed map[string]postponed
	// written is the version of a node that this process has written last, by node, until the cache shows a change of it.
	written map[string]string
	// isBig is set during a big burst; onBig is called when one begins and ends, if set.
	isBig bool
	onBig func(bool)
}

type postponed struct {
	quarantine string
	since      time.Time
	// until is set while nothing is to be decided about the node before that time, unless it changes: its jobs wait, or were looked at
	// while its evidence waits.
	until time.Time
}

// New makes a burst without nodes. onBig is called when very many begin to wait, and when they have been reconciled, if set.
func New(onBig func(bool)) *Burst {
	return &Burst{
		onBig: onBig, changed: map[string]bool{}, running: map[string]bool{}, looking: map[string]bool{}, postponed: map[string]postponed{},
		written: map[string]string{},
	}
}

// Change notes that a node has changed, and will be reconciled. version is its resourceVersion, empty if that is not known: what this
// process has written itself is no change.
func (b *Burst) Change(node, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version == "" || b.written[node] != version {
		if !b.changed[node] {
			b.fresh++
		}
		b.changed[node] = true
	}
	delete(b.written, node)
}

// Recheck notes that a node will be reconciled though it may not have changed: it was there before this process, or something else
// has changed for all nodes. Unless many of them are written such nodes make no big burst: most need nothing, and in a heap that has
// grown for all of them what stays would stay far apart.
func (b *Burst) Recheck(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, found := b.changed[node]; !found {
		b.changed[node] = false
	}
	delete(b.written, node)
}

// Wrote notes that this process has written a version of a node.
func (b *Burst) Wrote(node, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.written[node] = version
	b.writes++
}

// Begin notes that a node is being reconciled, until end is called. Unless rest is zero, nothing is to be done about the node before that
// time: it has not changed, and its jobs or its evidence still wait for the taints of others.
func (b *Burst) Begin(node string, now time.Time) (rest time.Duration, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh, waits := b.changed[node]
	if first := b.postponed[node]; !waits && b.others() && !now.Before(first.since) {
		rest = max(0, first.until.Sub(now))
	}
	if rest == 0 {
		b.rest(node, time.Time{}) // what fails now is tried again when the queue says so
	}
	const few = BigBurst / 10
	waiting := b.fresh
	if b.writes >= few {
		waiting = len(b.changed)
	}
	if b.onBig != nil && (!b.isBig && waiting >= BigBurst || b.isBig && waiting <= few) {
		b.isBig = !b.isBig
		b.onBig(b.isBig)
	}
	if len(b.changed) <= few {
		b.writes = 0
	}
	if fresh {
		b.fresh--
	}
	delete(b.changed, node)
	b.running[node] = true
	return rest, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.running, node)
		delete(b.looking, node)
	}
}

// rest has nothing decided about a postponed node before a time; mu must be held.
func (b *Burst) rest(node string, until time.Time) {
	if first, ok := b.postponed[node]; ok {
		first.until = until
		b.postponed[node] = first
	}
}

// Looked notes that the jobs of a node were looked at while its evidence waits. They are to be looked at again after some time; zero: not.
func (b *Burst) Looked(node string, now time.Time, evidence, again time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if again > 0 {
		evidence = min(evidence, again)
	}
	b.rest(node, now.Add(evidence))
}

// Forget drops what is known about the quarantine of a node.
func (b *Burst) Forget(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.postponed, node)
	delete(b.written, node)
}

// TaintsFirst is how long the jobs and the evidence of a node wait for the taints of others; zero: not. A node that is being reconciled
// counts as tainted: a restart of its own jobs may take long.
func (b *Burst) TaintsFirst(node string, d quarantine.Decision, now time.Time) (jobs, evidence time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !d.Quarantines() {
		delete(b.postponed, node)
		return 0, 0
	}
	r := d.State.Record
	age := now.Sub(r.QuarantinedAt)
	if age < 0 || age >= EvidenceWait || !b.others() {
		return 0, 0
	}
	first := b.postponed[node]
	if first.quarantine != r.ID || now.Before(first.since) { // the clock was put back
		first = postponed{quarantine: r.ID, since: now}
	}
	if waited := now.Sub(first.since); !evicts(r) {
		switch {
		case waited < JobsWait:
			jobs = min(max(AfterTaints, waited), JobsWait-waited)
		case waited < JobsLatest && len(b.looking) >= LooksBetween:
			jobs = min(AfterTaints, JobsLatest-waited)
		}
	}
	b.postponed[node] = first
	if jobs > 0 {
		b.rest(node, now.Add(jobs))
	} else {
		b.looking[node] = true
	}
	return jobs, min(max(AfterTaints, age), EvidenceWait-age)
}

// HasOthers reports whether a node has changed that is not being reconciled.
func (b *Burst) HasOthers() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.others()
}

// others reports whether a node has changed that is not being reconciled; mu must be held.
func (b *Burst) others() bool {
	for name := range b.changed {
		if !b.running[name] {
			return true
		}
	}
	return false
}

// evicts reports whether pods are deleted for a taint of the quarantine: then its jobs cannot wait, see restart.ActiveOn.
func evicts(r *causes.Record) bool {
	noExecute := func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	return r.Taint != nil && noExecute(r.Taint.NodeTaint()) || r.HandOff != nil && slices.ContainsFunc(r.HandOff.Taints, noExecute)
}
