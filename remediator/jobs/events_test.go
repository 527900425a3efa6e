package jobs

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
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
	r := newReporter(&events.FakeRecorder{}, clock.RealClock{})
	job := blockedJob()
	report := func(quarantine, reason string) {
		r.reportBlocked(restart.Cause{ID: quarantine, Node: "n-" + quarantine}, objectOf(job), "Job", restart.Blocked{Reason: reason, Text: "it is managed by kueue"})
	}
	counted := func() float64 { return gauge(t, r.metrics.blocked.WithLabelValues("Job", "ManagedBy")) }
	for range 3 {
		report("q", "ManagedBy")
	}
	if n := counted(); n != 1 {
		t.Errorf("counted %v times, want once", n)
	}
	report("q", "ComesBack")
	if n := gauge(t, r.metrics.blocked.WithLabelValues("Job", "ComesBack")); n != 1 {
		t.Errorf("another reason was counted %v times, want once", n)
	}
	for i := range 2 * maxReported {
		report(fmt.Sprint(i), "ManagedBy")
	}
	if n := r.reported.Len(); n != maxReported {
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
	r := newReporter(&events.FakeRecorder{}, clock.RealClock{})
	job := blockedJob()
	r.reportClosed(t.Context(), job, restart.Restart{}, restart.Step{Result: restart.ResultRestarted, Phase: restart.Done}, noon)
	r.reportClosed(t.Context(), job, restart.Restart{}, restart.Step{Result: "MaxRetry", Phase: restart.Failed, Blocked: true}, noon)
	r.reportHeld(t.Context(), job, restart.Restart{}, "pod x on node y has not ended")
	r.reportBlocked(restart.Cause{}, objectOf(job), "Job", restart.Blocked{Reason: "BackOff", Text: "the back-off"})
	registry := prometheus.NewRegistry()
	for _, m := range r.metrics.all() {
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
			got[name] = m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"pitcrew_job_restarts_total Job Restarted":       1,
		"pitcrew_job_restart_blocked_total Job MaxRetry": 1,
		"pitcrew_job_restart_blocked_total Job Held":     1,
		"pitcrew_job_restart_blocked_total Job BackOff":  1,
		"pitcrew_job_pods_force_deleted_total":           0,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
