package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits are numbers of retired pages.
type limits struct{ singleBit, doubleBit int }

func (l *limits) judge(s snapshot) npd.Result {
	if nothing, ok := s.Absent(); ok {
		return nothing
	}
	result := npd.Result{Healthy: "no memory fault on any GPU"}
	for _, g := range s.GPUs {
		l.gpu(g, &result)
		if why := g.Silent(); why != "" {
			result.NotRead(g.Subject(), why)
		}
	}
	result.Unshared(s.Unshared)
	return result
}

// gpu judges one GPU. Texts have no counters.
func (l *limits) gpu(g gpu.GPU, result *npd.Result) {
	add := func(sick bool, repair conditions.Repair, text string) {
		if sick {
			result.Found(repair, g.Subject(), text)
		}
	}
	add(g.Lost, conditions.Reboot, gpu.IsLost)
	add(g.NeedsReset, conditions.ResetGPU, "requires a reset")
	m := g.Memory
	if m == nil {
		return
	}
	add(m.InfoROMCorrupt, conditions.Inspect, "InfoROM is corrupt")
	add(m.SRAMThresholdExceeded != nil && *m.SRAMThresholdExceeded, conditions.Replace, "SRAM errors over the vendor's threshold")
	add(positive(m.AggregateUncorrected), conditions.Monitor, "uncorrected memory errors during its life")
	if remap := m.Remap; remap != nil {
		add(remap.Failed, conditions.Replace, "row remapping failed")
		add(remap.Pending, conditions.ResetGPU, "row remapping pending")
		add(remap.Correctable+remap.Uncorrectable > 0, conditions.Monitor, "rows were remapped")
	}
	if banks := m.Banks; banks != nil {
		// NVIDIA has published no action for it.
		add(banks.Pending, conditions.Inspect, "bank remapping pending")
		add(banks.Active > 0, conditions.Monitor, "banks were remapped")
	}
	if positive(m.VolatileUncorrected) {
		const text = "uncorrected memory errors since the driver was loaded"
		switch {
		case m.Remap != nil:
			// With row remapping a contained error leaves the counter above zero until the next load of the driver.
			add(true, conditions.Monitor, text)
		case m.Retired != nil:
			add(true, conditions.ResetGPU, text)
		case g.NotRead() == "":
			result.NotRead(g.Subject(), "uncorrected memory errors, and neither row remapping nor retired pages to judge them by")
		}
	}
	if pages := m.Retired; pages != nil {
		add(pages.Pending, conditions.ResetGPU, "page retirement pending")
		add(pages.DoubleBit > l.doubleBit, conditions.Replace, "too many pages retired after double-bit errors")
		add(pages.DoubleBit > 0 && pages.DoubleBit <= l.doubleBit, conditions.Inspect, "pages retired after double-bit errors")
		add(pages.SingleBit > l.singleBit, conditions.Inspect, "many pages retired after single-bit errors")
	}
	unreadable := m.Remap == nil && m.Retired == nil && m.VolatileUncorrected == nil
	add(g.MIG && unreadable, conditions.Monitor, "memory errors are not readable in MIG mode")
	if m.Recovery != nil {
		need, known := m.Recovery.Need()
		add(known && need.Repair != 0, need.Repair, "the driver asks "+need.Ask)
		add(!known, conditions.Inspect, "the driver asks for an unknown recovery action")
	}
}

func positive(n *uint64) bool { return n != nil && *n > 0 }
