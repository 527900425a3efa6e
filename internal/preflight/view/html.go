package view

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/page"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

const (
	// maxRows is the largest number of nodes that are shown at once. Of a larger run these are the nodes with a finding and
	// their partners; the others are folded.
	maxRows = 200
	// maxFolded is the largest number of rows that are folded.
	maxFolded = 1000
	// wideMatrix is the number of nodes from which on the cells of a matrix have no decimals.
	wideMatrix = 12
	// maxRotated is the longest name of a node, in characters, that stands above a column. Longer ones get a number.
	maxRotated = 24
	// axisEnd is the share of the axis that the fastest test reaches.
	axisEnd = 0.97
)

//go:embed page.html
var pageHTML string

//go:embed heatmap.css
var heatmapCSS string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// document is what the template shows.
type document struct {
	Style         template.CSS
	Policy, Title string
	Run           string
	Findings      []Finding
	Facts         []Fact
	Reasons       []string
	Legend        []swatch
	Median        string
	Of            string
	Axis          axis
	// Leaves is true if the racks or leaf switches of nodes are known.
	Leaves bool
	// Columns are the heads of the matrix; nil shows the tests as dots. Numbered is true if they are numbers.
	Columns  []column
	Numbered bool
	// Dense is true for a matrix with narrow columns.
	Dense  bool
	Groups []group
	Folded group
	// Cut is the number of nodes that are not shown at all.
	Cut int
}

// column is the head of a column of the matrix.
type column struct {
	Name    string
	Number  int
	NewLeaf bool
}

// swatch is a step of the scale: Value is where it begins, in GiB/s, Percent the same as a share of the median.
// Word is below some of them.
type swatch struct{ Class, Value, Percent, Word string }

// axis is the horizontal axis of the dots. Positions are in percent of its width.
type axis struct {
	Ticks             []tick
	Median, Threshold float64
	Unit              string
}

type tick struct {
	At    float64
	Label string
}

// group is a part of the rows with a title.
type group struct {
	Title string
	Rows  []row
}

// row is a node.
type row struct {
	Number                   int
	Name, Leaf, Mark, Level  string
	NewLeaf                  bool
	Cells                    []cell
	Dots                     []dot
	Median, Deviation, Class string
	// Tests are its partners with what each test measured, the slowest first.
	Tests string
}

// cell is a test in the matrix; without a Class it has not taken place.
type cell struct {
	Class, Value, Title string
	NewLeaf             bool
}

// dot is a test on the axis.
type dot struct {
	At           float64
	Class, Title string
	Failed       bool
}

// HTML writes a page with the verdict and the tests, as a matrix or as a row of dots for each node. The page is one file that
// loads no other and runs no script.
func HTML(w io.Writer, r Run) error {
	style := template.CSS(page.Style + heatmapCSS) //nolint:gosec // both are files of this repository
	p := newPainter(r)
	d := document{
		Style: style, Policy: page.Policy(style), Run: r.Verdict.Run,
		Findings: r.Findings(), Facts: r.Facts(), Reasons: r.Reasons(), Legend: p.legend(),
		Axis: p.axis(), Leaves: slices.ContainsFunc(p.names, func(name string) bool { return r.Leaf[name] != "" }),
	}
	d.Title = d.Findings[0].Text
	if median, of := r.median(); median > 0 {
		d.Median, d.Of = p.value(median)+" GiB/s", of
	}
	if order := r.order(); r.isMatrix() {
		d.Dense = len(order) > wideMatrix
		d.Numbered = slices.ContainsFunc(p.names, func(name string) bool { return len(name) > maxRotated })
		for k, i := range order {
			d.Columns = append(d.Columns, column{p.names[i], k + 1, p.newLeaf(order, k)})
		}
		d.Groups = []group{{Rows: p.rows(order, order)}}
	} else {
		p.group(&d, order)
	}
	return pageTemplate.Execute(w, d)
}

