// Package operator pauses the pods by which NVIDIA's GPU operator keeps the GPUs of a node open, by the operator's own switch: labels of
// the node that its DaemonSets select (NVIDIA/k8s-driver-manager v0.12.0, cmd/driver-manager/main.go, maybeSetPaused and maybeSetTrue).
// The operator leaves a label with another value as it is (NVIDIA/gpu-operator, controllers/state_manager.go, addGPUStateLabels).
//
// The labels are their own record: what is paused carries [Paused], and is given back from there, whoever crashed in between.
package operator

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

const (
	// Paused takes the place of the value true, and is appended to another one with an underscore.
	Paused = "paused-for-pitcrew-repair"
	// pause is how the values begin that the operator's parts set: paused-for-driver-upgrade, paused-for-mig-change.
	pause  = "paused-for-"
	prefix = "nvidia.com/gpu.deploy."
)

// clients are the operands that open GPUs. The driver, the container toolkit and the validator stay.
var clients = []string{
	"client", "dcgm", "dcgm-dra", "dcgm-exporter", "dcgm-exporter-dra", "device-plugin", "dra-driver", "gpu-feature-discovery", "nvsm",
}

// Pause returns the labels of a node with these operands paused. A label that is not there, is false, or is paused by others stays.
func Pause(nodeLabels map[string]string) map[string]string {
	after := maps.Clone(nodeLabels)
	for _, name := range clients {
		value := nodeLabels[prefix+name]
		paused := value + "_" + Paused
		switch {
		case value == "" || value == "false" || strings.Contains(value, pause):
		case value == "true":
			after[prefix+name] = Paused
		case len(paused) <= validation.LabelValueMaxLength:
			after[prefix+name] = paused
		}
	}
	return after
}

// Resume returns the labels of a node with the operands given back. A driver upgrade that has paused one meanwhile keeps its own mark.
func Resume(nodeLabels map[string]string) map[string]string {
	if !IsPaused(nodeLabels) {
		return nodeLabels
	}
	after := maps.Clone(nodeLabels)
	for key, value := range nodeLabels {
		if !isOurs(key, value) {
			continue
		}
		parts := slices.DeleteFunc(strings.Split(value, "_"), func(part string) bool { return part == Paused || part == "" })
		if after[key] = strings.Join(parts, "_"); len(parts) == 0 {
			after[key] = "true"
		}
	}
	return after
}

// IsPaused reports whether an operand is paused for a repair.
func IsPaused(nodeLabels map[string]string) bool {
	for key, value := range nodeLabels {
		if isOurs(key, value) {
			return true
		}
	}
	return false
}

func isOurs(key, value string) bool {
	return strings.HasPrefix(key, prefix) && slices.Contains(strings.Split(value, "_"), Paused)
}

// PausedByOthers returns a label by which another one has paused an operand, as a driver upgrade does; empty: there is none.
func PausedByOthers(nodeLabels map[string]string) string {
	var found []string
	for key, value := range nodeLabels {
		if strings.HasPrefix(key, prefix) && strings.Contains(strings.ReplaceAll(value, Paused, ""), pause) {
			found = append(found, key+"="+value)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// Leaving returns the pods that have not ended and select a label of an operand that the node does not have any more; none if nothing
// is paused.
func Leaving(pauses bool, n *corev1.Node, pods []corev1.Pod) (leaving []corev1.Pod) {
	if !pauses {
		return nil
	}
	for _, pod := range pods {
		operand := map[string]string{}
		for key, value := range pod.Spec.NodeSelector {
			if strings.HasPrefix(key, prefix) {
				operand[key] = value
			}
		}
		if !node.PodFinished(&pod) && !labels.SelectorFromSet(operand).Matches(labels.Set(n.Labels)) {
			leaving = append(leaving, pod)
		}
	}
	return leaving
}
