package preflight

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	names "k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// submission is a report together with the metadata of its ConfigMap.
type submission struct {
	uid     types.UID
	name    string
	created time.Time
	run     string
	// owner is the pod's controller, e.g. a batch Job. workload is the owner's own controller if it has one, e.g. a JobSet.
	owner    metav1.OwnerReference
	workload types.UID
	// pod is the pod that reports.
	pod    string
	podUID types.UID
	report report.Report
	// notKept: the ConfigMap is too large to be a report, see [keep].
	notKept bool
}

// readSubmission checks what can be checked without the pod. With an error the result has the metadata only.
func readSubmission(cm *corev1.ConfigMap) (submission, error) {
	s := submission{
		uid:     cm.UID,
		name:    cm.Name,
		created: cm.CreationTimestamp.Time,
		run:     cm.Labels[conditions.LabelPreflightRun],
		pod:     cm.Annotations[conditions.AnnotationPreflightPod],
		podUID:  types.UID(cm.Annotations[conditions.AnnotationPreflightPodUID]),
	}
	if reason := whyNotKept(cm); reason != "" {
		s.notKept = true
		return s, errors.New(reason)
	}
	switch {
	case s.run == "":
		return s, fmt.Errorf("no label %s", conditions.LabelPreflightRun)
	case cm.Immutable == nil || !*cm.Immutable:
		return s, errors.New("the ConfigMap is not immutable")
	case len(names.IsDNS1123Subdomain(s.pod)) > 0 || s.podUID == "":
		return s, fmt.Errorf("annotations %s and %s must name the reporting pod",
			conditions.AnnotationPreflightPod, conditions.AnnotationPreflightPodUID)
	case len(cm.OwnerReferences) != 1:
		return s, fmt.Errorf("%d owners, but the job must be the only one", len(cm.OwnerReferences))
	}
	s.owner = cm.OwnerReferences[0]
	s.workload = s.owner.UID
	var err error
	if s.report, err = report.Parse([]byte(cm.Data[reportconfigmap.Key])); err != nil {
		return s, err
	}
	if s.report.RunID != "" && s.report.RunID != s.run {
		return s, fmt.Errorf("run_id is %s, but label %s is %s", s.report.RunID, conditions.LabelPreflightRun, s.run)
	}
	if node := cm.Annotations[conditions.AnnotationPreflightNode]; node != s.report.Node {
		return s, fmt.Errorf("node_name is %s, but annotation %s is %q", s.report.Node, conditions.AnnotationPreflightNode, node)
	}
	return s, nil
}

// checkPod compares a report with the pod that it names.
func (s submission) checkPod(pod *corev1.Pod) error {
	controller := metav1.GetControllerOf(pod)
	switch {
	case pod.UID != s.podUID:
		return fmt.Errorf("pod %s was replaced: its UID is %s, not %s", s.pod, pod.UID, s.podUID)
	case pod.Spec.NodeName != s.report.Node:
		return fmt.Errorf("node_name is %s, but pod %s is on node %q", s.report.Node, s.pod, pod.Spec.NodeName)
	case controller == nil || controller.UID != s.owner.UID || controller.Name != s.owner.Name || controller.Kind != s.owner.Kind ||
		controller.APIVersion != s.owner.APIVersion:
		return fmt.Errorf("it is not owned by the controller of pod %s", s.pod)
	case s.created.Before(pod.CreationTimestamp.Time):
		return fmt.Errorf("it is older than pod %s", s.pod)
	}
	return nil
}
