package node

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"
)

func TestEqualStringsAreKeptOnce(t *testing.T) {
	const most = 100
	table := &interner[string]{most: most, known: map[string]string{}}
	first, second := intern(table, strings.Clone("a label")), intern(table, strings.Clone("a label"))
	if first != "a label" || unsafe.StringData(first) != unsafe.StringData(second) {
		t.Errorf("%q and %q are two", first, second)
	}
	long := strings.Repeat("x", maxInternedText+1)
	if intern(table, long) != long || len(table.known) != 1 {
		t.Errorf("%d strings are known", len(table.known))
	}
	for i := range 2 * most {
		if s := fmt.Sprint(i); intern(table, s) != s || len(table.known) > most {
			t.Fatalf("%q: %d strings are known", s, len(table.known))
		}
	}
}
