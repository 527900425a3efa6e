package repair

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/actions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// situation is what a step is decided from. Its methods are questions: they change nothing.
type situation struct {
	policy *policy.Policy
	facts  Facts
	now    time.Time
	// record is a copy, which the step changes.
	record *visit.Record
}

// boot returns the boot that the node is in; empty: it is not known.
func (s *situation) boot() string { return s.facts.Node.Status.NodeInfo.BootID }

func (s *situation) standing() *causes.Record {
	return proof.Standing(s.facts.Node, s.facts.Quarantine)
}

func (s *situation) causes() proof.View {
	return proof.View{Policy: s.policy, Node: s.facts.Node, Quarantine: s.facts.Quarantine, Now: s.now}
}

func (s *situation) plan() actions.Plan {
	return actions.Plan{View: s.causes(), Record: s.record, Earlier: s.facts.Earlier}
}

func (s *situation) job(v *visit.Visit) job.State {
	return job.Read(s.facts.Job, s.facts.Live.JobPods, v, s.now)
}

// requested reports whether a person asks for it.
func (s *situation) requested(kind string) bool {
	return s.record.Request != nil && s.record.Request.Kind == kind
}

// barrier is what the gate returns: nothing, or for what reason no action begins.
type barrier struct{ reason, why string }

// The reasons of a barrier, which are those of a [Waiting].
const byPolicy, byFailures, byOthers, byHold = "policy", "breaker", "others", "held"

// gate returns why no action of a visit may begin on the node now; no reason: it may. Every action passes it, of every visit, by the
// present policy: before a visit is opened, before an attempt is recorded, and before the Job of that is created. What it needs of
// [Facts.Live] is not asked for while nothing was read, so that a visit is never opened then.
func (s *situation) gate(v *visit.Visit, template string) barrier {
	if !v.IsCheck() {
		if s.policy.Repair == nil {
			return barrier{byPolicy, "the policy does not repair any more"}
		}
		if why := s.plan().Forbidden(v); why != "" {
			return barrier{byPolicy, why}
		}
	}
	if v.Kind == visit.Repair && s.facts.Live != nil {
		for _, action := range breaker.ActionsFor(template, s.facts.Quarantine) {
			if failed, held := s.facts.Live.Held[action]; held {
				return barrier{byFailures, fmt.Sprintf("%s has failed on %d nodes in a row; `kubectl pitcrew reset` goes on", action, failed)}
			}
		}
	}
	if why := sweep.OtherRepairer(s.facts.Node, s.record, s.now); why != "" {
		return barrier{byOthers, why}
	}
	switch {
	case s.facts.Paused != "":
		return barrier{byHold, fmt.Sprintf("paused (%s)", causes.Clip(s.facts.Paused, conditions.MaxMessage/4))}
	case s.facts.QuarantineErr != nil:
		return barrier{byHold, "the quarantine record of the node cannot be read"}
	case s.policy.Breaker != nil && s.facts.Live != nil && s.facts.Live.BreakerOpen:
		return barrier{byHold, "the breaker is open: Pitcrew has quarantined many nodes in a short time, " +
			"and begins nothing until it closes (`kubectl pitcrew status`)"}
	}
	return barrier{}
}

// template returns the PodTemplate of a name, or why there is none.
func (s *situation) template(name string) (t *corev1.PodTemplate, why string) {
	live := s.facts.Live
	switch t := live.Templates[name]; {
	case t != nil:
		return t, ""
	case live.TemplateProblems[name] != "":
		return nil, live.TemplateProblems[name]
	case s.facts.JobProblem != "":
		return nil, s.facts.JobProblem
	}
	return nil, fmt.Sprintf("there is no PodTemplate %s in namespace %s", name, s.facts.Namespace)
}

// hasRebooted reports whether the node is in another boot than the attempt.
func (s *situation) hasRebooted(v *visit.Visit) bool {
	return s.boot() != v.BootID && s.boot() != "" && v.BootID != ""
}

// abandonedAfter is how long after its time a visit goes on: a remediator that was away for longer knows nothing of the node.
const abandonedAfter = 24 * time.Hour

// abandoned reports that no remediator has gone on with a visit in its time; empty: one has. A visit that is held waits as long as it is.
func (s *situation) abandoned(v *visit.Visit) string {
	over := v.Deadline
	switch {
	case v.Phase == visit.Proving:
		over = v.PhaseSince.Add(3 * s.proofTimeout())
	case v.Phase == visit.Emptying && v.Held == "":
		over = v.ActionSince.Add(s.emptyTimeout())
	}
	if over.IsZero() || s.now.Sub(over) < abandonedAfter {
		return ""
	}
	return fmt.Sprintf("its time was over at %s, and no remediator has gone on with it since", over.UTC().Format(time.RFC3339))
}

// emptyTimeout is how long a node may take to become empty.
func (s *situation) emptyTimeout() time.Duration {
	if s.policy.Repair == nil {
		return 0
	}
	return s.policy.Repair.Drain.Timeout
}

// inTheWay are the pods that must end before an action.
func (s *situation) inTheWay(reboots bool) []corev1.Pod {
	return pods.InTheWay(s.facts.Live.Pods, s.facts.Namespace, reboots)
}
