package limits

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// all counts by walking over all peers, as [Peers] must not. It is what the answers of a [Fleet] are compared with.
type all []Peer

// count is that of a budget for a node in an incident, nil: in none.
func (a all) count(b budget, labels map[string]string, of *fullIncident, now time.Time) (used, nodes int) {
	unchecked, checks := 0, false
	counted := map[Domain]bool{}
	for i := range a {
		p := &a[i]
		if !p.sharesScope(b.Scope, labels) {
			continue
		}
		checks = checks || !p.Unchecked && !p.Gone
		why, incident := b.use(p, now)
		isUse := why != "" && !of.covers(p) && !counted[incident]
		if isUse && incident != (Domain{}) {
			counted[incident] = true
		}
		switch {
		case isUse:
			used++
			nodes++
		case p.Gone:
		case p.Unchecked:
			unchecked++
		default:
			nodes++
		}
	}
	if !checks {
		nodes += unchecked
	}
	return used, nodes
}

// ordered are the peers in the order in which a fleet has those that a limit looks at: one of an incident stands for all of it.
func (a all) ordered(f *Fleet) all {
	slices.SortFunc(a, func(a, b Peer) int {
		return -cmp.Or(f.members[a.Name].latest.Compare(f.members[b.Name].latest), cmp.Compare(a.Name, b.Name))
	})
	return a
}

