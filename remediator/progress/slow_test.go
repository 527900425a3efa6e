package progress

import (
	"fmt"
	"maps"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// stepTimes are the series of the step times of jobs.
func stepTimes(t *testing.T, registry prometheus.Gatherer) []*dto.Metric {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "pitcrew_job_step_seconds" {
			return family.Metric
		}
	}
	return nil
}

func TestAJobThatBecomesSlowIsReportedOnce(t *testing.T) {
	annotations := maps.Clone(optIn)
	annotations[conditions.AnnotationSlowAfter] = "2"
	r := newRig(t, "slow", 2, annotations)
	defer r.run()()
	number := 0
	steps := func(looks, each int) {
		for range looks {
			r.clock.ahead.Add(int64(3 * time.Minute))
			r.all(fmt.Sprintf("step %d secret", number))
			r.minute()
			number += each
		}
	}
	steps(20, 240)
	if notes := r.notes(eventSlow); len(notes) > 0 {
		t.Fatalf("%q", notes)
	}
	steps(12, 80)
	want := regexp.MustCompile(`^the steps have become slow: one takes 3\S*s, (2\.9|3\.0|3\.1) times the 1\S*s of the best hour of these pods \(medians\)$`)
	r.eventually("the Event", func() error {
		if notes := r.notes(eventSlow); len(notes) != 1 || !want.MatchString(notes[0]) {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
	series := stepTimes(t, r.registry)
	if len(series) != 1 {
		t.Fatalf("%v", series)
	}
	labels := map[string]string{}
	for _, l := range series[0].Label {
		labels[l.GetName()] = l.GetValue()
	}
	h := series[0].Histogram
	if fmt.Sprint(labels) != "map[job:train kind:Job namespace:slow]" || h.GetSampleCount() < 25 || len(h.Bucket) > 0 || len(h.PositiveSpan) == 0 {
		t.Errorf("%v %v", labels, h)
	}
	if mean := h.GetSampleSum() / float64(h.GetSampleCount()); mean < 1.2 || mean > 2.5 {
		t.Errorf("a step takes %v", mean)
	}
	if err := r.c.Client.Delete(t.Context(), r.job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	r.eventually("no series of a job that is gone", func() error {
		if series := stepTimes(t, r.registry); len(series) > 0 {
			return fmt.Errorf("%v", series)
		}
		return nil
	})
}

func TestTheStepTimesOfAJobThatIsNotMeasuredAreRemoved(t *testing.T) {
	f, _ := newFollower()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.metrics.all()...)
	req := request{kinds.BuiltIn()[0].GVK, types.NamespacedName{Namespace: "a", Name: "b"}}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "1"}}
	a := stall.Annotations{Progress: `(?P<step>\d+)`, StalledAfter: "15m", SlowAfter: "2"}
	for range 2 {
		if _, ok := f.follow(req, object, a); !ok {
			t.Fatal("not followed")
		}
		f.metrics.steps.WithLabelValues(req.kind.Kind, "a", "b").Observe(1)
	}
	f.metrics.steps.WithLabelValues(req.kind.Kind, "a", "c").Observe(1)
	a.SlowAfter = ""
	f.follow(req, object, a)
	if n := len(stepTimes(t, registry)); n != 1 {
		t.Errorf("%d series", n)
	}
}

func TestRounded(t *testing.T) {
	for seconds, want := range map[float64]string{1e-12: "0s", 0.0123456: "12.3ms", 3.21987: "3.22s", 61.2345: "1m1.2s", 999.9e-3: "1s", 345.6: "5m46s"} {
		if got := rounded(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
}
