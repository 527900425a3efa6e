package node

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// A GPU that shows the same fault again after repairsUntilReplace repairs of its class within repairMemory needs more
// than another one.
const (
	repairsUntilReplace = 2
	repairMemory        = 7 * 24 * time.Hour
	// maxRepairs bounds what a record remembers: two repairs of each of eight GPUs.
	maxRepairs = 16
)

// RepairDone is a repair after which a fault of a GPU was gone, or should have been.
type RepairDone struct {
	// GPU is the subject of the message without its kind: a PCI address. It names a slot, which is why a release by a
	// person, who may have put in another GPU, forgets the repairs.
	GPU string `json:"gpu"`
	// Code is what was wrong, e.g. "Xid 79".
	Code   string            `json:"code"`
	Repair conditions.Repair `json:"repair"`
	At     time.Time         `json:"at"`
}

var xidCode = regexp.MustCompile(`^S?Xid \d+`)

// faults lists the GPUs of a message of ours and what is wrong with them, the worst first.
func faults(message string) []RepairDone {
	m, err := conditions.ParseMessage(message)
	if err != nil {
		return nil
	}
	var list []RepairDone
	for _, part := range m.Parts {
		gpu, ok := strings.CutPrefix(part.Subject, "gpu ")
		if !ok {
			continue
		}
		code := xidCode.FindString(part.Text)
		if code == "" {
			code = part.Text
		}
		list = append(list, RepairDone{GPU: gpu, Code: code, Repair: m.Repair})
	}
	return list
}

// mended remembers that what the cause wanted was done.
func (d *decider) mended(c *Cause) {
	if c.Mended || !c.Due || d.record.Phase != Quarantined || c.Repair != conditions.ResetGPU && c.Repair != conditions.Reboot {
		return
	}
	c.Mended = true
	if !conditions.Ours(string(c.Condition)) {
		return
	}
	for _, f := range faults(c.Message) {
		f.Repair, f.At = c.Repair, d.now
		d.record.Repairs = append(d.record.Repairs, f)
	}
	d.record.Repairs = slices.DeleteFunc(d.record.Repairs, func(r RepairDone) bool { return d.now.Sub(r.At) > repairMemory })
	d.record.Repairs = d.record.Repairs[max(0, len(d.record.Repairs)-maxRepairs):]
}

// beyondRepair tells whether the worst fault of a message came back after enough repairs of its class.
func (d *decider) beyondRepair(condition, message string) bool {
	if d.record == nil || !conditions.Ours(condition) {
		return false
	}
	now := faults(message)
	if len(now) == 0 {
		return false
	}
	count := 0
	for _, r := range d.record.Repairs {
		if r.GPU == now[0].GPU && r.Code == now[0].Code && r.Repair == now[0].Repair && d.now.Sub(r.At) <= repairMemory {
			count++
		}
	}
	return count >= repairsUntilReplace
}
