package gpu

import (
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// RecoveryAction is nvmlDeviceGpuRecoveryAction_t: what NVML says that a GPU needs, and what an Xid 154 prints.
type RecoveryAction int

// The recovery actions (nvml.h of CUDA 13; BusReset and SystemReboot since R615).
const (
	RecoveryNone RecoveryAction = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
	RecoveryIMEX
	RecoveryBusReset
	RecoverySystemReboot
)

// Need is what a recovery action needs.
type Need struct {
	// Name is the driver's word, such as "Node Reboot", Ask the same in a sentence: the driver asks ...
	Name, Ask string
	// Repair is its class; zero: nothing is needed any more.
	Repair conditions.Repair
	// printed are the names that drivers print, in lower case.
	printed []string
}

// needs has the recovery actions by number.
var needs = []Need{
	RecoveryNone:          {"None", "for nothing", 0, []string{"none"}},
	RecoveryReset:         {"GPU Reset", "for a GPU reset", conditions.ResetGPU, []string{"gpu reset required", "gpu reset", "pf flr"}},
	RecoveryReboot:        {"Node Reboot", "for a reboot of the node", conditions.Reboot, []string{"node reboot required", "node reboot"}},
	RecoveryDrainP2P:      {"Drain P2P", "to drain P2P", conditions.RestartApp, []string{"drain p2p"}},
	RecoveryDrainAndReset: {"Drain and Reset", "to drain and reset", conditions.ResetGPU, []string{"drain and reset"}},
	RecoveryIMEX:          {"Recover IMEX Domain", "to recover the IMEX domain", conditions.Inspect, []string{"recover imex domain"}},
	RecoveryBusReset:      {"Bus Reset", "for a reset of the bus", conditions.ResetGPU, []string{"bus reset"}},
	RecoverySystemReboot:  {"System Reboot", "for a reboot of the system", conditions.Reboot, []string{"system reboot", "os reboot"}},
}

// Need returns what the action needs, and whether it is known.
func (a RecoveryAction) Need() (Need, bool) {
	if a < 0 || int(a) >= len(needs) {
		return Need{}, false
	}
	return needs[a], true
}

// NeedNamed is [RecoveryAction.Need] of the action with a name that a driver prints.
func NeedNamed(name string) (Need, bool) {
	name = strings.ToLower(name)
	i := slices.IndexFunc(needs, func(n Need) bool { return slices.Contains(n.printed, name) })
	return RecoveryAction(i).Need()
}
