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
		`{"openedAt":"2026-11-20T12:30:00Z"}`: now, // from a clock that was wrong: it must end
		`{}`:                                  now,
		"open":                                now,
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
