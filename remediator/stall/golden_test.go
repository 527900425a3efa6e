package stall

import (
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
)

// What users of 19f658c wrote on their jobs is read, as far as it is still a feature.
func TestGoldenAnnotations(t *testing.T) {
	jobs := goldentest.Read(t, "stores/progress", func(*testing.T) map[string]map[string]string {
		return map[string]map[string]string{
			"least": {conditions.AnnotationProgress: `step (?P<step>\d+)`, conditions.AnnotationStalledAfter: "15m"},
			"all": {
				conditions.AnnotationProgress: `^iteration +(?P<step>\d+)/`, conditions.AnnotationStalledAfter: "10m",
				conditions.AnnotationProgressPause: "saving checkpoint", conditions.AnnotationStartupGrace: "1h",
				"pitcrew.dev/slow-after": "1.5", "pitcrew.dev/nccl-ras-port": "28028",
			},
			"not followed": {conditions.AnnotationStalledAfter: "10m"},
		}
	})
	type answer struct {
		Followed, Pauses, GraceNamed bool
		StalledAfter, StartupGrace   string
	}
	answers := map[string]answer{}
	for name, annotations := range jobs {
		a := AnnotationsOf(annotations)
		if !a.OptIn() {
			answers[name] = answer{}
			continue
		}
		s, err := Parse(a, Compile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		answers[name] = answer{true, s.pause != nil, s.GraceNamed, s.StalledAfter.String(), s.StartupGrace.String()}
	}
	goldentest.Answer(t, "stores/progress", answers)
}
