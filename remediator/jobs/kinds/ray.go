package kinds

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// The kinds of github.com/ray-project/kuberay, group ray.io. Suspending a RayCluster deletes its pods, head and workers.
// Suspending a RayJob deletes its RayCluster and its submitter; resuming makes new ones of other names, without counting
// a failure. Its status Suspended comes before any pod is gone, and then forgets the name of the cluster, so that only the
// recorded UIDs prove the stop (measured on v1.4.2 and v1.6.0).
var (
	rayCluster = Kind{
		GVK: rayClusterGVK, Resource: "rayclusters", ExtraRules: []rbacv1.PolicyRule{rule(podGroupGVK.Group, "podgroups", "get"), kueueRule}, read: readRayCluster,
	}
	rayClusterGVK = schema.GroupVersionKind{Group: "ray.io", Version: "v1", Kind: "RayCluster"}
	rayJob        = Kind{
		GVK: rayJobGVK, Resource: "rayjobs", ExtraRules: []rbacv1.PolicyRule{rule(rayClusterGVK.Group, "rayclusters", "list"), rule("batch", "jobs", "get"), kueueRule}, read: readRayJob,
	}
	rayJobGVK = schema.GroupVersionKind{Group: "ray.io", Version: "v1", Kind: "RayJob"}
	// podGroupGVK is that of github.com/kubernetes-sigs/scheduler-plugins.
	podGroupGVK = schema.GroupVersionKind{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"}
)

const (
	rayManager      = "ray.io/kuberay-operator"
	rayClusterLabel = "ray.io/cluster"                 // on pods
	rayOwnerLabel   = "ray.io/originated-from-cr-name" // on the RayClusters of a RayJob or RayService
	rayOwnerKind    = "ray.io/originated-from-crd"
	rayGangLabel    = "ray.io/gang-scheduling-enabled" // on a RayCluster: its value does not matter
)

type rayClusterSpec struct {
	Suspend       *bool   `json:"suspend"`
	ManagedBy     *string `json:"managedBy"`
	HeadGroupSpec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"headGroupSpec"`
	WorkerGroupSpecs []struct {
		GroupName  string                 `json:"groupName"`
		Suspend    *bool                  `json:"suspend"`
		Replicas   *int32                 `json:"replicas"`
		NumOfHosts *int32                 `json:"numOfHosts"` // pods of one replica
		Template   corev1.PodTemplateSpec `json:"template"`
	} `json:"workerGroupSpecs"`
}

// describe fills in what the cluster is made of. What an autoscaler makes of it later is not foreseen.
func (s rayClusterSpec) describe(j *restart.Job) {
	j.Templates = []restart.Template{{Of: "the head", Ranks: 1, Spec: s.HeadGroupSpec.Template.Spec}}
	for _, group := range s.WorkerGroupSpecs {
		if ptr.Deref(group.Suspend, false) {
			continue
		}
		n := int(ptr.Deref(group.Replicas, 0) * ptr.Deref(group.NumOfHosts, 1))
		j.Templates = append(j.Templates, restart.Template{Of: "worker group " + group.GroupName, Ranks: n, Spec: group.Template.Spec})
	}
	for _, t := range j.Templates {
		j.Ranks += t.Ranks
	}
}

func readRayCluster(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	object, cluster, err := fetch[struct {
		Spec   rayClusterSpec `json:"spec"`
		Status struct {
			State      string             `json:"state"`
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}](ctx, reader, rayClusterGVK, key)
	if err != nil {
		return restart.Job{}, err
	}
	j := restart.Job{
		Object:       object,
		SuspendField: suspend,
		Suspended:    ptr.Deref(cluster.Spec.Suspend, false),
		// The condition is behind a feature gate, the state is older and not.
		SuspendObserved: meta.IsStatusConditionTrue(cluster.Status.Conditions, "RayClusterSuspended") || cluster.Status.State == "suspended",
		ManagedBy:       otherManager(cluster.Spec.ManagedBy, rayManager),
		Pods:            labels.SelectorFromSet(labels.Set{rayClusterLabel: key.Name}),
	}
	j.Controllers = controlledBy(object, j.Pods)
	cluster.Spec.describe(&j)
	if _, gang := object.GetLabels()[rayGangLabel]; gang {
		j.GangNeeds, err = minMember(ctx, reader, key)
	}
	return j, err
}

// minMember is how many pods the scheduler waits for by the PodGroup of a RayCluster; 0: it has none. KubeRay writes it when it makes the
// PodGroup, and never again (https://github.com/ray-project/kuberay/issues/5205; kuberay v1.6.0, scheduler_plugins.go). A RayJob has a new RayCluster, and so a
// new PodGroup, after each start.
func minMember(ctx context.Context, reader client.Reader, cluster client.ObjectKey) (int, error) {
	_, group, err := fetch[struct {
		Spec struct {
			MinMember int `json:"minMember"`
		} `json:"spec"`
	}](ctx, reader, podGroupGVK, cluster)
	if Gone(err) {
		return 0, nil
	}
	return group.Spec.MinMember, err
}

func readRayJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	object, job, err := fetch[struct {
		Spec struct {
			Suspend                  bool              `json:"suspend"`
			ManagedBy                *string           `json:"managedBy"`
			ShutdownAfterJobFinishes bool              `json:"shutdownAfterJobFinishes"`
			ClusterSelector          map[string]string `json:"clusterSelector"`
			RayClusterSpec           *rayClusterSpec   `json:"rayClusterSpec"`
		} `json:"spec"`
		Status struct {
			JobDeploymentStatus string `json:"jobDeploymentStatus"`
		} `json:"status"`
	}](ctx, reader, rayJobGVK, key)
	if err != nil {
		return restart.Job{}, err
	}
	status := job.Status.JobDeploymentStatus
	j := restart.Job{
		Object:          object,
		SuspendField:    suspend,
		Suspended:       job.Spec.Suspend,
		SuspendObserved: status == "Suspended",
		ManagedBy:       otherManager(job.Spec.ManagedBy, rayManager),
	}
	switch status {
	case "Failed", "Complete":
		j.FinishedReason = status
	case "ValidationFailed":
		// Since v1.5: the operator leaves the job alone for good, even if its spec becomes valid again.
		j.FinishedReason = restart.ConditionFailed
	case "Running", "Initializing":
	default:
		j.ReplacingPods = true // only from those two does the operator take a suspend
	}
	switch {
	case len(job.Spec.ClusterSelector) > 0:
		j.Unsupported = restart.Blocked{Reason: "RayClusterShared", Text: "it runs on a RayCluster that it did not create, which a suspend would not stop"}
	case !job.Spec.ShutdownAfterJobFinishes:
		j.Unsupported = restart.Blocked{Reason: "RayShutdown", Text: "its shutdownAfterJobFinishes is false: the operator refuses to suspend it, or fails it for good"}
	}
	if job.Spec.RayClusterSpec != nil {
		job.Spec.RayClusterSpec.describe(&j)
	}
	if err := addRayPods(ctx, reader, &j); err != nil {
		return restart.Job{}, err
	}
	return j, addChildJob(ctx, reader, &j, key.Name) // the submitter
}

// addRayPods adds the pods of the RayClusters that the job has at the moment. Those of the submitter, which only waits for the end,
// have no label to select them by; those on the node are recorded all the same.
func addRayPods(ctx context.Context, reader client.Reader, j *restart.Job) error {
	j.Controllers = map[types.UID]labels.Selector{}
	key := j.Key()
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(rayClusterGVK.GroupVersion().WithKind("RayClusterList"))
	if err := reader.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingLabels{rayOwnerLabel: key.Name, rayOwnerKind: "RayJob"}); err != nil {
		return fmt.Errorf("list the RayClusters of RayJob %s: %w", key, err)
	}
	if len(list.Items) == 0 {
		// Which no pod has. labels.Nothing() would become the selector of a list that selects everything.
		j.Pods = labels.SelectorFromSet(labels.Set{rayClusterLabel: ""})
		return nil
	}
	var names []string
	for _, cluster := range list.Items {
		names = append(names, cluster.GetName())
		if metav1.IsControlledBy(&cluster, j.Object) {
			j.Controllers[cluster.GetUID()] = labels.SelectorFromSet(labels.Set{rayClusterLabel: cluster.GetName()})
		}
	}
	in, err := labels.NewRequirement(rayClusterLabel, selection.In, names)
	if err != nil {
		return fmt.Errorf("select the pods of RayJob %s: %w", key, err)
	}
	j.Pods = labels.NewSelector().Add(*in)
	return nil
}
