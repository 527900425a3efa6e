package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

const (
	// maxCandidates bounds the ConfigMaps that are looked at for one run id in one namespace.
	maxCandidates = 2 * report.MaxRanks
	// maxPerPod bounds the runs that a pod can report of, one each time its init container starts: each of them may end
	// with a list of the namespace's pods and an Event.
	maxPerPod = 30
)

// filing is a report with the ConfigMap that carries it.
type filing struct {
	uid     types.UID
	name    string
	created time.Time
	run     string
	// owner is the pod's controller, e.g. a batch Job; root is the owner's own controller if it has one, e.g. a JobSet.
	owner metav1.OwnerReference
	root  types.UID
	// pod that reports.
	pod    string
	podUID types.UID
	report report.Report
}

// readFiling checks a ConfigMap as far as it can be checked by itself.
func readFiling(cm *corev1.ConfigMap) (filing, error) {
	s := filing{
		uid:     cm.UID,
		name:    cm.Name,
		created: cm.CreationTimestamp.Time,
		run:     cm.Labels[conditions.LabelPreflightRun],
		pod:     cm.Annotations[conditions.AnnotationPreflightPod],
		podUID:  types.UID(cm.Annotations[conditions.AnnotationPreflightPodUID]),
	}
	switch {
	case s.run == "":
		return s, fmt.Errorf("no label %s", conditions.LabelPreflightRun)
	case cm.Immutable == nil || !*cm.Immutable:
		return s, errors.New("the ConfigMap is not immutable")
	case len(cm.Data) != 1 || len(cm.BinaryData) > 0 || cm.Data[reportconfigmap.Key] == "":
		return s, fmt.Errorf("%s is not its only key", reportconfigmap.Key)
	case s.pod == "" || s.podUID == "":
		return s, fmt.Errorf("annotations %s and %s do not say whose it is", conditions.AnnotationPreflightPod, conditions.AnnotationPreflightPodUID)
	case len(cm.OwnerReferences) != 1:
		return s, fmt.Errorf("%d owners, want the job alone", len(cm.OwnerReferences))
	}
	s.owner = cm.OwnerReferences[0]
	s.root = s.owner.UID
	var err error
	if s.report, err = report.Parse([]byte(cm.Data[reportconfigmap.Key])); err != nil {
		return s, err
	}
	if s.report.RunID != "" && s.report.RunID != s.run {
		return s, fmt.Errorf("run_id %s, but label %s says %s", s.report.RunID, conditions.LabelPreflightRun, s.run)
	}
	if node := cm.Annotations[conditions.AnnotationPreflightNode]; node != s.report.Node {
		return s, fmt.Errorf("node_name %s, but annotation %s says %q", s.report.Node, conditions.AnnotationPreflightNode, node)
	}
	return s, nil
}

// boundTo checks a report against the pod it names.
func (s filing) boundTo(pod *corev1.Pod) error {
	controller := metav1.GetControllerOf(pod)
	switch {
	case pod.UID != s.podUID:
		return fmt.Errorf("pod %s is another one, with UID %s instead of %s", s.pod, pod.UID, s.podUID)
	case pod.Spec.NodeName != s.report.Node:
		return fmt.Errorf("node_name %s, but pod %s is on node %q", s.report.Node, s.pod, pod.Spec.NodeName)
	case controller == nil || controller.UID != s.owner.UID:
		return fmt.Errorf("it is not owned by the controller of pod %s", s.pod)
	case s.created.Before(pod.CreationTimestamp.Time):
		return fmt.Errorf("it is older than pod %s", s.pod)
	}
	return nil
}

// run is one attempt of one job's preflight.
type run struct {
	id   string
	root types.UID
	// size is how many ranks it has.
	size    int
	filings []filing
	// first is when the first report came, deadline when the others had to be there.
	first, deadline time.Time
}

// refusal is a report that does not count, and why.
type refusal struct {
	filing filing
	why    string
}

