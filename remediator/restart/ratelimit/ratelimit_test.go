package ratelimit

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestRateLimits(t *testing.T) {
	at := func(ago time.Duration) time.Time { return noon.Add(-ago) }
	stopped := func(streak int, endedAgo time.Duration) restart.Restart {
		return restart.Restart{Streak: streak, EndedAt: at(endedAgo)}
	}
	all := policy.Restart{
		Settle: 5 * time.Second, MaxPerDay: 3, MaxPerJob: 10, BackOff: policy.BackOff{First: 30 * time.Second, Max: 10 * time.Minute}, MaxConcurrent: 2,
	}
	tests := map[string]struct {
		since  time.Duration // of the quarantine, ago; an hour unless set
		rec    restart.Record
		others []Other
		limits policy.Restart
		reason string
		says   string
		after  time.Duration
	}{
		"no limits": {since: 1, rec: restart.Record{Total: 100, Recent: []time.Time{at(1)}, Last: []restart.Restart{stopped(9, 0)}}, others: make([]Other, 99)},
		"within all limits": {limits: all, rec: restart.Record{Total: 9, Recent: []time.Time{at(2 * time.Hour), at(time.Hour)}, Last: []restart.Restart{stopped(1, time.Hour)}},
			others: make([]Other, 1)},
		"the fault is young":  {limits: all, since: 2 * time.Second, reason: ReasonSettling, after: 3 * time.Second},
		"the fault has aged":  {limits: all, since: 5 * time.Second},
		"the job's budget":    {limits: all, rec: restart.Record{Total: 10}, reason: "BudgetPerJob", says: "restarted 10 times"},
		"the day's budget":    {limits: all, rec: restart.Record{Total: 4, Recent: []time.Time{at(25 * time.Hour), at(23 * time.Hour), at(2 * time.Hour), at(time.Hour)}}, reason: "BudgetPerDay", says: "may begin at 2026-11-20T13:00:00Z", after: time.Hour},
		"more than the day's": {limits: policy.Restart{MaxPerDay: 1}, rec: restart.Record{Recent: []time.Time{at(23 * time.Hour), at(time.Hour)}}, reason: "BudgetPerDay", after: 23 * time.Hour},
		"a day has passed":    {limits: all, rec: restart.Record{Recent: []time.Time{at(24 * time.Hour), at(2 * time.Hour), at(time.Hour)}}},
		"after the first restart": {limits: all, rec: restart.Record{Last: []restart.Restart{stopped(1, 10*time.Second)}}, reason: "BackOff",
			says: "the back-off after 1 in a row is 30s; the next one may begin at 2026-11-20T12:00:20Z", after: 20 * time.Second},
		"after the first pause": {limits: all, rec: restart.Record{Last: []restart.Restart{stopped(1, 30*time.Second)}}},
		"after the third":       {limits: all, rec: restart.Record{Last: []restart.Restart{stopped(3, time.Minute)}}, reason: "BackOff", after: time.Minute},
		"the longest pause":     {limits: all, rec: restart.Record{Last: []restart.Restart{stopped(60, time.Minute)}}, reason: "BackOff", after: 9 * time.Minute},
		"one that never stopped the job has no pause, the one before has": {limits: all, rec: restart.Record{Last: []restart.Restart{{EndedAt: at(time.Second)}, stopped(1, 10*time.Second)}},
			reason: "BackOff", after: 20 * time.Second},
		"many others at once":     {limits: all, others: make([]Other, 2), reason: "Concurrency", says: "2 other jobs are being restarted, and maxConcurrent is 2", after: retryCrowded},
		"others that are held up": {limits: all, others: []Other{{}, {Restart: restart.Restart{Held: "pod x"}}, {Restart: restart.Restart{Held: "pod y"}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			since := test.since
			if since == 0 {
				since = time.Hour
			}
			got, _ := restart.FirstFailed(Evaluate(restart.Trigger{Since: at(since)}, "team", test.rec, test.others, test.limits, noon))
			if got.Reason != test.reason || got.RetryAfter != test.after || !strings.Contains(got.Text, test.says) {
				t.Errorf("got %+v, want %s after %s: %s", got, test.reason, test.after, test.says)
			}
		})
	}
}

func TestPodsThatAreReplacedByThemselvesHaveNoBudget(t *testing.T) {
	l := policy.Restart{Settle: time.Second, MaxPerDay: 1, MaxPerJob: 1, BackOff: policy.BackOff{First: time.Minute, Max: time.Hour}, MaxConcurrent: 1, CheckCapacity: true}
	if diff := cmp.Diff(l, LimitsOf(restart.Trigger{}, restart.Job{}, l)); diff != "" {
		t.Errorf("a gang: %s", diff)
	}
	want := policy.Restart{Settle: time.Second, MaxConcurrent: 1, CheckCapacity: true}
	if diff := cmp.Diff(want, LimitsOf(restart.Trigger{}, restart.Job{Gang: func(metav1.Object) string { return "" }}, l)); diff != "" {
		t.Error(diff)
	}
}

func TestAJobThatStandsStillHasABudget(t *testing.T) {
	gang := func(metav1.Object) string { return "" }
	for of, want := range map[int]int{0: 3, 2: 2, 3: 3, 10: 3} {
		for _, job := range []restart.Job{{}, {Gang: gang}} {
			got := LimitsOf(restart.Trigger{Kind: restart.JobStalled}, job, policy.Restart{MaxPerDay: of, MaxPerJob: 7})
			if got.MaxPerDay != want || got.MaxPerJob != 7 {
				t.Errorf("maxPerDay %d: got %+v", of, got)
			}
		}
	}
}

// ranks are how many ranks claims have.
func ranks(claims []capacity.Claim) (n int) {
	for _, c := range claims {
		n += c.Ranks
	}
	return n
}

// A record is written by whoever may write the job.
func TestClaimsAreBounded(t *testing.T) {
	moving := func(n int) Other { return Other{Restart: restart.Restart{Moving: n}, NodeFault: true} }
	if got := ranks(Claims(restart.Trigger{}, []Other{moving(3), moving(-1 << 62), moving(1 << 62)})); got != 3+restart.MaxPods {
		t.Errorf("got %d", got)
	}
}

func TestWhatATenantBringsAboutClaimsNoRoomOfANodeFault(t *testing.T) {
	stalled, faulty := Other{Restart: restart.Restart{Moving: 40}}, Other{Restart: restart.Restart{Moving: 2}, NodeFault: true}
	known := Other{Restart: restart.Restart{Moving: 7}, NodeFault: true, Claims: []capacity.Claim{{Ranks: 3}}}
	for kind, want := range map[restart.TriggerKind]int{restart.NodeQuarantined: 5, restart.JobStalled: 45, restart.PodFailed: 45} {
		if got := ranks(Claims(restart.Trigger{Kind: kind}, []Other{stalled, faulty, known})); got != want {
			t.Errorf("%s: %d ranks, want %d", kind, got, want)
		}
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
		kind   restart.TriggerKind
		others []Other
		want   string
	}{
		"a node fault beside a tenant that fills all places": {restart.NodeQuarantined, others("a", "a", "a", "a", "a", "a", "a", "a", "team"), ""},
		"a node fault beside as many node faults": {restart.NodeQuarantined, others("node", "node", "node", "node", "node", "node", "node", "node"),
			"8 other jobs are being restarted, and maxConcurrent is 8"},
		"a stall beside node faults": {restart.JobStalled, others("node", "node", "node", "node", "node", "node", "node", "node"),
			"8 other jobs are being restarted, and maxConcurrent is 8"},
		"a stall beside the share of its namespace": {restart.JobStalled, others("team", "team"),
			"2 other jobs of namespace team are being restarted for failed pods or stalls, and its share of maxConcurrent is 2"},
		"a failed pod beside the share of its namespace": {restart.PodFailed, others("team", "team"),
			"2 other jobs of namespace team are being restarted for failed pods or stalls, and its share of maxConcurrent is 2"},
		"a stall beside the shares of others":          {restart.JobStalled, others("a", "a", "b", "b", "team"), ""},
		"a stall beside node faults of its namespace":  {restart.JobStalled, []Other{{Namespace: "team", NodeFault: true}, {Namespace: "team", NodeFault: true}}, ""},
		"a node fault beside stalls of its namespace":  {restart.NodeQuarantined, others("team", "team", "team"), ""},
		"a stall beside held restarts of its own kind": {restart.JobStalled, []Other{{Namespace: "team", Restart: restart.Restart{Held: "x"}}, {Namespace: "team", Restart: restart.Restart{Held: "x"}}}, ""},
	} {
		failed, delayed := restart.FirstFailed(Evaluate(restart.Trigger{Kind: test.kind, Since: noon.Add(-time.Hour)}, "team", restart.Record{}, test.others, limits, noon))
		if failed.Text != test.want || delayed && failed.RetryAfter <= 0 {
			t.Errorf("%s: %q after %s, want %q", name, failed.Text, failed.RetryAfter, test.want)
		}
	}
}

// With as many jobs on a node as it has pods, a tenant had most of the places when that node failed.
func TestNamespacesTakePlacesInTurns(t *testing.T) {
	jobs := []string{"mallory/1", "mallory/2", "mallory/3", "alice/1", "mallory/4", "bob/1", "bob/2", "mallory/5"}
	got := InTurns(jobs, func(job string) string { namespace, _, _ := strings.Cut(job, "/"); return namespace })
	want := []string{"alice/1", "bob/1", "mallory/1", "bob/2", "mallory/2", "mallory/3", "mallory/4", "mallory/5"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := InTurns(nil, func(string) string { return "" }); len(got) != 0 {
		t.Errorf("of none: %q", got)
	}
}

// The default policy has a longest pause and no first one. A row as long as this was counted down one by one, under a lock.
func TestABackOffWithoutAFirstPauseEnds(t *testing.T) {
	rec := restart.Record{Last: []restart.Restart{{Streak: math.MaxInt64, EndedAt: noon}}}
	ended := make(chan []restart.Precondition, 1)
	go func() {
		ended <- Evaluate(restart.Trigger{}, "team", rec, nil, policy.Restart{BackOff: policy.BackOff{Max: 30 * time.Minute}}, noon)
	}()
	select {
	case limits := <-ended:
		if failed, found := restart.FirstFailed(limits); found {
			t.Errorf("delayed by %+v", failed)
		}
	case <-time.After(time.Minute):
		t.Fatal("the rate limits are still being evaluated")
	}
	if pause := backOff(math.MaxInt64, policy.BackOff{First: time.Nanosecond, Max: math.MaxInt64 / 2}); pause != math.MaxInt64/2 {
		t.Errorf("the longest row has a pause of %s", pause)
	}
}

func TestAFaultOfTheFutureDelaysNoLongerThanSettle(t *testing.T) {
	if got := settled(restart.Trigger{Since: noon.AddDate(100, 0, 0)}, policy.Restart{Settle: 10 * time.Second}, noon); got.Passed || got.RetryAfter != 10*time.Second {
		t.Errorf("got %+v", got)
	}
}

// They are printed one by one, to say why a job was not restarted.
func TestTheLimitsAreInOrder(t *testing.T) {
	var names []string
	for _, p := range Evaluate(restart.Trigger{}, "team", restart.Record{}, nil, policy.Restart{}, noon) {
		names = append(names, p.Name)
	}
	if diff := cmp.Diff([]string{Settled, MaxPerJob, MaxPerDay, BackOff, MaxConcurrent}, names); diff != "" {
		t.Error(diff)
	}
}

// Whatever the annotation of another job says: no panic, no hang, and no more ranks than a record holds pods.
func FuzzOthers(f *testing.F) {
	f.Add(`{"v":1,"current":{"id":"r1","phase":"Stopping","pods":["a"],"moving":1099511627776,"held":"x","retries":-1},"total":9223372036854775807}`)
	f.Add(`{"v":1,"last":[{"streak":9223372036854775807,"endedAt":"2026-11-20T12:00:00Z"}],"recent":["0000-01-01T00:00:00+23:59"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		rec, err := restart.ReadRecord(&metav1.ObjectMeta{Annotations: map[string]string{conditions.AnnotationRestart: text}})
		if err != nil {
			return
		}
		rec, _ = rec.Clamp(time.Hour, noon)
		var others []Other
		if rec.Current != nil {
			others = append(others, OtherOf(rec.Current.Summary(), "team"))
		}
		Evaluate(restart.Trigger{}, "team", rec, others, policy.Restart{
			Settle: time.Second, MaxPerDay: 3, MaxPerJob: 3, MaxConcurrent: 1, BackOff: policy.BackOff{Max: 30 * time.Minute},
		}, noon)
		if claimed := ranks(Claims(restart.Trigger{}, others)); claimed > restart.MaxPods {
			t.Errorf("%d ranks are claimed", claimed)
		}
	})
}
