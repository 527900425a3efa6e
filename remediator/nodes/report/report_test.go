package report

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// rules is a policy with rules of these names.
func rules(names ...string) *policy.Policy {
	p := &policy.Policy{}
	for _, name := range names {
		p.Rules = append(p.Rules, policy.Rule{Name: name})
	}
	return p
}

func newReporter() (*Reporter, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(100)
	return &Reporter{Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(time.Now()), Metrics: NewMetrics()}, recorder
}

func TestBlockedIsReportedOnce(t *testing.T) {
	r, recorder := newReporter()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for i, test := range []struct {
		blocked *causes.Blocked
		want    bool
	}{
		{&causes.Blocked{Rule: "gpu", Reason: causes.BlockedByBudget, Message: "3 nodes"}, true},
		{&causes.Blocked{Rule: "gpu", Reason: causes.BlockedByBudget, Message: "4 nodes"}, false},
		{&causes.Blocked{Rule: "gpu", Reason: causes.BlockedByPause, Message: "upgrade"}, true},
		{&causes.Blocked{Rule: "disk", Reason: causes.BlockedByPause, Message: "upgrade"}, true},
		{nil, false},
		{&causes.Blocked{Rule: "disk", Reason: causes.BlockedByPause, Message: "upgrade"}, true},
	} {
		r.Blocked(t.Context(), rules("gpu", "disk"), n, test.blocked)
		got := len(recorder.Events) > 0
		if got != test.want {
			t.Errorf("%d: said %v, want %v", i, got, test.want)
		}
		for len(recorder.Events) > 0 {
			<-recorder.Events
		}
	}
}

// A suspect detector is reported once for all nodes, and again when the policy has had no such rule in between.
func TestASuspectRuleIsForgottenWithThePolicy(t *testing.T) {
	r, recorder := newReporter()
	suspect := func(rule, node string) int {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		r.Blocked(t.Context(), rules("gpu", "gone"), n, &causes.Blocked{Rule: rule, Reason: causes.BlockedByDetectorSuspect})
		return len(recorder.Events)
	}
	for i, test := range []struct {
		rule, node string
		want       int
	}{{"gpu", "a", 1}, {"gpu", "b", 1}, {"gone", "c", 2}} {
		if got := suspect(test.rule, test.node); got != test.want {
			t.Errorf("%d: %d Events, want %d", i, got, test.want)
		}
	}
	r.KeepRules(rules("gpu"))
	if got := suspect("gpu", "d"); got != 2 {
		t.Error("a rule that the policy has is forgotten")
	}
	if got := suspect("gone", "d"); got != 3 {
		t.Error("a rule that the policy does not have is remembered")
	}
}
