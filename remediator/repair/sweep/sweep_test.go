package sweep

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func notAwaited(string) time.Time { return time.Time{} }

func weekly(change ...func(*policy.Sweep)) policy.Sweep {
	s := policy.Sweep{
		Name: "weekly", Nodes: labels.Everything(), Every: 168 * time.Hour, IdleFor: 10 * time.Minute, MaxNodes: 2, MaxPercent: 100,
		Check: policy.Check{Template: "check", Args: []string{"-level", "2"}},
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

// unchecked is a node without a check for so long, which was idle for an hour in a look at this very time.
func unchecked(name string, ago time.Duration, change ...func(*Node)) Node {
	n := Node{Name: name, Created: noon.Add(-ago), Record: &visit.Record{}, Idle: Idle{LookedAt: noon, Since: noon.Add(-time.Hour)}}
	for _, f := range change {
		f(&n)
	}
	return n
}

const day, week = 24 * time.Hour, 7 * 24 * time.Hour

func looked(ago, idleFor time.Duration) func(*Node) {
	return func(n *Node) {
		n.Idle = Idle{LookedAt: noon.Add(-ago)}
		if idleFor > 0 {
			n.Idle.Since = noon.Add(-ago - idleFor)
		}
	}
}

func TestPlanSweeps(t *testing.T) {
	visited := func(v visit.Visit) func(*Node) { return func(n *Node) { n.Record.Current = &v } }
	closed := func(phase visit.Phase, ago time.Duration) func(*Node) {
		return func(n *Node) {
			n.Record.Last = []visit.Visit{{Kind: visit.Sweep, Sweep: "weekly", Phase: phase, EndedAt: noon.Add(-ago)}}
		}
	}
	tests := map[string]struct {
		sweep policy.Sweep
		nodes []Node
		start []string
		look  []string
	}{
		"the longest unchecked go first": {
			nodes: []Node{unchecked("a", week+day), unchecked("b", week+3*day), unchecked("c", week+2*day)},
			start: []string{"b", "c"},
		},
		"nothing is due": {nodes: []Node{unchecked("a", day)}},
		"a node that was checked by the sweep waits": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Record.Swept = map[string]time.Time{"weekly": noon.Add(-day)} })},
		},
		"a check by another sweep does not count": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Record.Swept = map[string]time.Time{"daily": noon.Add(-day)} })},
			start: []string{"a"},
		},
		"a validation by the same means counts": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) {
				n.Record.Checked = &visit.Checked{At: noon.Add(-day), Template: "check", Args: []string{"-level", "2"}}
			})},
		},
		"a milder check does not count": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) {
				n.Record.Checked = &visit.Checked{At: noon.Add(-day), Template: "check", Args: []string{"-level", "1"}}
			})},
			start: []string{"a"},
		},
		"a check by another template does not count": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) {
				n.Record.Checked = &visit.Checked{At: noon.Add(-day), Template: "other", Args: []string{"-level", "2"}}
			})},
			start: []string{"a"},
		},
		"a suspicion alone is due": {
			nodes: []Node{unchecked("a", day, func(n *Node) { n.SuspectSince = noon })},
			start: []string{"a"},
		},
		"a time from the future is ignored": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Record.Swept = map[string]time.Time{"weekly": noon.Add(day)} })},
			start: []string{"a"},
		},
		"a node without a record": {
			nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Record = nil })},
			start: []string{"a"},
		},
		"a suspicion since the last check goes first": {
			nodes: []Node{unchecked("a", 2*week), unchecked("b", 2*week), unchecked("c", day, func(n *Node) { n.SuspectSince = noon.Add(-time.Hour) })},
			start: []string{"c", "a"},
		},
		"a suspicion of before it does not": {
			nodes: []Node{unchecked("a", day, func(n *Node) { n.SuspectSince = noon.Add(-2 * day) })},
		},
		"a request goes before all, idle for how long it may be": {
			nodes: []Node{
				unchecked("a", 2*week), unchecked("b", 2*week, func(n *Node) { n.SuspectSince = noon }),
				unchecked("c", day, looked(0, time.Nanosecond), func(n *Node) { n.Record.Request = &visit.Request{Kind: visit.RequestCheck} }),
			},
			start: []string{"c", "b"},
		},
		"a request for something else is none": {
			nodes: []Node{unchecked("a", day, func(n *Node) { n.Record.Request = &visit.Request{Kind: visit.RequestRepair} })},
		},
		"maxNodes counts the checks under way, of nodes of others, too": {
			nodes: []Node{
				unchecked("a", 2*week), unchecked("b", 2*week),
				unchecked("c", 0, visited(visit.Visit{Kind: visit.Sweep, Sweep: "weekly"}), func(n *Node) { n.Unavailable = "is cordoned" }),
			},
			start: []string{"a"},
		},
		"another sweep has its own limit": {
			nodes: []Node{unchecked("a", 2*week), unchecked("b", 2*week), unchecked("c", 0, visited(visit.Visit{Kind: visit.Sweep, Sweep: "daily"}))},
			start: []string{"a", "b"},
		},
		"a visited node waits": {
			nodes: []Node{unchecked("a", 2*week, visited(visit.Visit{Kind: visit.Repair})), unchecked("b", 2*week)},
			start: []string{"b"},
		},
		"maxPercent is rounded down": {
			sweep: weekly(func(s *policy.Sweep) { s.MaxNodes, s.MaxPercent = 5, 50 }),
			nodes: []Node{unchecked("a", 2*week), unchecked("b", 2*week), unchecked("c", 2*week)},
			start: []string{"a"},
		},
		"maxPercent allows one": {
			sweep: weekly(func(s *policy.Sweep) { s.MaxPercent = 1 }),
			nodes: []Node{unchecked("a", 2*week), unchecked("b", 2*week)},
			start: []string{"a"},
		},
		"unavailable": {nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Unavailable = "is cordoned" })}},
		"not selected": {
			sweep: weekly(func(s *policy.Sweep) { s.Nodes = labels.SelectorFromSet(labels.Set{"pool": "gpu"}) }),
			nodes: []Node{unchecked("a", 2*week), unchecked("b", 2*week, func(n *Node) { n.Labels = labels.Set{"pool": "gpu"} })},
			start: []string{"b"},
		},
		"never looked at":               {nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Idle = Idle{} })}, look: []string{"a"}},
		"idle for too short":            {nodes: []Node{unchecked("a", 2*week, looked(0, time.Minute))}},
		"it is watched meanwhile":       {nodes: []Node{unchecked("a", 2*week, looked(LookEvery, time.Minute))}, look: []string{"a"}},
		"idle by now":                   {nodes: []Node{unchecked("a", 2*week, looked(time.Minute, 9*time.Minute))}, look: []string{"a"}},
		"the look is too old":           {nodes: []Node{unchecked("a", 2*week, looked(time.Hour, time.Minute))}, look: []string{"a"}},
		"busy a moment ago":             {nodes: []Node{unchecked("a", 2*week, looked(time.Minute, 0))}},
		"busy a while ago":              {nodes: []Node{unchecked("a", 2*week, looked(6*time.Minute, 0))}, look: []string{"a"}},
		"a busy one lets the next pass": {nodes: []Node{unchecked("a", 3*week, looked(0, 0)), unchecked("b", 2*week)}, start: []string{"b"}},
		"looks while the limit is met":  {look: []string{"a"}, nodes: []Node{unchecked("a", 2*week, func(n *Node) { n.Idle = Idle{} }), unchecked("b", 0, visited(visit.Visit{Kind: visit.Sweep, Sweep: "weekly"})), unchecked("c", 0, visited(visit.Visit{Kind: visit.Sweep, Sweep: "weekly"}))}},
		"could not run a while ago":     {nodes: []Node{unchecked("a", 2*week, closed(visit.Failed, 59*time.Minute))}},
		"refused a while ago":           {nodes: []Node{unchecked("a", 2*week, closed(visit.Refused, time.Minute))}},
		"could not run an hour ago":     {nodes: []Node{unchecked("a", 2*week, closed(visit.Failed, time.Hour))}, start: []string{"a"}},
		"yielded a while ago":           {nodes: []Node{unchecked("a", 2*week, closed(visit.Yielded, time.Minute))}, start: []string{"a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.sweep.Name == "" {
				tt.sweep = weekly()
			}
			plan := Plan([]policy.Sweep{tt.sweep}, tt.nodes, notAwaited, noon)
			var start []string
			for _, s := range plan.Start {
				start = append(start, s.Node)
			}
			if d := cmp.Diff(tt.start, start) + cmp.Diff(tt.look, plan.Look); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTwoSweepsTakeANodeOnce(t *testing.T) {
	sweeps := []policy.Sweep{weekly(), weekly(func(s *policy.Sweep) { s.Name = "monthly" })}
	plan := Plan(sweeps, []Node{unchecked("a", 5*week), unchecked("b", 4*week), unchecked("c", 3*week)}, notAwaited, noon)
	var got []string
	for _, s := range plan.Start {
		got = append(got, s.Sweep.Name+" "+s.Node)
	}
	if d := cmp.Diff([]string{"weekly a", "weekly b", "monthly c"}, got); d != "" {
		t.Error(d)
	}
}

func TestLooksAreBounded(t *testing.T) {
	var nodes []Node
	for i := range 100 {
		nodes = append(nodes, unchecked(fmt.Sprint("n", i), 2*week, func(n *Node) { n.Idle = Idle{} }))
	}
	sweeps := []policy.Sweep{weekly(func(s *policy.Sweep) { s.MaxNodes = 50 }), weekly(func(s *policy.Sweep) { s.Name, s.MaxNodes = "other", 50 })}
	if got := len(Plan(sweeps, nodes, notAwaited, noon).Look); got != maxLooks {
		t.Errorf("%d looks", got)
	}
}

func TestAwaitedNodes(t *testing.T) {
	long := func(n *Node) { n.Idle.Since = noon.Add(-5 * time.Hour) }
	tests := map[string]struct {
		ago, since time.Duration
		change     func(*Node)
		start      []string
	}{
		"not late":                  {ago: week - time.Hour, since: 3 * time.Hour, change: long, start: []string{"b"}},
		"late, since a moment":      {ago: 2 * week, since: time.Minute, change: long, start: []string{"b"}},
		"late, for an hour":         {ago: 2 * week, since: time.Hour, change: long, start: []string{"a"}},
		"late, idle for less":       {ago: 2 * week, since: 3 * time.Hour, change: looked(0, 59*time.Minute), start: []string{"b"}},
		"a suspicion, for an hour":  {ago: day, since: time.Hour, change: func(n *Node) { n.SuspectSince = noon }, start: []string{"a"}},
		"a request, for an hour":    {ago: day, since: time.Hour, change: func(n *Node) { n.Record.Request = &visit.Request{Kind: visit.RequestCheck} }, start: []string{"a"}},
		"a request, since a moment": {ago: day, since: time.Minute, change: func(n *Node) { n.Record.Request = &visit.Request{Kind: visit.RequestCheck} }, start: []string{"b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nodes := []Node{unchecked("a", tt.ago, tt.change), unchecked("b", week)}
			plan := Plan([]policy.Sweep{weekly(func(s *policy.Sweep) { s.MaxNodes = 1 })}, nodes, func(node string) time.Time {
				if node == "a" {
					return noon.Add(-tt.since)
				}
				return time.Time{}
			}, noon)
			var start []string
			for _, s := range plan.Start {
				start = append(start, s.Node)
			}
			if d := cmp.Diff(tt.start, start); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestWatchedNodesKeepNoPlace has checks that are shorter than the nodes have to be idle: the places are in use all the time.
func TestWatchedNodesKeepNoPlace(t *testing.T) {
	const takes = 5 * time.Minute
	sweeps := []policy.Sweep{weekly()}
	var nodes []Node
	for i := range 60 {
		nodes = append(nodes, unchecked(fmt.Sprintf("n%02d", i), 2*week, func(n *Node) { n.Idle = Idle{} }))
	}
	done := 0
	ends := map[string]time.Time{}
	lookedAt := map[string]time.Time{}
	for now := noon; now.Before(noon.Add(2 * time.Hour)); now = now.Add(LookEvery) {
		for round := range 2 {
			plan := Plan(sweeps, nodes, notAwaited, now)
			for i := range nodes {
				n := &nodes[i]
				if n.Record.Current != nil && !now.Before(ends[n.Name]) {
					n.Record.Current, n.Record.Swept = nil, map[string]time.Time{"weekly": now}
					done++
				}
				if round == 0 && slices.Contains(plan.Look, n.Name) {
					if before, ok := lookedAt[n.Name]; ok && now.Sub(before) > LookEvery {
						t.Fatalf("nobody looked at %s for %s", n.Name, now.Sub(before))
					}
					lookedAt[n.Name] = now
					n.Idle = n.Idle.Seen(false, now)
				}
			}
			for _, start := range plan.Start {
				i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == start.Node })
				nodes[i].Record.Current, ends[start.Node] = &visit.Visit{Kind: visit.Sweep, Sweep: "weekly"}, now.Add(takes)
			}
		}
	}
	if done < 40 {
		t.Errorf("%d checks of 5 min in two hours, two at a time", done)
	}
}

func TestIdleSeen(t *testing.T) {
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	steps := []struct {
		minute int
		busy   bool
		since  time.Time
	}{{0, false, at(0)}, {5, false, at(0)}, {8, true, time.Time{}}, {9, false, at(9)}, {14, false, at(9)}, {20, false, at(20)}}
	var idle Idle
	for _, s := range steps {
		idle = idle.Seen(s.busy, at(s.minute))
		if want := (Idle{LookedAt: at(s.minute), Since: s.since}); idle != want {
			t.Errorf("minute %d: %v, want %v", s.minute, idle, want)
		}
	}
}

// TestSweepsOfTwoRounds plays sweeps of nodes that come and go between busy and idle: no limit is passed, no busy node is checked, and no
// node that is idle for long enough waits longer than `every` and one check.
func TestSweepsOfTwoRounds(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			sweep := weekly(func(s *policy.Sweep) { s.Every, s.MaxNodes = day+time.Duration(r.IntN(4))*day, 1+r.IntN(3) })
			const minute = time.Minute
			takes := minute * time.Duration(10+r.IntN(20))
			// What the limit allows is more than what the sweep needs.
			nodes := make([]Node, min(80, int(sweep.Every/(takes+2*sweep.IdleFor)*time.Duration(sweep.MaxNodes)*2/3/time.Duration(1+r.IntN(3)))))
			type state struct {
				busyUntil, idleUntil, freeAt, idleSince time.Time
				alwaysIdle                              bool
			}
			states := make([]state, len(nodes))
			for i := range nodes {
				nodes[i] = Node{Name: fmt.Sprint("n", i), Created: noon, Record: &visit.Record{Swept: map[string]time.Time{}}}
				states[i] = state{alwaysIdle: i%2 == 0, idleUntil: noon.Add(time.Duration(r.IntN(600)) * minute), idleSince: noon}
			}
			looks, checks, full := 0, 0, noon
			for now := noon; now.Before(noon.Add(2 * sweep.Every)); now = now.Add(LookEvery) {
				underWay := 0
				for i := range nodes {
					n, s := &nodes[i], &states[i]
					if v := n.Record.Current; v != nil {
						if now.Before(s.freeAt) {
							underWay++
							continue
						}
						n.Record.Current, n.Record.Swept[sweep.Name] = nil, now
					}
					if !s.alwaysIdle && s.busyUntil.Before(now) && s.idleUntil.Before(now) { // a job, and then none
						s.busyUntil = now.Add(time.Duration(60+r.IntN(2000)) * minute)
						s.idleUntil = s.busyUntil.Add(time.Duration(r.IntN(600)) * minute)
						s.idleSince = s.busyUntil
					}
					checked := LastChecked(&sweep, *n, now)
					if waits := min(now.Sub(s.idleSince), now.Sub(checked)-sweep.Every); now.After(s.busyUntil) && min(waits, now.Sub(full)) > time.Hour {
						t.Fatalf("%s is idle and overdue for %s, and there was a place", n.Name, waits)
					}
					if s.alwaysIdle && now.Sub(checked) > sweep.Every+takes {
						t.Fatalf("%s waits for %s of %s, %d nodes, %d at a time, each for %s", n.Name, now.Sub(checked), sweep.Every, len(nodes), sweep.MaxNodes, takes)
					}
				}
				for range 2 {
					plan := Plan([]policy.Sweep{sweep}, nodes, notAwaited, now)
					if len(plan.Look) > maxLooks {
						t.Fatalf("%d looks", len(plan.Look))
					}
					looks += len(plan.Look)
					for i := range nodes {
						n, s := &nodes[i], &states[i]
						for _, look := range plan.Look {
							if look == n.Name {
								n.Idle = n.Idle.Seen(!now.After(s.busyUntil), now)
							}
						}
						for _, start := range plan.Start {
							if start.Node != n.Name {
								continue
							}
							if !now.After(s.busyUntil) {
								t.Fatalf("%s is busy", n.Name)
							}
							if now.Sub(s.idleSince) < sweep.IdleFor {
								t.Fatalf("%s is idle for %s only", n.Name, now.Sub(s.idleSince))
							}
							checks++
							n.Record.Current, s.freeAt = &visit.Visit{Kind: visit.Sweep, Sweep: sweep.Name}, now.Add(takes)
							underWay++
						}
					}
					if len(plan.Start) > 0 {
						break
					}
				}
				if underWay == sweep.MaxNodes {
					full = now
				}
				if underWay > sweep.MaxNodes {
					t.Fatalf("%d checks under way, of %d", underWay, sweep.MaxNodes)
				}
			}
			t.Logf("%d nodes, %d looks, %d checks", len(nodes), looks, checks)
		})
	}
}

