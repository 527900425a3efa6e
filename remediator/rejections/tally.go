// Package rejections finds nodes whose kubelet rejects the GPU pods that the scheduler sends there. Such a node looks empty, so that it
// gets each pod that its rejection has made necessary: one had 554 pods in 106 minutes. The node gets the NodeCondition
// [conditions.GPUPodsRejected], and the policy decides what follows. docs/adr/0063-rejected-pods-are-watched.md has the reasons.
package rejections

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// reason is that of a pod for which a plugin of the kubelet had no device (Kubernetes pkg/kubelet/lifecycle/predicate.go).
const reason = "UnexpectedAdmissionError"

// mostNamespaces bounds what is remembered of a node.
const mostNamespaces = 16

// rejection is a pod that a kubelet has rejected.
type rejection struct{ node, namespace string }

// of returns the rejection of a pod, if it is one that tells of its node: the pod asks for an accelerator, and the scheduler has chosen the
// node. Who writes spec.nodeName into a pod sends it to a full node at will. Its managed fields show that: a binding by the scheduler is in
// none. A pod whose managed fields were removed shows nothing.
func of(p *corev1.Pod) (rejection, bool) {
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != reason || p.Spec.NodeName == "" || len(p.ManagedFields) == 0 {
		return rejection{}, false
	}
	for _, m := range p.ManagedFields {
		if m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:nodeName"`) {
			return rejection{}, false
		}
	}
	asks := len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil ||
		len(node.Accelerators(resource.PodRequests(p, resource.PodResourcesOptions{}))) > 0
	return rejection{p.Spec.NodeName, p.Namespace}, asks
}

// tally counts rejections by node and namespace, within a window. It keeps at most limit-1 of a namespace: those of one alone never reach
// the limit, however many there are.
type tally struct {
	limit  int
	window time.Duration
	nodes  map[string]map[string][]time.Time
}

func newTally(limit int, window time.Duration) *tally {
	return &tally{limit: limit, window: window, nodes: map[string]map[string][]time.Time{}}
}

func (t *tally) add(r rejection, now time.Time) {
	spaces := t.nodes[r.node]
	if spaces == nil {
		spaces = map[string][]time.Time{}
		t.nodes[r.node] = spaces
	}
	if _, known := spaces[r.namespace]; !known && len(spaces) >= mostNamespaces {
		delete(spaces, longestAgo(spaces))
	}
	spaces[r.namespace] = append(spaces[r.namespace], now)
	if extra := len(spaces[r.namespace]) - (t.limit - 1); extra > 0 {
		spaces[r.namespace] = slices.Delete(spaces[r.namespace], 0, extra)
	}
}

func longestAgo(spaces map[string][]time.Time) string {
	return slices.MinFunc(slices.Sorted(maps.Keys(spaces)), func(a, b string) int {
		return spaces[a][len(spaces[a])-1].Compare(spaces[b][len(spaces[b])-1])
	})
}

// forget drops what is older than the window, and the nodes of which nothing is left.
func (t *tally) forget(now time.Time) {
	for name, spaces := range t.nodes {
		for namespace, times := range spaces {
			times = slices.DeleteFunc(times, func(at time.Time) bool { return now.Sub(at) >= t.window })
			spaces[namespace] = times
			if len(times) == 0 {
				delete(spaces, namespace)
			}
		}
		if len(spaces) == 0 {
			delete(t.nodes, name)
		}
	}
}

// rejects reports whether a node rejects as many pods as the limit, which are those of two namespaces or more.
func (t *tally) rejects(name string) bool {
	count := 0
	for _, times := range t.nodes[name] {
		count += len(times)
	}
	return count >= t.limit
}

// isQuiet reports whether a node has rejected no pod within the window.
func (t *tally) isQuiet(name string) bool { return len(t.nodes[name]) == 0 }
