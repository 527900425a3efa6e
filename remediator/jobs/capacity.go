package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// retryCapacity is how often room is looked for again.
	retryCapacity = 10 * time.Second
	// maxLooked bounds the nodes whose pods are read in one look for room; the next look goes on behind them.
	maxLooked = 200
)

var onePod = *quantity.NewQuantity(1, quantity.DecimalSI)

// The look for room asks: could each rank that cannot stay be scheduled elsewhere now, while the others keep their places?
// It knows resource requests, priorities, taints, node selectors, required node affinity, cordons and Ready. It does not
// know quotas, volumes, claims of dynamic resource allocation, pod affinity, spread, host ports, an autoscaler that would
// add nodes, nor pods that wait for the same room; of those it counts the ranks of other restarts that have to move.

// roomFor looks for room for the ranks of a job that have to move, claimed being those of other jobs. An empty reason
// means that there is enough. moving is how many ranks of this job have to move.
func (r *Restarter) roomFor(ctx context.Context, q Quarantine, ranks []corev1.Pod, claimed int, now time.Time) (moving int, d delay, err error) {
	var list corev1.NodeList
	// The cache is shared and large; nothing here changes a node.
	if err := r.writer.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, delay{}, fmt.Errorf("list nodes: %w", err)
	}
	nodes := list.Items
	if q.ofNode() { // the cache may not show it yet
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return n.Name == q.Node })
	}
	homeless := homeless(ranks, nodes)
	moving = len(homeless)
	if moving == 0 {
		return 0, delay{}, nil
	}
	// What the ranks of other jobs need is not known; they count like the first of this one.
	wanted, others := homeless, claimed
	looked := 0
	first := int(now.Unix()/int64(retryCapacity/time.Second)) * maxLooked
	for i := range nodes {
		node := &nodes[(first+i)%len(nodes)]
		if !slices.ContainsFunc(wanted, func(p corev1.Pod) bool { return suits(node, &p) }) && (others == 0 || !suits(node, &homeless[0])) {
			continue
		}
		if looked == maxLooked+moving {
			break
		}
		looked++
		var there corev1.PodList
		if err := r.reader.List(ctx, &there, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
			return 0, delay{}, fmt.Errorf("list the pods on node %s: %w", node.Name, err)
		}
		if wanted, others = place(wanted, &homeless[0], others, node, there.Items); len(wanted) == 0 && others == 0 {
			return moving, delay{}, nil
		}
	}
	text := fmt.Sprintf("%d of its ranks have to move, and room for %d was found on the %d nodes that suit them", moving, moving-len(wanted), looked)
	if claimed > 0 {
		text += fmt.Sprintf(", where the restarts of other jobs need room for %d and found it for %d", claimed, claimed-others)
	}
	return moving, delay{blocked{"Capacity", text}, retryCapacity}, nil
}

// homeless returns the pods that could not start again where they are, because the node is gone or no longer suits them.
func homeless(pods []corev1.Pod, nodes []corev1.Node) []corev1.Pod {
	at := map[string]*corev1.Node{}
	for i := range nodes {
		at[nodes[i].Name] = &nodes[i]
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		node := at[p.Spec.NodeName]
		return node != nil && suits(node, &p)
	})
}

// suits tells whether the scheduler would let the pod onto the node, were there room.
func suits(node *corev1.Node, pod *corev1.Pod) bool {
	if node.Spec.Unschedulable || node.DeletionTimestamp != nil || !ready(node) {
		return false
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !match {
		return false
	}
	_, refused := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	return !refused
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// place takes those of the wanted pods away for which a node, with the pods that are there, has room, and then so many
// more pods like one of them.
func place(wanted []corev1.Pod, like *corev1.Pod, more int, node *corev1.Node, there []corev1.Pod) (left []corev1.Pod, moreLeft int) {
	free := node.Status.Allocatable.DeepCopy()
	for i := range there {
		if p := &there[i]; !ended(p) && !preempts(like, p) {
			take(free, needs(p))
		}
	}
	placed := func(p corev1.Pod) bool {
		need := needs(&p)
		if !suits(node, &p) || !fits(need, free) {
			return false
		}
		take(free, need)
		return true
	}
	left = slices.DeleteFunc(slices.Clone(wanted), placed)
	for more > 0 && placed(*like) {
		more--
	}
	return left, more
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// preempts tells whether the scheduler would make room for a pod at the cost of another one.
func preempts(pod, other *corev1.Pod) bool {
	return scheduling.PodPriority(other) < scheduling.PodPriority(pod) &&
		ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) != corev1.PreemptNever
}

// needs is what a pod takes of a node, itself included.
func needs(p *corev1.Pod) corev1.ResourceList {
	need := resource.PodRequests(p, resource.PodResourcesOptions{})
	need[corev1.ResourcePods] = onePod
	return need
}

func fits(need, free corev1.ResourceList) bool {
	for name, amount := range need {
		if left := free[name]; left.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}

func take(free, need corev1.ResourceList) {
	for name, amount := range need {
		left := free[name]
		left.Sub(amount)
		free[name] = left
	}
}
