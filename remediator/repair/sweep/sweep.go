// Package sweep decides which idle nodes are checked next. It is pure, and remembers nothing that the records of the nodes do not have.
package sweep

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const (
	// LookEvery is how often the pods of nodes are looked at while a sweep waits for an idle node.
	LookEvery = 30 * time.Second
	// maxLooks is the largest number of nodes whose pods are listed at a time. Of these, busyLooks are kept for nodes that were busy.
	maxLooks, busyLooks = 10, 2
	// maxWaiting is how many nodes are watched at most until they were idle for long enough: so many that no gap is longer than maxGap.
	maxWaiting = 40
	// maxGap is how long a look counts: what a node did in a longer time without looks is not known.
	maxGap = 10 * LookEvery
	// AwaitedIdle is how long a node has to be idle, while pods wait that could run there, before it is checked all the same: what
	// did not come in that time waits for something else.
	AwaitedIdle = time.Hour
	// Retry is how long after a check that could not run the next one is tried.
	Retry = time.Hour
)

// Node is a node as sweeps see it.
type Node struct {
	Name    string
	Labels  labels.Set
	Created time.Time
	// Record may be nil: the node was never visited.
	Record *visit.Record
	// SuspectSince is when the newest fault that is not due yet was first seen; zero: there is none.
	SuspectSince time.Time
	// Unavailable is why no check may begin, whatever the node's pods; empty: nothing is in the way.
	Unavailable string
	// Idle is what was seen of the node's pods.
	Idle Idle
}

// Idle is what was seen of a node's pods. Nothing of it is stored: a new leader starts over.
type Idle struct {
	// LookedAt is the time of the last look; zero: there was none.
	LookedAt time.Time
	// Since is the first of the looks in a row that found no pod with an accelerator; zero: the last one found one.
	Since time.Time
}

// Seen returns what is known after another look. A look that follows too late on the one before says nothing about the time
// between them.
func (i Idle) Seen(busy bool, now time.Time) Idle {
	switch {
	case busy:
		return Idle{LookedAt: now}
	case i.Since.IsZero() || now.Sub(i.LookedAt) > maxGap:
		i.Since = now
	}
	i.LookedAt = now
	return i
}

// Start is a check that may begin.
type Start struct {
	Node  string
	Sweep *policy.Sweep
	// Urgent: a person or a suspicion asks for it, or it is late.
	Urgent bool
}

// Choice is what sweeps need now.
type Choice struct {
	// Look are the nodes whose pods have to be listed, at most 10. Then the plan is to be made again with what was seen.
	Look []string
	// Start are the checks that may begin: nodes that were idle for long enough, also in a look at this very time.
	Start []Start
}

// Plan decides which nodes are checked next. The node that was unchecked for longest goes first, and before it one with a
// suspicion since its last check, and one that a person wants to have checked.
//
// Nodes that were checked together are not due together: of n nodes one is due every [policy.Sweep.Every]/n, earlier than it had
// to be if need be. So a sweep has the whole time for its nodes, and none of them waits longer.
//
// awaited returns since when pods wait that could run on a node; zero: none does. Such a node is left alone until its check is urgent: a
// person or a suspicion asks for it, or it is late. Then it has to be idle for [AwaitedIdle], so that a pod that never comes does not
// keep the node from its check.
//
// A node takes a place under the limits when its check begins. Two nodes for each place are watched before, so that the next one is
// known to be idle when a place becomes free.
func Plan(sweeps []policy.Sweep, nodes []Node, awaited func(node string) time.Time, now time.Time) Choice {
	var plan Choice
	var waiting, busy []queued                            // those to look at
	taken, looked := map[string]bool{}, map[string]bool{} // by a sweep before
	for i := range sweeps {
		s := &sweeps[i]
		queue, underWay, limit := queueOf(s, nodes, now)
		queue = slices.DeleteFunc(queue, func(q queued) bool {
			if !looked[q.Name] && q.wasBusy() && q.isRechecked(s, now) {
				looked[q.Name] = true
				busy = append(busy, q)
			}
			return taken[q.Name] || q.wasBusy()
		})
		n, slots := len(queue)+underWay, max(0, limit-underWay)
		// Nodes for which a pod waits take long; they keep no other from being watched.
		watched := map[bool]int{}
		most := min(2*limit, max(1, maxWaiting/2/len(sweeps)))
		for i, q := range queue {
			if watched[false] == most || !due(s, queue[i:], n, now) {
				break
			}
			since := awaited(q.Name)
			late := !since.IsZero()
			if late && !q.urgent(s, now) || watched[late] == most {
				continue
			}
			watched[late]++
			switch {
			case looked[q.Name]:
			case now.After(q.Idle.LookedAt):
				looked[q.Name] = true
				waiting = append(waiting, q)
			case late && now.Sub(firstcheck.Later(since, q.Idle.Since)) < AwaitedIdle:
			case slots > 0 && now.Sub(q.Idle.Since) >= q.idleFor:
				slots--
				taken[q.Name] = true
				plan.Start = append(plan.Start, Start{q.Name, s, q.urgent(s, now)})
			}
		}
	}
	// Each has its turn one after the other, however many they are. Busy nodes, which may be many, keep no idle node waiting.
	for _, look := range [][]queued{waiting, busy} {
		slices.SortStableFunc(look, func(a, b queued) int { return a.Idle.LookedAt.Compare(b.Idle.LookedAt) })
	}
	waiting = waiting[:min(len(waiting), maxLooks-min(len(busy), busyLooks))]
	for _, q := range append(waiting, busy[:min(len(busy), maxLooks-len(waiting))]...) {
		plan.Look = append(plan.Look, q.Name)
	}
	return plan
}

