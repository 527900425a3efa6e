package limits

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// BreakerState is the state of an open breaker; nil stands for a closed one. It is kept in a ConfigMap, so that a new
// leader finds it.
type BreakerState struct {
	OpenedAt time.Time `json:"openedAt"`
}

// BreakerKey is the key of the ConfigMap that holds the state; no value: closed.
const BreakerKey = "state"

// OrClosed is nil for a state with a zero time, which asks to close the breaker.
func (s *BreakerState) OrClosed() *BreakerState {
	if s.OpenedAt.IsZero() {
		return nil
	}
	return s
}

// ParseBreaker reads the text of the ConfigMap; nil when the breaker is closed. It takes a text that it cannot read, or with a
// time in the future, for a breaker that has just opened. Then the result must be stored, or it would open again at each reading.
func ParseBreaker(text string, now time.Time) *BreakerState {
	if text == "" {
		return nil
	}
	var s BreakerState
	if err := json.Unmarshal([]byte(text), &s); err != nil || s.OpenedAt.IsZero() || s.OpenedAt.After(now.Add(conditions.MaxClockSkew)) {
		return &BreakerState{OpenedAt: now}
	}
	return &s
}

// String is the text of the ConfigMap; empty when the breaker is closed.
func (s *BreakerState) String() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf(`{"openedAt":%q}`, s.OpenedAt.UTC().Format(time.RFC3339Nano))
}

// RetryBlocked is how soon nodes that a budget or the breaker holds back are decided again when something changes that may free a place,
// and how often an open breaker is read.
const RetryBlocked = 5 * time.Second

// turn is how long a node may take to be decided again once an open breaker lets it through.
const turn = time.Minute

// Trip is the answer of the breaker to one more quarantine.
type Trip struct {
	// Reason is why it does not let the quarantine through; empty: it does.
	Reason string
	// Opened is the new state of a breaker that opens; nil: the state stays as it is.
	Opened *BreakerState
	// RetryAt is when it may let it through, if no one closes it before.
	RetryAt time.Time
}

// TripBreaker opens a closed breaker when too many quarantines started. Half-open, it lets one node through every Pace: by
// what that node is like then, so that no backlog is worked off. A node that was let through waits for the CoolDown before it is again: one
// whose fault comes and goes, or whose Node is created anew, would have each turn. A nil b lets everything through.
func TripBreaker(b *policy.Breaker, state *BreakerState, peers Peers, now time.Time) Trip {
	if b == nil {
		return Trip{}
	}
	started, latest := quarantineStarts(b, peers, now)
	if state == nil {
		if started < b.MaxNodes {
			return Trip{}
		}
		return Trip{
			Reason:  fmt.Sprintf("%d quarantines began within %s: the breaker opens", started, b.Window),
			Opened:  &BreakerState{OpenedAt: now},
			RetryAt: now.Add(b.CoolDown),
		}
	}
	until := state.OpenedAt.Add(b.CoolDown)
	for _, at := range []time.Time{latest.Add(b.Pace), peers.lastOwn(now).Add(b.CoolDown)} {
		if at.After(until) {
			until = at
		}
	}
	if !now.Before(until) {
		return Trip{}
	}
	return Trip{Reason: "the breaker is open", RetryAt: until}
}

// lastOwn is when the last quarantine of the node that asks began, if it has ended or was that of a Node of the same name; zero: there was
// none.
func (p Peers) lastOwn(now time.Time) (latest time.Time) {
	if p.except == nil || p.except.Why == Quarantined {
		return latest
	}
	for _, s := range p.except.Starts {
		if s.Proven && !s.Soft && !s.At.After(now.Add(conditions.MaxClockSkew)) && s.At.After(latest) {
			latest = s.At
		}
	}
	return latest
}

// MayClose reports whether an open breaker has cooled down and no peer waits for it now: half-open, it lets one of them through every Pace,
// so if none was for two, they wait for something else. It is false for a closed one.
func (s *BreakerState) MayClose(b *policy.Breaker, peers Peers, now time.Time) bool {
	if s == nil || b == nil || now.Before(s.OpenedAt.Add(b.CoolDown)) {
		return false
	}
	wide := *b
	wide.Pace = 2*b.Pace + turn
	started, latest := quarantineStarts(&wide, peers, now)
	if started >= b.MaxNodes {
		return false
	}
	if idle := now.Add(-wide.Pace); idle.After(s.OpenedAt.Add(b.CoolDown)) && idle.After(latest) {
		return true
	}
	for p := range peers.notable(always.Add(-1)) {
		if slices.ContainsFunc(p.Waiting, func(s Span) bool { return s.Contains(now) }) {
			return false
		}
	}
	return true
}

// quarantineStarts counts the nodes that a quarantine took out of service within the breaker's window, and returns when the latest
// of those that are proven started, if that is less than its pace ago. A node counts once, however many quarantines its record claims,
// and so does an incident. None of the future counts.
func quarantineStarts(b *policy.Breaker, peers Peers, now time.Time) (count int, latest time.Time) {
	var counted []Domain // the incidents
	for p := range peers.notable(now.Add(-max(b.Window, b.Pace))) {
		counts, incident := false, Domain{}
		for _, s := range p.Starts {
			if s.Soft || s.At.After(now.Add(conditions.MaxClockSkew)) {
				continue
			}
			switch {
			case !s.isWithin(b.Window, now):
			case s.Incident != Domain{}:
				incident = s.Incident
			default:
				counts = true
			}
			if s.Proven && s.At.After(latest) {
				latest = s.At
			}
		}
		if !counts && incident != (Domain{}) && !slices.Contains(counted, incident) {
			counts, counted = true, append(counted, incident)
		}
		if counts {
			count++
		}
	}
	if latest.After(now) { // of a clock that is a little ahead
		latest = now
	}
	return count, latest
}
