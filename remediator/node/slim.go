package node

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxSlimmed bounds how many nodes a [Slimmer] knows, deleted ones among them: it begins anew when it is full.
const maxSlimmed = 50_000

// Slimmer makes the Nodes that the cache keeps. Use [NewSlimmer].
type Slimmer struct {
	maxAnnotation int
	whole         []string
	// tooLong replaces the value of a longer annotation, and is longer itself.
	tooLong string

	mu sync.Mutex
	// byUID are the nodes as they are in the cache. A heartbeat changes little of a node, so the next one shares with the last what is equal.
	byUID map[types.UID]weak.Pointer[corev1.Node]
}

// NewSlimmer makes a slimmer that drops the values of annotations that are longer than some bytes, unless their keys are among those that
// are kept whole.
func NewSlimmer(maxAnnotation int, whole []string) *Slimmer {
	return &Slimmer{
		maxAnnotation: maxAnnotation, whole: whole, tooLong: strings.Repeat("x", maxAnnotation+1),
		byUID: map[types.UID]weak.Pointer[corev1.Node]{},
	}
}

// Slim is a transform of a cache: of a Node it returns a fresh object with what the remediator reads; images and managed fields, of which
// few are read, are most of a node. Such an object must never be the body of an Update. Patches made from it touch nothing that was left
// out, because they hold only differences.
func (s *Slimmer) Slim(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil // a tombstone
	}
	last := s.last(n)
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              orLast(n.Name, last.Name),
			UID:               orLast(n.UID, last.UID),
			ResourceVersion:   n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp,
			DeletionTimestamp: n.DeletionTimestamp,
			Labels:            last.Labels,
			Annotations:       s.annotations(n.Annotations, last.Annotations),
			ManagedFields:     SlimManagedFields(n),
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
		if i < len(last.Status.Conditions) && SameCondition(*c, last.Status.Conditions[i]) {
			was := &last.Status.Conditions[i]
			c.Type, c.Status, c.Reason, c.Message = was.Type, was.Status, was.Reason, was.Message
			continue
		}
		c.Type, c.Status = intern(&interned, c.Type), intern(&interned, c.Status)
		c.Reason, c.Message = intern(&interned, c.Reason), intern(&interned, c.Message)
	}
	s.keep(slim)
	return slim, nil
}

// annotations are annotations without the values that nothing reads; those of the last version if they are equal.
func (s *Slimmer) annotations(all, last map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	slim := make(map[string]string, len(all))
	for key, value := range all {
		if len(value) > s.maxAnnotation && !slices.Contains(s.whole, key) {
			value = s.tooLong
		}
		slim[intern(&interned, key)] = orLast(value, last[key])
	}
	if maps.Equal(slim, last) {
		return last
	}
	return slim
}

// last is the last version of a node, which must not be changed; an empty one if there is none.
func (s *Slimmer) last(n *corev1.Node) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.byUID[n.UID].Value(); last != nil {
		return last
	}
	return &corev1.Node{}
}

func (s *Slimmer) keep(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byUID) >= maxSlimmed {
		clear(s.byUID)
	}
	s.byUID[n.UID] = weak.Make(n)
}

// SameCondition reports whether two conditions differ at most in their times.
func SameCondition(a, b corev1.NodeCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// orLast returns the last of two strings if they are equal, so that what does not change is kept once, and else the new one.
func orLast[S ~string](s, last S) S {
	if s == last {
		return last
	}
	return s
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
