package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// tally is the sum of the results of several cells.
type tally struct {
	cells, runs int
	scores      [methods]score
}

func (t *tally) add(e entry) {
	t.cells++
	t.runs += e.runs
	for m, s := range e.scores {
		t.scores[m].hit += s.hit
		t.scores[m].wrong += s.wrong
		t.scores[m].missed += s.missed
		t.scores[m].exact += s.exact
	}
}

// where counts the entries that are kept.
func where(all []entry, keep func(entry) bool) tally {
	var t tally
	for _, e := range all {
		if keep(e) {
			t.add(e)
		}
	}
	return t
}

// summarize prints a summary of the grid as Markdown.
func summarize(w io.Writer, all []entry) {
	whole := cells()
	fmt.Fprintf(w, "%d of the grid's %d cells, chosen at random, with %s runs each.\n\n", len(all), len(whole), runsText())
	methodsTable(w, all)
	factorsTable(w, all)
	falseTable(w, all)
	worse(w, all)
	falsely(w, all)
}

func runsText() string {
	var parts []string
	for _, n := range sizes {
		parts = append(parts, fmt.Sprintf("%d (%d nodes)", runsOf[n], n))
	}
	return strings.Join(parts, ", ")
}

func head(w io.Writer, first ...string) {
	names := slices.Concat(first, methodNames[:])
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
}

// methodsTable has a row for each noise and size.
func methodsTable(w io.Writer, all []entry) {
	fmt.Fprint(w, "Precision / recall / share of runs in which exactly the slow nodes were named, over the cells with slow nodes:\n\n")
	head(w, "noise", "nodes", "cells")
	for _, m := range models {
		for _, n := range sizes {
			t := where(all, func(e entry) bool { return e.model == m && e.Nodes == n && e.Slow > 0 })
			if t.cells == 0 {
				continue
			}
			fmt.Fprintf(w, "| %s | %d | %d |", m, n, t.cells)
			for _, s := range t.scores {
				fmt.Fprintf(w, " %.3f / %.3f / %.2f |", s.precision(), s.recall(), share(s.exact, t.runs))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w)
}

// factorsTable has a row for each value of each factor, of the noise that the estimate assumes.
func factorsTable(w io.Writer, all []entry) {
	fmt.Fprint(w, "Recall by one factor at a time, the others as they come; normal noise:\n\n")
	head(w, "factor", "cells")
	for _, f := range []struct {
		name   string
		values []float64
		of     func(entry) float64
	}{
		{"drop %g %%", []float64{8, 12, 20, 40}, func(e entry) float64 { return 100 * e.Drop }},
		{"noise %g %%", []float64{1, 3, 5}, func(e entry) float64 { return 100 * e.Noise }},
		{"missing %g %%", []float64{0, 5, 15}, func(e entry) float64 { return 100 * e.Missing }},
		{"bad links %g %%", []float64{0, 2, 10}, func(e entry) float64 { return 100 * e.BadLinks }},
		{"slow in %g %% of tests", []float64{100, 80}, func(e entry) float64 { return 100 * e.Intermittent }},
	} {
		for _, v := range f.values {
			t := where(all, func(e entry) bool { return e.model == normal && e.Slow > 0 && int(f.of(e)+0.5) == int(v) })
			fmt.Fprintf(w, "| "+f.name+" | %d |", v, t.cells)
			for _, s := range t.scores {
				fmt.Fprintf(w, " %.3f |", s.recall())
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w)
}

// falseTable counts the nodes that are named in runs without slow nodes.
func falseTable(w io.Writer, all []entry) {
	fmt.Fprint(w, "Nodes wrongly named per run when none is slow:\n\n")
	head(w, "noise", "nodes", "runs")
	for _, m := range models {
		for _, n := range sizes {
			t := where(all, func(e entry) bool { return e.model == m && e.Nodes == n && e.Slow == 0 })
			if t.cells == 0 {
				continue
			}
			fmt.Fprintf(w, "| %s | %d | %d |", m, n, t.runs)
			for _, s := range t.scores {
				fmt.Fprintf(w, " %.4f |", share(s.wrong, t.runs))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w)
}

// margin is how much worse than the seed rule, or how often wrong, the estimate may be.
const margin = 0.01

// worse compares the estimate with the seed rule where there are slow nodes and complete data.
func worse(w io.Writer, all []entry) {
	fmt.Fprintf(w, "Cells with slow nodes and complete data in which the estimate is worse or better than the seed rule by more than %g:\n\n", margin)
	fmt.Fprint(w, "| noise | nodes | cells | recall worse | by at most | recall better | precision worse | precision better |\n|---|---|---|---|---|---|---|---|\n")
	for _, m := range models {
		for _, n := range sizes {
			var cells, lower, higher, lessSure, surer int
			most := 0.0
			for _, e := range all {
				if e.model != m || e.Nodes != n || e.Slow == 0 || e.Missing > 0 {
					continue
				}
				cells++
				theirs, ours := e.scores[seedRule], e.scores[estimate]
				if d := theirs.recall() - ours.recall(); d > margin {
					lower++
					most = max(most, d)
				} else if d < -margin {
					higher++
				}
				if d := theirs.precision() - ours.precision(); d > margin {
					lessSure++
				} else if d < -margin {
					surer++
				}
			}
			if cells > 0 {
				fmt.Fprintf(w, "| %s | %d | %d | %d | %.2f | %d | %d | %d |\n", m, n, cells, lower, most, higher, lessSure, surer)
			}
		}
	}
	fmt.Fprintln(w)
}

// falsely counts the cells without slow nodes in which the estimate names nodes more often than allowed.
func falsely(w io.Writer, all []entry) {
	fmt.Fprintf(w, "Cells without slow nodes in which the estimate wrongly names more than %g nodes per run:\n\n", margin)
	for _, m := range models {
		t := where(all, func(e entry) bool { return e.model == m && e.Slow == 0 })
		over := where(all, func(e entry) bool {
			return e.model == m && e.Slow == 0 && share(e.scores[estimate].wrong, e.runs) > margin
		})
		fmt.Fprintf(w, "- %s: %d of %d cells, %.4f over all of its runs.\n", m, over.cells, t.cells, share(t.scores[estimate].wrong, t.runs))
	}
}
