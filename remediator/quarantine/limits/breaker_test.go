package limits

import (
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestParseBreaker(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                                    {},
		`{"openedAt":"2026-11-20T11:30:00Z"}`: now.Add(-30 * time.Minute),
		`{"openedAt":"2026-11-20T11:30:00Z","next":{"a":[1]}}`: now.Add(-30 * time.Minute), // of the next version
		`{"openedAt":"2026-11-20T12:30:00Z"}`:                  now,                        // from a clock that was wrong: it must end
		`{}`:                                                   now,
		"open":                                                 now,
	} {
		got := ParseBreaker(text, now)
		if (got == nil) != want.IsZero() || got != nil && !got.OpenedAt.Equal(want) {
			t.Errorf("%q is %+v, want %s", text, got, want)
		}
	}
}

// Attack 10: a state from the future cools down like one of now.
func TestABreakerOpenedInTheFutureOpensNow(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		`{"openedAt":"2026-11-20T11:00:00Z"}`:      now.Add(-time.Hour),
		`{"openedAt":"2026-11-20T12:02:00Z"}`:      now.Add(conditions.MaxClockSkew),
		`{"openedAt":"2026-11-20T12:02:01Z"}`:      now,
		`{"openedAt":"9999-12-31T23:59:59-23:59"}`: now,
		`{"openedAt":"0001-01-01T00:00:00Z"}`:      now,
		`{`:                                        now,
	} {
		got := ParseBreaker(text, now)
		if got == nil || !got.OpenedAt.Equal(want) {
			t.Errorf("%s is %v, want %s", text, got, want)
		}
		if again := ParseBreaker(got.String(), now); again == nil || !again.OpenedAt.Equal(want) {
			t.Errorf("%s is read back as %v", got, again)
		}
	}
	if got := ParseBreaker("", now); got != nil || got.String() != "" {
		t.Errorf("a closed breaker is %v", got)
	}
	far := BreakerState{OpenedAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}
	if got := ParseBreaker(far.String(), now); got == nil || !got.OpenedAt.Equal(now) {
		t.Errorf("%s is %v", &far, got)
	}
}

func TestABreakerIsAskedAgainWhenItHasCooledDown(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	peers := PeersOf(Peer{Starts: []Start{{At: now}}})
	for _, coolDown := range []time.Duration{time.Second, time.Hour} {
		b := &policy.Breaker{MaxNodes: 1, Window: time.Minute, CoolDown: coolDown, Pace: time.Millisecond}
		trip := TripBreaker(b, nil, peers, now)
		if trip.Opened == nil || !trip.RetryAt.Equal(now.Add(coolDown)) {
			t.Errorf("cool-down %s: %+v", coolDown, trip)
		}
		if again := TripBreaker(b, trip.Opened, peers, now); again.Opened != nil || !again.RetryAt.Equal(now.Add(coolDown)) {
			t.Errorf("cool-down %s, open: %+v", coolDown, again)
		}
	}
}

func TestOnlyAProvenStartSetsThePace(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	b := &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: 5 * time.Minute}
	open := &BreakerState{OpenedAt: now.Add(-2 * time.Hour)}
	for _, proven := range []bool{true, false} {
		trip := TripBreaker(b, open, PeersOf(Peer{Starts: []Start{{At: now.Add(-time.Minute), Proven: proven}}}), now)
		if (trip.Reason != "") != proven {
			t.Errorf("proven %v: %+v", proven, trip)
		}
	}
	var peer Peer
	with(t, entry("a", "gpu", 0))["a"].AddTo(&peer, "a", noon)
	if !peer.Starts[0].Proven {
		t.Error("what is remembered is not proven")
	}
}

// Each time that one node is let through, its Node is created anew and reports a fault again, and it always asks first.
func TestOneNodeDoesNotTakeEachTurnOfAnOpenBreaker(t *testing.T) {
	b := &policy.Breaker{MaxNodes: 1, Window: 10 * time.Minute, CoolDown: 30 * time.Minute, Pace: 5 * time.Minute}
	open, fleet := &BreakerState{OpenedAt: noon.Add(-2 * time.Hour)}, NewFleet()
	evil := Peer{Name: "evil"}
	for minute := range 40 {
		now := noon.Add(time.Duration(minute) * time.Minute)
		fleet.Put(evil)
		trip := TripBreaker(b, open, fleet.Others("evil"), now)
		if trip.Reason == "" {
			evil.Starts = []Start{{Rule: "gpu", At: now, Proven: true, Gone: true}}
			fleet.Put(evil)
		} else if want := evil.Starts[0].At.Add(b.CoolDown); !trip.RetryAt.Equal(want) {
			t.Errorf("after %d minutes it waits until %s, not %s", minute, trip.RetryAt, want)
		}
		passes := TripBreaker(b, open, fleet.Others("honest"), now).Reason == ""
		if want := minute >= 5 && minute < 30 || minute >= 35; passes != want {
			t.Errorf("after %d minutes another one is let through: %t", minute, passes)
		}
	}
	// What a node has now is no turn that it had: an upgrade of it asks only the others.
	evil.Why, evil.OutOfService = Quarantined, true
	fleet.Put(evil)
	if trip := TripBreaker(b, open, fleet.Others("evil"), noon.Add(40*time.Minute)); trip.Reason != "" {
		t.Errorf("%+v", trip)
	}
}

// A node that a budget holds back, or that claims to be maintained, waits for something else than its turn.
func TestAnOpenBreakerWaitsForNobodyWhoHasHadTheirTurn(t *testing.T) {
	b := &policy.Breaker{MaxNodes: 9, Window: 10 * time.Minute, CoolDown: 30 * time.Minute, Pace: 5 * time.Minute}
	open := &BreakerState{OpenedAt: noon.Add(-time.Hour)} // half-open for 30 minutes
	waits := Peer{Name: "waits", Waiting: []Span{{From: noon.Add(-time.Hour)}}}
	started := func(ago time.Duration) Peer {
		return Peer{Name: "started", Starts: []Start{{Rule: "gpu", At: noon.Add(-ago), Proven: true}}}
	}
	for name, test := range map[string]struct {
		peers []Peer
		at    time.Duration
		want  bool
	}{
		"nobody was let through":       {[]Peer{waits}, 0, true},
		"it has just cooled down":      {[]Peer{waits}, -19 * time.Minute, false},
		"and for two turns":            {[]Peer{waits}, -19*time.Minute + time.Second, true},
		"another one was let through":  {[]Peer{waits, started(10 * time.Minute)}, 0, false},
		"that was long ago":            {[]Peer{waits, started(11*time.Minute + time.Second)}, 0, true},
		"nobody waits, one has passed": {[]Peer{started(time.Minute)}, 0, true},
	} {
		if got := open.MayClose(b, PeersOf(test.peers...), noon.Add(test.at)); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
