// Package carrier puts a preflight report into the ConfigMap that carries it to the remediator.
package carrier

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// Key is the only key of a report ConfigMap.
const Key = "report.json"

// Refused begins the annotation of a report that does not count; why follows.
const Refused = "refused: "

// ConfigMap carries a pod's report. Its name follows from run and pod, so that a second attempt to create it is
// AlreadyExists. It belongs to the pod's controller and is deleted with it.
func ConfigMap(pod *corev1.Pod, r verdict.Report) (*corev1.ConfigMap, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil, fmt.Errorf("pod %s/%s has no controller, so its report would belong to nobody", pod.Namespace, pod.Name)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	if len(data) > verdict.MaxReport {
		return nil, fmt.Errorf("the report has %d bytes, at most %d", len(data), verdict.MaxReport)
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
