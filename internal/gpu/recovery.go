package gpu

import "time"

// RecoveryFile is the name of the state that the ecc check keeps for the xid check, an npd.BootStore of [Recoveries]:
// a reset by `nvidia-smi -r` may log nothing, but NVML shows that the GPU needed one and then needs none.
const RecoveryFile = "gpu-recovery"

// Recoveries is what is known of each GPU's need of a repair, by PCI address.
type Recoveries map[string]Recovery

// Recovery is the need of one GPU.
type Recovery struct {
	// Needed reports that the GPU is lost, or that the driver asks for a recovery action.
	Needed bool `json:"needed,omitempty"`
	// Asked reports that the driver asks for a recovery action: only the driver can say then that it is over.
	Asked bool `json:"asked,omitempty"`
	// Recovered is when that was last over (CLOCK_MONOTONIC); what the kernel log says of the GPU before that is over.
	Recovered time.Duration `json:"recovered,omitempty"`
}

// Note takes in one reading and reports whether anything has changed. A GPU that could not be asked about is left as it is.
// Drivers before 565 have no recovery action: there a GPU has recovered that was lost, or needed a reset, and answers again.
func (r Recoveries) Note(reading Reading) (changed bool) {
	for _, g := range reading.GPUs {
		now := r[g.Address]
		answers := g.Memory != nil && g.NotRead() == ""
		hasAction := g.Memory != nil && g.Memory.Recovery != nil
		switch {
		case hasAction && *g.Memory.Recovery != RecoveryNone:
			now.Needed, now.Asked = true, true
		case g.Lost || g.NeedsReset:
			now.Needed = true
		case now.Needed && answers && (hasAction || !now.Asked):
			now = Recovery{Recovered: reading.Uptime}
		}
		if now != r[g.Address] {
			r[g.Address], changed = now, true
		}
	}
	return changed
}
