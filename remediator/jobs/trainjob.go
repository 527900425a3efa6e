package jobs

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// trainJob is trainer.kubeflow.org TrainJob. Its controller makes a JobSet of its name and copies spec.suspend into it;
// whoever suspends the JobSet itself is undone (github.com/kubeflow/trainer v2.0.0 pkg/runtime/framework/plugins/jobset).
var (
	trainJob    = kind{gvk: trainJobGVK, read: readTrainJob}
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

func readTrainJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
	object, job, err := fetch[trainJobFields](ctx, reader, trainJobGVK, key)
	if err != nil {
		return view{}, err
	}
	v, err := readJobSet(ctx, reader, key)
	switch {
	case gone(err), err == nil && !metav1.IsControlledBy(v.object, object):
		v = view{pods: labels.SelectorFromSet(labels.Set{jobSetNameLabel: key.Name}), stopSeen: true}
	case err != nil:
		return view{}, err
	}
	v.object, v.toggle = object, suspend
	v.suspended = ptr.Deref(job.Spec.Suspend, false)
	v.stopSeen = v.stopSeen && meta.IsStatusConditionTrue(job.Status.Conditions, "Suspended")
	v.managedBy = foreignController(job.Spec.ManagedBy, "trainer.kubeflow.org/trainjob-controller")
	for _, ended := range []string{failedCondition, "Complete"} {
		if meta.IsStatusConditionTrue(job.Status.Conditions, ended) {
			v.ended = ended
		}
	}
	return v, nil
}
