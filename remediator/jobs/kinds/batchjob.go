package kinds

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// batchJob is batch/v1 Job, plain and indexed. Suspending deletes its active pods without counting failures; resuming
// keeps the completed indexes (kubernetes pkg/controller/job, manageJob).
var batchJob = Kind{
	GVK: batchv1.SchemeGroupVersion.WithKind("Job"), Resource: "jobs", ExtraRules: []rbacv1.PolicyRule{kueueRule},
	ReplacesFailedRank: true, read: readJob,
}

func readJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	var job batchv1.Job
	if err := reader.Get(ctx, key, &job); err != nil {
		return restart.Job{}, fmt.Errorf("get Job %s: %w", key, err)
	}
	pods, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return restart.Job{}, fmt.Errorf("read the selector of Job %s: %w", key, err)
	}
	return restart.Job{
		Object:          &job,
		SuspendField:    suspend,
		Suspended:       ptr.Deref(job.Spec.Suspend, false),
		SuspendObserved: jobSuspendObserved(&job),
		FinishedReason:  jobFinishedReason(&job),
		ManagedBy:       otherManager(job.Spec.ManagedBy, batchv1.JobControllerName),
		Pods:            pods,
		Controllers:     controlledBy(&job, pods),
		Ranks:           jobRanks(&job.Spec, &job.Status),
		Templates:       []restart.Template{jobTemplate(&job)},
		Jobs:            []batchv1.Job{job},
	}, nil
}

// suspend is the suspend field of most kinds.
var suspend = restart.SuspendField{Path: "spec.suspend", StopValue: true}

func jobTemplate(job *batchv1.Job) restart.Template {
	return restart.Template{Of: "Job " + job.Name, Ranks: jobRanks(&job.Spec, &job.Status), Spec: job.Spec.Template.Spec}
}

func jobCondition(job *batchv1.Job, t batchv1.JobConditionType) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// jobSuspendObserved reports whether the Job controller has deleted the active pods because of spec.suspend. A Job that is
// being deleted creates no pods and never reports it.
func jobSuspendObserved(job *batchv1.Job) bool {
	return job.DeletionTimestamp != nil || ptr.Deref(job.Spec.Suspend, false) && jobCondition(job, batchv1.JobSuspended)
}

// jobFinishedReason names the condition that ended the Job. The two interim conditions are as final as the terminal ones:
// the controller only waits for the pods before it turns them into Failed or Complete.
func jobFinishedReason(job *batchv1.Job) string {
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

// otherManager is the controller in charge of a job if it is not its operator's own one.
func otherManager(managedBy *string, own string) string {
	if name := ptr.Deref(managedBy, own); name != own {
		return name
	}
	return ""
}
