package slim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxPod is the most that is kept of a pod in a list, in bytes, unless it names more resources than that. The 250 pods that a node may
	// have, as a rule, are less than half of maxKept.
	maxPod = 64 << 10
	// maxLeftOut is how many namespaces [ListPods] leaves out. Each costs one more read.
	maxLeftOut = 4
)

// tooLarge is the error of a list of pods that is [ErrTooLarge]; it names the namespace that most of it is of.
type tooLarge struct{ namespace string }

func (e tooLarge) Error() string { return "most is of namespace " + e.namespace }

// ListPods lists the pods of all namespaces with some fields. Whoever may create pods can send any number of them to any node, also to one
// that does not answer: the pods of a namespace that make the list too large are left out, so that they do not hide those of others.
// leftOut names these namespaces. The error is that of [Reader.List].
func ListPods(
	ctx context.Context, reader client.Reader, list *corev1.PodList, with fields.Selector, opts ...client.ListOption,
) (leftOut []string, err error) {
	for {
		err = reader.List(ctx, list, append(slices.Clip(opts), client.MatchingFieldsSelector{Selector: with})...)
		var large tooLarge
		if !errors.As(err, &large) || len(leftOut) == maxLeftOut {
			return leftOut, err //nolint:wrapcheck // it names the list
		}
		leftOut = append(leftOut, large.namespace)
		with = fields.AndSelectors(with, fields.OneTermNotEqualSelector("metadata.namespace", large.namespace))
	}
}

// readPods reads a list of pods.
func readPods(ctx context.Context, r *Reader, ask request, l *corev1.PodList) error {
	sizes := map[string]int{}
	err := read(ctx, r, ask, &l.ListMeta, &l.Items, func(text []byte) (p corev1.Pod, size int, err error) {
		err = decodePod(text, &p)
		sizes[p.Namespace] += len(text) // what was read, of which least may be kept
		slimMeta(&p.ObjectMeta)
		Spec(&p.Spec)
		slimStatuses(p.Status.InitContainerStatuses)
		slimStatuses(p.Status.ContainerStatuses)
		if size = HeapOf(&p); size > maxPod {
			cutPod(&p)
			size = HeapOf(&p)
		}
		return p, size, err
	})
	if errors.Is(err, ErrTooLarge) && len(sizes) > 0 {
		most := slices.MaxFunc(slices.Sorted(maps.Keys(sizes)), func(a, b string) int { return cmp.Compare(sizes[a], sizes[b]) })
		return fmt.Errorf("%w: %w", err, tooLarge{most})
	}
	return err
}

// slimStatuses drops which image a container has.
func slimStatuses(all []corev1.ContainerStatus) {
	for i, c := range all {
		all[i] = corev1.ContainerStatus{
			Name: c.Name, State: c.State, LastTerminationState: c.LastTerminationState,
			Ready: c.Ready, RestartCount: c.RestartCount, Started: c.Started,
		}
	}
}

// cutPod leaves of a pod that is too large who it is, where it is and what it takes there, which counts for others. What it says about
// itself, its labels and tolerations among it, decides only about its own job. That job is not restarted for it: it is not known to be its
// pod.
func cutPod(p *corev1.Pod) {
	cut := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, CreationTimestamp: p.CreationTimestamp,
			DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, Priority: p.Spec.Priority, PreemptionPolicy: p.Spec.PreemptionPolicy, RestartPolicy: p.Spec.RestartPolicy,
			TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, ResourceClaims: p.Spec.ResourceClaims,
			Containers: []corev1.Container{{
				Name:      "all", // of them
				Resources: corev1.ResourceRequirements{Requests: resource.PodRequests(p, resource.PodResourcesOptions{})},
			}},
		},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, ResourceClaimStatuses: p.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus,
		},
	}
	if owner := metav1.GetControllerOf(p); owner != nil && HeapOf(owner) <= maxAnnotation {
		cut.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	*p = cut
}
