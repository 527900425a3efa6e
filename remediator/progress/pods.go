package progress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// defaultContainer is the annotation of a pod that names the container whose log kubectl shows, too.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// bindError is how much earlier than its binding a pod may have begun by the clock of its node, before that clock counts as wrong.
const bindError = 30 * time.Second

// podsOf are the pods in the order of their ranks. wrong names a pod whose annotation names a container that it does not have.
func podsOf(found []corev1.Pod) (pods []stall.Pod, wrong string) {
	slices.SortFunc(found, func(a, b corev1.Pod) int { return compareNatural(a.Name, b.Name) })
	for i := range found {
		p := &found[i]
		pod := stall.Pod{Name: p.Name, Node: p.Spec.NodeName, UID: p.UID, Container: p.Spec.Containers[0].Name, ClockTrusted: clockTrusted(p)}
		if name, named := p.Annotations[defaultContainer]; named {
			if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == name }) {
				wrong = fmt.Sprintf("the log of pod %s cannot be followed: its annotation %s names the container %.63q, which it does not have",
					p.Name, defaultContainer, name)
				pods = append(pods, pod)
				continue
			}
			pod.Container = name
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == pod.Container && s.State.Running != nil {
				pod.Running = p.DeletionTimestamp == nil
				pod.Restarts, pod.StartedAt = s.RestartCount, s.State.Running.StartedAt.Time
			}
		}
		pods = append(pods, pod)
	}
	return pods, wrong
}

// clockTrusted compares two times of a pod: of its binding, by the control plane, and of its start, by its node.
func clockTrusted(p *corev1.Pod) bool {
	if p.Status.StartTime == nil {
		return false
	}
	bound := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(bound) {
			bound = c.LastTransitionTime.Time
		}
	}
	return p.Status.StartTime.After(bound.Add(-bindError))
}

// compareNatural orders names by their text, and the numbers in them by their values: operators number ranks in the names of pods.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := leadingDigits(a), leadingDigits(b)
		if digitsA > 0 && digitsB > 0 {
			x, y := strings.TrimLeft(a[:digitsA], "0"), strings.TrimLeft(b[:digitsB], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[digitsA:], b[digitsB:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