// TestBusyNodesKeepNoneWaiting has more busy nodes ahead in the queue than can be looked at in the time in which one is looked at again.
func TestBusyNodesKeepNoneWaiting(t *testing.T) {
	const busy = 1000
	sweeps := []policy.Sweep{weekly()}
	var nodes []Node
	for i := range busy {
		nodes = append(nodes, unchecked(fmt.Sprint("busy", i), 3*week, func(n *Node) { n.Idle = Idle{} }))
	}
	nodes = append(nodes, unchecked("idle", 2*week, func(n *Node) { n.Idle = Idle{} }))
	looks := map[string]int{}
	started := false
	for now := noon; now.Before(noon.Add(3 * time.Hour)); now = now.Add(LookEvery) {
		for range 2 {
			plan := Plan(sweeps, nodes, notAwaited, now)
			started = started || len(plan.Start) == 1 && plan.Start[0].Node == "idle"
			for i := range nodes {
				n := &nodes[i]
				if slices.Contains(plan.Look, n.Name) {
					looks[n.Name]++
					n.Idle = n.Idle.Seen(n.Name != "idle", now)
				}
			}
		}
	}
	if !started {
		t.Error("the idle node was not checked")
	}
	for i := range busy {
		if looks[nodes[i].Name] < 2 {
			t.Fatalf("%s was looked at %d times in 3 hours", nodes[i].Name, looks[nodes[i].Name])
		}
	}
}
