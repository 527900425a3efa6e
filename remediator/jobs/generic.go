package jobs

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// configured adapts a kind that the policy names. What its status means is not known, so that the pods alone prove the
// stop, and as many as were active before make it whole again. The common names of final conditions are understood.
func configured(j policy.JobKind) kind {
	path, stops := j.SuspendField()
	return kind{gvk: j.GVK(), read: func(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
		object, job, err := fetch[struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}](ctx, reader, j.GVK(), key)
		if err != nil {
			return view{}, err
		}
		v := view{
			object:    object,
			toggle:    toggle{path: path, stops: stops},
			stopSeen:  true,
			lateStart: true,
			pods:      labels.SelectorFromSet(labels.Set{j.PodLabel: key.Name}),
		}
		v.suspended = v.toggle.stopped(object)
		for _, ended := range []string{failedCondition, "Succeeded", "Complete", "Completed"} {
			if meta.IsStatusConditionTrue(job.Status.Conditions, ended) {
				v.ended = ended
			}
		}
		return v, nil
	}}
}
