package restart

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// After a downgrade a record may have a phase of the later version. No job stays stopped, and none that runs is stopped.
func TestAPhaseOfALaterVersionEnds(t *testing.T) {
	const step = "r1 Draining"
	elsewhere := func(step string) SuspendField {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetAnnotations(map[string]string{conditions.AnnotationRestartStep: step})
		return SuspendField{Path: "spec.active", Elsewhere: object}
	}
	for name, test := range map[string]struct {
		suspended bool
		field     SuspendField
		facts     Facts
		late      bool
		want      Action
		result    string
	}{
		"stopped, old pods are left":                  {true, jobOf(trainer()).SuspendField, Facts{Remaining: []metav1.PartialObjectMetadata{{}}}, false, Wait, ""},
		"stopped, none is left":                       {true, jobOf(trainer()).SuspendField, Facts{}, false, Start, ""},
		"runs":                                        {false, jobOf(trainer()).SuspendField, Facts{Running: 4, Affected: []corev1.Pod{{}}}, false, Close, ResultRestarted},
		"not all of it runs":                          {false, jobOf(trainer()).SuspendField, Facts{Running: 3}, false, Wait, ""},
		"it does not come to run":                     {false, jobOf(trainer()).SuspendField, Facts{Running: 3}, true, Close, ResultStartTimeout},
		"stopped by the later version in another one": {true, elsewhere(step), Facts{}, false, Start, ""},
		"stopped by a person in another one":          {true, elsewhere("r0 Stopping"), Facts{}, false, Close, ResultAbandoned},
		"without a field, its pods are not replaced":  {false, SuspendField{}, Facts{Remaining: []metav1.PartialObjectMetadata{{}}, Running: 4}, false, Close, ResultRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			rec := forged(t, `{"v":1,"jobUID":"job-uid","current":{"id":"r1","phase":"Draining","startedAt":"2026-11-20T11:59:00Z",
				"phaseSince":"2026-11-20T12:00:00Z","ranks":4,"quarantines":[{"id":"q1","node":"n"}],"drained":true}}`)
			job := jobOf(trainer())
			job.Suspended, job.SuspendObserved, job.SuspendField = test.suspended, test.suspended, test.field
			now := noon.Add(time.Second)
			if test.late {
				now = noon.Add(time.Hour)
			}
			rec = rec.InKnownPhase(job)
			// What was written in the meantime, of a stop that is held for example, does not change it.
			for range 2 {
				if got := Next(rec, job, test.facts, testTimeouts, now); got.Action != test.want || got.Result != test.result || got.OutOfBand.ReplacePods {
					t.Errorf("got %+v", got)
				}
				data, err := rec.Patch(job.Object, SuspendField{})
				if err != nil {
					t.Fatal(err)
				}
				var patch metav1.PartialObjectMetadata
				if err := json.Unmarshal(data, &patch); err != nil {
					t.Fatal(err)
				}
				rec = forged(t, patch.Annotations[conditions.AnnotationRestart]).InKnownPhase(job)
			}
		})
	}
}
