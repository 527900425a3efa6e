package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// After a change of the verdict, update the published figures: go run ./bench/slownode -update.
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

func measured(t *testing.T) []entry {
	t.Helper()
	f, err := os.Open("testdata/grid.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := readGrid(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The whole grid takes hours, these small cells a second. After a change of the verdict, measure the grid again.
func TestSomeOfTheGridIsReached(t *testing.T) {
	left := 40
	for _, e := range measured(t) {
		if e.Nodes > 64 || left == 0 {
			continue
		}
		left--
		want := e.record()
		e.scores = measure(e.Scenario, e.runs)
		if diff := cmp.Diff(want, e.record()); diff != "" {
			t.Error(diff)
		}
	}
	if left > 0 {
		t.Errorf("%d cells too few", left)
	}
}

func TestTheDocsMatchTheGrid(t *testing.T) {
	docs, err := os.ReadFile("../results/slow-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	var summary bytes.Buffer
	summarize(&summary, measured(t))
	if !strings.Contains(string(docs), summary.String()) {
		t.Errorf("bench/results/slow-nodes.md does not have the output of go run ./bench/slownode -summary:\n%s", &summary)
	}
}
