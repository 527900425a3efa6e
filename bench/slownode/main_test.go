package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whoever changes a verdict shows what it does to the figures: go run ./bench/slownode -update.
func TestThePublishedFiguresAreReached(t *testing.T) {
	want, err := os.ReadFile("testdata/table.md")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	tables(&got, published)
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}
