package kinds

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// trainJob is trainer.kubeflow.org TrainJob. Its controller makes a JobSet of its name and copies spec.suspend into it;
// whoever suspends the JobSet itself is undone (github.com/kubeflow/trainer v2.0.0 pkg/runtime/framework/plugins/jobset).
var (
	trainJob = Kind{
		GVK: trainJobGVK, Resource: "trainjobs", read: readTrainJob,
		ExtraRules: []rbacv1.PolicyRule{rule(jobSetGVK.Group, "jobsets", "get"), rule("batch", "jobs", "list"), kueueRule},
	}
	trainJobGVK = schema.GroupVersionKind{Group: "trainer.kubeflow.org", Version: "v1alpha1", Kind: "TrainJob"}
)

type trainJobFields struct {
	Spec struct {
		Suspend   *bool   `json:"suspend"`
		ManagedBy *string `json:"managedBy"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func readTrainJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	object, job, err := fetch[trainJobFields](ctx, reader, trainJobGVK, key)
	if err != nil {
		return restart.Job{}, err
	}
	j, err := readJobSet(ctx, reader, key)
	switch {
	case Gone(err), err == nil && !metav1.IsControlledBy(j.Object, object):
		j = restart.Job{Pods: labels.SelectorFromSet(labels.Set{jobSetNameLabel: key.Name}), SuspendObserved: true} // it has no pods of its own
	case err != nil:
		return restart.Job{}, err
	}
	j.Object, j.SuspendField = object, suspend
	j.Suspended = ptr.Deref(job.Spec.Suspend, false)
	j.SuspendObserved = j.SuspendObserved && meta.IsStatusConditionTrue(job.Status.Conditions, "Suspended")
	j.ManagedBy = otherManager(job.Spec.ManagedBy, "trainer.kubeflow.org/trainjob-controller")
	for _, ended := range []string{restart.ConditionFailed, "Complete"} {
		if meta.IsStatusConditionTrue(job.Status.Conditions, ended) {
			j.FinishedReason = ended
		}
	}
	return j, nil
}
