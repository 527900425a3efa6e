package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// LabelPool, on a node, is the pool given to [Cluster.AddNodes], for the node selectors of a test's pods.
	LabelPool = "e2e.pitcrew.dev/pool"

	kwokAnnotation = "kwok.x-k8s.io/node"
)

// AddNodes registers n nodes, named <pool>-0 and so on, with eight GPUs each, and waits until they are ready for pods.
// KWOK plays their kubelets: it reports them Ready, renews their leases and runs their pods. mutate, if not nil, may
// change each node before it is created.
func (c *Cluster) AddNodes(ctx context.Context, pool string, n int, mutate func(*corev1.Node)) ([]string, error) {
	var names []string
	for i := range n {
		resources := corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse("96"),
			corev1.ResourceMemory:           resource.MustParse("1Ti"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
			corev1.ResourcePods:             resource.MustParse("110"),
			"nvidia.com/gpu":                resource.MustParse("8"),
		}
		name := fmt.Sprintf("%s-%d", pool, i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Annotations: map[string]string{kwokAnnotation: "fake"},
				Labels:      map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux", LabelPool: pool},
			},
			Status: corev1.NodeStatus{
				Capacity:    resources,
				Allocatable: resources,
				NodeInfo:    corev1.NodeSystemInfo{BootID: string(uuid.NewUUID())},
			},
		}
		if mutate != nil {
			mutate(node)
		}
		if err := c.Client.Create(ctx, node); err != nil {
			return names, fmt.Errorf("register node %s: %w", node.Name, err)
		}
		names = append(names, node.Name)
	}
	for _, name := range names {
		if err := Poll(ctx, func(ctx context.Context) error { return c.nodeReady(ctx, name) }); err != nil {
			return names, fmt.Errorf("wait for node %s: %w", name, err)
		}
	}
	return names, nil
}

// Report writes a condition of a node as a detector does. at is when it has changed, and its heartbeat.
func (c *Cluster) Report(
	ctx context.Context, name string, kind corev1.NodeConditionType, status corev1.ConditionStatus, message string, at time.Time,
) error {
	when := at.UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[4]q}]}}`,
		kind, status, message, when)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Client.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return fmt.Errorf("report %s of node %s: %w", kind, name, err)
	}
	return nil
}

// AddThisMachine registers the machine this program runs on as a node called name, with its real boot id. KWOK runs
// its pods and reports it Ready; its other conditions are up to a node-problem-detector, see [Cluster.StartNPD].
func (c *Cluster) AddThisMachine(ctx context.Context, name string) error {
	bootID, err := boot.ID("/proc")
	if err != nil {
		return fmt.Errorf("read this machine's boot id: %w", err)
	}
	_, err = c.AddNodes(ctx, name, 1, func(node *corev1.Node) {
		node.Name = name
		node.Labels[corev1.LabelHostname] = name
		node.Status.NodeInfo.BootID = bootID
	})
	return err
}

// DeleteNodes deletes nodes. A node that does not exist is not an error. What a remediator remembers of their quarantines is
// deleted, too: the budgets of the next test must not count them. So delete them when no remediator runs any more.
func (c *Cluster) DeleteNodes(ctx context.Context, names ...string) error {
	var errs []error
	memory := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: remediatorNamespace, Name: conditions.BreakerConfigMap}}
	errs = append(errs, client.IgnoreNotFound(c.Client.Delete(ctx, memory)))
	for _, name := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		errs = append(errs, client.IgnoreNotFound(c.Client.Delete(ctx, node)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete nodes: %w", err)
	}
	return nil
}

// ForgetLimits deletes what remediators remember of quarantines and repairs of nodes, also of those that are gone: it would use up the limits
// of the next test. A remediator that runs goes on with what it has read.
func (c *Cluster) ForgetLimits(ctx context.Context) error {
	var errs []error
	for _, name := range []string{conditions.BreakerConfigMap, conditions.KnownConfigMap} {
		memory := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: remediatorNamespace, Name: name}}
		errs = append(errs, client.IgnoreNotFound(c.Client.Delete(ctx, memory)))
	}
	return errors.Join(errs...)
}

// AddNamespace creates a namespace and waits until pods can be created in it.
func (c *Cluster) AddNamespace(ctx context.Context, name string, labels map[string]string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if err := c.Client.Create(ctx, namespace); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return c.waitForServiceAccount(ctx, name)
}

// waitForServiceAccount waits for the account without which admission refuses pods.
func (c *Cluster) waitForServiceAccount(ctx context.Context, namespace string) error {
	key := client.ObjectKey{Namespace: namespace, Name: "default"}
	if err := Poll(ctx, func(ctx context.Context) error {
		return c.Client.Get(ctx, key, &corev1.ServiceAccount{})
	}); err != nil {
		return fmt.Errorf("wait for service account %s: %w", key, err)
	}
	return nil
}

func (c *Cluster) nodeReady(ctx context.Context, name string) error {
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady || condition.Status != corev1.ConditionTrue {
			continue
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady {
				return fmt.Errorf("taint %s is still there", taint.Key)
			}
		}
		return nil
	}
	return errors.New("it is not Ready")
}
