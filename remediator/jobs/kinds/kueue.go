package kinds

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Kueue undoes a suspend of ours within milliseconds, and the pods restart piecemeal. Its own suspend field is
// spec.active of the job's Workload: without it the job is evicted, and suspended by Kueue; with it the job is queued again, and may lose
// its place. That the Workload is evicted does not mean that the pods are gone (all measured on v0.12.3, v0.18.4 and v0.19.2).
const workloadGroup = "kueue.x-k8s.io"

// workloadVersions are the versions of a Workload, the stored one of today's Kueue first; v0.12.3 serves only v1beta1. In v1beta1
// the API server adds spec.priorityClassSource to an object that is stored as v1beta2, whatever is patched, and the admission
// policy about the remediator refuses that (both measured on v0.18.4).
var workloadVersions = []string{"v1beta2", "v1beta1"}

const (
	// kueueQueueLabel is on what a person submits to Kueue.
	kueueQueueLabel = "kueue.x-k8s.io/queue-name"
	// kueueWorkloadLabel names the Workload of a job, if a person made it.
	kueueWorkloadLabel = "kueue.x-k8s.io/prebuilt-workload-name"
	// kueueJobLabel is on the Workload that Kueue made: the UID of its job.
	kueueJobLabel = "kueue.x-k8s.io/job-uid"
)

// useKueue makes the Workload of a job have its suspend field if Kueue manages the job. Jobs without a queue can be managed, too.
func useKueue(ctx context.Context, reader client.Reader, j *restart.Job) error {
	var workload *unstructured.Unstructured
	var gvk schema.GroupVersionKind
	for _, version := range workloadVersions {
		gvk = schema.GroupVersionKind{Group: workloadGroup, Version: version, Kind: "Workload"}
		found, err := workloadOf(ctx, reader, gvk, j.Object)
		if err != nil && !Gone(err) {
			return err
		}
		if workload = found; !meta.IsNoMatchError(err) {
			break
		}
	}
	queue, queued := j.Object.GetLabels()[kueueQueueLabel]
	switch {
	case workload == nil && !queued:
	case !j.SuspendField.Exists():
		j.Unsupported = restart.Blocked{Reason: "Kueue", Text: "it is managed by Kueue, which can only stop and start jobs of other kinds"}
	case workload == nil:
		j.Unsupported = restart.Blocked{Reason: "Kueue", Text: fmt.Sprintf("it is queued by Kueue in %s, but it has no Workload", queue)}
		// A restart under way waits for the Workload; the job's own suspend field is Kueue's all the same.
		workload = &unstructured.Unstructured{}
		workload.SetGroupVersionKind(gvk)
		workload.SetNamespace(j.Object.GetNamespace())
		workload.SetName(j.Object.GetName())
		j.SuspendField, j.Suspended = restart.SuspendField{Path: "spec.active", Elsewhere: workload}, false
	default:
		j.SuspendField = restart.SuspendField{Path: "spec.active", Elsewhere: workload}
		j.Suspended = j.SuspendField.Stops(workload)
	}
	if workload != nil {
		j.PlacedBy = topologyOf(workload)
	}
	return nil
}

// handleOf is as much of a Workload as its suspend field is set with.
func handleOf(workload *unstructured.Unstructured) *unstructured.Unstructured {
	handle := &unstructured.Unstructured{}
	handle.SetGroupVersionKind(workload.GroupVersionKind())
	handle.SetNamespace(workload.GetNamespace())
	handle.SetName(workload.GetName())
	handle.SetResourceVersion(workload.GetResourceVersion())
	if step, there := workload.GetAnnotations()[conditions.AnnotationRestartStep]; there {
		handle.SetAnnotations(map[string]string{conditions.AnnotationRestartStep: step})
	}
	return handle
}

// topologyOf are the labels by which Kueue has chosen the nodes of the admitted job, if it did: its topology aware scheduling
// writes them into the node selectors of the pods (v0.19.2, pkg/controller/tas/topology_ungater.go).
func topologyOf(workload *unstructured.Unstructured) []string {
	var levels []string
	assignments, _, _ := unstructured.NestedSlice(workload.Object, "status", "admission", "podSetAssignments")
	for _, assignment := range assignments {
		if fields, ok := assignment.(map[string]any); ok {
			of, _, _ := unstructured.NestedStringSlice(fields, "topologyAssignment", "levels")
			levels = append(levels, of...)
		}
	}
	return levels
}

// workloadOf finds the Workload that the job owns; nil if it has none. Labels alone could lead to another job's.
func workloadOf(ctx context.Context, reader client.Reader, gvk schema.GroupVersionKind, job metav1.Object) (*unstructured.Unstructured, error) {
	var found []unstructured.Unstructured
	if name, byHand := job.GetLabels()[kueueWorkloadLabel]; byHand {
		workload, _, err := fetch[struct{}](ctx, reader, gvk, client.ObjectKey{Namespace: job.GetNamespace(), Name: name})
		if err != nil {
			return nil, err
		}
		found = append(found, *workload)
	} else {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind("WorkloadList"))
		if err := reader.List(ctx, &list, client.InNamespace(job.GetNamespace()), client.MatchingLabels{kueueJobLabel: string(job.GetUID())}); err != nil {
			return nil, fmt.Errorf("list the Workloads of %s: %w", job.GetNamespace()+"/"+job.GetName(), err)
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
