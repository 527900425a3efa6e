package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// leaderWorkerSet is leaderworkerset.x-k8s.io LeaderWorkerSet: groups of a leader and its workers, each a gang of its
// own. It has no suspend. The deletion of a leader with propagation Foreground recreates its whole group once, after the last
// old pod is gone (measured on v0.7.0 and v0.9.0): the garbage collector deletes the StatefulSet of the workers before its pods.
// The LeaderWorkerSet does the same when it sees that a worker is being deleted (lws v0.9.0 pkg/controllers/pod_controller.go,
// handleRestartPolicy). Until then the StatefulSet replaces the worker, which runs beside the old pods, and with
// RecreateGroupAfterStart, or the annotation of the same meaning, the group stays as long as one of its pods is pending.
var (
	leaderWorkerSet = Kind{
		GVK: leaderWorkerSetGVK, Resource: "leaderworkersets", ExtraRules: []rbacv1.PolicyRule{rule("", "pods", "delete"), rule("apps", "statefulsets", "get")},
		read: readLeaderWorkerSet, replace: recreateGroups,
	}
	leaderWorkerSetGVK = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}
)

const (
	lwsNameLabel   = "leaderworkerset.sigs.k8s.io/name"
	lwsGroupLabel  = "leaderworkerset.sigs.k8s.io/group-index"
	lwsWorkerLabel = "leaderworkerset.sigs.k8s.io/worker-index" // 0 is the leader

	recreateOnPodRestart = "RecreateGroupOnPodRestart"
	recreateAfterStart   = "RecreateGroupAfterStart"
)

func readLeaderWorkerSet(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	object, set, err := fetch[struct {
		Spec struct {
			Replicas             *int32 `json:"replicas"`
			LeaderWorkerTemplate struct {
				Size           *int32                  `json:"size"`
				RestartPolicy  string                  `json:"restartPolicy"`
				LeaderTemplate *corev1.PodTemplateSpec `json:"leaderTemplate"`
				WorkerTemplate corev1.PodTemplateSpec  `json:"workerTemplate"`
			} `json:"leaderWorkerTemplate"`
		} `json:"spec"`
	}](ctx, reader, leaderWorkerSetGVK, key)
	if err != nil {
		return restart.Job{}, err
	}
	group := set.Spec.LeaderWorkerTemplate
	groups, size := int(ptr.Deref(set.Spec.Replicas, 1)), int(ptr.Deref(group.Size, 1))
	j := restart.Job{
		Object: object,
		Pods:   labels.SelectorFromSet(labels.Set{lwsNameLabel: key.Name}),
		Gang:   lwsGroup,
		Ranks:  groups * size,
		Templates: []restart.Template{
			{Of: "the leader", Ranks: groups, Spec: ptr.Deref(group.LeaderTemplate, group.WorkerTemplate).Spec},
			{Of: "the workers", Ranks: groups * (size - 1), Spec: group.WorkerTemplate.Spec},
		},
	}
	if err := addLeaders(ctx, reader, &j); err != nil {
		return restart.Job{}, err
	}
	if group.RestartPolicy != recreateOnPodRestart && group.RestartPolicy != recreateAfterStart {
		j.Unsupported = restart.Blocked{Reason: "RestartPolicy", Text: fmt.Sprintf("its restartPolicy is %s: its groups cannot be restarted as a whole", group.RestartPolicy)}
	}
	return j, nil
}

// addLeaders adds the StatefulSet of the leaders, which has the name of the LeaderWorkerSet. The workers of each group have one of
// their own, which their leader controls.
func addLeaders(ctx context.Context, reader client.Reader, j *restart.Job) error {
	j.Controllers, j.OtherControllers = map[types.UID]labels.Selector{}, true
	object, leaders, err := fetch[struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}](ctx, reader, statefulSet.GVK, j.Key())
	switch {
	case Gone(err), err == nil && !metav1.IsControlledBy(object, j.Object):
		return nil
	case err != nil:
		return err
	}
	pods, err := metav1.LabelSelectorAsSelector(leaders.Spec.Selector)
	if err != nil {
		return fmt.Errorf("read the selector of StatefulSet %s: %w", j.Key(), err)
	}
	j.Controllers[object.GetUID()] = pods
	return nil
}

func lwsGroup(pod metav1.Object) string { return pod.GetLabels()[lwsGroupLabel] }

func isLeader(pod metav1.PartialObjectMetadata) bool { return pod.Labels[lwsWorkerLabel] == "0" }

// recreateGroups deletes exactly one pod of each group in which none is being deleted yet: the leader, or a worker of a group
// without one.
func recreateGroups(ctx context.Context, c client.Client, j restart.Job, _ *restart.Restart, remaining []metav1.PartialObjectMetadata) (string, error) {
	groups := map[string][]metav1.PartialObjectMetadata{}
	for _, pod := range remaining {
		groups[lwsGroup(&pod)] = append(groups[lwsGroup(&pod)], pod)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		group := groups[name]
		if slices.ContainsFunc(group, func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil }) {
			continue
		}
		pod := &group[max(0, slices.IndexFunc(group, isLeader))]
		if err := DeletePod(ctx, c, pod, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			return "", err
		}
	}
	return "", nil
}