// assemble sorts the bound reports of one run id into runs. It looks at nothing but the reports, so that a restart of
// the remediator, or a new leader, comes to the same runs. One bad report is refused and leaves the others as they are.
func assemble(filings []filing, timeout time.Duration) ([]run, []refusal) {
	filings = slices.Clone(filings)
	// The UID decides between reports of the same second: all that matters is that it always decides the same.
	slices.SortFunc(filings, func(a, b filing) int {
		return cmp.Or(cmp.Compare(a.root, b.root), a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	var runs []run
	var refused []refusal
	for len(filings) > 0 {
		n := slices.IndexFunc(filings, func(s filing) bool { return s.root != filings[0].root })
		if n < 0 {
			n = len(filings)
		}
		r, not := assembleOne(filings[:n], timeout)
		runs, refused, filings = append(runs, r), append(refused, not...), filings[n:]
	}
	return runs, refused
}

func assembleOne(filings []filing, timeout time.Duration) (run, []refusal) {
	r := run{id: filings[0].run, root: filings[0].root, size: agreedSize(filings)}
	var refused []refusal
	ranks, pods := map[int]string{}, map[types.UID]bool{}
	for _, s := range filings {
		why := ""
		switch before, taken := ranks[s.report.Rank]; {
		case s.report.Size != r.size:
			why = fmt.Sprintf("workload_size %d, but the run has %d", s.report.Size, r.size)
		case pods[s.podUID]:
			why = fmt.Sprintf("pod %s has already reported", s.pod)
		case taken:
			why = fmt.Sprintf("rank %d has already reported, in %s", s.report.Rank, before)
		case !r.first.IsZero() && s.created.After(r.deadline):
			why = fmt.Sprintf("it is late: the run was over at %s", r.deadline.UTC().Format(time.RFC3339))
		}
		if why != "" {
			refused = append(refused, refusal{s, why})
			continue
		}
		if r.first.IsZero() {
			r.first, r.deadline = s.created, s.created.Add(timeout)
		}
		ranks[s.report.Rank], pods[s.podUID] = s.name, true
		r.filings = append(r.filings, s)
	}
	return r, refused
}

// agreedSize is what most reports say, so that one wrong size cannot wipe the run; of two the one reported first.
func agreedSize(filings []filing) int {
	votes := map[int]int{}
	for _, s := range filings {
		votes[s.report.Size]++
	}
	size := filings[0].report.Size
	for _, s := range filings {
		if votes[s.report.Size] > votes[size] {
			size = s.report.Size
		}
	}
	return size
}

func (r run) complete() bool { return len(r.filings) >= r.size }

// due tells whether the run can be judged.
func (r run) due(now time.Time) bool { return r.complete() || !now.Before(r.deadline) }

// decided is the time of the verdict. It follows from the reports, so that a verdict that is reached again is known.
func (r run) decided() time.Time {
	if !r.complete() {
		return r.deadline
	}
	return r.filings[len(r.filings)-1].created
}

func (r run) reports() []report.Report {
	var reports []report.Report
	for _, s := range r.filings {
		reports = append(reports, s.report)
	}
	return reports
}

// nodes of the run that have reported.
func (r run) nodes() map[string]bool {
	nodes := map[string]bool{}
	for _, s := range r.filings {
		nodes[s.report.Node] = true
	}
	return nodes
}

// owners are the jobs that own the reports, each once.
func (r run) owners() []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, s := range r.filings {
		if !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == s.owner.UID }) {
			owners = append(owners, s.owner)
		}
	}
	return owners
}

// failedChecks names the local checks that failed on a node.
func (r run) failedChecks(node string) string {
	var checks []string
	for _, s := range r.filings {
		for name, c := range map[string]report.Check{"gpu": s.report.GPU, "storage": s.report.Storage} {
			if s.report.Node == node && c == report.Failed {
				checks = append(checks, name)
			}
		}
	}
	slices.Sort(checks)
	return strings.Join(slices.Compact(checks), " and ")
}
