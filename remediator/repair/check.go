package repair

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// settleTaint is how long after the taint of a sweep the pods of the node are listed once more, before its Job is created: the
// scheduler may have chosen the node just before it saw the taint.
const settleTaint = 5 * time.Second

// Selection is that a sweep has chosen a node.
type Selection struct {
	Sweep string
	At    time.Time
}

// beginSweep begins the check that a sweep, or a person, has chosen the node for.
func beginSweep(d *decision) {
	s := d.facts.Selected
	missing := sweep.Unavailable(d.policy, d.facts.Node, d.record, d.facts.Quarantine, d.now)
	if d.requested(visit.RequestCheck) {
		covers := func(p policy.Sweep) bool { return p.Nodes.Matches(labels.Set(d.facts.Node.Labels)) }
		switch {
		case !slices.ContainsFunc(d.policy.Sweeps, covers):
			d.refuse("not checked: no sweep of the policy is for this node")
			return
		case s == nil:
			d.waitFor("check", "a check waits: %s", cmp.Or(missing,
				"it begins when no pod on the node has an accelerator, none waits for the node, and maxNodes of the sweep allows it"))
		}
	}
	if s == nil || len(d.record.Last) > 0 && !d.record.Last[0].StartedAt.Before(s.At) {
		return
	}
	v := visit.Visit{Kind: visit.Sweep, Sweep: s.Sweep}
	i := slices.IndexFunc(d.policy.Sweeps, func(p policy.Sweep) bool { return p.Name == s.Sweep })
	if i >= 0 && missing == "" && d.gate(&v, "").reason == "" {
		openCheck(d, v, d.policy.Sweeps[i].Check)
	}
}

// beginFirstCheck takes the taint of new nodes away, or begins the check under load before that.
func beginFirstCheck(d *decision) {
	f, v := d.policy.FirstCheck, visit.Visit{Kind: visit.FirstCheck}
	if !d.tryGate(&v, "") {
		return
	}
	if why := d.unproved(); why != "" {
		d.waitFor("conditions", "%s waits: %s", v.Kind, why)
		return
	}
	if f.Template == "" && d.facts.Live != nil {
		d.record.Checked = &visit.Checked{At: d.now, BootID: d.boot()}
		d.step.untaint = f.Taint
		d.event(corev1.EventTypeNormal, NodeChecked, "first check has passed: %s",
			strings.Join(firstcheck.Conditions(d.policy, d.facts.Node), ", "))
		return
	}
	retry := d.record.RetryAt(visit.FirstCheck, "", sweep.Retry, d.now)
	if f.Template != "" && d.now.Before(retry) && !d.requested(visit.RequestCheck) {
		d.requeueAt(retry)
		return
	}
	openCheck(d, v, f.Check)
}

// unproved returns what keeps a new node from being taken for healthy; empty: nothing does.
func (s *situation) unproved() string {
	n := s.facts.Node
	return firstcheck.Text(s.policy, n, firstcheck.Gaps(s.policy, n, s.facts.Quarantine, s.now))
}

// openCheck opens a sweep or a first check with its Job, or notes what is in the way.
func openCheck(d *decision, v visit.Visit, check policy.Check) {
	if d.facts.Live == nil {
		d.step.NeedsLive = true
		return
	}
	if v.Kind == visit.FirstCheck {
		underWay, most := 0, d.policy.FirstCheck.MaxNodes
		for _, p := range d.facts.Live.Peers {
			if p.FirstCheck {
				underWay++
			}
		}
		if underWay >= most {
			d.waitFor("limits", "%s waits: %d nodes have their first check now, and firstCheck.maxNodes is %d", v.Kind, underWay, most)
			return
		}
	}
	template, why := d.template(check.Template)
	if template == nil {
		d.waitFor("template", "%s waits: %s", v.Kind, why)
		return
	}
	if why := firstcheck.Unproven(d.policy, d.facts.Node, template); why != "" {
		d.waitFor(WaitsForProof, "%s waits: %s", v.Kind, why)
		return
	}
	if blocking := d.inTheWay(false); len(blocking) > 0 {
		if v.Kind == visit.FirstCheck {
			d.requeue(emptyPoll)
		} else { // another check follows, but for what an earlier one has left
			blocking = slices.DeleteFunc(blocking, func(pod corev1.Pod) bool { return pod.Namespace != d.facts.Namespace })
		}
		if len(blocking) > 0 {
			d.waitFor("pods", "%s waits: %s", v.Kind, pods.Names(blocking, "has not ended", "have not ended"))
		}
		return
	}
	openVisit(d, v)
	startAttempt(d, d.record.Current, check, template, false)
	d.event(corev1.EventTypeNormal, SweepStarted, "%s: %s", v.Name(), commandOf(check.Template, check.Args))
	if d.requested(visit.RequestCheck) {
		d.record.Request = nil
	}
}
