package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

// maxListed is how many pods of a job are named one by one.
const maxListed = 5

// answer is what the facts about a job amount to.
type answer struct {
	// next is what happens next, or why nothing happens.
	next string
	// evaluations are by the node whose quarantine they are for.
	evaluations map[string]evaluation
	// asIf is the node that is not quarantined and was evaluated as if it were; empty: none, or the job has no node.
	asIf string
}

// evaluation is the answer to whether a quarantine restarts the job.
type evaluation struct {
	verdict restart.Verdict
	list    []restart.Precondition
	// unknown are the names of those preconditions that have passed as far as the user may see, and why that is not all.
	unknown map[string]string
}

// answer evaluates the quarantines of the job's nodes or, if there is none, one as if there were.
func (f *jobFacts) answer() (answer, error) {
	a := answer{evaluations: map[string]evaluation{}}
	var err error
	for _, n := range f.nodes {
		if !n.quarantined() {
			continue
		}
		if a.evaluations[n.row.Node], err = f.evaluate(n.quarantine, n.pods); err != nil {
			return a, err
		}
	}
	if len(a.evaluations) == 0 {
		var onNode []corev1.Pod
		if len(f.nodes) > 0 {
			a.asIf, onNode = f.nodes[0].row.Node, f.nodes[0].pods
		}
		if a.evaluations[a.asIf], err = f.evaluate(f.ifQuarantined(a.asIf), onNode); err != nil {
			return a, err
		}
	}
	a.next = f.next(a)
	return a, nil
}

// evaluate asks the preconditions, the limits and the capacity, in the order of the remediator.
func (f *jobFacts) evaluate(q restart.Trigger, onNode []corev1.Pod) (evaluation, error) {
	job := *f.workload.Job
	e := evaluation{unknown: map[string]string{}}
	e.verdict, e.list = restart.Evaluate(q, job, f.record, f.optIn.In, onNode)
	if f.policy == nil || f.record.Current != nil { // a restart under way is not limited again
		return e, nil
	}
	limits := ratelimit.LimitsOf(q, job, f.policy.Restart)
	e.list = append(e.list, ratelimit.Evaluate(q, job.Object.GetNamespace(), f.record, f.others, limits, f.now)...)
	if f.othersErr != nil && limits.MaxConcurrent > 0 {
		e.unknown[ratelimit.MaxConcurrent] = "jobs of other namespaces cannot be listed"
	}
	shares := job.SharesGang(onNode)
	stopped := slices.DeleteFunc(slices.Clone(f.pods), func(p corev1.Pod) bool { return node.PodFinished(&p) || !shares(&p) })
	if f.capacity != nil {
		room, err := f.capacity(q, job.Unplaced(stopped))
		switch {
		case apierrors.IsForbidden(err):
			room = restart.Precondition{Name: restart.Capacity, Passed: true}
			e.unknown[restart.Capacity] = "pods of other namespaces cannot be listed"
		case err != nil:
			return e, err
		case f.othersErr != nil:
			e.unknown[restart.Capacity] = "jobs of other namespaces cannot be listed"
		}
		e.list = append(e.list, room)
	}
	e.list = append(e.list, restart.FitsRecord(len(stopped)))
	return e, nil
}

// text returns in one sentence what becomes of the job.
func (e evaluation) text(now time.Time) string {
	failed, blocked := restart.FirstFailed(e.list)
	switch {
	case e.verdict == restart.JoinRestart:
		return failed.Text
	case !blocked && len(e.unknown) > 0:
		return fmt.Sprintf("the remediator restarts the job, if %s allows it, which you may not see",
			strings.Join(slices.Sorted(maps.Keys(e.unknown)), " and "))
	case !blocked:
		return "the remediator restarts the job"
	case e.verdict == restart.StartRestart && failed.RetryAfter > 0:
		return fmt.Sprintf("the restart waits (%s): %s; next attempt at %s",
			failed.Reason, failed.Text, now.Add(failed.RetryAfter).Format(time.RFC3339))
	case failed.Reason != "":
		return fmt.Sprintf("not restarted (%s): %s", failed.Reason, failed.Text)
	}
	return "not restarted: " + failed.Text
}

// ifQuarantined is the quarantine of a node by the first rule that restarts jobs, as if it were quarantined for long.
func (f *jobFacts) ifQuarantined(name string) restart.Trigger {
	q := restart.Trigger{
		Kind: restart.NodeQuarantined, Node: name,
		Taint: corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule},
		Since: f.now.Add(-24 * time.Hour),
	}
	if f.policy != nil {
		if i := slices.IndexFunc(f.policy.Rules, func(r policy.Rule) bool { return r.RestartJobs && r.Taint.Key != "" }); i >= 0 {
			q.Taint = f.policy.Rules[i].Taint
		}
	}
	return q
}

