// Package pods finds the pods on a node that are in the way of a repair or a check.
package pods

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
)

// InTheWay returns the pods that must end before an action: for a reboot all but those of DaemonSets and static ones, else those with an
// accelerator. A pod of an earlier visit, in the namespace of the Jobs, is always in the way: what it does has not provably ended.
func InTheWay(all []corev1.Pod, jobs string, reboots bool) (pods []corev1.Pod) {
	for _, pod := range all {
		switch {
		case node.PodFinished(&pod):
		case pod.Namespace == jobs && jobs != "", reboots && !sweep.StaysOnNode(&pod), sweep.HoldsAccelerator(&pod):
			pods = append(pods, pod)
		}
	}
	return pods
}

// Evictable returns the pods that may be evicted. A pod without a controller would not come back, and one of a DaemonSet would at once.
func Evictable(pods []corev1.Pod, jobs string) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return metav1.GetControllerOf(&pod) == nil || sweep.StaysOnNode(&pod) || pod.Namespace == jobs
	})
}

// OfJobs returns the pods of Jobs that have not ended.
func OfJobs(pods []corev1.Pod, jobs string) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool { return pod.Namespace != jobs || node.PodFinished(&pod) })
}

// Grace returns the longest time that one of the pods may take to end after it was deleted.
func Grace(pods []corev1.Pod) (longest time.Duration) {
	for _, pod := range pods {
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds) // the default of the API
		if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
			grace = *seconds
		}
		longest = max(longest, time.Duration(grace)*time.Second)
	}
	return longest
}

// Names names pods in a sentence.
func Names(pods []corev1.Pod, one, many string) string {
	const most = 3
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(names)
	if len(names) == 1 {
		return "pod " + names[0] + " " + one
	}
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("pods %s and %d more %s", strings.Join(names[:most], ", "), more, many)
	}
	return fmt.Sprintf("pods %s %s", strings.Join(names, ", "), many)
}
