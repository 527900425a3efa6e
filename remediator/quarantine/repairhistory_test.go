package quarantine

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// mends is a fault that is repaired as its class wants, and the release.
func mends(message string, boot bool) step {
	return func(w *world) {
		gpu(message)(w)
		w.decide()
		lasts(time.Minute)(w)
		if boot {
			reboots(w)
			w.decide()
			passes(time.Minute)(w)
		}
		gpuFine(w)
		w.decide()
		lasts(11 * time.Minute)(w)
	}
}

func TestTheSameFaultOfTheSameGPUAfterTwoRepairsWantsAnotherGPU(t *testing.T) {
	const other = "ResetGPU gpu 0000:99:00: Xid 95 uncontained ECC error"
	tests := map[string]struct {
		steps []step
		want  conditions.Repair
	}{
		"once more":                {[]step{mends(ecc, false), gpu(ecc)}, conditions.ResetGPU},
		"after two resets":         {[]step{mends(ecc, false), mends(ecc, false), gpu(ecc)}, conditions.Replace},
		"after two reboots":        {[]step{mends(lost, true), mends(lost, true), gpu(lost)}, conditions.Replace},
		"a reboot resets, too":     {[]step{mends(ecc, true), mends(ecc, true), gpu(ecc)}, conditions.Replace},
		"after a reset and reboot": {[]step{mends(ecc, false), mends(lost, true), gpu(ecc)}, conditions.ResetGPU},
		"another GPU":              {[]step{mends(ecc, false), mends(ecc, false), gpu(other)}, conditions.ResetGPU},
		"another code":             {[]step{mends(ecc, false), mends(ecc, false), gpu("ResetGPU gpu 0000:1b:00: Xid 119 GSP RPC timeout")}, conditions.ResetGPU},
		"the same code in other words": {[]step{mends(ecc, false), mends(ecc, false), gpu("ResetGPU gpu 0000:1b:00: Xid 95 (injected)")},
			conditions.Replace},
		"the second GPU of a message": {[]step{mends(other+"; gpu 0000:1b:00: Xid 95 x", false), mends(ecc, false), gpu(ecc)}, conditions.Replace},
		"too long ago":                {[]step{mends(ecc, false), lasts(7 * 24 * time.Hour), mends(ecc, false), gpu(ecc)}, conditions.ResetGPU},
		"a fault that outlives the reboots": {[]step{gpu(lost), decide, passes(time.Minute), reboots, decide, passes(time.Minute), gpu(lost), decide,
			passes(time.Minute), reboots, decide, passes(time.Minute), gpu(lost)}, conditions.Replace},
		"a person released it, perhaps with a new GPU": {[]step{mends(ecc, false), mends(ecc, false), gpu(ecc), decide, untaints, decide, untaints, decide,
			gpuFine, decide, lasts(time.Hour), gpu(ecc)}, conditions.ResetGPU},
		"nothing was due, so nothing was repaired": {[]step{others(1), gpu(ecc), decide, gpuFine, decide, gpu(ecc), decide, gpuFine, decide, others(0), gpu(ecc)},
			conditions.ResetGPU},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range append(test.steps, decide) {
				s(w)
			}
			if r := w.record(); r.Phase != causes.Quarantined || r.Worst() != test.want {
				t.Errorf("%s, want %s", r, test.want)
			}
		})
	}
}

func TestRepairsOfARecord(t *testing.T) {
	w := newWorld(t)
	start := w.now
	mends("Reboot gpu 0000:4e:00: Xid 79 lost; gpu 0000:1b:00: driver says no; hca mlx5_0: DOWN; +2 more", true)(w)
	at := start.Add(time.Minute)
	want := []causes.RepairRecord{
		{GPU: "0000:4e:00", Code: "Xid 79", Repair: conditions.Reboot, At: at}, {GPU: "0000:1b:00", Code: "driver says no", Repair: conditions.Reboot, At: at},
	}
	if diff := cmp.Diff(want, w.record().Repairs); diff != "" {
		t.Error(diff)
	}
	for i := range 20 {
		mends(fmt.Sprintf("ResetGPU gpu %d: Xid 95 x", i), false)(w)
	}
	if r := w.record().Repairs; len(r) != causes.MaxRepairs || r[causes.MaxRepairs-1].GPU != "19" {
		t.Errorf("%d repairs, the last %+v", len(r), r[len(r)-1])
	}
	if size := len(w.record().String()); size > 16<<10 {
		t.Errorf("the annotation has %d bytes", size)
	}
}
