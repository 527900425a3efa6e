package quarantine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What people read in Events, and in what `kubectl pitcrew describe` prints.
func TestMessages(t *testing.T) {
	drained := "GPUXidError needs a GPU reset (rule gpu: " + ecc + ")"
	tests := map[string]struct {
		steps []step
		want  string
	}{
		"a quarantine":  {[]step{gpu(lost), decide}, "GPUXidError needs a reboot (rule gpu: " + lost + "); tainted " + gpuTaint},
		"a release":     {[]step{gpu(ecc), decide, gpuFine, decide, passes(10 * time.Minute), decide}, "GPUXidError has cleared; released after 10m0s"},
		"observe mode":  {[]step{watched, decide, passes(time.Minute), decide}, "WatchedFailing needs a reboot (rule watched: x); observe mode: would taint pitcrew.dev/unhealthy=WatchedFailing:NoSchedule and restart its jobs"},
		"a full budget": {[]step{others(1), gpu(ecc), decide}, drained + ", but 1 nodes are out of service and the budget is 1"},
		"a pause":       {[]step{pauses("upgrade"), gpu(ecc), decide}, "paused (upgrade), would be NodeQuarantined: " + drained + "; tainted " + gpuTaint},
		"no heartbeat": {[]step{gpuFine, passes(12 * time.Minute), decide},
			"no heartbeat of GPUXidError for 12m, so nothing is decided about the node; is node-problem-detector running there?"},
		"never a heartbeat": {[]step{gpuFine, mute, decide},
			"no heartbeat of GPUXidError, so nothing is decided about the node; is node-problem-detector running there?"},
		"a removed taint": {[]step{gpu(ecc), decide, untaints, decide},
			"taint " + gpuTaint + " was removed during the quarantine and has been put back; remove it again to release the node"},
		"one that was removed again": {[]step{gpu(ecc), decide, untaints, decide, untaints, decide},
			"taint " + gpuTaint + " was removed: the node stays released until GPUXidError has cleared"},
		"that of a manual quarantine": {[]step{ordered, decide, untaints, decide, untaints, decide},
			"taint pitcrew.dev/unhealthy=ByHand:NoSchedule was removed: the node stays released"},
		"flapping": {[]step{dips(2), flapping, decide}, "PortFlapping needs inspection (rule flap: x); tainted " + flapTaint +
			"; the fault came and went 3 times within 24h0m0s, so only `kubectl pitcrew release` releases the node"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := ""
			if w.last.Blocked != nil {
				got = w.last.Blocked.Message
			}
			for _, e := range w.last.Events {
				got += e.Message
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
