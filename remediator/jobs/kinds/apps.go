package kinds

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// The kinds of apps that keep single pods alive rather than a gang: only the pods on the node are evicted, as a drain
// would, and PodDisruptionBudgets are respected.
var (
	statefulSet = evicted("StatefulSet", "statefulsets")
	deployment  = evicted("Deployment", "deployments", rule("apps", "replicasets", "list"))
	replicaSet  = evicted("ReplicaSet", "replicasets")
)

func evicted(name, resource string, extra ...rbacv1.PolicyRule) Kind {
	gvk := appsv1.SchemeGroupVersion.WithKind(name)
	return Kind{GVK: gvk, Resource: resource, IsService: true, ExtraRules: append(extra, rule("", "pods/eviction", "create")), replace: evict, read: func(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
		return readEvicted(ctx, reader, gvk, key)
	}}
}

func readEvicted(ctx context.Context, reader client.Reader, gvk schema.GroupVersionKind, key client.ObjectKey) (restart.Job, error) {
	object, app, err := fetch[struct {
		Spec struct {
			Replicas *int32                 `json:"replicas"`
			Selector *metav1.LabelSelector  `json:"selector"`
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}](ctx, reader, gvk, key)
	if err != nil {
		return restart.Job{}, err
	}
	pods, err := metav1.LabelSelectorAsSelector(app.Spec.Selector)
	if err != nil {
		return restart.Job{}, fmt.Errorf("read the selector of %s %s: %w", gvk.Kind, key, err)
	}
	controllers := controlledBy(object, pods)
	if gvk.Kind == "Deployment" {
		if controllers, err = replicaSetsOf(ctx, reader, object, pods); err != nil {
			return restart.Job{}, err
		}
	}
	ranks := int(ptr.Deref(app.Spec.Replicas, 1))
	return restart.Job{
		Object:      object,
		Pods:        pods,
		Controllers: controllers,
		Gang:        func(pod metav1.Object) string { return string(pod.GetUID()) },
		Ranks:       ranks,
		Templates:   []restart.Template{{Of: gvk.Kind + " " + key.Name, Ranks: ranks, Spec: app.Spec.Template.Spec}},
	}, nil
}

// replicaSetsOf are the ReplicaSets of a Deployment, which control its pods.
func replicaSetsOf(ctx context.Context, reader client.Reader, deployment metav1.Object, pods labels.Selector) (map[types.UID]labels.Selector, error) {
	list := Kind{GVK: appsv1.SchemeGroupVersion.WithKind("ReplicaSet")}.List()
	if err := reader.List(ctx, list, client.InNamespace(deployment.GetNamespace()), client.MatchingLabelsSelector{Selector: pods}); err != nil {
		return nil, fmt.Errorf("list the ReplicaSets of Deployment %s/%s: %w", deployment.GetNamespace(), deployment.GetName(), err)
	}
	controllers := map[types.UID]labels.Selector{}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], deployment) {
			controllers[list.Items[i].UID] = pods
		}
	}
	return controllers, nil
}

// evict asks for the eviction of the recorded pods until they are gone. A refusal is only reported.
func evict(ctx context.Context, c client.Client, _ restart.Job, _ *restart.Restart, remaining []metav1.PartialObjectMetadata) (refused string, err error) {
	for _, pod := range remaining {
		if pod.DeletionTimestamp != nil {
			continue
		}
		uid := pod.UID
		err := c.SubResource("eviction").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, &policyv1.Eviction{
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
		})
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		case apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err): // a budget, or two of them for one pod
			refused = fmt.Sprintf("the eviction of pod %s is refused: %v", pod.Name, err)
		default:
			return refused, fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return refused, nil
}
