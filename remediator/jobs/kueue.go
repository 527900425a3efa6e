package jobs

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kueue undoes a suspend of ours within milliseconds, and the pods restart piecemeal. Its own toggle is spec.active of
// the job's Workload: without it the job is evicted, and suspended by Kueue; with it the job is queued again, and may lose
// its place. That the Workload is evicted does not say that the pods are gone (all measured on v0.12.3).
var workloadGVK = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta1", Kind: "Workload"}

const (
	// kueueQueueLabel is on what a person submits to Kueue.
	kueueQueueLabel = "kueue.x-k8s.io/queue-name"
	// kueueWorkloadLabel names the Workload of a job, if a person made it.
	kueueWorkloadLabel = "kueue.x-k8s.io/prebuilt-workload-name"
	// kueueJobLabel is on the Workload that Kueue made: the UID of its job.
	kueueJobLabel = "kueue.x-k8s.io/job-uid"
)

// kueue makes the job's Workload its toggle if Kueue manages the job. Jobs without a queue can be managed, too.
func (v *view) kueue(ctx context.Context, reader client.Reader) error {
	workload, err := workloadOf(ctx, reader, v.object)
	if err != nil && !gone(err) {
		return err
	}
	queue, queued := v.object.GetLabels()[kueueQueueLabel]
	switch {
	case workload == nil && !queued:
	case !v.toggle.exists():
		v.shut = blocked{"Kueue", "it is managed by Kueue, which can only stop and start jobs of other kinds"}
	case workload == nil:
		v.shut = blocked{"Kueue", fmt.Sprintf("it is queued by Kueue in %s, but no Workload of it is found", queue)}
		// A restart under way waits for the Workload; the job's own toggle is Kueue's all the same.
		workload = &unstructured.Unstructured{}
		workload.SetGroupVersionKind(workloadGVK)
		workload.SetNamespace(v.object.GetNamespace())
		workload.SetName(v.object.GetName())
		v.toggle, v.suspended = toggle{path: "spec.active", on: workload}, false
	default:
		v.toggle = toggle{path: "spec.active", on: workload}
		v.suspended = v.toggle.stopped(workload)
	}
	return nil
}

// workloadOf finds the Workload that the job owns; nil if it has none. Labels alone could lead to another job's.
func workloadOf(ctx context.Context, reader client.Reader, job client.Object) (*unstructured.Unstructured, error) {
	var found []unstructured.Unstructured
	if name, byHand := job.GetLabels()[kueueWorkloadLabel]; byHand {
		workload, _, err := fetch[struct{}](ctx, reader, workloadGVK, client.ObjectKey{Namespace: job.GetNamespace(), Name: name})
		if err != nil {
			return nil, err
		}
		found = append(found, *workload)
	} else {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(workloadGVK.GroupVersion().WithKind("WorkloadList"))
		if err := reader.List(ctx, &list, client.InNamespace(job.GetNamespace()), client.MatchingLabels{kueueJobLabel: string(job.GetUID())}); err != nil {
			return nil, fmt.Errorf("list the Workloads of %s: %w", client.ObjectKeyFromObject(job), err)
		}
		found = list.Items
	}
	for i := range found {
		if metav1.IsControlledBy(&found[i], job) {
			return &found[i], nil
		}
	}
	return nil, nil
}
