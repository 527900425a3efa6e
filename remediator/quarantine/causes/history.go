package causes

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/release"
)

// A GPU that shows the same fault again after repairsUntilReplace repairs of its class within repairMemory needs
// replacement.
const (
	repairsUntilReplace = 2
	repairMemory        = 7 * 24 * time.Hour
	// MaxRepairs bounds what a record remembers: two repairs of each of eight GPUs.
	MaxRepairs = 16
)

// RepairRecord is a repair that removed a fault of a GPU, or should have.
type RepairRecord struct {
	// GPU is the subject of the message without its kind: a PCI address. It names a slot. A manual release forgets the
	// repairs, because the person may have put in another GPU.
	GPU string `json:"gpu" max:"text"`
	// Code is the fault, e.g. "Xid 79".
	Code string `json:"code" max:"text"`
	// Repair is the class of the repair.
	Repair conditions.Repair `json:"repair"`
	At     time.Time         `json:"at"`
}

// GPUFaults lists the GPUs that the message of a condition of ours names and their faults, the worst first. At is zero.
func GPUFaults(message string) []RepairRecord {
	m, err := conditions.ParseMessage(message)
	if err != nil {
		return nil
	}
	var list []RepairRecord
	for _, part := range m.Parts {
		gpu, ok := strings.CutPrefix(part.Subject, "gpu ")
		if !ok {
			continue
		}
		list = append(list, RepairRecord{GPU: gpu, Code: release.FaultCode(part.Text), Repair: m.Repair})
	}
	return list
}

// RecordRepair remembers that the repair that the cause needs was done.
func (r *Record) RecordRepair(c *Cause, now time.Time) {
	if c.RepairRecorded || !c.Due || r.Phase != Quarantined || c.Repair != conditions.ResetGPU && c.Repair != conditions.Reboot {
		return
	}
	c.RepairRecorded = true
	if !conditions.Ours(string(c.Condition)) {
		return
	}
	for _, f := range GPUFaults(c.Message) {
		f.Repair, f.At = c.Repair, now
		r.Repairs = append(r.Repairs, f)
	}
	r.Repairs = slices.DeleteFunc(r.Repairs, func(done RepairRecord) bool { return now.Sub(done.At) > repairMemory })
	r.Repairs = r.Repairs[max(0, len(r.Repairs)-MaxRepairs):]
}

// needsReplacement reports whether the worst fault of a message came back after enough repairs of its class. It is false for
// a node without a record.
func (r *Record) needsReplacement(condition, message string, now time.Time) bool {
	if r == nil || !conditions.Ours(condition) {
		return false
	}
	faults := GPUFaults(message)
	if len(faults) == 0 {
		return false
	}
	count := 0
	for _, done := range r.Repairs {
		if done.GPU == faults[0].GPU && done.Code == faults[0].Code && done.Repair == faults[0].Repair && now.Sub(done.At) <= repairMemory {
			count++
		}
	}
	return count >= repairsUntilReplace
}

// HasFlapped reports whether the fault has come often enough by its rule's flaps, this time included: a port that goes down
// for a moment again and again never lasts for its rule's `for`, and yet hangs the jobs that use it. A manual release
// starts the count again.
//
// That a node is not Ready counts only if that has quarantined it: short absences, and those that the guard against common causes
// holds back, are the network's.
func (r *Record) HasFlapped(p Problem, now time.Time) bool {
	flaps := p.Rule.Flaps
	if flaps.Max == 0 {
		return false
	}
	count := 1 + countFlaps(r.Causes, p, now)
	for _, q := range r.Last {
		if q.ReleasedBy == ByPerson {
			break
		}
		isOne := q.HasCause(p.Condition.Type)
		if p.IsReady() {
			isOne = q.Taint.Rule == p.Rule.Name
		}
		if isOne && now.Sub(q.QuarantinedAt) < flaps.Window {
			count += 1 + countFlaps(q.Causes, p, now)
		}
	}
	return count >= flaps.Max
}

// countFlaps counts how often the problem's condition cleared within the window before it quarantined the node.
func countFlaps(causes []Cause, p Problem, now time.Time) int {
	count := 0
	for i := range causes {
		if causes[i].Condition == p.Condition.Type {
			count += len(within(causes[i].FlapTimes, p.Rule.Flaps.Window, now))
		}
	}
	return count
}

// recordFlap notes that a suspect's fault has cleared without a quarantine. It counts no absence of a node, see [Record.HasFlapped].
func (c *Cause) recordFlap(flaps policy.Flaps, now time.Time) {
	if flaps.Max == 0 || c.Condition == corev1.NodeReady {
		return
	}
	c.Due = false
	c.FlapTimes = append(within(c.FlapTimes, flaps.Window, now), now)
	c.FlapTimes = c.FlapTimes[max(0, len(c.FlapTimes)-policy.MaxFlaps):]
}

// flapsUntil is until when flaps of a cause still count; zero: none does.
func (c *Cause) flapsUntil(flaps policy.Flaps, now time.Time) time.Time {
	left := within(c.FlapTimes, flaps.Window, now)
	if len(left) == 0 {
		return time.Time{}
	}
	return left[len(left)-1].Add(flaps.Window)
}

// within copies the times of the last window.
func within(times []time.Time, window time.Duration, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at) >= window })
}
