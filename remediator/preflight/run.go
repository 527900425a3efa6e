package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// run is one attempt of the preflight of one job.
type run struct {
	id       string
	workload types.UID
	// size is the number of ranks.
	size        int
	submissions []submission
	// first is the time of the first report. After deadline no further reports are accepted.
	first, deadline time.Time
}

// refusal is a report that does not count, and the reason.
type refusal struct {
	submission submission
	reason     string
}

// assembleRuns sorts the valid reports of one run id into runs. It depends on the reports only, so that another process
// reaches the same runs. A bad report is refused and does not affect the others.
func assembleRuns(submissions []submission, timeout time.Duration) ([]run, []refusal) {
	submissions = slices.Clone(submissions)
	// The UID decides between reports of the same second. Any order would do, but it must always be the same.
	slices.SortFunc(submissions, func(a, b submission) int {
		return cmp.Or(cmp.Compare(a.workload, b.workload), a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	var runs []run
	var refusals []refusal
	for len(submissions) > 0 {
		n := slices.IndexFunc(submissions, func(s submission) bool { return s.workload != submissions[0].workload })
		if n < 0 {
			n = len(submissions)
		}
		r, refused := assembleRun(submissions[:n], timeout)
		runs, refusals, submissions = append(runs, r), append(refusals, refused...), submissions[n:]
	}
	return runs, refusals
}

// assembleRun makes a run from the reports of one workload, which are sorted by age.
func assembleRun(submissions []submission, timeout time.Duration) (run, []refusal) {
	r := run{id: submissions[0].run, workload: submissions[0].workload, size: majoritySize(submissions)}
	var refusals []refusal
	ranks, pods := map[int]string{}, map[types.UID]bool{}
	for _, s := range submissions {
		reason := ""
		switch before, taken := ranks[s.report.Rank]; {
		case s.report.Size != r.size:
			reason = fmt.Sprintf("workload_size is %d, but the run has %d", s.report.Size, r.size)
		case pods[s.podUID]:
			reason = fmt.Sprintf("pod %s has already reported", s.pod)
		case taken:
			reason = fmt.Sprintf("rank %d has already reported, in %s", s.report.Rank, before)
		case !r.first.IsZero() && s.created.After(r.deadline):
			reason = fmt.Sprintf("it is late: the run ended at %s", r.deadline.UTC().Format(time.RFC3339))
		}
		if reason != "" {
			refusals = append(refusals, refusal{s, reason})
			continue
		}
		if r.first.IsZero() {
			r.first, r.deadline = s.created, s.created.Add(timeout)
		}
		ranks[s.report.Rank], pods[s.podUID] = s.name, true
		r.submissions = append(r.submissions, s)
	}
	return r, refusals
}

// majoritySize is the size that most reports have, so that one wrong size cannot invalidate the run. With a tie it is the
// size that was reported first.
func majoritySize(submissions []submission) int {
	votes := map[int]int{}
	for _, s := range submissions {
		votes[s.report.Size]++
	}
	size := submissions[0].report.Size
	for _, s := range submissions {
		if votes[s.report.Size] > votes[size] {
			size = s.report.Size
		}
	}
	return size
}

func (r run) isComplete() bool { return len(r.submissions) >= r.size }

// isDue returns whether the run can be judged.
func (r run) isDue(now time.Time) bool { return r.isComplete() || !now.Before(r.deadline) }

// decidedAt is the time of the verdict. It follows from the reports, so that a verdict that is reached again has the same
// time.
func (r run) decidedAt() time.Time {
	if !r.isComplete() {
		return r.deadline
	}
	return r.submissions[len(r.submissions)-1].created
}

func (r run) reports() []report.Report {
	var reports []report.Report
	for _, s := range r.submissions {
		reports = append(reports, s.report)
	}
	return reports
}

// reportedNodes are the nodes of the run that have reported.
func (r run) reportedNodes() map[string]bool {
	nodes := map[string]bool{}
	for _, s := range r.submissions {
		nodes[s.report.Node] = true
	}
	return nodes
}

// owners are the jobs that own the reports, each once.
func (r run) owners() []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, s := range r.submissions {
		if !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == s.owner.UID }) {
			owners = append(owners, s.owner)
		}
	}
	return owners
}

// failedChecks names the local checks that failed on a node.
func (r run) failedChecks(node string) string {
	var checks []string
	for _, s := range r.submissions {
		for name, c := range map[string]report.Check{"gpu": s.report.GPU, "storage": s.report.Storage} {
			if s.report.Node == node && c == report.Failed {
				checks = append(checks, name)
			}
		}
	}
	slices.Sort(checks)
	return strings.Join(slices.Compact(checks), " and ")
}
