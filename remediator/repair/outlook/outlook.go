// Package outlook predicts for people how a quarantined node would be repaired: [repair.Next] decides. It is pure.
package outlook

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/actions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Outlook is how a quarantined node would be repaired, whether or not it may be now.
type Outlook struct {
	// Class is the class of the actions that it needs; zero: it needs none, and Why is why.
	Class conditions.Repair
	Why   string
	// Left are the actions that are left for the class, the next one first.
	Left []policy.Check
	// Lemon reports that the node was repaired too often; empty: it was not.
	Lemon string
	// InTheWay are the pods that have to end before the next action. They are known if the facts are live and
	// the template of that action exists.
	InTheWay []corev1.Pod
}

// Of returns how a node would be repaired. The node must be quarantined, and the policy must have a repair.
func Of(p *policy.Policy, f repair.Facts, now time.Time) Outlook {
	record := f.Record.Clone(f.Node)
	record.ClampTimes(now)
	plan := actions.Plan{
		View:   proof.View{Policy: p, Node: f.Node, Quarantine: f.Quarantine, Now: now},
		Record: record, Earlier: f.Earlier,
	}
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
		record.Repairs = append(record.Repairs, visit.Action{At: now, Template: action.Template, Quarantine: f.Quarantine.ID})
	}
	if len(o.Left) > 0 && f.Live != nil {
		if template := f.Live.Templates[o.Left[0].Template]; template != nil {
			o.InTheWay = pods.InTheWay(f.Live.Pods, f.Namespace, job.Reboots(template, o.Left[0]))
		}
	}
	return o
}
