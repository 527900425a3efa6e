package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// shownVisits is how many closed visits describe shows.
const shownVisits = 5

// describeVisits prints the visit under way, step by step, what was asked for and advised, the newest check and the last visits.
func describeVisits(ctx context.Context, out io.Writer, api client.Client, n *corev1.Node, ago func(time.Time) string) error {
	r, err := visit.RecordOf(n)
	switch {
	case err != nil:
		cli.Fprintf(out, "Visits:   %s\n", err.Error())
		return nil
	case r == nil:
		return nil
	}
	if v := r.Current; v != nil {
		if err := describeVisit(ctx, out, api, r, v, ago); err != nil {
			return err
		}
	}
	if q := r.Request; q != nil {
		cli.Fprintf(out, "Asked:    %s, by %s: %s, %s\n",
			q.Kind, cmp.Or(q.User, quarantine.UnknownUser), cmp.Or(q.Reason, quarantine.NoReason), ago(q.At))
	}
	if q, err := causes.RecordOf(n); err == nil && q != nil && q.Phase == causes.Quarantined && r.Stopped == q.ID {
		cli.Fprintf(out, "Stopped:  no repair begins in this quarantine until `kubectl pitcrew repair %s --approve`\n", n.Name)
	}
	if a := status.AdviceOf(n, r); a != nil {
		cli.Fprintf(out, "Advice:   %s: %s, %s\n", a.Do, a.Why, ago(a.At))
	}
	if c := r.Checked; c != nil {
		boot := "before its present boot"
		if c.BootID == n.Status.NodeInfo.BootID {
			boot = "in its present boot"
		}
		cli.Fprintf(out, "Checked:  passed %s, %s, %s\n", jobText(c.Template, c.Args), boot, ago(c.At))
	}
	for _, v := range r.Last[:min(len(r.Last), shownVisits)] {
		cli.Fprintf(out, "Visited:  %s, %s: %s: %s%s\n", kindText(&v), ago(v.EndedAt), v.Phase,
			cmp.Or(v.Outcome, jobText(v.Template, v.Args)), after("; evidence: ", v.Bundle))
	}
	return nil
}

// describeVisit prints the visit under way: what it waits for, its steps, and the Job of the present one.
func describeVisit(
	ctx context.Context, out io.Writer, api client.Client, r *visit.Record, v *visit.Visit, ago func(time.Time) string,
) error {
	indented := func(format string, args ...any) { cli.Fprintf(out, "          "+format+"\n", args...) }
	cli.Fprintf(out, "Visit:    %s, since %s\n", kindText(v), ago(v.StartedAt))
	indented("%s since %s%s%s", v.Phase, ago(v.PhaseSince), after(": ", cmp.Or(v.Held, v.Outcome)), after("; then ", string(v.Then)))
	if v.Kind == visit.Repair {
		steps := slices.DeleteFunc(slices.Clone(r.Repairs), func(a visit.Action) bool { return a.Quarantine != v.Quarantine })
		for i, a := range steps {
			indented("%d. %s, %s: %s", i+1, a.Template, ago(a.At), proofText(a, v, i == len(steps)-1))
		}
	}
	if v.Template != "" && hasJob(v) {
		indented("%s%s", jobText(v.Template, v.Args), until(v))
	}
	if !v.JobEndedAt.IsZero() {
		indented("its Job ended %s", ago(v.JobEndedAt))
	}
	if v.Bundle != "" {
		indented("evidence: %s", v.Bundle)
	}
	jobs, err := jobsOf(ctx, api, v)
	if apierrors.IsForbidden(err) {
		indented("its Job is not known: %v", err)
		return nil
	}
	for _, text := range jobs {
		indented("%s", text)
	}
	return err
}

// hasJob reports whether the template of a visit is that of a Job under way. Before, and after, it is that of the last one.
func hasJob(v *visit.Visit) bool { return v.Phase == visit.Working || v.Phase == visit.Ending }

func until(v *visit.Visit) string {
	if v.Deadline.IsZero() {
		return ""
	}
	return ", until " + v.Deadline.UTC().Format(time.RFC3339) + " at the latest"
}

// after is a text with what goes before it; empty for no text.
func after(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

func kindText(v *visit.Visit) string {
	text := string(v.Kind) + after(" ", v.Sweep)
	if v.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", v.Attempt)
	}
	return text
}

func jobText(template string, args []string) string {
	return cmp.Or(strings.Join(append([]string{template}, args...), " "), "no Job")
}

// proofText returns what became of an action of a visit that is under way; last: it is the newest one.
func proofText(a visit.Action, v *visit.Visit, last bool) string {
	switch {
	case a.Proven:
		return "the fault has cleared"
	case last && v.Phase == visit.Ending:
		return "ends"
	case last && v.Phase == visit.Working:
		return "under way"
	case last && v.Phase == visit.Proving:
		return "done; the conditions have to prove it"
	}
	return "the fault is still there"
}

// jobsOf describes the Jobs of a visit, and the pods of each that are not ready.
func jobsOf(ctx context.Context, api client.Client, v *visit.Visit) ([]string, error) {
	if len(validation.IsValidLabelValue(v.ID)) > 0 {
		return nil, nil // the remediator has not written it
	}
	var jobs batchv1.JobList
	if err := api.List(ctx, &jobs, client.InNamespace(conditions.RepairNamespace),
		client.MatchingLabels{conditions.LabelVisit: v.ID}); err != nil {
		return nil, fmt.Errorf("list the Jobs of the visit: %w", err)
	}
	var all []string
	for _, job := range jobs.Items {
		text := fmt.Sprintf("Job %s/%s: %s", job.Namespace, job.Name, jobState(&job))
		var pods corev1.PodList
		if err := api.List(ctx, &pods, client.InNamespace(job.Namespace),
			client.MatchingLabels{batchv1.JobNameLabel: job.Name}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("list the pods of Job %s/%s: %w", job.Namespace, job.Name, err)
		}
		for i := range pods.Items {
			if why := health.NotReady(&pods.Items[i]); why != "" {
				text += fmt.Sprintf("; pod %s: %s", pods.Items[i].Name, why)
			}
		}
		all = append(all, text)
	}
	return all, nil
}

func jobState(of *batchv1.Job) string {
	if end, ok := job.EndOf(of); ok {
		return string(end.Type) + after(": ", cmp.Or(end.Message, end.Reason))
	}
	if of.DeletionTimestamp != nil {
		return "is being deleted"
	}
	return "under way"
}
