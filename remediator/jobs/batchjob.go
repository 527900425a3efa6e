package jobs

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// batchJob is batch/v1 Job, plain and indexed. Suspending deletes its active pods without counting failures; resuming
// keeps the completed indexes (kubernetes pkg/controller/job, manageJob).
var batchJob = kind{gvk: batchv1.SchemeGroupVersion.WithKind("Job"), read: readJob}

func readJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
	var job batchv1.Job
	if err := reader.Get(ctx, key, &job); err != nil {
		return view{}, fmt.Errorf("get Job %s: %w", key, err)
	}
	pods, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return view{}, fmt.Errorf("read the selector of Job %s: %w", key, err)
	}
	return view{
		object:    &job,
		toggle:    suspend,
		suspended: ptr.Deref(job.Spec.Suspend, false),
		stopSeen:  jobStopSeen(&job),
		ended:     jobEnded(&job),
		managedBy: foreignController(job.Spec.ManagedBy, batchv1.JobControllerName),
		pods:      pods,
		ranks:     jobRanks(&job.Spec, &job.Status),
		templates: []template{jobTemplate(&job)},
		jobs:      []batchv1.Job{job},
	}, nil
}

// suspend is the toggle of most kinds.
var suspend = toggle{path: "spec.suspend", stops: true}

func jobTemplate(job *batchv1.Job) template {
	return template{of: "Job " + job.Name, ranks: jobRanks(&job.Spec, &job.Status), spec: job.Spec.Template.Spec}
}

func jobCondition(job *batchv1.Job, t batchv1.JobConditionType) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// jobStopSeen tells whether the Job controller has deleted the active pods because of spec.suspend. A Job that is
// being deleted creates no pods and never says so.
func jobStopSeen(job *batchv1.Job) bool {
	return job.DeletionTimestamp != nil || ptr.Deref(job.Spec.Suspend, false) && jobCondition(job, batchv1.JobSuspended)
}

// jobEnded names the condition that ended the Job. The two interim conditions are as final as the terminal ones:
// the controller only waits for the pods before it turns them into Failed or Complete.
func jobEnded(job *batchv1.Job) string {
	switch {
	case jobCondition(job, batchv1.JobFailed), jobCondition(job, batchv1.JobFailureTarget):
		return string(batchv1.JobFailed)
	case jobCondition(job, batchv1.JobComplete), jobCondition(job, batchv1.JobSuccessCriteriaMet):
		return string(batchv1.JobComplete)
	}
	return ""
}

// jobRanks is how many pods the Job controller keeps active (kubernetes pkg/controller/job, manageJob).
func jobRanks(spec *batchv1.JobSpec, status *batchv1.JobStatus) int {
	parallelism := int(ptr.Deref(spec.Parallelism, 1))
	if spec.Completions == nil {
		return parallelism
	}
	failed := countIndexes(ptr.Deref(status.FailedIndexes, ""))
	return max(0, min(parallelism, int(*spec.Completions)-int(status.Succeeded)-failed))
}

// countIndexes counts the indexes of an interval list such as "1,3-5,7" (JobStatus.FailedIndexes). What is no number
// counts as nothing.
func countIndexes(list string) int {
	n := 0
	for interval := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(interval, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		if to, err := strconv.Atoi(last); err == nil {
			n += to - from + 1
		}
	}
	return n
}

func foreignController(managedBy *string, own string) string {
	if name := ptr.Deref(managedBy, own); name != own {
		return name
	}
	return ""
}
