package job

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

// print writes the answer and, below it, how it was reached.
func (f *jobFacts) print(out io.Writer, a answer) error {
	cli.Fprintf(out, "Job:      %s\n", nameOf(f.workload.Job))
	cli.Fprintf(out, "Next:     %s\n", a.next)
	f.printOptIn(out)
	f.printOwners(out)
	cli.Fprintf(out, "Stop:     %s\n", stopText(f.workload.Job))
	f.printPolicy(out)
	f.printNodes(out)
	f.printRecord(out)
	f.printLimits(out)
	for _, name := range slices.Sorted(maps.Keys(a.evaluations)) {
		if err := printEvaluation(out, name, a.asIf, a.evaluations[name]); err != nil {
			return err
		}
	}
	return nil
}

// printUnsupported answers for an object that is no job, and below no job, of a kind that the remediator restarts.
func (f *jobFacts) printUnsupported(out io.Writer) {
	why := "no kind of job that the remediator restarts"
	switch w := f.workload; {
	case w.BarePod != nil:
		why = "a pod without a controller: none would replace it"
	case w.Unsupported != nil:
		why = fmt.Sprintf("controlled by %s %s, which cannot be restarted as a whole", w.Unsupported.Kind, w.Unsupported.Name)
	}
	cli.Fprintf(out, "Job:      %s\n", cli.JobName(f.named))
	cli.Fprintf(out, "Next:     nothing: it is %s\n", why)
	var names []string
	for _, k := range f.supported() {
		names = append(names, k.GVK.Kind)
	}
	slices.Sort(names)
	cli.Fprintf(out, "Kinds:    %s; more by jobKinds of the policy\n", strings.Join(slices.Compact(names), ", "))
}

func (f *jobFacts) printOptIn(out io.Writer) {
	switch {
	case f.optIn.By == "":
		cli.Fprintf(out, "Opt-in:   no: neither the job nor its namespace has the label %s\n", conditions.LabelRestartOnNodeFault)
	case f.optIn.In:
		cli.Fprintf(out, "Opt-in:   yes: label %s on %s\n", f.optIn.By, f.optInOn())
	default:
		cli.Fprintf(out, "Opt-in:   no: label %s on %s\n", f.optIn.By, f.optInOn())
	}
	for _, hint := range f.hints {
		cli.Fprintf(out, "          %s\n", hint)
	}
}

// optInOn names the object with the label that decides.
func (f *jobFacts) optInOn() string {
	if f.optIn.Namespace {
		return "namespace " + f.workload.Namespace
	}
	return nameOf(f.workload.Job)
}

func (f *jobFacts) printOwners(out io.Writer) {
	var chain []string
	if f.named.Kind == "Pod" {
		chain = append(chain, "Pod "+f.named.Name)
	}
	for _, owner := range f.workload.Owners {
		chain = append(chain, owner.Kind+" "+owner.Name)
	}
	text := strings.Join(chain, " < ")
	if len(chain) > 1 {
		text += "; " + nameOf(f.workload.Job) + " counts: its labels opt in, and it is restarted as a whole"
	}
	cli.Fprintf(out, "Owners:   %s\n", text)
}

// stopText returns how the job is stopped and started.
func stopText(job *restart.Job) string {
	field := job.SuspendField
	switch {
	case field.Elsewhere != nil:
		return fmt.Sprintf("by %s of %s %s until all old pods are gone", field.Path, field.Elsewhere.GetKind(), field.Elsewhere.GetName())
	case field.Exists():
		return fmt.Sprintf("by %s until all old pods are gone", field.Path)
	case job.Gang != nil:
		return "its controller replaces the pods on the node and those that belong together with them; there is no suspend field"
	}
	return "its controller replaces all pods; there is no suspend field"
}

func (f *jobFacts) printPolicy(out io.Writer) {
	if f.policy == nil {
		cli.Fprintf(out, "Policy:   unknown: %s\n", f.policyFrom)
	} else {
		restarts, observe := restartRules(f.policy)
		cli.Fprintf(out, "Policy:   %s: %d rules set restartJobs, %d of them in observe mode\n", f.policyFrom, restarts, observe)
	}
	if f.paused != "" {
		cli.Fprintf(out, "Paused:   %s\n", f.paused)
	}
}