// next returns what happens next, or why nothing happens.
func (f *jobFacts) next(a answer) string {
	_, abort := f.workload.Job.Object.GetAnnotations()[conditions.AnnotationAbortRestart]
	switch {
	case f.workload.Unsupported != nil:
		return fmt.Sprintf("nothing: it is controlled by %s %s, which cannot be restarted as a whole (UnknownOwner)",
			f.workload.Unsupported.Kind, f.workload.Unsupported.Name)
	case f.recordErr != nil:
		return fmt.Sprintf("nothing: %v (RecordUnreadable); remove the annotation %s", f.recordErr, conditions.AnnotationRestart)
	case f.record.Current != nil && f.step.Action == restart.Close && !abort:
		return fmt.Sprintf("the restart under way ends (%s): %s", f.step.Result, f.step.Outcome)
	case f.record.Current != nil && abort:
		return "the restart under way is aborted: " + f.nextStep()
	case f.record.Current != nil:
		return "the restart under way goes on: " + f.nextStep()
	case !f.optIn.In && f.optIn.By != "":
		return fmt.Sprintf("nothing: the job is opted out by label %s on %s", f.optIn.By, f.optInOn())
	case !f.optIn.In:
		return fmt.Sprintf("nothing: the job is not opted in; to opt in: kubectl label -n %s %s %s=true",
			f.workload.Job.Object.GetNamespace(), argument(f.workload.Job), conditions.LabelRestartOnNodeFault)
	}
	quarantined := slices.DeleteFunc(slices.Clone(f.nodes), func(n nodeFacts) bool { return !n.quarantined() })
	if len(quarantined) == 0 {
		text := "nothing: none of its pods is on a quarantined node"
		if a.asIf == "" {
			return text + ", and none is active"
		}
		if off := policyOff(f.policy); off != "" {
			return fmt.Sprintf("%s; %s", text, off)
		}
		return fmt.Sprintf("%s; if %s were quarantined by a rule with restartJobs: %s", text, a.asIf, a.evaluations[a.asIf].text(f.now))
	}
	var answers []string
	for _, n := range quarantined {
		switch {
		case n.noRestarts != "":
			answers = append(answers, fmt.Sprintf("node %s: %s", n.row.Node, n.noRestarts))
		case f.policy == nil:
			answers = append(answers, fmt.Sprintf("node %s: unknown: %s", n.row.Node, f.policyFrom))
		default:
			answers = append(answers, fmt.Sprintf("node %s: %s", n.row.Node, a.evaluations[n.row.Node].text(f.now)))
		}
	}
	text := strings.Join(answers, "; ")
	if f.paused != "" {
		text = fmt.Sprintf("nothing while everything is paused (%s); `kubectl pitcrew resume` ends the pause. Then: %s", f.paused, text)
	}
	if abort {
		text += fmt.Sprintf("; annotation %s aborts the restart before it begins", conditions.AnnotationAbortRestart)
	}
	return text
}

// argument names the job for kubectl.
func argument(job *restart.Job) string {
	return strings.ToLower(schema.GroupKind{Group: job.GVK.Group, Kind: job.GVK.Kind}.String()) + "/" + job.Object.GetName()
}

// policyOff reports that the policy restarts no jobs at all; empty if it does, or if it is unknown.
func policyOff(p *policy.Policy) string {
	if p == nil {
		return ""
	}
	restarts, observe := restartRules(p)
	switch restarts {
	case 0:
		return "no rule of the policy sets restartJobs"
	case observe:
		return "every rule that sets restartJobs is in observe mode: no job is restarted"
	}
	return ""
}

// restartRules counts the rules that restart jobs, and those of them that only observe.
func restartRules(p *policy.Policy) (restarts, observe int) {
	for _, r := range p.Rules {
		if r.RestartJobs {
			restarts++
			if r.Observe {
				observe++
			}
		}
	}
	return restarts, observe
}

// nextStep returns what the remediator does next with the restart under way.
func (f *jobFacts) nextStep() string {
	switch f.step.Action {
	case restart.Stop:
		return "the remediator stops the job now"
	case restart.Start:
		return "the remediator starts the job again now"
	case restart.Close:
		return f.step.Outcome
	}
	return f.waitsFor()
}

// waitsFor returns what the restart under way waits for in its phase.
func (f *jobFacts) waitsFor() string {
	cur := f.record.Current
	switch cur.Phase {
	case restart.Checkpointing:
		text := fmt.Sprintf("waits until the job has saved its state (annotation %s=%s), at most until %s",
			conditions.AnnotationCheckpointed, cur.CheckpointDeadline(), cur.CheckpointDeadline())
		if f.paused != "" {
			text += fmt.Sprintf(", and for the end of the pause (%s)", f.paused)
		}
		return text
	case restart.Starting:
		return fmt.Sprintf("waits until all ranks run (%d/%d)", f.running, f.workload.Job.WholeRanks(*cur))
	}
	left := f.remaining
	var names []string
	for _, pod := range left[:min(len(left), maxListed)] {
		name := fmt.Sprintf("%s on node %s", pod.Name, pod.Spec.NodeName)
		if pod.DeletionTimestamp != nil {
			name += ", deleted " + duration.HumanDuration(f.now.Sub(pod.DeletionTimestamp.Time)) + " ago"
		}
		names = append(names, name)
	}
	if more := len(left) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	text := "waits for its controller to act on the stop"
	if len(left) > 0 {
		text = "waits for the end of its old pods: " + strings.Join(names, "; ")
	}
	if cur.Held != "" {
		text = fmt.Sprintf("held: %s; %s (see `kubectl pitcrew explain JobRestart`)", cur.Held, text)
	}
	return text
}
