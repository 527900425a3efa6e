package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// interned are strings that many nodes have: keys of labels and their values, and what healthy conditions report. Kept once,
// they need a third of the memory of a cache of whole copies.
var interned = interner[string]{most: 20_000, known: map[string]string{}}

// resources are lists of resources by their text. Nodes of one kind have the same.
var resources = interner[corev1.ResourceList]{most: 1000, known: map[string]corev1.ResourceList{}}

// maxInternedText is the longest string that many nodes have, in bytes.
const maxInternedText = 256

// interner has one value for each text. Some values are of one node alone, so it starts over when it knows the most that it may.
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

// maxInternedResources is how many resources a list has at most that many nodes have. A node may have any number, with long names.
const maxInternedResources = 32

// internResources returns a list that equals this one and that others share, unless it is longer than any that many nodes have.
func internResources(list corev1.ResourceList) corev1.ResourceList {
	if len(list) > maxInternedResources {
		return list
	}
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
