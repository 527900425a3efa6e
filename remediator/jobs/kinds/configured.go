package kinds

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// configured adapts a kind that the policy names. What its status means is not known, so that the pods alone prove the
// stop, and as many as were active before make it whole again. The common names of final conditions are understood.
func configured(named jobkind.Kind) Kind {
	gvk := named.GVK()
	path, stopValue := named.SuspendField()
	return Kind{GVK: gvk, read: func(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
		object, job, err := fetch[struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}](ctx, reader, gvk, key)
		if err != nil {
			return restart.Job{}, err
		}
		j := restart.Job{
			Object:               object,
			SuspendField:         restart.SuspendField{Path: path, StopValue: stopValue},
			SuspendObserved:      true,
			FailsIfOldPodsRemain: true,
			Pods:                 labels.SelectorFromSet(labels.Set{named.PodLabel: key.Name}),
		}
		// Its controller may make Jobs, or others, that make the pods.
		j.Controllers, j.OtherControllers = controlledBy(object, j.Pods), true
		j.Suspended = j.SuspendField.Stops(object)
		for _, ended := range []string{restart.ConditionFailed, "Succeeded", "Complete", "Completed"} {
			if meta.IsStatusConditionTrue(job.Status.Conditions, ended) {
				j.FinishedReason = ended
			}
		}
		return j, nil
	}}
}
