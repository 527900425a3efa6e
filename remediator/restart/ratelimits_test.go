package restart

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestRateLimits(t *testing.T) {
	at := func(ago time.Duration) time.Time { return noon.Add(-ago) }
	stopped := func(streak int, endedAgo time.Duration) Restart {
		return Restart{Streak: streak, EndedAt: at(endedAgo)}
	}
	all := policy.Restart{
		Settle: 5 * time.Second, MaxPerDay: 3, MaxPerJob: 10, BackOff: policy.BackOff{First: 30 * time.Second, Max: 10 * time.Minute}, MaxConcurrent: 2,
	}
	tests := map[string]struct {
		since  time.Duration // of the quarantine, ago; an hour unless set
		rec    Record
		others []Other
		limits policy.Restart
		reason string
		says   string
		after  time.Duration
	}{
		"no limits": {since: 1, rec: Record{Total: 100, Recent: []time.Time{at(1)}, Last: []Restart{stopped(9, 0)}}, others: make([]Other, 99)},
		"within all limits": {limits: all, rec: Record{Total: 9, Recent: []time.Time{at(2 * time.Hour), at(time.Hour)}, Last: []Restart{stopped(1, time.Hour)}},
			others: make([]Other, 1)},
		"the fault is young":  {limits: all, since: 2 * time.Second, reason: ReasonSettling, after: 3 * time.Second},
		"the fault has aged":  {limits: all, since: 5 * time.Second},
		"the job's budget":    {limits: all, rec: Record{Total: 10}, reason: "BudgetPerJob", says: "restarted 10 times"},
		"the day's budget":    {limits: all, rec: Record{Total: 4, Recent: []time.Time{at(25 * time.Hour), at(23 * time.Hour), at(2 * time.Hour), at(time.Hour)}}, reason: "BudgetPerDay", says: "may begin at 2026-11-20T13:00:00Z", after: time.Hour},
		"more than the day's": {limits: policy.Restart{MaxPerDay: 1}, rec: Record{Recent: []time.Time{at(23 * time.Hour), at(time.Hour)}}, reason: "BudgetPerDay", after: 23 * time.Hour},
		"a day has passed":    {limits: all, rec: Record{Recent: []time.Time{at(24 * time.Hour), at(2 * time.Hour), at(time.Hour)}}},
		"after the first restart": {limits: all, rec: Record{Last: []Restart{stopped(1, 10*time.Second)}}, reason: "BackOff",
			says: "the back-off after 1 in a row is 30s; the next one may begin at 2026-11-20T12:00:20Z", after: 20 * time.Second},
		"after the first pause": {limits: all, rec: Record{Last: []Restart{stopped(1, 30*time.Second)}}},
		"after the third":       {limits: all, rec: Record{Last: []Restart{stopped(3, time.Minute)}}, reason: "BackOff", after: time.Minute},
		"the longest pause":     {limits: all, rec: Record{Last: []Restart{stopped(60, time.Minute)}}, reason: "BackOff", after: 9 * time.Minute},
		"one that never stopped the job has no pause, the one before has": {limits: all, rec: Record{Last: []Restart{{EndedAt: at(time.Second)}, stopped(1, 10*time.Second)}},
			reason: "BackOff", after: 20 * time.Second},
		"many others at once":     {limits: all, others: make([]Other, 2), reason: "Concurrency", says: "2 other jobs are being restarted, and maxConcurrent is 2", after: retryCrowded},
		"others that are held up": {limits: all, others: []Other{{}, {Restart: Restart{Held: "pod x"}}, {Restart: Restart{Held: "pod y"}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			since := test.since
			if since == 0 {
				since = time.Hour
			}
			got, _ := FirstFailed(RateLimits(Trigger{Since: at(since)}, "team", test.rec, test.others, test.limits, noon))
			if got.Reason != test.reason || got.RetryAfter != test.after || !strings.Contains(got.Text, test.says) {
				t.Errorf("got %+v, want %s after %s: %s", got, test.reason, test.after, test.says)
			}
		})
	}
}

func TestPodsThatAreReplacedByThemselvesHaveNoBudget(t *testing.T) {
	l := policy.Restart{Settle: time.Second, MaxPerDay: 1, MaxPerJob: 1, BackOff: policy.BackOff{First: time.Minute, Max: time.Hour}, MaxConcurrent: 1, CheckCapacity: true}
	if diff := cmp.Diff(l, LimitsOf(Trigger{}, Job{}, l)); diff != "" {
		t.Errorf("a gang: %s", diff)
	}
	want := policy.Restart{Settle: time.Second, MaxConcurrent: 1, CheckCapacity: true}
	if diff := cmp.Diff(want, LimitsOf(Trigger{}, Job{Gang: func(metav1.Object) string { return "" }}, l)); diff != "" {
		t.Error(diff)
	}
}

func TestAJobThatStandsStillHasABudget(t *testing.T) {
	gang := func(metav1.Object) string { return "" }
	for of, want := range map[int]int{0: 3, 2: 2, 3: 3, 10: 3} {
		for _, job := range []Job{{}, {Gang: gang}} {
			got := LimitsOf(Trigger{Kind: JobStalled}, job, policy.Restart{MaxPerDay: of, MaxPerJob: 7})
			if got.MaxPerDay != want || got.MaxPerJob != 7 {
				t.Errorf("maxPerDay %d: got %+v", of, got)
			}
		}
	}
}

func TestCounted(t *testing.T) {
	b := policy.BackOff{First: time.Second, Max: 10 * time.Minute}
	old := noon.Add(-25 * time.Hour)
	tests := map[string]struct{ rec, want Record }{
		"the first":                       {Record{}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 1}}},
		"soon after another":              {Record{Last: []Restart{{Streak: 2, EndedAt: noon.Add(-9 * time.Minute)}}}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 3}}},
		"long after another":              {Record{Last: []Restart{{Streak: 2, EndedAt: noon.Add(-11 * time.Minute)}}}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 1}}},
		"what is a day old need not stay": {Record{Total: 7, Recent: []time.Time{old, noon.Add(-time.Hour)}}, Record{Total: 8, Recent: []time.Time{noon.Add(-time.Hour), noon}, Current: &Restart{Streak: 1}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			current := &Restart{}
			test.rec.Current = current
			got := test.rec.Counted(noon, b)
			test.want.Last = got.Last
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if current.Streak != 0 {
				t.Error("the record it was called on was changed")
			}
		})
	}
	rec := Record{Current: &Restart{}}
	for i := range 2 * policy.MaxPerDayLimit {
		rec = rec.Counted(noon.Add(time.Duration(i)*time.Second), b)
	}
	if n := len(rec.Recent); n != policy.MaxPerDayLimit || !rec.Recent[n-1].After(rec.Recent[0]) {
		t.Errorf("remembers %d restarts, the last at %s", n, rec.Recent[n-1])
	}
}

