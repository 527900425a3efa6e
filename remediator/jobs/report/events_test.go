package report

import (
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"

	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func blockedJob() restart.Job {
	return restart.Job{
		GVK:    jobstest.Kind("batch/v1", "Job").GVK,
		Object: &metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job-uid"},
	}
}

// A remediator runs for months, and nodes come and go.
func TestTheMemoryOfReportsIsBounded(t *testing.T) {
	r := New(&events.FakeRecorder{}, clock.RealClock{})
	job := blockedJob()
	report := func(quarantine, reason string) {
		r.Blocked(restart.Cause{ID: quarantine, Node: "n-" + quarantine}, ObjectOf(job), "Job", restart.Blocked{Reason: reason, Text: "it is managed by kueue"})
	}
	counted := func() float64 { return jobstest.Value(t, r.Metrics.Blocked.WithLabelValues("Job", "ManagedBy")) }
	for range 3 {
		report("q", "ManagedBy")
	}
	if n := counted(); n != 1 {
		t.Errorf("counted %v times, want once", n)
	}
	report("q", "ComesBack")
	if n := jobstest.Value(t, r.Metrics.Blocked.WithLabelValues("Job", "ComesBack")); n != 1 {
		t.Errorf("another reason was counted %v times, want once", n)
	}
	for i := range 2 * maxReported {
		report(fmt.Sprint(i), "ManagedBy")
	}
	if n := r.Reported.Len(); n != maxReported {
		t.Errorf("%d reports are remembered, want %d", n, maxReported)
	}
	before := counted()
	report(fmt.Sprint(2*maxReported-1), "ManagedBy")
	if n := counted() - before; n != 0 {
		t.Error("the latest report was forgotten")
	}
}

// Every reason of pitcrew_job_restarts_total would page.
func TestOnlyResultsOfRestartsAreCountedAsRestarts(t *testing.T) {
	r := New(&events.FakeRecorder{}, clock.RealClock{})
	job := blockedJob()
	cur := restart.Restart{Ranks: 64, StartedAt: jobstest.Noon.Add(-time.Minute), PhaseSince: jobstest.Noon, RunningSince: jobstest.Noon.Add(-time.Hour)}
	r.Stopped(t.Context(), job, cur, nil)
	r.Closed(t.Context(), job, cur, restart.Step{Result: restart.ResultRestarted, Phase: restart.Done}, jobstest.Noon)
	r.Closed(t.Context(), job, restart.Restart{}, restart.Step{Result: "MaxRetry", Phase: restart.Failed, Blocked: true}, jobstest.Noon)
	r.HoldBegan(t.Context(), job, restart.Restart{}, "pod x on node y has not ended")
	r.Blocked(restart.Cause{}, ObjectOf(job), "Job", restart.Blocked{Reason: "BackOff", Text: "the back-off"})
	registry := prometheus.NewRegistry()
	for _, m := range r.All(nil) {
		registry.MustRegister(m)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetCounter() == nil {
				continue
			}
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			if value := m.GetCounter().GetValue(); value != 0 || family.GetName() != "pitcrew_job_rank_seconds_lost_total" {
				got[name] = value
			}
		}
	}
	want := map[string]float64{
		"pitcrew_job_restarts_total Job Restarted":       1,
		"pitcrew_job_restart_blocked_total Job MaxRetry": 1,
		"pitcrew_job_restart_blocked_total Job Held":     1,
		"pitcrew_job_restart_blocked_total Job BackOff":  1,
		"pitcrew_job_pods_force_deleted_total":           0,

		"pitcrew_job_rank_seconds_lost_total other redone":  64 * 3600,
		"pitcrew_job_rank_seconds_lost_total other stopped": 64 * 60,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheMetricNamesAJobAsLongAsItWaits(t *testing.T) {
	clock := clocktesting.NewFakeClock(jobstest.Noon)
	good := jobstest.Recorded("b")
	delete(good.Annotations, conditions.AnnotationQuarantine)
	nodes := fake.NewClientBuilder().WithObjects(jobstest.Recorded("a"), good).Build()
	r := New(&events.FakeRecorder{}, clock)
	on := func(node string) restart.Trigger {
		return restart.Trigger{Kind: restart.NodeQuarantined, ID: "q-" + node, Node: node, NodeUID: types.UID(node + "-uid"), Since: jobstest.Noon, Taint: corev1.Taint{Key: conditions.TaintUnhealthy}}
	}
	job := blockedJob()
	left := func(q restart.Trigger, reason string) {
		r.Blocked(restart.CauseOf(q), ObjectOf(job), job.GVK.Kind, restart.Blocked{Reason: reason, Text: "x"})
	}
	names := func(want ...string) {
		t.Helper()
		var got []string
		for j, since := range r.Waiting.Current(t.Context(), nodes) {
			got = append(got, fmt.Sprintf("%s %s/%s on %s: %s since %s", j.Kind, j.Namespace, j.Name, j.Node, j.Reason, since.Format(time.TimeOnly)))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	look := func(q restart.Trigger, reasons ...string) bool {
		r.Waiting.Begin(q)
		for _, reason := range reasons {
			left(q, reason)
		}
		return r.Waiting.End(q.ID, true)
	}
	const managed, backOff = "Job team/train on a: ManagedBy since 12:00:00", "Job team/train on a: BackOff since 12:00:00"
	names()
	if !look(on("a"), "ManagedBy") {
		t.Error("nothing waits")
	}
	names(managed)
	look(on("a"), "BackOff")
	names(backOff) // one reason at a time
	look(on("b"), "BackOff")
	names(backOff) // node b is released
	left(on("c"), "BackOff")
	names(backOff) // no look
	look(on("a"), "ForeignPod")
	names() // no pod of its own is there
	look(on("a"), "ManagedBy")
	r.Waiting.Begin(on("a"))
	r.Waiting.End("q-a", false) // the jobs could not be read
	names(managed)
	if look(on("a")) {
		t.Error("a job that has ended waits")
	}
	names()
	look(on("a"), "ManagedBy")
	r.Stopped(t.Context(), job, restart.Restart{}, nil)
	names() // its restart has begun
	look(on("a"), "ManagedBy")
	r.Checkpoint(t.Context(), job, restart.Restart{})
	names()
	look(on("a"), "ManagedBy")
	clock.Step(ForgetAfter + time.Second)
	names() // nothing looks at it any more
	if n := len(r.Waiting.looks); n != 0 {
		t.Errorf("%d looks are kept: %v", n, slices.Collect(maps.Keys(r.Waiting.looks)))
	}

	failure := restart.Trigger{Kind: restart.PodFailed, ID: "job-uid-failure-0", Node: "b", Since: jobstest.Noon}
	look(failure, "BudgetPerJob")
	clock.Step(ForgetAfter)
	names("Job team/train on b: BudgetPerJob since 12:00:00")
	clock.Step(time.Second)
	names()
}

// Anybody may create jobs.
func TestTheEventsAboutMissingOptInsAreBounded(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r := New(recorder, clocktesting.NewFakeClock(jobstest.Noon))
	report := func(quarantine string, n int) {
		job := blockedJob()
		object := ObjectOf(job)
		object.SetUID(types.UID(fmt.Sprint(n)))
		r.NotOptedIn(restart.Cause{ID: quarantine, Node: "n"}, object, kinds.OptIn{})
	}
	for range 3 {
		for n := range 3 * maxNotOptedIn {
			report("q", n)
		}
	}
	if n := len(recorder.Events); n != maxNotOptedIn {
		t.Errorf("%d Events, want %d", n, maxNotOptedIn)
	}
	report("another", 0)
	if n := len(recorder.Events); n != maxNotOptedIn+1 {
		t.Errorf("%d Events with another quarantine, want %d", n, maxNotOptedIn+1)
	}
}

// nodeEvents counts Events by the object they are about.
type nodeEvents struct{ job, nodes int }

func (e *nodeEvents) Eventf(about, _ runtime.Object, _, _, _, _ string, _ ...any) {
	if _, ok := about.(*corev1.Node); ok {
		e.nodes++
	} else {
		e.job++
	}
}

func TestEventsAreAboutNodesWhoseRecordsHaveTheCause(t *testing.T) {
	var objects []client.Object
	var bogus, many []restart.Cause
	for i := range 500 {
		name := fmt.Sprintf("node-%d", i)
		bogus = append(bogus, restart.Cause{ID: "forged", Node: name, NodeUID: types.UID(name + "-uid")})
		if i < 50 {
			objects = append(objects, jobstest.Recorded(name))
			many = append(many, jobstest.CauseOn(name))
		}
	}
	reader := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
	for name, test := range map[string]struct {
		causes []restart.Cause
		want   nodeEvents
	}{
		"none is true":         {bogus, nodeEvents{job: 1}},
		"one is":               {append(bogus[:100:100], jobstest.CauseOn("node-7")), nodeEvents{job: 2, nodes: 1}},
		"all are, of one node": {many[:1], nodeEvents{job: 1, nodes: 1}},
		"all are, of many":     {many, nodeEvents{job: MaxNodesNamed + 1, nodes: MaxNodesNamed}},
	} {
		t.Run(name, func(t *testing.T) {
			var got nodeEvents
			r := New(&got, clock.RealClock{})
			r.Causes = causes.New(reader)
			r.Closed(t.Context(), blockedJob(), restart.Restart{Quarantines: test.causes}, restart.Step{Phase: restart.Failed, Result: restart.ResultAbandoned}, jobstest.Noon)
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// The value of a taint is text of a record that whoever may change a job can forge.
func TestLossesAreCountedByTheirFirstCause(t *testing.T) {
	taint := func(value string) corev1.Taint { return corev1.Taint{Key: conditions.TaintUnhealthy, Value: value} }
	for want, of := range map[string][]restart.Cause{
		"GPUXidError": {{Node: "n", Taint: taint("GPUXidError")}, {Node: "m", Taint: taint("NVLinkDown")}},
		"other":       {{Node: "n", Taint: taint("MadeUp")}},
		"PodFailed":   {{Node: "n"}},
		"JobStalled":  {{}},
	} {
		m := newMetrics()
		cur := restart.Restart{Quarantines: of, Ranks: 64}
		m.lost(cur, partRedone, 2*time.Minute)
		m.lost(cur, partStopped, -time.Minute) // a clock that went back takes nothing away
		if got := jobstest.Value(t, m.LostRanks.WithLabelValues(want, partRedone)); got != 64*120 {
			t.Errorf("%s: %v rank-seconds were redone", want, got)
		}
		if got := jobstest.Value(t, m.LostRanks.WithLabelValues(want, partStopped)); got != 0 {
			t.Errorf("%s: %v rank-seconds while stopped", want, got)
		}
	}
	if got := cause(restart.Restart{}); got != "other" {
		t.Errorf("without a cause: %s", got)
	}
}

// Whoever may create pods writes anything of any length as their owner.
func TestAnEventIsAboutAnOwnerThatMayExist(t *testing.T) {
	long := strings.Repeat("x", 300)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "worker", UID: "pod-uid"}}
	for name, test := range map[string]struct {
		owner metav1.OwnerReference
		isPod bool
	}{
		"an owner":       {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "TrainTool", Name: "train.v1", UID: "8d8f5d0e-7d3a-4c0c-9d3b-0a4f5f0c5a11"}, false},
		"a long name":    {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Tool", Name: long, UID: "u"}, true},
		"a line feed":    {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Tool", Name: "a\nb", UID: "u"}, true},
		"no name":        {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Tool", UID: "u"}, true},
		"a kind to read": {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Tool \u202e", Name: "a", UID: "u"}, true},
		"a long UID":     {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Tool", Name: "a", UID: types.UID(long)}, true},
		"a long version": {metav1.OwnerReference{APIVersion: long, Kind: "Tool", Name: "a", UID: "u"}, true},
	} {
		got := ObjectOfOwner(test.owner, pod)
		if isPod := got.GetUID() == pod.UID; isPod != test.isPod || got.GetNamespace() != "team" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
