package kinds

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// jobSet is jobset.x-k8s.io JobSet. Suspending suspends its child Jobs; resuming keeps them, and no restart is counted
// (sigs.k8s.io/jobset pkg/controllers, suspendJobs and resumeJobsIfNecessary).
var (
	jobSet = Kind{
		GVK: jobSetGVK, Resource: "jobsets", ExtraRules: []rbacv1.PolicyRule{rule("batch", "jobs", "list"), kueueRule}, read: readJobSet,
	}
	jobSetGVK = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
)

// Labels that the JobSet controller puts on child Jobs and pods. The name is older than the UID label.
const (
	jobSetNameLabel        = "jobset.sigs.k8s.io/jobset-name"
	replicatedJobNameLabel = "jobset.sigs.k8s.io/replicatedjob-name"
	restartAttemptLabel    = "jobset.sigs.k8s.io/restart-attempt" // the JobSet's status.restarts when the Job was created
	jobSetController       = "jobset.sigs.k8s.io/jobset-controller"
)

// jobSetFields are the fields used here of sigs.k8s.io/jobset api/jobset/v1alpha2.
type jobSetFields struct {
	Spec struct {
		Suspend        *bool           `json:"suspend"`
		ManagedBy      *string         `json:"managedBy"`
		ReplicatedJobs []replicatedJob `json:"replicatedJobs"`
	} `json:"spec"`
	Status struct {
		Restarts   int                `json:"restarts"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type replicatedJob struct {
	Name      string                  `json:"name"`
	Replicas  int32                   `json:"replicas"`
	Template  batchv1.JobTemplateSpec `json:"template"`
	DependsOn []struct {
		Name   string `json:"name"`
		Status string `json:"status"` // Ready or Complete
	} `json:"dependsOn"`
}

func readJobSet(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	object, set, err := fetch[jobSetFields](ctx, reader, jobSetGVK, key)
	if err != nil {
		return restart.Job{}, err
	}
	named := labels.SelectorFromSet(labels.Set{jobSetNameLabel: key.Name})
	var list batchv1.JobList
	if err := reader.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingLabelsSelector{Selector: named}); err != nil {
		return restart.Job{}, fmt.Errorf("list the Jobs of JobSet %s: %w", key, err)
	}
	children := slices.DeleteFunc(list.Items, func(job batchv1.Job) bool { return !set.isChild(object, &job) })
	j := set.job(children)
	j.Object, j.Pods, j.Controllers = object, named, map[types.UID]labels.Selector{}
	for _, job := range children {
		pods, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
		if err != nil {
			return restart.Job{}, fmt.Errorf("read the selector of Job %s/%s: %w", job.Namespace, job.Name, err)
		}
		j.Controllers[job.UID] = pods
	}
	return j, nil
}

// isChild reports whether the JobSet controller has made the Job: it belongs to the JobSet and has the name of one of its replicas
// (sigs.k8s.io/jobset pkg/util/placement, GenJobName). Whoever may create Jobs can name any owner.
func (set jobSetFields) isChild(object metav1.Object, job *batchv1.Job) bool {
	return metav1.IsControlledBy(job, object) && slices.ContainsFunc(set.Spec.ReplicatedJobs, func(rj replicatedJob) bool {
		index, named := strings.CutPrefix(job.Name, object.GetName()+"-"+rj.Name+"-")
		n, err := strconv.Atoi(index)
		return named && err == nil && index == strconv.Itoa(n) && 0 <= n && n < int(rj.Replicas) && job.Labels[replicatedJobNameLabel] == rj.Name
	})
}

// job is what the status of the JobSet and of its child Jobs amounts to.
func (set jobSetFields) job(children []batchv1.Job) restart.Job {
	j := restart.Job{
		SuspendField:    suspend,
		Suspended:       ptr.Deref(set.Spec.Suspend, false),
		SuspendObserved: meta.IsStatusConditionTrue(set.Status.Conditions, "Suspended"),
		ReplacingPods:   set.replaces(children),
		ManagedBy:       otherManager(set.Spec.ManagedBy, jobSetController),
		Ranks:           jobSetRanks(set.Spec.ReplicatedJobs, children),
	}
	for _, ended := range []string{"Failed", "Completed"} {
		if meta.IsStatusConditionTrue(set.Status.Conditions, ended) {
			j.FinishedReason = ended
		}
	}
	for _, job := range children {
		if jobFinishedReason(&job) == "" {
			j.Jobs = append(j.Jobs, job)
			j.Templates = append(j.Templates, jobTemplate(&job))
			j.SuspendObserved = j.SuspendObserved && jobSuspendObserved(&job)
		}
	}
	return j
}

// replaces reports whether the JobSet controller is restarting the JobSet and has yet to remove a Job of an earlier
// attempt. Its condition (since v0.12.0) stays True until every new pod is ready, which it may never be on a bad node: a
// JobSet that only waits for that can be restarted.
func (set jobSetFields) replaces(children []batchv1.Job) bool {
	return meta.IsStatusConditionTrue(set.Status.Conditions, "RestartingJobSet") && slices.ContainsFunc(children, func(job batchv1.Job) bool {
		attempt, err := strconv.Atoi(job.Labels[restartAttemptLabel])
		return job.DeletionTimestamp != nil || err != nil || attempt < set.Status.Restarts
	})
}

// jobSetRanks adds up the ranks of the child Jobs, of those too that the JobSet controller has yet to create. A
// replicated job that waits for another one to complete does not run beside it.
func jobSetRanks(replicated []replicatedJob, children []batchv1.Job) int {
	total := 0
	waits := map[string]bool{}
	completed := map[string]int32{}
	for _, job := range children {
		if jobFinishedReason(&job) == string(batchv1.JobComplete) {
			completed[job.Labels[replicatedJobNameLabel]]++
		}
	}
	replicas := map[string]int32{}
	for _, rj := range replicated {
		replicas[rj.Name] = rj.Replicas
		for _, d := range rj.DependsOn {
			if waits[d.Name] || d.Status == "Complete" && completed[d.Name] < replicas[d.Name] {
				waits[rj.Name] = true
			}
		}
		if waits[rj.Name] {
			continue
		}
		missing := int(rj.Replicas)
		for _, job := range children {
			if job.Labels[replicatedJobNameLabel] != rj.Name {
				continue
			}
			missing--
			if jobFinishedReason(&job) == "" {
				total += jobRanks(&job.Spec, &job.Status)
			}
		}
		total += missing * jobRanks(&rj.Template.Spec, &batchv1.JobStatus{})
	}
	return total
}
