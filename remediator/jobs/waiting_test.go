package jobs

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestTheMetricNamesAJobAsLongAsItWaits(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	good := recorded("b")
	delete(good.Annotations, conditions.AnnotationQuarantine)
	nodes := fake.NewClientBuilder().WithObjects(recorded("a"), good).Build()
	r := newReporter(&events.FakeRecorder{}, clock)
	on := func(node string) restart.Quarantine {
		return restart.Quarantine{ID: "q-" + node, Node: node, NodeUID: types.UID(node + "-uid"), Since: noon, Taint: corev1.Taint{Key: conditions.TaintUnhealthy}}
	}
	job := blockedJob()
	left := func(q restart.Quarantine, reason string) {
		r.reportBlocked(restart.CauseOf(q), objectOf(job), job.GVK.Kind, restart.Blocked{Reason: reason, Text: "x"})
	}
	names := func(want ...string) {
		t.Helper()
		var got []string
		for j, since := range r.waiting.current(t.Context(), nodes) {
			got = append(got, fmt.Sprintf("%s %s/%s on %s: %s since %s", j.kind, j.namespace, j.name, j.node, j.reason, since.Format(time.TimeOnly)))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	look := func(q restart.Quarantine, reasons ...string) bool {
		r.waiting.begin(q)
		for _, reason := range reasons {
			left(q, reason)
		}
		return r.waiting.end(q.ID, true)
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
	r.waiting.begin(on("a"))
	r.waiting.end("q-a", false) // the jobs could not be read
	names(managed)
	if look(on("a")) {
		t.Error("a job that has ended waits")
	}
	names()
	look(on("a"), "ManagedBy")
	r.reportStopped(t.Context(), job, restart.Restart{}, nil)
	names() // its restart has begun
	look(on("a"), "ManagedBy")
	r.reportCheckpoint(t.Context(), job, restart.Restart{})
	names()
	look(on("a"), "ManagedBy")
	clock.Step(forgetAfter + time.Second)
	names() // nothing looks at it any more
	if n := len(r.waiting.looks); n != 0 {
		t.Errorf("%d looks are kept: %v", n, slices.Collect(maps.Keys(r.waiting.looks)))
	}

	failure := restart.Quarantine{ID: "job-uid-failure-0", Node: "b", Since: noon}
	look(failure, "BudgetPerJob")
	clock.Step(forgetFailedAfter)
	names("Job team/train on b: BudgetPerJob since 12:00:00")
	clock.Step(time.Second)
	names()
}

// Anybody may create jobs.
func TestTheEventsAboutMissingOptInsAreBounded(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r := newReporter(recorder, clocktesting.NewFakeClock(noon))
	report := func(quarantine string, n int) {
		job := blockedJob()
		object := objectOf(job)
		object.SetUID(types.UID(fmt.Sprint(n)))
		r.reportNotOptedIn(restart.Cause{ID: quarantine, Node: "n"}, object, kinds.OptIn{})
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

// Services are on most nodes, and no label is no mistake there.
func TestWhichJobsAreToldThatTheyHaveNotOptedIn(t *testing.T) {
	misspelt := kinds.OptIn{Mistakes: []string{"x"}}
	none, in, out := kinds.OptIn{}, kinds.OptIn{In: true, By: "x=true"}, kinds.OptIn{By: "x=false"}
	job, service := jobstest.Kind("batch/v1", "Job"), jobstest.Kind("apps/v1", "Deployment")
	tainted, failed := restart.Quarantine{Taint: corev1.Taint{Key: "x"}}, restart.Quarantine{}
	for name, test := range map[string]struct {
		q    restart.Quarantine
		kind kinds.Kind
		opt  kinds.OptIn
		done string
		want bool
	}{
		"a job":                      {tainted, job, none, "", true},
		"a misspelt job":             {tainted, job, misspelt, "", true},
		"a job that is in":           {tainted, job, in, "", false},
		"a job that is out":          {tainted, job, out, "", false},
		"a job that has ended":       {tainted, job, none, "Complete", false},
		"a failed pod":               {failed, job, none, "", false},
		"a Deployment":               {tainted, service, none, "", false},
		"a Deployment with mistakes": {tainted, service, misspelt, "", true},
	} {
		j := blockedJob()
		j.FinishedReason = test.done
		if got := missesOptIn(test.q, kinds.Workload{Kind: test.kind, Job: &j}, test.opt); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
