// Package reportconfigmap puts a preflight report into the ConfigMap in which the remediator reads it. It is not part of
// package report, so that a program that only reads or judges reports does not link the Kubernetes API types.
package reportconfigmap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// Key is the only key of a report ConfigMap.
const Key = "report.json"

// RefusedPrefix begins the annotation [conditions.AnnotationPreflightVerdict] of a report that does not count. The reason
// follows.
const RefusedPrefix = "refused: "

// New returns the ConfigMap with a pod's report. Its name follows from the run and the pod, so that the API server answers
// a second attempt to create it with AlreadyExists. The pod's controller owns it, so it is deleted together with the job.
// It is an error if the pod has no controller or the report is larger than [report.MaxBytes].
func New(pod *corev1.Pod, r report.Report) (*corev1.ConfigMap, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil, fmt.Errorf("pod %s/%s has no controller that could own its report", pod.Namespace, pod.Name)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	if len(data) > report.MaxBytes {
		return nil, fmt.Errorf("the report has %d bytes, at most %d", len(data), report.MaxBytes)
	}
	sum := sha256.Sum256([]byte(r.RunID + "/" + string(pod.UID)))
	immutable := true
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace,
			Name:      "preflight-" + hex.EncodeToString(sum[:10]),
			Labels:    map[string]string{conditions.LabelPreflight: "report", conditions.LabelPreflightRun: r.RunID},
			Annotations: map[string]string{
				conditions.AnnotationPreflightNode:   r.Node,
				conditions.AnnotationPreflightPod:    pod.Name,
				conditions.AnnotationPreflightPodUID: string(pod.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}},
		},
		Immutable: &immutable,
		Data:      map[string]string{Key: string(data)},
	}, nil
}
