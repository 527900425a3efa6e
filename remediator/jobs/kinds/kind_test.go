package kinds

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestJobRanks(t *testing.T) {
	tests := map[string]struct {
		spec   batchv1.JobSpec
		status batchv1.JobStatus
		want   int
	}{
		"neither is set":            {want: 1},
		"all at once":               {batchv1.JobSpec{Parallelism: ptr.To[int32](4), Completions: ptr.To[int32](4)}, batchv1.JobStatus{}, 4},
		"in waves":                  {batchv1.JobSpec{Parallelism: ptr.To[int32](4), Completions: ptr.To[int32](16)}, batchv1.JobStatus{Succeeded: 8}, 4},
		"the last wave":             {batchv1.JobSpec{Parallelism: ptr.To[int32](4), Completions: ptr.To[int32](16)}, batchv1.JobStatus{Succeeded: 13}, 3},
		"indexes that failed":       {batchv1.JobSpec{Parallelism: ptr.To[int32](8), Completions: ptr.To[int32](8)}, batchv1.JobStatus{Succeeded: 1, FailedIndexes: ptr.To("0,3-5")}, 3},
		"all indexes are over":      {batchv1.JobSpec{Parallelism: ptr.To[int32](8), Completions: ptr.To[int32](2)}, batchv1.JobStatus{Succeeded: 1, FailedIndexes: ptr.To("0")}, 0},
		"a work queue":              {batchv1.JobSpec{Parallelism: ptr.To[int32](4)}, batchv1.JobStatus{}, 4},
		"an index list is no list":  {batchv1.JobSpec{Completions: ptr.To[int32](1)}, batchv1.JobStatus{FailedIndexes: ptr.To("x-y,z")}, 1},
		"parallelism is set to nil": {batchv1.JobSpec{Completions: ptr.To[int32](3)}, batchv1.JobStatus{}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := jobRanks(&test.spec, &test.status); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestJobSetRanks(t *testing.T) {
	two := batchv1.JobSpec{Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](2)}
	replicated := func(name string, replicas int32, dependsOn ...string) replicatedJob {
		rj := replicatedJob{Name: name, Replicas: replicas, Template: batchv1.JobTemplateSpec{Spec: two}}
		for i := 0; i+1 < len(dependsOn); i += 2 {
			rj.DependsOn = append(rj.DependsOn, struct {
				Name   string `json:"name"`
				Status string `json:"status"`
			}{dependsOn[i], dependsOn[i+1]})
		}
		return rj
	}
	child := func(of string, conditions ...batchv1.JobConditionType) batchv1.Job {
		job := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{replicatedJobNameLabel: of}}, Spec: two}
		for _, c := range conditions {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return job
	}
	oneSucceeded := child("w")
	oneSucceeded.Status.Succeeded = 1
	tests := map[string]struct {
		replicated []replicatedJob
		children   []batchv1.Job
		want       int
	}{
		"all children exist":              {[]replicatedJob{replicated("w", 2)}, []batchv1.Job{child("w"), child("w")}, 4},
		"one child is yet to be created":  {[]replicatedJob{replicated("w", 2)}, []batchv1.Job{child("w")}, 4},
		"one child has completed":         {[]replicatedJob{replicated("w", 2)}, []batchv1.Job{child("w"), child("w", batchv1.JobComplete)}, 2},
		"one rank of a child has ended":   {[]replicatedJob{replicated("w", 2)}, []batchv1.Job{child("w"), oneSucceeded}, 3},
		"leader and workers":              {[]replicatedJob{replicated("l", 1), replicated("w", 3)}, nil, 8},
		"workers start when leader ready": {[]replicatedJob{replicated("l", 1), replicated("w", 3, "l", "Ready")}, []batchv1.Job{child("l")}, 8},
		"workers start when data is prepared": {
			[]replicatedJob{replicated("data", 1), replicated("w", 3, "data", "Complete")}, []batchv1.Job{child("data")}, 2,
		},
		"the data is prepared": {
			[]replicatedJob{replicated("data", 1), replicated("w", 3, "data", "Complete")}, []batchv1.Job{child("data", batchv1.JobComplete), child("w")}, 6,
		},
		"what depends on those that wait waits too": {
			[]replicatedJob{replicated("data", 1), replicated("l", 1, "data", "Complete"), replicated("w", 3, "l", "Ready")}, nil, 2,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := jobSetRanks(test.replicated, test.children); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestSuspendObserved(t *testing.T) {
	job := func(suspend bool, conditions ...batchv1.JobConditionType) batchv1.Job {
		job := batchv1.Job{Spec: batchv1.JobSpec{Suspend: &suspend}}
		for _, c := range conditions {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return job
	}
	stopped, deleted := job(true, batchv1.JobSuspended), job(false)
	deleted.DeletionTimestamp = &metav1.Time{Time: noon}
	resumed := job(true)
	resumed.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}}
	tests := map[string]struct {
		setSays  bool
		children []batchv1.Job
		want     bool
	}{
		"every child says so":                      {true, []batchv1.Job{stopped, stopped}, true},
		"one child is not suspended yet":           {true, []batchv1.Job{stopped, job(false)}, false},
		"one child has not said so":                {true, []batchv1.Job{stopped, job(true)}, false},
		"one child says that it is resumed":        {true, []batchv1.Job{resumed}, false},
		"one child says so from an earlier stop":   {true, []batchv1.Job{job(false, batchv1.JobSuspended)}, false},
		"one child has failed":                     {true, []batchv1.Job{stopped, job(false, batchv1.JobFailed)}, true},
		"one child is being deleted":               {true, []batchv1.Job{stopped, deleted}, true},
		"the JobSet itself has not said so":        {false, []batchv1.Job{stopped}, false},
		"the JobSet has no children at the moment": {true, nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var set jobSetFields
			if test.setSays {
				set.Status.Conditions = []metav1.Condition{{Type: "Suspended", Status: metav1.ConditionTrue}}
			}
			if got := set.job(test.children).SuspendObserved; got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
