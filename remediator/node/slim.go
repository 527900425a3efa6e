package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxSlimmed bounds how many nodes a [Slimmer] knows, deleted ones among them: it starts over when it is full.
	maxSlimmed = 50_000
	// MaxKept is the most that is kept of one node, in bytes: room for the largest records that we write, and for some 200 labels and 50
	// conditions. A node has up to 1.5 MB, nearly all of which its kubelet may write.
	MaxKept = 96 << 10
	// tooLarge is an annotation of a Node in the cache of which not all is kept. The API server accepts no such key.
	tooLarge = "/too-large"
	// maxIdentity is the most bytes of a boot ID or a SystemUUID: UUIDs have 36, and records have room for this.
	maxIdentity = 64
	// perEntry is what an entry of a list or a map costs beside its text, in bytes, about.
	perEntry = 64
)

// TooLarge returns what of a node in the cache is more than is kept of one; empty: nothing is. Such a node is [Excluded]: nothing is
// decided about it, and it must not be patched.
func TooLarge(n *corev1.Node) string { return n.Annotations[tooLarge] }

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
// are kept whole, the most important first.
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
		},
		Spec: corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable},
	}
	s.fill(slim, n, last)
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

// fill copies what is read of a node while there is room, our records first: what its kubelet may write displaces none.
func (s *Slimmer) fill(slim, n, last *corev1.Node) {
	b := &budget{left: MaxKept, excess: TooLarge(n)} // a cache has some nodes slimmed twice
	annotations := map[string]string{}
	for _, key := range s.whole {
		if value, has := n.Annotations[key]; has && b.take("annotation "+key, len(value)+perEntry) {
			annotations[key] = orLast(value, last.Annotations[key])
		}
	}
	if b.take("taints", sum(n.Spec.Taints, func(t corev1.Taint) int { return len(t.Key) + len(t.Value) + perEntry })) {
		slim.Spec.Taints = n.Spec.Taints
	}
	if b.take("conditions", sum(n.Status.Conditions, func(c corev1.NodeCondition) int {
		return len(c.Type) + len(c.Status) + len(c.Reason) + len(c.Message) + 2*perEntry
	})) {
		slim.Status.Conditions = slices.Clone(n.Status.Conditions) // without the room that decoding has left
	}
	slim.Status.NodeInfo.BootID = orLast(Identity(n.Status.NodeInfo.BootID), last.Status.NodeInfo.BootID)
	if managers := SlimManagedFields(n); b.take("managed fields", sum(managers, func(metav1.ManagedFieldsEntry) int { return 4 * perEntry })) {
		slim.ManagedFields = managers
	}
	if b.take("labels", textOf(n.Labels)) {
		if slim.Labels = last.Labels; !maps.Equal(n.Labels, last.Labels) {
			slim.Labels = internMap(n.Labels)
		}
	}
	if b.take("annotations", s.sizeOfOthers(n.Annotations)) {
		s.addOthers(annotations, n.Annotations, last.Annotations)
	}
	if b.take("resources", sizeOfResources(n.Status.Allocatable)) {
		// read by the restart of jobs, to find out whether there is room
		slim.Status.Allocatable = last.Status.Allocatable
		if !maps.EqualFunc(n.Status.Allocatable, last.Status.Allocatable, resource.Quantity.Equal) {
			slim.Status.Allocatable = internResources(n.Status.Allocatable)
		}
	}
	if b.excess != "" {
		annotations[tooLarge] = intern(&interned, b.excess)
	}
	switch {
	case len(annotations) == 0:
	case maps.Equal(annotations, last.Annotations):
		slim.Annotations = last.Annotations
	default:
		slim.Annotations = annotations
	}
}

// Identity returns a boot ID or a SystemUUID of a Node as records keep it: empty, which means not known, if no kernel and no firmware has
// such a one. The kubelet writes them, and the API server keeps any text; one that a record cannot hold would always differ from it.
func Identity(text string) string {
	if len(text) > maxIdentity || !utf8.ValidString(text) {
		return ""
	}
	return text
}

// budget is the room that is left for a node.
type budget struct {
	left int
	// excess is what there was no room for; empty: nothing.
	excess string
}

// take takes the room of a part of a node, and reports whether there is any.
func (b *budget) take(what string, bytes int) bool {
	if bytes <= b.left {
		b.left -= bytes
		return true
	}
	// Without a figure: one that changes would be news each time.
	b.excess = fmt.Sprintf("%s has no room in the %d KiB that are kept of a node", what, MaxKept>>10)
	return false
}

// sizeOfOthers is what the annotations cost that are not kept whole, without long values.
func (s *Slimmer) sizeOfOthers(annotations map[string]string) (bytes int) {
	for key, value := range annotations {
		if slices.Contains(s.whole, key) {
			continue
		}
		bytes += len(key) + perEntry
		if len(value) <= s.maxAnnotation {
			bytes += len(value)
		}
	}
	return bytes
}

// addOthers adds the annotations that are not kept whole, without long values; what equals that of the last version is shared.
func (s *Slimmer) addOthers(to, all, last map[string]string) {
	for key, value := range all {
		if slices.Contains(s.whole, key) || key == tooLarge {
			continue
		}
		if len(value) > s.maxAnnotation {
			value = s.tooLong
		}
		to[intern(&interned, key)] = orLast(value, last[key])
	}
}

// textOf is what a map costs.
func textOf(m map[string]string) (bytes int) {
	for key, value := range m {
		bytes += len(key) + len(value) + perEntry
	}
	return bytes
}

// sizeOfResources is what a list of resources costs.
func sizeOfResources(list corev1.ResourceList) (bytes int) {
	for name := range list {
		bytes += len(name) + 4*perEntry
	}
	return bytes
}

// sum is what a list costs.
func sum[T any](list []T, size func(T) int) (bytes int) {
	for _, entry := range list {
		bytes += size(entry)
	}
	return bytes
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