func (f *jobFacts) printNodes(out io.Writer) {
	active, healthy := 0, 0
	for _, n := range f.nodes {
		active += len(n.pods)
		if n.row.Status == status.Healthy || n.row.Status == status.Unchecked {
			healthy++
		}
	}
	cli.Fprintf(out, "Pods:     %d active on %d nodes, of which %d have no fault\n", active, len(f.nodes), healthy)
	for _, n := range f.nodes {
		switch {
		case n.noRestarts != "":
			cli.Fprintf(out, "Node:     %s: %s; %s\n", n.row.Node, n.row.Status, n.noRestarts)
		case n.quarantined():
			cli.Fprintf(out, "Node:     %s: %s by rule %s since %s: %s\n",
				n.row.Node, n.row.Status, n.record.Taint.Rule, f.ago(n.quarantine.Since), n.row.Cause)
		case n.row.Status != status.Healthy && n.row.Status != status.Unchecked:
			cli.Fprintf(out, "Node:     %s: %s, not quarantined (`kubectl pitcrew describe %s`): %s\n",
				n.row.Node, n.row.Status, n.row.Node, n.row.Cause)
		}
	}
}

func (f *jobFacts) ago(t time.Time) string {
	return t.UTC().Format(time.RFC3339) + ", " + duration.HumanDuration(f.now.Sub(t)) + " ago"
}

func (f *jobFacts) printRecord(out io.Writer) {
	if f.recordErr != nil {
		cli.Fprintf(out, "Record:   %v\n", f.recordErr)
		return
	}
	cur := f.record.Current
	if cur == nil && len(f.record.Last) == 0 {
		cli.Fprintln(out, "Record:   none: the job was never restarted")
	}
	if cur != nil {
		cli.Fprintf(out, "Restart:  %s since %s; %s\n", cur.Phase, f.ago(cur.PhaseSince), f.waitsFor())
		for _, cause := range cur.Quarantines {
			cli.Fprintf(out, "          for %s: %s\n", subjectOf(cause), cause.Reason)
		}
	}
	for _, past := range f.record.Last {
		var subjects []string
		for _, cause := range past.Quarantines {
			subjects = append(subjects, subjectOf(cause))
		}
		cli.Fprintf(out, "Before:   %s at %s, after %s, for %s: %s\n", past.Phase, f.ago(past.EndedAt),
			duration.HumanDuration(past.EndedAt.Sub(past.StartedAt)), strings.Join(subjects, ", "), past.Outcome)
	}
}

// subjectOf names what a restart is for.
func subjectOf(c restart.Cause) string {
	if c.Kind() == restart.JobStalled {
		return "a stalled job"
	}
	return "node " + c.Node
}

// printLimits prints what the policy's limits have counted.
func (f *jobFacts) printLimits(out io.Writer) {
	if f.policy == nil {
		return
	}
	limits := ratelimit.LimitsOf(restart.Trigger{Kind: restart.NodeQuarantined}, *f.workload.Job, f.policy.Restart)
	var texts []string
	of := func(name string, n, most int) {
		if most > 0 {
			texts = append(texts, fmt.Sprintf("%s %d/%d", name, n, most))
		}
	}
	of("maxPerDay", len(f.record.RestartsOfDay(f.now)), limits.MaxPerDay)
	of("maxPerJob", f.record.Total, limits.MaxPerJob)
	if limits.BackOff.First > 0 {
		texts = append(texts, fmt.Sprintf("backOff %s to %s", limits.BackOff.First, limits.BackOff.Max))
	}
	if f.othersErr == nil {
		of("maxConcurrent", ratelimit.Concurrent(restart.Trigger{Kind: restart.NodeQuarantined}, f.others), limits.MaxConcurrent)
	} else if limits.MaxConcurrent > 0 {
		texts = append(texts, "maxConcurrent unknown: jobs of other namespaces cannot be listed")
	}
	if limits.Settle > 0 {
		texts = append(texts, fmt.Sprintf("settle %s", limits.Settle))
	}
	if limits.CheckCapacity {
		texts = append(texts, "checkCapacity")
	}
	if len(texts) == 0 {
		texts = []string{"none"}
	}
	cli.Fprintf(out, "Limits:   %s\n", strings.Join(texts, ", "))
}

// printEvaluation prints the preconditions one by one.
func printEvaluation(out io.Writer, name, asIf string, e evaluation) error {
	switch {
	case name != asIf:
		cli.Fprintf(out, "\nFor node %s:\n", name)
	case name != "":
		cli.Fprintf(out, "\nIf node %s were quarantined:\n", name)
	default:
		cli.Fprintf(out, "\nIf a node of the job were quarantined:\n")
	}
	lines := []cli.Line{{Cells: []string{"PRECONDITION", "PASSED", "REASON", "WHY NOT"}}}
	for _, p := range e.list {
		passed, text := "yes", ""
		if !p.Passed {
			passed, text = "no", status.Suspect
		} else if p.Text = e.unknown[p.Name]; p.Text != "" {
			passed, text = "unknown", status.Unknown
		}
		lines = append(lines, cli.Line{Cells: []string{p.Name, passed, p.Reason, p.Text}, Colour: status.Colours[text]})
	}
	return cli.Table(out, lines, cli.IsTerminal(out))
}
