package limits

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/ring"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func entry(node, rule string, ago time.Duration) Entry {
	return Entry{Node: node, UID: types.UID(node), Rule: rule, At: noon.Add(-ago)}
}

// with is a memory of the entries, which are all of the last day.
func with(t *testing.T, entries ...Entry) Memory {
	t.Helper()
	var m Memory
	for _, e := range entries {
		m, _ = m.With(e, 24*time.Hour, noon)
	}
	return m
}

func TestAMemoryIsReadBackAsItWasWritten(t *testing.T) {
	e := entry("a", "gpu", time.Minute)
	e.Scopes, e.Soft, e.Incident = map[string]string{"rack": "r1"}, true, Domain{"clique", "a"}
	m := with(t, e, entry("a", "disk", 0), entry("b", "gpu", time.Hour))
	got, err := ParseMemory(m.String(), noon)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.entries(), got.entries()); diff != "" || len(got.entries()) != 3 {
		t.Error(diff)
	}
	// The next version adds fields.
	if next, err := ParseMemory(strings.ReplaceAll(m.String(), `{"n":`, `{"next":{"a":[1]},"n":`), noon); err != nil || next.String() != m.String() {
		t.Errorf("with fields of the next version it is %s, %v", next, err)
	}
	if empty, err := ParseMemory("", noon); err != nil || empty.String() != "" {
		t.Errorf("an empty memory is %q, %v", empty, err)
	}
}

func TestAMemoryThatCannotBeReadIsAnError(t *testing.T) {
	for _, text := range []string{"{", `{"n":1}`, `[{"t":"yesterday"}]`} {
		if m, err := ParseMemory(text, noon); err == nil || len(m) > 0 {
			t.Errorf("%s is %v", text, m)
		}
	}
}

func TestAForgedMemoryIsBounded(t *testing.T) {
	var forged []string
	for i := range 3 * ring.MaxEntries {
		forged = append(forged, fmt.Sprintf(`{"n":"n%d","r":"gpu","t":%q}`, i, noon.Add(-time.Duration(i)*time.Second).Format(time.RFC3339)))
	}
	forged = append(forged, `{"n":"","t":"2026-11-20T11:00:00Z"}`, `{"n":"future","t":"2026-12-30T11:00:00Z"}`, `{"n":"never"}`)
	m, err := ParseMemory("["+strings.Join(forged, ",")+"]", noon)
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != ring.MaxEntries || m["n0"] == nil || m["future"] != nil || m[""] != nil || m["never"] != nil {
		t.Errorf("%d nodes are remembered", len(m))
	}
}

func TestAMemoryKeepsTheLatestStartOfEachRuleForItsTime(t *testing.T) {
	m := with(t, entry("a", "gpu", 2*time.Hour), entry("a", "gpu", time.Hour), entry("a", "gpu", 3*time.Hour), entry("a", "disk", 5*time.Hour))
	want := []Entry{entry("a", "gpu", time.Hour), entry("a", "disk", 5*time.Hour)}
	if diff := cmp.Diff(want, m.entries()); diff != "" {
		t.Error(diff)
	}
	for _, e := range []Entry{entry("a", "gpu", time.Hour), entry("b", "gpu", 25*time.Hour), entry("b", "gpu", -time.Hour)} {
		if same, changed := m.With(e, 24*time.Hour, noon); changed {
			t.Errorf("%v changes it to %v", e, same.entries())
		}
	}
	less, changed := m.Prune(2*time.Hour, noon)
	if diff := cmp.Diff(want[:1], less.entries()); diff != "" || !changed || len(m.entries()) != 2 {
		t.Errorf("pruned: %s", diff)
	}
	if _, changed := less.Prune(2*time.Hour, noon); changed {
		t.Error("pruned twice")
	}
}

func TestAMemoryNeverOutgrowsItsConfigMap(t *testing.T) {
	var m Memory
	for i := range ring.MaxEntries + 10 {
		e := entry(strings.Repeat("n", 243)+fmt.Sprintf("%010d", i), strings.Repeat("r", 63), 0)
		e.UID, e.At = types.UID(strings.Repeat("u", 36)), noon.Add(time.Duration(i)*time.Second/20)
		m, _ = m.With(e, time.Hour, noon.Add(time.Minute))
	}
	if full, changed := m.With(entry("late", "gpu", time.Minute), time.Hour, noon); changed || full["late"] != nil {
		t.Error("the oldest of too many is remembered, and would be again at each look")
	}
	if got := len(m.String()); got > 1<<20 || len(m.entries()) != ring.MaxEntries {
		t.Errorf("%d entries of %d bytes", len(m.entries()), got)
	}
}