// group puts the rows of nodes with a finding first. Of a large run their partners follow and the others are folded.
func (p painter) group(d *document, order []int) {
	partners := map[int]bool{}
	var marked, others, folded []int
	for _, i := range order {
		if p.marks[p.names[i]] == "" {
			continue
		}
		marked = append(marked, i)
		for _, t := range p.results[i] {
			partners[t.Partner] = true
		}
	}
	slices.SortStableFunc(marked, func(a, b int) int { return cmp.Compare(rank(p.marks[p.names[a]]), rank(p.marks[p.names[b]])) })
	for _, i := range order {
		switch {
		case p.marks[p.names[i]] != "":
		case len(order) <= maxRows || partners[i] && len(marked)+len(others) < maxRows:
			others = append(others, i)
		default:
			folded = append(folded, i)
		}
	}
	shown := marked[:min(len(marked), maxRows)]
	d.Cut = len(marked) - len(shown)
	add := func(title string, nodes []int) {
		if len(nodes) > 0 {
			d.Groups = append(d.Groups, group{fmt.Sprintf("%s (%d)", title, len(nodes)), p.rows(nodes, nil)})
		}
	}
	add("Nodes with a finding", shown)
	switch {
	case len(order) > maxRows:
		add("Their partners", others)
	case len(marked) > 0:
		add("Other nodes", others)
	default:
		add("All nodes", others)
	}
	if len(folded) > 0 {
		title := fmt.Sprintf("%d other nodes without a finding", len(folded))
		d.Cut += max(len(folded)-maxFolded, 0)
		d.Folded = group{title, p.rows(folded[:min(len(folded), maxFolded)], nil)}
	}
}

// rank orders marks, the worst first.
func rank(mark string) int {
	return slices.Index([]string{"slow", "slow switch", "failed", "missing", "suspect", "retest"}, mark)
}

// level is the class of a mark.
func level(mark string) string {
	switch mark {
	case "":
		return ""
	case "slow", "slow switch", "failed":
		return "bad"
	}
	return "warn"
}

// painter draws the nodes of one run.
type painter struct {
	Run
	names   []string
	marks   map[string]string
	results [][]result
	median  float64
	// top is the fastest test, GiB/s.
	top float64
}

func newPainter(r Run) painter {
	p := painter{Run: r, names: r.names(), marks: r.marks(), results: r.results()}
	p.median, _ = r.median()
	for _, t := range r.Graph.Tests {
		p.top = max(p.top, t.Bandwidth)
	}
	return p
}

func (p painter) value(gibps float64) string { return fmt.Sprintf("%.*f", precision(p.median), gibps) }

func (p painter) legend() []swatch {
	if p.median <= 0 {
		return nil
	}
	list := []swatch{{Class: steps[0].Class}}
	for _, s := range steps[1:] {
		list = append(list, swatch{s.Class, p.value(p.median * (1 + s.Above)), percent(s.Above), ""})
	}
	list[0].Word, list[4].Word, list[len(list)-1].Word = "much slower", "as the median", "faster"
	return list
}

// at is the position of a test on the axis, in percent of its width: failed ones at the left end, those without a bandwidth
// at the right one.
func (p painter) at(t verdict.Test) float64 {
	share := 1.0
	if t.Failed || t.Bandwidth > 0 {
		share = t.Bandwidth / max(p.top, p.Graph.Threshold, 1e-9)
	}
	return 100 * (1 - axisEnd + share*(2*axisEnd-1))
}

func (p painter) atGiBps(v float64) float64 { return p.at(verdict.Test{Bandwidth: max(v, 1e-9)}) }

// axis is in GiB/s from 0 on. If no test has a bandwidth it has only two ends.
func (p painter) axis() axis {
	if p.top <= 0 {
		return axis{Ticks: []tick{{p.at(verdict.Test{Failed: true}), "failed"}, {p.at(verdict.Test{}), "ok"}}, Median: -1, Threshold: -1}
	}
	a := axis{Median: p.atGiBps(p.median), Threshold: -1, Unit: "GiB/s"}
	if p.Graph.Threshold > 0 {
		a.Threshold = p.atGiBps(p.Graph.Threshold)
	}
	for _, v := range ticks(max(p.top, p.Graph.Threshold)) {
		a.Ticks = append(a.Ticks, tick{p.atGiBps(v), fmt.Sprintf("%.4g", v)})
	}
	return a
}