// queued is a node in the queue of a sweep.
type queued struct {
	Node
	// rank is 0 for a node that a person wants to have checked, 1 for one with a suspicion.
	rank    int
	checked time.Time
	idleFor time.Duration
}

// wasBusy reports whether the last look found a pod with an accelerator.
func (q queued) wasBusy() bool { return !q.Idle.LookedAt.IsZero() && q.Idle.Since.IsZero() }

// urgent reports whether a person or a suspicion asks for the check, or it is late.
func (q queued) urgent(s *policy.Sweep, now time.Time) bool { return q.rank < 2 || q.Overdue(s, now) }

// isRechecked reports whether it is time to look at a busy node again: it has to be checked, and the last look was a while ago.
func (q queued) isRechecked(s *policy.Sweep, now time.Time) bool {
	return now.Sub(q.Idle.LookedAt) >= max(q.idleFor/2, LookEvery) && (q.rank < 2 || !now.Before(q.checked.Add(period(s))))
}

// queueOf returns the nodes that the sweep can check, in their order, how many others are being checked, and how many may be in all.
func queueOf(s *policy.Sweep, nodes []Node, now time.Time) (queue []queued, underWay, limit int) {
	all := 0
	for _, n := range nodes {
		if n.Record != nil && n.Record.Current != nil && n.Record.Current.Kind == visit.Sweep && n.Record.Current.Sweep == s.Name {
			underWay++ // whether the node still is one of the sweep or not
		}
		if !s.Nodes.Matches(n.Labels) {
			continue
		}
		all++
		if n.Unavailable != "" || n.Record != nil && n.Record.Current != nil {
			continue
		}
		q := queued{Node: n, rank: 2, checked: LastChecked(s, n, now), idleFor: s.IdleFor}
		switch {
		case n.Record != nil && n.Record.Request != nil && n.Record.Request.Kind == visit.RequestCheck:
			q.rank, q.idleFor = 0, 0
		case n.Record != nil && now.Before(n.Record.RetryAt(visit.Sweep, s.Name, min(Retry, s.Every), now)):
			continue
		case n.SuspectSince.After(q.checked):
			q.rank = 1
		}
		queue = append(queue, q)
	}
	slices.SortFunc(queue, func(a, b queued) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.checked.Compare(b.checked), cmp.Compare(a.Name, b.Name))
	})
	return queue, underWay, min(s.MaxNodes, max(1, all*s.MaxPercent/100))
}

// due reports whether the first of the queue has to be checked now, so that each of them is checked in time. The queue is what is
// left of n nodes.
func due(s *policy.Sweep, queue []queued, n int, now time.Time) bool {
	if queue[0].rank < 2 {
		return true
	}
	every := period(s)
	for i, q := range queue {
		if early := every / time.Duration(n) * time.Duration(i); !now.Before(q.checked.Add(every - early)) {
			return true
		}
	}
	return false
}

// period is the time after which the next check of a node is planned. It is shorter than [policy.Sweep.Every]: a node has to be seen
// idle first, in two looks or more, and its first check may have to yield.
func period(s *policy.Sweep) time.Duration {
	return s.Every - min(max(s.Every/20, 2*s.IdleFor+2*LookEvery), s.Every/2)
}

// LastChecked is when the sweep was last at the node. One that never was counts from the node's creation.
func LastChecked(s *policy.Sweep, n Node, now time.Time) time.Time {
	return firstcheck.Later(n.Created, LastSwept(s, n.Record, now))
}

// LastSwept is when the sweep, or another check by the same means, was last at the node of a record; zero: it never was. r may be nil.
func LastSwept(s *policy.Sweep, r *visit.Record, now time.Time) (at time.Time) {
	if r == nil {
		return at
	}
	known := []time.Time{r.Swept[s.Name]}
	if c := r.Checked; c != nil && c.Template == s.Template && len(c.Args) >= len(s.Args) &&
		slices.Equal(c.Args[len(c.Args)-len(s.Args):], s.Args) {
		known = append(known, c.At)
	}
	for _, t := range known {
		if !t.After(now.Add(conditions.MaxClockSkew)) { // the record is input
			at = firstcheck.Later(at, t)
		}
	}
	return at
}

// Overdue reports whether a node that the sweep could check has been unchecked for longer than it should.
func (n Node) Overdue(s *policy.Sweep, now time.Time) bool {
	return n.Unavailable == "" && s.Nodes.Matches(n.Labels) && now.Sub(LastChecked(s, n, now)) > s.Every
}
