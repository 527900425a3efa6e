package progress

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measure counts how long the steps of a job take, and reports a job whose steps have become slow.
func (f *follower) measure(req request, object *metav1.PartialObjectMetadata, known *followed) {
	seconds, slow := known.job.StepTime(known.settings)
	if seconds > 0 {
		f.metrics.steps.WithLabelValues(req.kind.Kind, req.Namespace, req.Name).Observe(seconds)
	}
	if slow != nil {
		f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, eventSlow, "Observe",
			"the steps have become slow: one takes %s, %.1f times the %s of the best hour of these pods (medians)",
			rounded(slow.Now), slow.Now/slow.Best, rounded(slow.Best))
	}
}

// rounded is a time with three digits.
func rounded(seconds float64) string {
	d, unit := time.Duration(seconds*float64(time.Second)), time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
