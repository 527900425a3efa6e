package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// AwaitsApproval tells whether the repair of a node waits for a person to approve it.
func AwaitsApproval(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record, now time.Time) bool {
	if p.Repair == nil || proof.Standing(n, q) == nil || r != nil && r.Current != nil {
		return false // the step of a visit under way needs its Job
	}
	waits := Next(p, Facts{Node: n, Record: r, Quarantine: q}, now).Waits
	return waits != nil && waits.Reason == waitsForApproval
}

// Outlook is how a quarantined node would be repaired, whether or not it may be now. It is for people: [Next] decides.
type Outlook struct {
	// Class is the class of the actions that it needs; zero: it needs none, and Why says why not.
	Class conditions.Repair
	Why   string
	// Left are the actions that are left for the class, the next one first.
	Left []policy.Check
	// Lemon says that the node was repaired too often; empty: it was not.
	Lemon string
	// InTheWay are the pods that have to end before the next action. They are known if the facts are live and
	// the template of that action exists.
	InTheWay []corev1.Pod
}

// OutlookOf returns how a node would be repaired. The node must be quarantined, and the policy must have a repair.
func OutlookOf(p *policy.Policy, f Facts, now time.Time) Outlook {
	s := situation{policy: p, facts: f, now: now, record: f.Record.Clone(f.Node)}
	s.record.ClampTimes(now)
	plan := s.plan()
	class, why := plan.Class()
	o := Outlook{Class: class, Why: why, Lemon: plan.Lemon()}
	if class == 0 {
		return o
	}
	for {
		action, left := plan.Next(f.Quarantine.ID, class)
		if !left {
			break
		}
		o.Left = append(o.Left, action)
		s.record.Repairs = append(s.record.Repairs, visit.Action{At: now, Template: action.Template, Quarantine: f.Quarantine.ID})
	}
	if len(o.Left) > 0 && f.Live != nil {
		if template := f.Live.Templates[o.Left[0].Template]; template != nil {
			o.InTheWay = s.inTheWay(job.Reboots(template, o.Left[0]))
		}
	}
	return o
}