func TestARestartFitsItsRecord(t *testing.T) {
	if p := FitsRecord(maxPods); !p.Passed {
		t.Errorf("%d pods: %+v", maxPods, p)
	}
	if p := FitsRecord(maxPods + 1); p.Passed || p.Reason != "TooManyPods" || p.Text != "it has 5001 pods, and the record of a restart holds 5000" {
		t.Errorf("%+v", p)
	}
}

// A record is written by whoever may write the job.
func TestClaimsAreBounded(t *testing.T) {
	if got := ClaimedRanks([]Other{{Restart: Restart{Moving: 3}}, {Restart: Restart{Moving: -1 << 62}}, {Restart: Restart{Moving: 1 << 62}}}); got != 3+maxPods {
		t.Errorf("got %d", got)
	}
}

// A tenant can bring about as many failed pods and stalled jobs as it likes.
func TestWhatATenantBringsAboutGivesWay(t *testing.T) {
	others := func(namespaces ...string) (all []Other) {
		for _, namespace := range namespaces {
			all = append(all, Other{Namespace: namespace, NodeFault: namespace == "node"})
		}
		return all
	}
	limits := policy.Restart{MaxConcurrent: 8}
	for name, test := range map[string]struct {
		kind   TriggerKind
		others []Other
		want   string
	}{
		"a node fault beside a tenant that fills all places": {NodeQuarantined, others("a", "a", "a", "a", "a", "a", "a", "a", "team"), ""},
		"a node fault beside as many node faults": {NodeQuarantined, others("node", "node", "node", "node", "node", "node", "node", "node"),
			"8 other jobs are being restarted, and maxConcurrent is 8"},
		"a stall beside node faults": {JobStalled, others("node", "node", "node", "node", "node", "node", "node", "node"),
			"8 other jobs are being restarted, and maxConcurrent is 8"},
		"a stall beside the share of its namespace": {JobStalled, others("team", "team"),
			"2 other jobs of namespace team are being restarted for failed pods or stalls, and its share of maxConcurrent is 2"},
		"a failed pod beside the share of its namespace": {PodFailed, others("team", "team"),
			"2 other jobs of namespace team are being restarted for failed pods or stalls, and its share of maxConcurrent is 2"},
		"a stall beside the shares of others":          {JobStalled, others("a", "a", "b", "b", "team"), ""},
		"a stall beside node faults of its namespace":  {JobStalled, []Other{{Namespace: "team", NodeFault: true}, {Namespace: "team", NodeFault: true}}, ""},
		"a node fault beside stalls of its namespace":  {NodeQuarantined, others("team", "team", "team"), ""},
		"a stall beside held restarts of its own kind": {JobStalled, []Other{{Namespace: "team", Restart: Restart{Held: "x"}}, {Namespace: "team", Restart: Restart{Held: "x"}}}, ""},
	} {
		failed, delayed := FirstFailed(RateLimits(Trigger{Kind: test.kind, Since: noon.Add(-time.Hour)}, "team", Record{}, test.others, limits, noon))
		if failed.Text != test.want || delayed && failed.RetryAfter <= 0 {
			t.Errorf("%s: %q after %s, want %q", name, failed.Text, failed.RetryAfter, test.want)
		}
	}
}