func (a all) nodes(b budget, labels map[string]string, of *fullIncident, now time.Time) (list []UsedBy) {
	counted := map[Domain]bool{}
	for i := range a {
		p := &a[i]
		why, incident := b.use(p, now)
		if why == "" || !p.sharesScope(b.Scope, labels) || of.covers(p) || counted[incident] {
			continue
		}
		if incident != (Domain{}) {
			counted[incident] = true
			why += ", with others of " + incident.String()
		}
		list = append(list, UsedBy{p.Name, why})
	}
	slices.SortFunc(list, func(a, b UsedBy) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// fullIncident is an [Incident] by a walk over all peers.
type fullIncident struct {
	domain Domain
	failed map[string]bool
	nodes  int
	stands bool
}

func (i *fullIncident) covers(p *Peer) bool {
	return i != nil && (i.failed[p.Name] || p.incident() == i.domain)
}

func (a all) incidentOf(d policy.Domain, self Peer) *fullIncident {
	if d.Incidents == nil || self.Failed == (Span{}) || self.Domain == (Domain{}) {
		return nil
	}
	self.Name = "the one that asks"
	var failed all
	for _, p := range append(slices.Clone(a), self) {
		if p.Domain == self.Domain && !p.Gone && p.Failed != (Span{}) {
			failed = append(failed, p)
		}
	}
	found := &fullIncident{self.Domain, map[string]bool{}, 0, false}
	for _, x := range failed {
		// x takes part if so many others, with it, fit into one window that begins with one of them.
		for _, first := range failed {
			end := first.Failed.From.Add(d.Window)
			fits := func(p Peer) bool { return !p.Failed.From.Before(first.Failed.From) && !p.Failed.Until.After(end) }
			count := 0
			for _, p := range failed {
				if fits(p) {
					count++
				}
			}
			if fits(x) && count >= d.Incidents.MinNodes {
				found.failed[x.Name] = true
			}
		}
	}
	found.nodes = len(found.failed)
	more, others := 0, map[Domain]int{}
	for i := range a {
		p := &a[i]
		switch of := p.incident(); {
		case of == self.Domain && !found.failed[p.Name]:
			more++
		case of != self.Domain && of != Domain{}:
			others[of]++
		}
		found.stands = found.stands || found.covers(p) && p.Why == Quarantined
	}
	most := d.Incidents.MaxNodes + max(1, d.Incidents.MaxNodes/8)
	for domain, nodes := range others {
		for _, p := range a {
			if p.Domain == domain && !p.Gone && p.Failed != (Span{}) && p.incident() != domain {
				nodes++
			}
		}
		if nodes >= d.Incidents.MinNodes {
			return nil
		}
	}
	if !found.failed[self.Name] || len(failed) > most || found.nodes+more > most {
		return nil
	}
	return found
}

func (a all) correlated(guard *policy.Correlated, condition corev1.NodeCondition, labels map[string]string, of *fullIncident) []string {
	var found []string
	since := condition.LastTransitionTime.Time
	for _, scope := range append(slices.Clone(guard.Scopes), corev1.LabelTopologyZone) {
		if _, labelled := labels[scope]; scope != "" && (!labelled || scope == corev1.LabelTopologyZone && condition.Type != corev1.NodeReady) {
			continue
		}
		nodes, times := 1, []time.Time{since}
		for _, peer := range a {
			if peer.Gone || !peer.sharesScope(scope, labels) {
				continue
			}
			nodes++
			if at, ok := peer.ProblemSince[condition.Type]; ok && at.Sub(since).Abs() <= guard.Window && (of == nil || peer.Domain != of.domain) {
				times = append(times, at)
			}
		}
		if count := mostWithin(times, since, guard.Window); count >= guard.MinNodes && count*100 > nodes*guard.MaxPercent {
			found = append(found, fmt.Sprintf("%d of %d nodes", count, nodes))
		}
	}
	return found
}

func (a all) starts(window time.Duration, now time.Time) (count int, latest time.Time) {
	counted := map[Domain]bool{}
	for i := range a {
		p := &a[i]
		var of []Domain
		for _, s := range p.Starts {
			if s.Soft || s.At.After(now.Add(conditions.MaxClockSkew)) {
				continue
			}
			if s.isWithin(window, now) {
				of = append(of, s.Incident)
			}
			if s.Proven && s.At.After(latest) {
				latest = s.At
			}
		}
		switch {
		case len(of) == 0:
		case slices.Contains(of, Domain{}):
			count++
		case !counted[of[len(of)-1]]:
			counted[of[len(of)-1]] = true
			count++
		}
	}
	if latest.After(now) {
		latest = now
	}
	return count, latest
}

func (a all) waits(now time.Time) bool {
	return slices.ContainsFunc(a, func(p Peer) bool {
		return slices.ContainsFunc(p.Waiting, func(s Span) bool { return s.Contains(now) })
	})
}

const rackLabel = "rack"

// randomDomain is mostly the same, so that many nodes are in it.
func randomDomain(r *rand.Rand) Domain {
	return Domain{"clique", []string{"a", "a", "a", "b"}[r.IntN(4)]}
}

// randomPeer is a peer in any state, most of them healthy.
func randomPeer(r *rand.Rand, name string, now time.Time) Peer {
	ago := func() time.Time { return now.Add(time.Duration(r.IntN(200)-20) * time.Minute) }
	p := Peer{Name: name, Unchecked: r.IntN(4) == 0}
	for _, scope := range []string{rackLabel, corev1.LabelTopologyZone} {
		if value := r.IntN(4); value > 0 {
			if p.Labels == nil {
				p.Labels = map[string]string{}
			}
			p.Labels[scope] = fmt.Sprint(value)
		}
	}
	rules := []string{"gpu", "soft", "down"}
	for r.IntN(3) == 0 {
		s := Start{
			Rule: rules[r.IntN(3)], At: now.Add(-time.Duration(r.IntN(200)-10) * time.Minute), Soft: r.IntN(3) == 0, Gone: r.IntN(2) == 0, Proven: r.IntN(2) == 0,
		}
		if r.IntN(4) == 0 {
			s.Incident = randomDomain(r)
		}
		p.Starts = append(p.Starts, s)
	}
	if r.IntN(3) > 0 {
		p.Domain = randomDomain(r)
	}
	if r.IntN(3) == 0 {
		p.Failed.From = now.Add(-time.Duration(r.IntN(120)) * time.Second)
		p.Failed.Until = p.Failed.From.Add(time.Duration(r.IntN(60)) * time.Second)
	}
	if p.Gone = r.IntN(8) == 0; p.Gone {
		return p
	}
	if r.IntN(4) == 0 {
		p.OutOfService, p.Why = true, []string{Quarantined, Cordoned, NotReady}[r.IntN(3)]
		if p.Why == Quarantined {
			p.Rule = rules[r.IntN(3)]
			if r.IntN(3) == 0 {
				p.Starts = append(p.Starts, Start{Rule: p.Rule, At: now, Proven: true, Incident: randomDomain(r)})
			}
		}
		if r.IntN(2) == 0 {
			p.ParkedSince = ago()
		}
	} else if r.IntN(6) == 0 {
		p.Soft, p.Rule = true, []string{"soft", ""}[r.IntN(2)]
	}
	for _, condition := range []corev1.NodeConditionType{"GPUXidError", corev1.NodeReady} {
		if r.IntN(5) == 0 {
			p.ProblemSince = map[corev1.NodeConditionType]time.Time{condition: now.Add(-time.Duration(r.IntN(240)) * time.Second)}
		}
	}
	if r.IntN(10) == 0 {
		p.Waiting = []Span{{From: ago(), Until: ago()}}
	}
	return p
}

func randomPolicy(random *rand.Rand) *policy.Policy {
	budget := func() policy.Budget {
		return policy.Budget{
			MaxNodes: random.IntN(6), MaxPercent: 1 + random.IntN(100), Scope: []string{"", rackLabel, corev1.LabelTopologyZone}[random.IntN(3)],
			Window: time.Duration(random.IntN(3)) * time.Hour, ParkedAfter: time.Duration(random.IntN(3)) * time.Hour,
		}
	}
	rule := func(name string, condition corev1.NodeConditionType, effect corev1.TaintEffect) policy.Rule {
		r := policy.Rule{Name: name, Taint: corev1.Taint{Effect: effect}, Budget: budget()}
		r.Condition = condition
		if random.IntN(2) == 0 {
			r.Budget = policy.Unlimited
		}
		return r
	}
	domain := policy.Domain{Label: "clique", Window: time.Duration(30+random.IntN(120)) * time.Second}
	if random.IntN(4) > 0 {
		domain.Incidents = &policy.Incidents{MinNodes: 2 + random.IntN(3), MaxNodes: 5 + random.IntN(8)}
	}
	return &policy.Policy{
		Domains: []policy.Domain{domain},
		Budget:  budget(),
		Breaker: &policy.Breaker{MaxNodes: 1 + random.IntN(6), Window: time.Duration(1+random.IntN(120)) * time.Minute, CoolDown: time.Hour, Pace: time.Duration(1+random.IntN(240)) * time.Minute},
		Correlated: &policy.Correlated{
			MaxPercent: 1 + random.IntN(60), MinNodes: 2 + random.IntN(4), Window: time.Duration(1+random.IntN(3)) * time.Minute, Scopes: []string{"", rackLabel},
		},
		Rules: []policy.Rule{
			rule("gpu", "GPUXidError", corev1.TaintEffectNoSchedule), rule("soft", "Slow", corev1.TaintEffectPreferNoSchedule),
			rule("down", corev1.NodeReady, corev1.TaintEffectNoSchedule),
		},
	}
}

// Whatever has happened to the nodes, and whoever asks, a fleet answers as a walk over all nodes does.
func TestAFleetAnswersAsAFullCount(t *testing.T) {
	incidents := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 0))
		now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		fleet, byName := NewFleet(), map[string]Peer{}
		p := randomPolicy(r)
		for range 60 {
			switch name := fmt.Sprintf("n%d", r.IntN(25)); r.IntN(12) {
			case 0, 1:
				fleet.Delete(name)
				delete(byName, name)
			case 2:
				now = now.Add(time.Duration(r.IntN(120)-30) * time.Minute) // a clock may be put back
			case 3:
				p = randomPolicy(r)
			default:
				byName[name] = randomPeer(r, name, now)
				fleet.Put(byName[name])
			}
			asking := fmt.Sprintf("n%d", r.IntN(27))
			var others all
			for name, peer := range byName {
				if name != asking {
					others = append(others, peer)
				}
			}
			incidents += compare(t, r, p, fleet.Others(asking), others.ordered(fleet), now)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if incidents < 100 {
		t.Errorf("only %d of the nodes that asked take part in an incident", incidents)
	}
}

// compare asks everything that the limits answer. It returns how many incidents there are for the node that asks.
func compare(t *testing.T, r *rand.Rand, p *policy.Policy, peers Peers, full all, now time.Time) (incidents int) {
	t.Helper()
	self := randomPeer(r, "", now)
	self.Gone = false
	labels := self.Labels
	incident, why := peers.IncidentOf(p.Domains[0], self)
	of := full.incidentOf(p.Domains[0], self)
	if (incident == nil) != (of == nil) || incident != nil && (incident.Nodes != of.nodes || incident.Stands != of.stands) {
		t.Fatalf("the incident is %+v, want %+v", incident, of)
	}
	if mayBeOne := p.Domains[0].Incidents != nil && self.Failed != (Span{}) && self.Domain != (Domain{}); (why != "") != (mayBeOne && of == nil) {
		t.Errorf("that it is none is explained by %q", why)
	}
	if of != nil {
		incidents++
	}
	peers = peers.Beside(incident)
	var budgets []budget
	for _, rule := range p.Rules {
		for _, held := range []Held{{}, {Rule: "soft", Soft: true}, {Rule: "gpu"}} {
			budgets = append(budgets, asked(p, held, rule)...)
		}
	}
	for _, b := range budgets {
		used, nodes := b.count(labels, peers, now)
		wantUsed, wantNodes := full.count(b, labels, of, now)
		if used != wantUsed || nodes != wantNodes {
			t.Errorf("budget%s by %q of %v: %d of %d, want %d of %d", b.name(), b.Scope, labels, used, nodes, wantUsed, wantNodes)
		}
		if diff := gocmp.Diff(full.nodes(b, labels, of, now), b.nodes(labels, peers, now)); diff != "" {
			t.Errorf("budget%s: %s", b.name(), diff)
		}
	}
	for _, kind := range []corev1.NodeConditionType{"GPUXidError", corev1.NodeReady} {
		c := corev1.NodeCondition{Type: kind}
		c.LastTransitionTime.Time = now.Add(-time.Duration(r.IntN(240)) * time.Second)
		got, want := Correlated(p, c, Peer{Labels: labels}, peers), full.correlated(p.Correlated, c, labels, of)
		if (got == "") != (len(want) == 0) || got != "" && !strings.HasPrefix(got, want[0]) {
			t.Errorf("%s of %v: %q, want %q", kind, labels, got, want)
		}
	}
	started, latest := full.starts(p.Breaker.Window, now)
	if trip := TripBreaker(p.Breaker, nil, peers, now); (trip.Opened != nil) != (started >= p.Breaker.MaxNodes) {
		t.Errorf("%d started of %d: %+v", started, p.Breaker.MaxNodes, trip)
	}
	open := &BreakerState{OpenedAt: now.Add(-time.Duration(r.IntN(120)) * time.Minute)}
	cool := !now.Before(open.OpenedAt.Add(p.Breaker.CoolDown))
	passes := cool && !now.Before(latest.Add(p.Breaker.Pace)) && !now.Before(peers.lastOwn(now).Add(p.Breaker.CoolDown))
	if got, want := TripBreaker(p.Breaker, open, peers, now).Reason == "", passes; got != want {
		t.Errorf("open since %s, the latest start %s: lets through %v", now.Sub(open.OpenedAt), now.Sub(latest), got)
	}
	idle := now.Add(-2*p.Breaker.Pace - turn)
	isIdle := idle.After(latest) && idle.After(open.OpenedAt.Add(p.Breaker.CoolDown))
	if got, want := open.MayClose(p.Breaker, peers, now), cool && started < p.Breaker.MaxNodes && (!full.waits(now) || isIdle); got != want {
		t.Errorf("may close %v", got)
	}
	return incidents
}

// A change that is not noticed leaves nodes waiting for a place that is free.
func TestAFleetNoticesEachChangeOfAPeer(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	unseen := []string{"Waiting"} // it changes with each heartbeat
	before := Peer{Name: "a", Labels: map[string]string{rackLabel: "1", "other": "1"}}
	changed := Peer{
		Name: "b", Labels: map[string]string{rackLabel: "2"}, OutOfService: true, Why: Cordoned, ParkedSince: noon, Unchecked: true, Gone: true, Rule: "gpu", Soft: true,
		Starts: []Start{{At: noon}}, Waiting: []Span{{From: noon}}, ProblemSince: map[corev1.NodeConditionType]time.Time{"GPUXidError": noon},
		HeldFor: "c", Domain: Domain{"clique", "a"}, Link: LinkFault{Role: Victim, Since: noon}, Failed: Span{noon, noon},
		Claims: []node.Claim{{Why: "x"}},
	}
	fleet := NewFleet()
	fleet.Others("").in(rackLabel, nil) // is asked for, the other label is not
	for i := range reflect.TypeFor[Peer]().NumField() {
		field := reflect.TypeFor[Peer]().Field(i).Name
		fleet.Put(before)
		was, after := fleet.Changes(), before
		reflect.ValueOf(&after).Elem().Field(i).Set(reflect.ValueOf(changed).Field(i))
		if reflect.DeepEqual(before, after) {
			t.Errorf("%s: the test changes nothing", field)
		}
		fleet.updatePeer(before.Name, after)
		if noticed := fleet.Changes() > was; noticed == slices.Contains(unseen, field) {
			t.Errorf("%s: noticed %v", field, noticed)
		}
		again := fleet.Changes()
		if fleet.updatePeer(before.Name, after); fleet.Changes() != again {
			t.Errorf("%s: the same peer is a change", field)
		}
	}
	was := fleet.Changes()
	before.Labels = map[string]string{rackLabel: "1", "other": "2"}
	fleet.Put(before)
	if fleet.Delete("unknown"); fleet.Changes() != was+1 {
		t.Errorf("%d changes, want that of the last put alone", fleet.Changes()-was)
	}
	if fleet.Delete("a"); fleet.Changes() != was+2 {
		t.Error("that a node has gone is not noticed")
	}
}
