package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// whole are the annotations that are read, however long they are.
var whole = []string{conditions.AnnotationQuarantine, conditions.AnnotationGPUs, awsResults}

// long stands for a value of others that is longer than any that we set, and so is not ours, whatever it says.
var long = strings.Repeat("x", policy.MaxAnnotation+1)

// Slim is the cache's transform for Nodes: a fresh object with what the remediator reads; images and managed fields are
// most of a node. Such an object must never be the body of an Update. Patches made from it touch nothing that was left
// out, because they hold only differences.
func Slim(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil // a tombstone
	}
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              n.Name,
			UID:               n.UID,
			ResourceVersion:   n.ResourceVersion,
			DeletionTimestamp: n.DeletionTimestamp,
			Labels:            n.Labels,
		},
		Spec: corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable},
		Status: corev1.NodeStatus{
			Conditions:  n.Status.Conditions,
			Allocatable: n.Status.Allocatable, // read by the jobs half, which looks for room
			NodeInfo:    corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID},
		},
	}
	for key, value := range n.Annotations {
		if len(value) > policy.MaxAnnotation && !slices.Contains(whole, key) {
			value = long
		}
		slim.Annotations = set(slim.Annotations, key, value)
	}
	return slim, nil
}

// changed passes updates that can change a decision. A heartbeat alone cannot: thousands of nodes send one every few
// minutes. That a heartbeat stops, or goes on after it had stopped, is found by looking again in time, see [Decide].
var changed = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return a.UID != b.UID ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		a.Annotations[conditions.AnnotationQuarantine] != b.Annotations[conditions.AnnotationQuarantine] ||
		!maps.Equal(a.Labels, b.Labels) ||
		!slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, sameTaint) ||
		a.Status.NodeInfo.BootID != b.Status.NodeInfo.BootID ||
		!slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition)
}}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// RecordOf reads the node's record; nil when there is none.
func RecordOf(n *corev1.Node) (*Record, error) {
	text, ok := n.Annotations[conditions.AnnotationQuarantine]
	if !ok {
		return nil, nil
	}
	return ParseRecord(text)
}

// indexQuarantined finds quarantined nodes by the rule that decided, and all of them by [anyRule].
const (
	indexQuarantined = "pitcrew.quarantined"
	anyRule          = ""
)

func indexNode(object client.Object) []string {
	record, err := RecordOf(object.(*corev1.Node))
	if err != nil {
		return []string{anyRule} // it may well be quarantined, so it counts
	}
	return quarantinedBy(record)
}

func quarantinedBy(r *Record) []string {
	if r == nil || r.Phase != Quarantined {
		return nil
	}
	return []string{anyRule, r.Taint.Rule}
}

// observe gathers all that [Decide] needs.
func (c *Controller) observe(ctx context.Context, p *policy.Policy, n *corev1.Node) (Observation, error) {
	o := Observation{Node: n}
	o.Record, o.RecordErr = RecordOf(n)
	o.Told = c.webhooks.Over(n.Name)
	var err error
	if o.Breaker, err = c.breaker.state(ctx, p); err != nil {
		return o, err
	}
	// The peers matter to nobody else, and most nodes are fine.
	if o.Record != nil || o.Breaker != nil || len(peerOf(p, n).Turned) > 0 {
		if o.Peers, err = c.peers(ctx, p, n.Name); err != nil {
			return o, err
		}
	}
	o.Paused, err = pause.Reason(ctx, c.client, c.namespace)
	return o, err
}

// peers sums up all nodes but one, from the cache and from what this process has written and the cache does not show yet.
// A node that has not changed is summed up once.
func (c *Controller) peers(ctx context.Context, p *policy.Policy, but string) ([]Peer, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	writes := c.memory.all()
	peers := make([]Peer, 0, len(nodes.Items))
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Name == but || handsOff(n) {
			continue
		}
		of := summed{p, n.UID, n.ResourceVersion, writes[n.Name].record}
		known, ok := c.summaries[n.Name]
		if !ok || known.of != of {
			if of.written != nil {
				n = n.DeepCopy()
				c.memory.recall(n)
			}
			known = summary{of, peerOf(p, n)}
			c.summaries[n.Name] = known
		}
		peers = append(peers, known.peer)
	}
	return peers, nil
}

// summary is a peer and what it was made from.
type summary struct {
	of   summed
	peer Peer
}

type summed struct {
	policy  *policy.Policy
	uid     types.UID
	version string
	written *Record
}

// quarantined names the nodes that a rule has quarantined, from the cache and from what this process has written and the
// cache does not show yet.
func (c *Controller) quarantined(ctx context.Context, rule string) (map[string]bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.MatchingFields{indexQuarantined: rule}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list quarantined nodes: %w", err)
	}
	names := map[string]bool{}
	for i := range nodes.Items {
		names[nodes.Items[i].Name] = true
	}
	for name, written := range c.memory.all() {
		delete(names, name)
		if slices.Contains(quarantinedBy(written.record), rule) {
			names[name] = true
		}
	}
	return names, nil
}