// class is the class of a test. A test without a bandwidth that did not fail is neutral.
func (p painter) class(t verdict.Test) string {
	switch {
	case t.Failed:
		return "fail"
	case t.Bandwidth == 0 || p.median == 0:
		return "n"
	}
	return class(t.Bandwidth/p.median - 1)
}

// describe is a test with its partner in words.
func (p painter) describe(t result) string {
	words := p.names[t.Partner] + ": " + gibps(t.Test, precision(p.median))
	if t.Bandwidth > 0 {
		words += fmt.Sprintf(" GiB/s, %s to the median", percent(t.Bandwidth/p.median-1))
	}
	return fmt.Sprintf("%s, round %d", words, t.Batch+1)
}

// rows are the rows of nodes, with cells if there are columns, else with dots.
func (p painter) rows(nodes, columns []int) []row {
	cells := last(p.results)
	decimals := precision(p.median)
	if len(columns) > wideMatrix && p.median >= 20 {
		decimals = 0
	}
	var rows []row
	for k, i := range nodes {
		name := p.names[i]
		r := row{Number: k + 1, Name: name, Leaf: p.Leaf[name], Mark: p.marks[name], Level: level(p.marks[name]), NewLeaf: p.newLeaf(nodes, k)}
		r.summarize(p, p.results[i])
		if columns == nil {
			r.dots(p, p.results[i])
		}
		for l, j := range columns {
			c := cell{NewLeaf: p.newLeaf(columns, l), Title: name + " and " + p.names[j] + ": not tested"}
			if t, ok := cells[[2]int{i, j}]; ok {
				c.Class, c.Value, c.Title = p.class(t.Test), gibps(t.Test, decimals), name+" and "+p.describe(t)
			} else if i == j {
				c.Title = name
			}
			r.Cells = append(r.Cells, c)
		}
		rows = append(rows, r)
	}
	return rows
}

// newLeaf reports whether a rack or leaf switch begins at place k of the nodes.
func (p painter) newLeaf(nodes []int, k int) bool {
	return k > 0 && p.Leaf[p.names[nodes[k]]] != p.Leaf[p.names[nodes[k-1]]]
}

// summarize sets the median of the node's tests, of those with partners that are not bad themselves if there are any. Failed
// tests count as 0.
func (r *row) summarize(p painter, tests []result) {
	good := slices.DeleteFunc(slices.Clone(tests), func(t result) bool { return level(p.marks[p.names[t.Partner]]) == "bad" })
	if len(good) > 0 {
		tests = good
	}
	var values []float64
	failed := 0
	for _, t := range tests {
		if t.Failed {
			failed++
		}
		values = append(values, t.Bandwidth)
	}
	switch own := middle(values); {
	case len(tests) == 0:
		r.Median = "no test"
	case own > 0 && p.median > 0:
		r.Median, r.Deviation, r.Class = p.value(own), percent(own/p.median-1), class(own/p.median-1)
	case failed > 0:
		r.Median, r.Class = fmt.Sprintf("%d of %d failed", failed, len(tests)), "fail"
	default:
		r.Median = "ok"
	}
}

// dots sets the node's tests, the slowest on top of the others.
func (r *row) dots(p painter, tests []result) {
	tests = slices.Clone(tests)
	slices.SortStableFunc(tests, func(a, b result) int { return cmp.Compare(p.at(a.Test), p.at(b.Test)) })
	var words []string
	for _, t := range tests {
		words = append(words, p.names[t.Partner]+" "+gibps(t.Test, precision(p.median)))
	}
	r.Tests = strings.Join(words, " · ")
	for _, t := range slices.Backward(tests) {
		r.Dots = append(r.Dots, dot{p.at(t.Test), p.class(t.Test), p.describe(t), t.Failed})
	}
}
