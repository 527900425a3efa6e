package quarantine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestSuspicionOfADecision(t *testing.T) {
	const text = "GPUXidError: needs a GPU reset (rule gpu)"
	theirs := corev1.Taint{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}
	claims := forges(func(r *causes.Record) {
		r.Taint = &causes.Taint{Key: theirs.Key, Effect: theirs.Effect, Rule: "gpu", Repair: conditions.Replace, Since: r.QuarantinedAt}
		r.Causes[0].Repair = conditions.Replace
	})
	for name, test := range map[string]struct {
		steps []step
		want  string
		known bool
	}{
		"in service":         {[]step{gpuFine}, "", true},
		"quarantined":        {[]step{gpu(ecc), decide}, text, true},
		"released":           {[]step{gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, "", true},
		"only avoided":       {[]step{says("SlowNode", "True", inspect)}, "", true},
		"in maintenance":     {[]step{gpu(ecc), decide, taints(maintenance)}, text, true},
		"untainted there":    {[]step{gpu(ecc), decide, untaints, taints(maintenance)}, "", false},
		"untainted":          {[]step{gpu(ecc), decide, untaints}, text, true},
		"untainted for good": {[]step{gpu(ecc), decide, untaints, decide, untaints}, "", true},
		"only claimed":       {[]step{says("GPUXidError", "False", "fine"), taints(theirs), claims}, "", true},
		"skipped":            {[]step{gpu(ecc), decide, labels(conditions.LabelSkip, "true")}, "", false},
		"paused":             {[]step{gpu(ecc), decide, pauses("why")}, "", false},
	} {
		w := newWorld(t)
		w.run(test.steps...)
		w.decide()
		if got, known := w.last.State.Suspicion(); got != test.want || known != test.known {
			t.Errorf("%s: %q, known %v; record %s", name, got, known, w.record())
		}
	}
}
