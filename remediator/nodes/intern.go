package nodes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// interned are strings that many nodes have: keys of labels and their values, and what healthy conditions say. Kept once, they need a third of
// the memory of a cache of whole copies.
var interned = interner[string]{most: 20_000, known: map[string]string{}}

// resources are lists of resources by their text. Nodes of one kind have the same.
var resources = interner[corev1.ResourceList]{most: 1000, known: map[string]corev1.ResourceList{}}

// maxInternedText is the longest string that many nodes have, in bytes.
const maxInternedText = 256

// interner has one value for each text. Some values are of one node alone, so it begins anew when it knows the most that it may.
type interner[V any] struct {
	most int

	mu    sync.Mutex
	known map[string]V
}

// get returns the value of a text, which others share and must not be changed. build makes one that is not known yet.
func (t *interner[V]) get(text string, build func(text string) V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok := t.known[text]
	if !ok {
		if len(t.known) >= t.most {
			clear(t.known)
		}
		text = strings.Clone(text) // it may be part of a longer one
		value = build(text)
		t.known[text] = value
	}
	return value
}

// intern returns a string that equals s and that others share.
func intern[S ~string](t *interner[string], s S) S {
	if len(s) > maxInternedText {
		return s
	}
	return S(t.get(string(s), func(text string) string { return text }))
}

// internResources returns a list that equals this one and that others share.
func internResources(list corev1.ResourceList) corev1.ResourceList {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		amount := list[name]
		fmt.Fprintf(&text, "%s=%s,", name, amount.String())
	}
	return resources.get(text.String(), func(string) corev1.ResourceList {
		shared := make(corev1.ResourceList, len(list))
		for name, amount := range list {
			shared[intern(&interned, name)] = amount
		}
		return shared
	})
}

// orLast returns the last of two strings if they are equal, so that what does not change is kept once, and else the new one.
func orLast[S ~string](s, last S) S {
	if s == last {
		return last
	}
	return s
}

// slimmed are the nodes as they are in the cache. A heartbeat changes little of a node, so the next one shares with the last what is equal.
var slimmed = slimNodes{byUID: map[types.UID]weak.Pointer[corev1.Node]{}}

// maxSlimmed bounds how many nodes are known, deleted ones among them: it begins anew when it is full.
const maxSlimmed = 50_000

type slimNodes struct {
	mu    sync.Mutex
	byUID map[types.UID]weak.Pointer[corev1.Node]
}

// get is the last version of a node, which must not be changed; an empty one if there is none.
func (s *slimNodes) get(n *corev1.Node) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.byUID[n.UID].Value(); last != nil {
		return last
	}
	return &corev1.Node{}
}

func (s *slimNodes) put(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byUID) >= maxSlimmed {
		clear(s.byUID)
	}
	s.byUID[n.UID] = weak.Make(n)
}
