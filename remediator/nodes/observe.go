package nodes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

// keptWhole are the annotations that are kept however long they are, because they are read.
var keptWhole = []string{conditions.AnnotationQuarantine, conditions.AnnotationGPUs, handoff.AWSResults, handoff.AWSQuarantineResult, conditions.AnnotationRepair}

// tooLong replaces the value of an annotation that is longer than any that the policy hands off, and so is not ours.
var tooLong = strings.Repeat("x", policy.MaxAnnotation+1)

// Slim is the cache's transform for Nodes: a fresh object with what the remediator reads; images and managed fields, of which
// few are read, are most of a node. Such an object must never be the body of an Update. Patches made from it touch nothing that was left
// out, because they hold only differences.
func Slim(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil // a tombstone
	}
	last := slimmed.get(n)
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              orLast(n.Name, last.Name),
			UID:               orLast(n.UID, last.UID),
			ResourceVersion:   n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp,
			DeletionTimestamp: n.DeletionTimestamp,
			Labels:            last.Labels,
			Annotations:       slimAnnotations(n.Annotations, last.Annotations),
			ManagedFields:     quarantine.SlimManagedFields(n),
		},
		Spec: corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable},
		Status: corev1.NodeStatus{
			Conditions:  slices.Clone(n.Status.Conditions), // without the room that decoding has left
			Allocatable: last.Status.Allocatable,           // read by the restart of jobs, to find out whether there is room
			NodeInfo:    corev1.NodeSystemInfo{BootID: orLast(n.Status.NodeInfo.BootID, last.Status.NodeInfo.BootID)},
		},
	}
	if !maps.Equal(n.Labels, last.Labels) {
		slim.Labels = internMap(n.Labels)
	}
	if !maps.EqualFunc(n.Status.Allocatable, last.Status.Allocatable, resource.Quantity.Equal) {
		slim.Status.Allocatable = internResources(n.Status.Allocatable)
	}
	for i := range slim.Status.Conditions {
		c := &slim.Status.Conditions[i]
		if i < len(last.Status.Conditions) && sameCondition(*c, last.Status.Conditions[i]) {
			was := &last.Status.Conditions[i]
			c.Type, c.Status, c.Reason, c.Message = was.Type, was.Status, was.Reason, was.Message
			continue
		}
		c.Type, c.Status, c.Reason, c.Message = intern(&interned, c.Type), intern(&interned, c.Status), intern(&interned, c.Reason), intern(&interned, c.Message)
	}
	slimmed.put(slim)
	return slim, nil
}

// slimAnnotations are annotations without the values that nobody reads; those of the last version if they are equal.
func slimAnnotations(all, last map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	slim := make(map[string]string, len(all))
	for key, value := range all {
		if len(value) > policy.MaxAnnotation && !slices.Contains(keptWhole, key) {
			value = tooLong
		}
		slim[intern(&interned, key)] = orLast(value, last[key])
	}
	if maps.Equal(slim, last) {
		return last
	}
	return slim
}

func internMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	shared := make(map[string]string, len(m))
	for key, value := range m {
		shared[intern(&interned, key)] = intern(&interned, value)
	}
	return shared
}

// changed passes updates that can change a decision. A heartbeat alone cannot: thousands of nodes send one every few
// minutes. That heartbeats stop, or continue, is noticed because [quarantine.Decide] asks to decide again in time.
var changed = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return quarantine.Differ(a, b) || !slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, sameCondition)
}}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// indexQuarantined finds quarantined nodes by the rule that decided, and all of them by [anyRule].
const (
	indexQuarantined = "pitcrew.quarantined"
	anyRule          = ""
)

func indexNode(object client.Object) []string {
	record, err := quarantine.RecordOf(object.(*corev1.Node))
	if err != nil {
		return nil // no rule is known to have quarantined it
	}
	return indexRecord(record)
}

func indexRecord(r *quarantine.Record) []string {
	if r == nil || r.Phase != quarantine.Quarantined {
		return nil
	}
	return []string{anyRule, r.Taint.Rule}
}

// observe gathers all that [quarantine.Decide] needs, without a request to the API server.
func (c *Controller) observe(ctx context.Context, p *policy.Policy, n *corev1.Node) (quarantine.Observation, error) {
	o := quarantine.Observation{
		Node: n, Breaker: c.breaker.state(p), Delivered: c.delivered(n.Name), Seen: c.seen[n.Name], Known: c.known.of(p), LeadingSince: c.leadingSince,
	}
	o.Record, o.RecordErr = quarantine.RecordOf(n)
	o.Domain = c.domains.of(n)
	c.domains.note(n, quarantine.DomainOf(p, n, o.Domain))
	o.Visits = repair.VisitsOf(n, o.Record, c.clock.Now())
	var err error
	if quarantine.NeedsPeers(p, n, o.Record, o.Breaker) {
		if o.Peers, err = c.peers(ctx, p, n.Name); err != nil {
			return o, err
		}
	}
	o.Paused, err = pause.Reason(ctx, c.client, c.namespace)
	return o, err
}

// quarantinedBy names the nodes that a rule has quarantined, from the cache and from the pending writes.
func (c *Controller) quarantinedBy(ctx context.Context, rule string) (map[string]bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.MatchingFields{indexQuarantined: rule}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list quarantined nodes: %w", err)
	}
	names := map[string]bool{}
	for i := range nodes.Items {
		names[nodes.Items[i].Name] = true
	}
	for name, write := range c.pending.all() {
		delete(names, name)
		if slices.Contains(indexRecord(write.record), rule) {
			names[name] = true
		}
	}
	return names, nil
}