func TestAPolicyWithoutLimitsRemembersNothing(t *testing.T) {
	for name, test := range map[string]struct {
		policy policy.Policy
		want   time.Duration
	}{
		"no limits":           {policy.Policy{Budget: policy.Unlimited}, 0},
		"a budget":            {policy.Policy{Budget: policy.Budget{MaxNodes: 1, MaxPercent: 100}}, GoneFor},
		"one with a window":   {policy.Policy{Budget: policy.Budget{MaxNodes: 1, MaxPercent: 100, Window: 5 * time.Hour}}, 5 * time.Hour},
		"a breaker":           {policy.Policy{Budget: policy.Unlimited, Breaker: &policy.Breaker{Window: 2 * time.Hour, Pace: 3 * time.Hour}}, 3 * time.Hour},
		"the budget of rules": {policy.Policy{Budget: policy.Unlimited, Rules: []policy.Rule{{Budget: policy.Budget{MaxNodes: math.MaxInt, MaxPercent: 10}}}}, GoneFor},
	} {
		if got := RememberFor(&test.policy); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A start counts as gone unless the record of the same node has it.
func TestWhatNoRecordHasIsGone(t *testing.T) {
	m := with(t, entry("a", "gpu", time.Hour))
	for name, test := range map[string]struct {
		uid   types.UID
		known time.Time
		want  bool
	}{
		"the record has it":         {"a", noon.Add(-time.Hour), false},
		"or a later one":            {"a", noon, false},
		"the record was removed":    {"a", time.Time{}, true},
		"the record is older":       {"a", noon.Add(-2 * time.Hour), true},
		"a node with the same name": {"other", noon, true},
	} {
		var p Peer
		m["a"].AddTo(&p, test.uid, test.known)
		if len(p.Starts) != 1 || p.Starts[0].Gone != test.want {
			t.Errorf("%s: %+v", name, p.Starts)
		}
	}
	if got := m.GonePeers(func(string) bool { return true }); len(got) > 0 {
		t.Errorf("a peer is gone: %v", got)
	}
	if got := m.GonePeers(func(string) bool { return false }); len(got) != 1 || got[0].Name != "a" || !got[0].Starts[0].Gone || !got[0].Gone {
		t.Errorf("%+v", got)
	}
}

// Attack 2: many starts of one node count once, and those of the future never.
func TestForgedStartsDoNotOpenTheBreaker(t *testing.T) {
	b := &policy.Breaker{MaxNodes: 2, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	at := func(ago ...time.Duration) (p Peer) {
		for _, d := range ago {
			p.Starts = append(p.Starts, Start{At: noon.Add(-d)})
		}
		return p
	}
	forged := slices.Repeat([]time.Duration{time.Minute}, 13)
	ahead := -40 * 24 * time.Hour
	for name, test := range map[string]struct {
		peers []Peer
		opens bool
	}{
		"13 of one node":           {[]Peer{at(forged...)}, false},
		"of two nodes":             {[]Peer{at(forged...), at(forged...)}, true},
		"of the future":            {[]Peer{at(ahead), at(ahead), at(ahead)}, false},
		"of a clock that is ahead": {[]Peer{at(-conditions.MaxClockSkew), at(-time.Second)}, true},
		"older than the window":    {[]Peer{at(time.Hour), at(time.Hour)}, false},
	} {
		trip := TripBreaker(b, nil, PeersOf(test.peers...), noon)
		if (trip.Reason != "") != test.opens {
			t.Errorf("%s: %+v", name, trip)
		}
		// One that is open goes on at its pace, whatever the starts claim.
		open := &BreakerState{OpenedAt: noon.Add(-2 * time.Hour)}
		if trip := TripBreaker(b, open, PeersOf(test.peers...), noon.Add(b.Pace+b.Window)); trip.Reason != "" {
			t.Errorf("%s: half-open: %+v", name, trip)
		}
	}
	// Nor does one that is proven keep it open until its time has come.
	future := Peer{Starts: []Start{{At: noon.Add(-ahead), Proven: true}}}
	if trip := TripBreaker(b, &BreakerState{OpenedAt: noon.Add(-2 * time.Hour)}, PeersOf(future), noon); trip.Reason != "" {
		t.Errorf("a proven start of the future: %+v", trip)
	}
	soft := Peer{Starts: []Start{{At: noon, Soft: true}}}
	if trip := TripBreaker(b, nil, PeersOf(soft, soft, soft), noon); trip.Reason != "" {
		t.Errorf("soft quarantines: %+v", trip)
	}
}

func TestUsesCountAsTheBudgetsDo(t *testing.T) {
	hard, soft := policy.Rule{Name: "gpu", Budget: policy.Unlimited}, policy.Rule{Name: "slow", Budget: policy.Unlimited}
	soft.Taint.Effect = "PreferNoSchedule"
	own := policy.Rule{Name: "hca", Budget: policy.Budget{MaxNodes: 1, MaxPercent: 100}}
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 2, MaxPercent: 50, Scope: "rack", ParkedAfter: time.Hour}, Rules: []policy.Rule{hard, soft, own}}
	rack := map[string]string{"rack": "r1"}
	peers := []Peer{
		{Name: "parked", Labels: rack, OutOfService: true, Why: Cordoned, ParkedSince: noon.Add(-time.Hour)},
		{Name: "cpu", Labels: rack, OutOfService: true, Why: NotReady, Unchecked: true},
		{Name: "b", Labels: rack, OutOfService: true, Why: Cordoned, ParkedSince: noon.Add(-time.Minute)},
		{Name: "a", Labels: rack, OutOfService: true, Why: Quarantined, Rule: "hca"},
		{Name: "s", Labels: rack, Soft: true, Rule: "slow"},
		{Name: "elsewhere", OutOfService: true},
	}
	want := []Use{
		{"policy", "rack", "", 1, 1, []UsedBy{{"elsewhere", Quarantined}}},
		{"policy", "rack", "r1", 2, 2, []UsedBy{{"a", Quarantined}, {"b", Cordoned}}},
		{"soft", "rack", "r1", 1, 2, []UsedBy{{"s", Quarantined}}},
		{"hca", "", "", 1, 1, []UsedBy{{"a", Quarantined}}},
	}
	if diff := cmp.Diff(want, Uses(p, PeersOf(peers...), noon)); diff != "" {
		t.Error(diff)
	}
	for rule, want := range map[string]string{
		"gpu":  "2 nodes are out of service and the budget by rack is 2: a (quarantined), b (cordoned)",
		"hca":  "1 nodes are out of service and the budget of rule hca is 1: a (quarantined)",
		"slow": "",
	} {
		r, _ := p.Rule(rule)
		if got := ExceededBudget(p, Held{}, r, rack, PeersOf(peers...), noon); got != want {
			t.Errorf("%s: %q", rule, got)
		}
	}
}

func TestAMessageNamesFewNodes(t *testing.T) {
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 7, MaxPercent: 100}}
	var peers []Peer
	for i := range 7 {
		peers = append(peers, Peer{Name: fmt.Sprintf("n%d", i), OutOfService: true})
	}
	got := ExceededBudget(p, Held{}, policy.Rule{Budget: policy.Unlimited}, nil, PeersOf(peers...), noon)
	if !strings.HasSuffix(got, "the budget is 7: n0 (quarantined), n1 (quarantined), n2 (quarantined), n3 (quarantined), n4 (quarantined) and 2 more") {
		t.Error(got)
	}
}

