package main

import (
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

func TestTheVisitOfAGroupNamesThePlaceInIt(t *testing.T) {
	now := time.Now()
	v := &repair.Visit{Kind: repair.Sweep, Sweep: "pairs", Phase: repair.Working, Template: "preflight", StartedAt: now.Add(-time.Minute), Group: repair.Group{ID: "g", Rank: 2, Size: 8}}
	if got, want := visitText(v, now), "sweep pairs, rank 2 of 8 nodes, preflight, 60s, Working"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := kindText(v), "sweep pairs, rank 2 of 8 nodes"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
