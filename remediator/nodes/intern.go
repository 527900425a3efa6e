package nodes

import (
	"strings"
	"sync"
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