func FuzzParseMemory(f *testing.F) {
	f.Add(`[{"n":"a","u":"u","r":"gpu","t":"2026-11-20T11:00:00Z","l":{"rack":"r1"}}]`)
	f.Add(`[{"t":"9999-12-31T23:59:59Z","n":"x"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMemory(text, noon)
		if err != nil {
			return
		}
		again, err := ParseMemory(m.String(), noon)
		if err != nil || len(again.entries()) != len(m.entries()) || len(m) > ring.MaxEntries {
			t.Fatalf("%q becomes %q, %v", text, m, err)
		}
		for _, p := range m.GonePeers(func(string) bool { return false }) {
			if len(p.Starts) == 0 {
				t.Fatalf("%q: a peer without a start", text)
			}
		}
	})
}

func TestFewStartsOfEachNodeAreKept(t *testing.T) {
	var m Memory
	m, _ = m.With(entry("other", "gpu", time.Hour), 24*time.Hour, noon)
	for i := range 3 * maxPerNode {
		m, _ = m.With(entry("a", fmt.Sprintf("r%d", i), 30*time.Minute-time.Duration(i)*time.Minute), 24*time.Hour, noon)
	}
	got := m["a"].starts
	if len(got) != maxPerNode || got[0].Rule != "r23" || got[maxPerNode-1].Rule != "r16" || m["other"] == nil {
		t.Errorf("kept %+v", got)
	}
	if same, changed := m.With(entry("a", "r0", 30*time.Minute), 24*time.Hour, noon); changed {
		t.Errorf("an older one changes it to %+v", same["a"].starts)
	}
}

func TestTheTextOfAMemoryFitsWhateverIsInIt(t *testing.T) {
	m := Memory{}
	for i := range ring.MaxEntries {
		e := entry(fmt.Sprintf("n%04d", i), strings.Repeat("<", 63), time.Duration(i)*time.Second)
		e.Scopes = map[string]string{strings.Repeat("k", 317): strings.Repeat("v", 63)}
		m.add(e)
	}
	text := m.String()
	got, err := ParseMemory(text, noon)
	if err != nil || len(text) > maxText || len(text) < maxText/2 || got["n0000"] == nil || got["n1999"] != nil {
		t.Errorf("%d bytes, %d nodes, %v", len(text), len(got), err)
	}
	for _, e := range []Entry{entry(strings.Repeat("n", 254), "gpu", 0), entry("a", strings.Repeat("r", 64), 0), {Node: "a", UID: types.UID(strings.Repeat("u", 65)), At: noon}} {
		if _, changed := (Memory{}).With(e, time.Hour, noon); changed {
			t.Errorf("remembers %+v", e)
		}
	}
}

// What is summed up of the others need not be summed up again.
func TestPruneChangesOnlyTheNodesThatLoseAStart(t *testing.T) {
	m := with(t, entry("old", "gpu", 90*time.Minute), entry("new", "gpu", time.Minute), entry("new", "disk", 2*time.Minute))
	if pruned, changed := m.Prune(time.Hour, noon); !changed || len(pruned.Differing(m)) != 1 || !pruned.Differing(m)["old"] || pruned.Is(m) || !m.Is(m) {
		t.Errorf("pruned %v: other starts of %v", changed, pruned.Differing(m))
	}
}
