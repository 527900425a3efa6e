// Package view shows what a preflight run measured and its verdict, as text or as an HTML page.
package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

const (
	// maxMatrixNodes is the largest number of nodes in a matrix. A larger one is neither readable nor printable.
	maxMatrixNodes = 24
	// minMatrixShare is the share of pairs that were tested from which on a matrix is not almost empty.
	minMatrixShare = 1.0 / 3
	// listedPairs is the number of pairs that are listed for a run without a matrix.
	listedPairs = 20
)

// Run is a run with its verdict.
type Run struct {
	Graph   verdict.Graph
	Verdict verdict.Verdict
	// Leaf is the rack or leaf switch of each node, by node name.
	Leaf map[string]string
	// Job is the job whose nodes were tested; empty if it is not known.
	Job string
	// Date is when the last report was written; zero if it is not known.
	Date time.Time
}

// result is one test as one of its two nodes sees it.
type result struct {
	verdict.Test
	// Partner is the index of the other node.
	Partner int
}

// names are the nodes of the graph, then those that are missing and that no report mentions.
func (r Run) names() []string {
	names := slices.Clone(r.Graph.Nodes)
	for _, name := range r.Verdict.Missing {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// results are the tests of each node, in the order of rounds.
func (r Run) results() [][]result {
	all := make([][]result, len(r.names()))
	for _, t := range r.Graph.Tests {
		all[t.A] = append(all[t.A], result{t, t.B})
		all[t.B] = append(all[t.B], result{t, t.A})
	}
	return all
}

// last are the last tests by pair of nodes, in both orders.
func last(results [][]result) map[[2]int]result {
	cells := map[[2]int]result{}
	for i, tests := range results {
		for _, t := range tests {
			cells[[2]int{i, t.Partner}] = t
		}
	}
	return cells
}

// isMatrix reports whether the tests are shown as a matrix.
func (r Run) isMatrix() bool {
	n := len(r.names())
	pairs := float64(n*(n-1)) / 2
	return n <= maxMatrixNodes && float64(len(last(r.results())))/2 >= minMatrixShare*pairs
}

// order sorts the nodes by rack and name, so that a slow node is visible as a cross and a slow switch as a block.
func (r Run) order() []int {
	names := r.names()
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(r.Leaf[names[a]], r.Leaf[names[b]]), cmp.Compare(names[a], names[b]))
	})
	return order
}

// marks are the findings about nodes, in words, because not every reader can distinguish the colours.
func (r Run) marks() map[string]string {
	marks := map[string]string{}
	for _, pair := range r.Verdict.Retest {
		marks[pair[0]] = "retest"
	}
	for _, f := range r.Verdict.Figures {
		for _, b := range f.Below {
			marks[b.Node] = "suspect"
		}
	}
	for _, name := range r.Graph.Nodes[r.Graph.Known:] {
		marks[name] = "missing"
	}
	for _, name := range r.Verdict.Missing {
		marks[name] = "missing"
	}
	for _, name := range r.Graph.Nodes[:r.Graph.Known] {
		if leaf := r.Leaf[name]; leaf != "" && slices.Contains(r.Verdict.Switches, leaf) {
			marks[name] = "slow switch"
		}
	}
	for _, name := range r.Verdict.Failed {
		marks[name] = "failed"
	}
	for _, s := range r.Verdict.Slow {
		marks[s.Node] = "slow"
	}
	return marks
}

// median is the median bandwidth of the tests of which both ends are healthy, or else have no mark, or else of all tests.
// It is in GiB/s, and 0 if no test has a bandwidth. The string names the tests.
func (r Run) median() (gibps float64, of string) {
	marks := r.marks()
	of = "healthy pairs"
	is := func(i int) bool { return slices.Contains(r.Verdict.Healthy, r.Graph.Nodes[i]) }
	if len(r.Verdict.Healthy) < 2 {
		is = func(i int) bool { return marks[r.Graph.Nodes[i]] == "" }
	}
	var chosen, all []float64
	for _, t := range r.Graph.Tests {
		if t.Bandwidth <= 0 {
			continue
		}
		all = append(all, t.Bandwidth)
		if is(t.A) && is(t.B) {
			chosen = append(chosen, t.Bandwidth)
		}
	}
	if len(chosen) == 0 {
		chosen, of = all, "all pairs"
	}
	return middle(chosen), of
}

// middle is the lower median; 0 for an empty list.
func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[(len(v)-1)/2]
}

// gibps is the bandwidth of a test in GiB/s, or its result if it has none.
func gibps(t verdict.Test, decimals int) string {
	switch {
	case t.Failed:
		return "fail"
	case t.Bandwidth == 0:
		return "ok"
	}
	return fmt.Sprintf("%.*f", decimals, t.Bandwidth)
}

// Text prints the verdict and the matrix of pairs in GiB/s, or the slowest pairs if there is no matrix.
func Text(w io.Writer, r Run) error {
	var b strings.Builder
	b.WriteString(r.head())
	fmt.Fprintln(&b)
	for _, line := range r.Reasons() {
		fmt.Fprintln(&b, "  "+line)
	}
	fmt.Fprintln(&b, "\nGiB/s")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if r.isMatrix() {
		r.matrix(t)
	} else {
		r.slowest(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Run) matrix(w io.Writer) {
	names, order, cells, marks := r.names(), r.order(), last(r.results()), r.marks()
	median, _ := r.median()
	for n := range order {
		fmt.Fprintf(w, "\t%d", n+1)
	}
	fmt.Fprintln(w, "\t")
	for n, i := range order {
		fmt.Fprintf(w, "%d %s", n+1, names[i])
		for _, j := range order {
			value := "."
			if t, tested := cells[[2]int{i, j}]; tested {
				value = gibps(t.Test, precision(median))
			}
			fmt.Fprintf(w, "\t%s", value)
		}
		fmt.Fprintf(w, "\t%s\n", marks[names[i]])
	}
}

func (r Run) slowest(w io.Writer) {
	tests := slices.Clone(r.Graph.Tests)
	slices.SortStableFunc(tests, func(a, b verdict.Test) int { return cmp.Compare(a.Bandwidth, b.Bandwidth) })
	marks := r.marks()
	median, _ := r.median()
	fmt.Fprintln(w, "round\tpair\t\tGiB/s\tto the median")
	for _, t := range tests[:min(len(tests), listedPairs)] {
		a, b := r.Graph.Nodes[t.A], r.Graph.Nodes[t.B]
		fmt.Fprintf(w, "%d\t%s %s\t%s %s\t%s", t.Batch+1, a, marks[a], b, marks[b], gibps(t, precision(median)))
		if t.Bandwidth > 0 {
			fmt.Fprintf(w, "\t%s", percent(t.Bandwidth/median-1))
		}
		fmt.Fprintln(w)
	}
}

// ParseTopology reads lines of a node and its rack or leaf switch. Empty lines and lines that begin with # are ignored. The
// result is by node name. The error names the line.
func ParseTopology(text string) (map[string]string, error) {
	leaf := map[string]string{}
	for n, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case len(fields) != 2:
			return nil, fmt.Errorf("line %d: %.80q is not a node and its leaf", n+1, line)
		default:
			leaf[fields[0]] = fields[1]
		}
	}
	return leaf, nil
}
