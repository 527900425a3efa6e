package limits

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

var cliqueA = Domain{"clique", "a"}

// ofIncident is the start of a quarantine of a node as a part of the failure of its domain.
func ofIncident(node, rule string, ago time.Duration) Entry {
	e := entry(node, rule, ago)
	e.Incident = cliqueA
	return e
}

// quarantined is a node whose record tells of a start, beside what is remembered of it.
func quarantined(m Memory, name string, ago time.Duration) Peer {
	at := noon.Add(-ago)
	p := Peer{Name: name, OutOfService: true, Why: Quarantined, Rule: "gpu", Starts: []Start{{Rule: "gpu", At: at}}}
	m[name].AddTo(&p, types.UID(name), at)
	return p
}

// The memory alone tells who was quarantined as a part of an incident.
func TestWhoIsQuarantinedForAnIncident(t *testing.T) {
	other := ofIncident("a", "gpu", time.Minute)
	other.UID = "another node of its name"
	for name, test := range map[string]struct {
		memory []Entry
		ago    time.Duration
		want   Domain
	}{
		"it is remembered":               {[]Entry{ofIncident("a", "gpu", time.Minute)}, time.Minute, cliqueA},
		"and the rule has changed since": {[]Entry{ofIncident("a", "ports", time.Minute)}, time.Minute, cliqueA},
		"the quarantine of before":       {[]Entry{ofIncident("a", "ports", time.Hour)}, time.Minute, Domain{}},
		"another one since":              {[]Entry{ofIncident("a", "ports", time.Hour), entry("a", "gpu", time.Minute)}, time.Minute, Domain{}},
		"nothing is remembered":          {nil, time.Minute, Domain{}},
		"a quarantine for itself":        {[]Entry{entry("a", "gpu", time.Minute)}, time.Minute, Domain{}},
		"another node of its name":       {[]Entry{other}, time.Minute, Domain{}},
	} {
		p := quarantined(with(t, test.memory...), "a", test.ago)
		if got := p.incident(); got != test.want {
			t.Errorf("%s: %v of %+v", name, got, p.Starts)
		}
		if p.Why = NotReady; p.incident() != (Domain{}) {
			t.Errorf("%s: and without a quarantine", name)
		}
	}
}

// While it stands, in a budget with a window after that, and as gone if its nodes are replaced, an incident has one place.
func TestAnIncidentHasOnePlaceUnderEachLimit(t *testing.T) {
	m := with(t, ofIncident("a", "gpu", time.Minute), ofIncident("b", "gpu", 2*time.Minute), ofIncident("c", "ports", 3*time.Minute))
	standing := []Peer{quarantined(m, "a", time.Minute), quarantined(m, "b", 2*time.Minute), quarantined(m, "c", 3*time.Minute)}
	var released []Peer
	for _, p := range standing {
		p.OutOfService, p.Why, p.Rule = false, "", ""
		released = append(released, p)
	}
	gone := m.GonePeers(func(string) bool { return false })
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 5, MaxPercent: 100, Window: time.Hour}}
	ofRule := &policy.Policy{Budget: policy.Unlimited, Rules: []policy.Rule{{Name: "gpu", Budget: policy.Budget{MaxNodes: 5, MaxPercent: 100}}}}
	if uses := Uses(ofRule, PeersOf(standing...), noon); len(uses) != 1 || uses[0].Used != 1 {
		t.Errorf("the budget of a rule: %+v", uses)
	}
	for name, peers := range map[string][]Peer{"standing": standing, "released": released, "replaced": gone} {
		uses := Uses(p, PeersOf(peers...), noon)
		if len(uses) != 1 || uses[0].Used != 1 || len(uses[0].Nodes) != 1 || !strings.HasSuffix(uses[0].Nodes[0].Why, ", with others of clique=a") {
			t.Errorf("%s: %+v", name, uses)
		}
		b := &policy.Breaker{MaxNodes: 2, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
		if trip := TripBreaker(b, nil, PeersOf(peers...), noon); trip.Opened != nil {
			t.Errorf("%s: %+v", name, trip)
		}
		more := slices.Concat(peers, []Peer{quarantined(nil, "d", time.Minute)})
		if trip := TripBreaker(b, nil, PeersOf(more...), noon); trip.Opened == nil {
			t.Errorf("%s and another: %+v", name, trip)
		}
	}
}

// A rack is repaired within days, and its place is remembered for as long. Other starts are not.
func TestTheStartsOfAnIncidentAreRememberedForLonger(t *testing.T) {
	m := with(t, ofIncident("a", "gpu", time.Minute), entry("b", "gpu", time.Minute))
	later := noon.Add(6 * 24 * time.Hour)
	m, _ = m.Prune(time.Hour, later)
	if m["a"] == nil || m["b"] != nil || m["a"].starts[0].Incident != cliqueA {
		t.Errorf("remembered is %s", m)
	}
	if m, _ = m.Prune(time.Hour, later.Add(24*time.Hour)); len(m) > 0 {
		t.Errorf("remembered is %s", m)
	}
	if got, changed := (Memory{}).With(ofIncident("a", "gpu", 8*24*time.Hour), time.Hour, noon); changed {
		t.Errorf("remembered is %s", got)
	}
	without, on := &policy.Policy{Budget: policy.Unlimited, Domains: []policy.Domain{{}}}, &policy.Policy{Budget: policy.Unlimited, Domains: []policy.Domain{{Incidents: &policy.Incidents{}}}}
	if RememberFor(without) != 0 || RememberFor(on) != GoneFor {
		t.Errorf("remembered for %s without incidents and %s with", RememberFor(without), RememberFor(on))
	}
}

func TestAForgedIncidentIsNotRemembered(t *testing.T) {
	for _, d := range []Domain{{strings.Repeat("k", 318), "v"}, {"k", strings.Repeat("v", 64)}} {
		e := entry("a", "gpu", time.Minute)
		e.Incident = d
		if got, changed := (Memory{}).With(e, time.Hour, noon); changed {
			t.Errorf("remembered is %s", got)
		}
	}
}
