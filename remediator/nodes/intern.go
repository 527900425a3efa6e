package nodes

import (
	"strings"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// interned are strings that many nodes have: keys of labels and their values, and what healthy conditions say. Kept once, they need a third of
// the memory of a cache of whole copies.
var interned = interner{known: map[string]string{}}

const (
	// maxInterned bounds how many strings are known. Some are of one node alone, so it begins anew when it is full.
	maxInterned = 20_000
	// maxInternedText is the longest string that many nodes have, in bytes.
	maxInternedText = 256
)

type interner struct {
	mu    sync.Mutex
	known map[string]string
}

// intern returns a string that equals s and that others share.
func intern[S ~string](t *interner, s S) S {
	if len(s) > maxInternedText {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.known[string(s)]
	if !ok {
		if len(t.known) >= maxInterned {
			clear(t.known)
		}
		known = strings.Clone(string(s)) // s may be part of a longer one
		t.known[known] = known
	}
	return S(known)
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
