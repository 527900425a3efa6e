package slim

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leanMeta is what is decoded of metadata that cost too much.
type leanMeta struct {
	Namespace                  string                  `json:"namespace"`
	Name                       string                  `json:"name"`
	UID                        types.UID               `json:"uid"`
	ResourceVersion            string                  `json:"resourceVersion"`
	CreationTimestamp          metav1.Time             `json:"creationTimestamp"`
	DeletionTimestamp          *metav1.Time            `json:"deletionTimestamp"`
	DeletionGracePeriodSeconds *int64                  `json:"deletionGracePeriodSeconds"`
	OwnerReferences            []metav1.OwnerReference `json:"ownerReferences"`
}

// whole is the metadata without what was not decoded.
func (m leanMeta) whole() metav1.ObjectMeta {
	whole := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds, OwnerReferences: m.OwnerReferences,
	}
	owner := metav1.GetControllerOf(&whole)
	if whole.OwnerReferences = nil; owner != nil && HeapOf(owner) <= maxAnnotation {
		whole.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return whole
}

// leanPod is what is decoded of a pod that costs too much: what [cutPod] leaves of one.
type leanPod struct {
	Metadata leanMeta `json:"metadata"`
	Spec     struct {
		NodeName                      string                       `json:"nodeName"`
		Priority                      *int32                       `json:"priority"`
		PreemptionPolicy              *corev1.PreemptionPolicy     `json:"preemptionPolicy"`
		RestartPolicy                 corev1.RestartPolicy         `json:"restartPolicy"`
		TerminationGracePeriodSeconds *int64                       `json:"terminationGracePeriodSeconds"`
		ResourceClaims                []corev1.PodResourceClaim    `json:"resourceClaims"`
		InitContainers                []leanContainer              `json:"initContainers"`
		Containers                    []leanContainer              `json:"containers"`
		Overhead                      corev1.ResourceList          `json:"overhead"`
		Resources                     *corev1.ResourceRequirements `json:"resources"`
	} `json:"spec"`
	Status struct {
		Phase                       corev1.PodPhase                        `json:"phase"`
		ResourceClaimStatuses       []corev1.PodResourceClaimStatus        `json:"resourceClaimStatuses"`
		ExtendedResourceClaimStatus *corev1.PodExtendedResourceClaimStatus `json:"extendedResourceClaimStatus"`
	} `json:"status"`
}

// leanContainer is what a container takes.
type leanContainer struct {
	Resources     corev1.ResourceRequirements    `json:"resources"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
}

// cut is the pod as [cutPod] leaves it.
func (p *leanPod) cut() corev1.Pod {
	containers := func(lean []leanContainer) (all []corev1.Container) {
		for _, c := range lean {
			all = append(all, corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
		}
		return all
	}
	s := &p.Spec
	pod := corev1.Pod{
		ObjectMeta: p.Metadata.whole(),
		Spec: corev1.PodSpec{
			NodeName: s.NodeName, Priority: s.Priority, PreemptionPolicy: s.PreemptionPolicy, RestartPolicy: s.RestartPolicy,
			TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds, ResourceClaims: s.ResourceClaims,
			InitContainers: containers(s.InitContainers), Containers: containers(s.Containers), Overhead: s.Overhead, Resources: s.Resources,
		},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, ResourceClaimStatuses: p.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus,
		},
	}
	cutPod(&pod)
	return pod
}

// decodePod decodes a pod as far as it may cost.
func decodePod(text []byte, p *corev1.Pod) error {
	if costOf(text) <= maxPodCost {
		return json.Unmarshal(text, p) //nolint:wrapcheck // read and Get name the object
	}
	var lean leanPod
	if err := json.Unmarshal(text, &lean); err != nil {
		return err //nolint:wrapcheck // read and Get name the object
	}
	*p = lean.cut()
	return nil
}

// decodeMeta decodes the metadata of an object as far as they may cost. Without their labels they are those of no pod of a job.
func decodeMeta(text []byte, m *metav1.PartialObjectMetadata) error {
	if costOf(text) <= maxPodCost {
		return json.Unmarshal(text, m) //nolint:wrapcheck // read and Get name the object
	}
	var lean struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        leanMeta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &lean); err != nil {
		return err //nolint:wrapcheck // read and Get name the object
	}
	*m = metav1.PartialObjectMetadata{TypeMeta: lean.TypeMeta, ObjectMeta: lean.Metadata.whole()}
	return nil
}
