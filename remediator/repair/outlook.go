package repair

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Outlook is how a quarantined node would be repaired, whether or not it may be now. It is for people: [Next] decides.
type Outlook struct {
	// Class is the class of the actions that it needs; zero: it needs none, and Why says why not.
	Class conditions.Repair
	Why   string
	// Left are the actions that are left for the class, the next one first.
	Left []policy.Check
	// Lemon says that the node was repaired too often; empty: it was not.
	Lemon string
	// InTheWay are the pods that have to end before the next action. They are known if the facts have the pods of the node and the template
	// of that action.
	InTheWay []corev1.Pod
}

// OutlookOf tells how a node would be repaired. The node must be quarantined, and the policy must have a repair.
func OutlookOf(p *policy.Policy, f Facts, now time.Time) Outlook {
	d := &decider{policy: p, facts: f, now: now, record: f.Record.Clone(f.Node)}
	d.record.ClampTimes(now)
	q := d.facts.Quarantine
	class, why := d.classOf(q)
	o := Outlook{Class: class, Why: why, Lemon: d.lemon()}
	if class == 0 {
		return o
	}
	for {
		action, left := d.nextAction(q.ID, class)
		if !left {
			break
		}
		o.Left = append(o.Left, action)
		d.record.Repairs = append(d.record.Repairs, visit.Action{At: now, Template: action.Template, Quarantine: q.ID})
	}
	if len(o.Left) > 0 && f.Has.Pods && f.Template != nil && f.Has.Template == o.Left[0].Template {
		o.InTheWay = slices.Clone(d.inTheWay(rebootsNode(f.Template, o.Left[0])))
	}
	return o
}
