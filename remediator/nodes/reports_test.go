package nodes

import (
	"slices"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestASuspectDetectorIsReportedOnceForAllNodes(t *testing.T) {
	r := newRig(t, "a", "b", "c", "d")
	r.policy.Policy().Budget = policy.Unlimited
	r.policy.Policy().Correlated = &policy.Correlated{MaxPercent: 50, MinNodes: 3, Window: time.Minute, Scopes: []string{""}}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.reconcile(t, name)
	}
	if said := r.reasons(); !slices.Equal(said, []string{quarantine.DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
	// Once the rule has acted again, the next suspicion is news.
	guard := r.policy.Policy().Correlated
	r.policy.Policy().Correlated = nil
	r.reconcile(t, "a")
	r.policy.Policy().Correlated = guard
	r.client.nodes[1].Status.Conditions[0].Message = lost
	r.reports.isNew("b", nil)
	r.reconcile(t, "b")
	if said := r.reasons(); !slices.Equal(said, []string{quarantine.NodeQuarantined, quarantine.DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
}

func TestBlockedIsReportedOnce(t *testing.T) {
	r := newReports()
	for i, test := range []struct {
		blocked *quarantine.Blocked
		want    bool
	}{
		{&quarantine.Blocked{Rule: "gpu", Reason: quarantine.BlockedByBudget, Message: "3 nodes"}, true},
		{&quarantine.Blocked{Rule: "gpu", Reason: quarantine.BlockedByBudget, Message: "4 nodes"}, false},
		{&quarantine.Blocked{Rule: "gpu", Reason: quarantine.BlockedByPause, Message: "upgrade"}, true},
		{&quarantine.Blocked{Rule: "disk", Reason: quarantine.BlockedByPause, Message: "upgrade"}, true},
		{nil, false},
		{&quarantine.Blocked{Rule: "disk", Reason: quarantine.BlockedByPause, Message: "upgrade"}, true},
	} {
		if got := r.isNew("n", test.blocked); got != test.want {
			t.Errorf("%d: said %v, want %v", i, got, test.want)
		}
	}
}

func TestWhatIsReportedIsForgottenWithItsNodeAndItsRule(t *testing.T) {
	r := newRig(t, "a", "b")
	for _, name := range []string{"a", "b"} {
		r.reconcile(t, name)
	}
	r.reports.isNewSuspect("gpu")
	r.reports.isNewSuspect("gone")
	r.reports.keepRulesOf(r.policy.Policy())
	if len(r.reports.suspect) != 1 || !r.reports.suspect["gpu"] {
		t.Errorf("suspect rules %v", r.reports.suspect)
	}
	r.client.nodes = nil
	for _, name := range []string{"a", "b"} {
		r.reconcile(t, name)
	}
	if len(r.reports.blocked)+len(r.pending.byNode)+len(r.summaries) != 0 {
		t.Errorf("without nodes, memory holds %v, %v and %v", r.reports.blocked, r.pending.byNode, r.summaries)
	}
}
