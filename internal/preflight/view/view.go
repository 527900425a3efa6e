// Package view prints what a preflight run measured and its verdict, as text or as an HTML page.
package view

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

const (
	// maxMatrixNodes is the largest number of nodes in a matrix with values.
	maxMatrixNodes = 24
	// maxPageRows is the largest number of rows of a page. For a larger run it shows the suspects and their partners.
	maxPageRows = 200
	// listedPairs is the number of pairs that are listed for a large run.
	listedPairs = 20
)

// Run is a run with its verdict.
type Run struct {
	Graph   verdict.Graph
	Verdict verdict.Verdict
	// Leaf is the rack or leaf switch of each node, by node name.
	Leaf map[string]string
}

// cell is the last test of a pair of nodes.
type cell struct {
	verdict.Test
	Tested bool
}

// GiBps is the text in a cell.
func (c cell) GiBps() string {
	switch {
	case !c.Tested:
		return ""
	case c.Failed:
		return "fail"
	case c.Bandwidth == 0:
		return "ok"
	}
	return fmt.Sprintf("%.4g", c.Bandwidth)
}

// cells are the tests by pair of nodes, in both orders.
func (r Run) cells() map[[2]int]cell {
	cells := map[[2]int]cell{}
	for _, t := range r.Graph.Tests {
		cells[[2]int{t.A, t.B}], cells[[2]int{t.B, t.A}] = cell{t, true}, cell{t, true}
	}
	return cells
}

// order sorts the nodes by rack and name, so that a slow node is visible as a cross and a slow switch as a block.
func (r Run) order() []int {
	order := make([]int, len(r.Graph.Nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		na, nb := r.Graph.Nodes[a], r.Graph.Nodes[b]
		return cmp.Or(cmp.Compare(r.Leaf[na], r.Leaf[nb]), cmp.Compare(na, nb))
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
	for _, name := range r.Verdict.Missing {
		marks[name] = "missing"
	}
	for _, name := range r.Verdict.Failed {
		marks[name] = "failed"
	}
	for _, s := range r.Verdict.Slow {
		marks[s.Node] = "slow"
	}
	return marks
}

// Reasons are the parts of the verdict and the reason for each, one per line.
func (r Run) Reasons() []string {
	v := r.Verdict
	var lines []string
	for _, s := range v.Slow {
		lines = append(lines, fmt.Sprintf("slow: %s (p %.3f, %.0f %% below the others, seen by %d healthy partners)", s.Node, s.P, 100*s.Drop, s.Partners))
	}
	for _, name := range v.Failed {
		lines = append(lines, fmt.Sprintf("failed: %s (a local check; its pairs do not count)", name))
	}
	for _, name := range v.Missing {
		lines = append(lines, fmt.Sprintf("missing: %s (no report: a suspect)", name))
	}
	for _, why := range v.Fabric {
		lines = append(lines, "fabric: "+why)
	}
	below := 0
	for _, f := range v.Figures {
		lines = append(lines, fmt.Sprintf("figure: %s, median %.4g of %d nodes", f.Name, f.Median, f.Nodes))
		for _, b := range f.Below {
			lines = append(lines, fmt.Sprintf("suspect: %s (%s %.4g, %.0f %% below the median)", b.Node, f.Name, b.Value, 100*b.Drop))
		}
		below += len(f.Below)
	}
	for _, pair := range v.Retest {
		lines = append(lines, fmt.Sprintf("retest: %s with %s would decide", pair[0], pair[1]))
	}
	if r.Graph.Disagree > 0 {
		lines = append(lines, fmt.Sprintf("dropped: %d tests whose ends disagree by more than 20 %%", r.Graph.Disagree))
	}
	if r.Graph.Skips > 0 {
		lines = append(lines, fmt.Sprintf("skipped: %d times a rank skipped a test", r.Graph.Skips))
	}
	if !v.Complete {
		lines = append(lines, "incomplete: not every rank has reported")
	}
	if len(v.Slow)+len(v.Failed)+len(v.Fabric)+len(v.Retest)+below == 0 {
		lines = append(lines, "no node that has reported is slow or failed")
	}
	return lines
}

// Text prints the verdict and the pair matrix in GiB/s, or the slowest pairs of a run too large for one.
func Text(w io.Writer, r Run) error {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s\n", r.Verdict.Run)
	for _, line := range r.Reasons() {
		fmt.Fprintln(&b, "  "+line)
	}
	fmt.Fprintln(&b, "\nGiB/s")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(r.Graph.Nodes) <= maxMatrixNodes {
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
	order, cells, marks := r.order(), r.cells(), r.marks()
	for n := range order {
		fmt.Fprintf(w, "\t%d", n+1)
	}
	fmt.Fprintln(w, "\t")
	for n, i := range order {
		name := r.Graph.Nodes[i]
		fmt.Fprintf(w, "%d %s", n+1, name)
		for _, j := range order {
			value := cells[[2]int{i, j}].GiBps()
			if value == "" {
				value = "."
			}
			fmt.Fprintf(w, "\t%s", value)
		}
		fmt.Fprintf(w, "\t%s\n", marks[name])
	}
}

func (r Run) slowest(w io.Writer) {
	tests := slices.Clone(r.Graph.Tests)
	slices.SortStableFunc(tests, func(a, b verdict.Test) int { return cmp.Compare(a.Bandwidth, b.Bandwidth) })
	marks := r.marks()
	fmt.Fprintln(w, "round\tpair\t\tGiB/s")
	for _, t := range tests[:min(len(tests), listedPairs)] {
		a, b := r.Graph.Nodes[t.A], r.Graph.Nodes[t.B]
		fmt.Fprintf(w, "%d\t%s %s\t%s %s\t%s\n", t.Batch, a, marks[a], b, marks[b], cell{t, true}.GiBps())
	}
}

//go:embed page.html
var page string

var pageTemplate = template.Must(template.New("page").Parse(page))

// HTML writes a page with the pair matrix as a heatmap, in one file that loads no other.
func HTML(w io.Writer, r Run) error {
	order, cells, marks := r.order(), r.cells(), r.marks()
	cut := len(order) > maxPageRows
	if cut {
		order = r.suspects(order, marks)
	}
	fastest := 0.0
	for _, t := range r.Graph.Tests {
		fastest = max(fastest, t.Bandwidth)
	}
	// Class outlines the rows and columns of suspects, and separates racks.
	type square struct{ Colour, Value, Title, Class string }
	type row struct {
		Name, Leaf, Mark string
		NewRack          bool
		Cells            []square
	}
	newRack := func(k int) bool {
		return k > 0 && r.Leaf[r.Graph.Nodes[order[k]]] != r.Leaf[r.Graph.Nodes[order[k-1]]]
	}
	data := struct {
		Run     string
		Reasons []string
		Rows    []row
		Legend  []square
		Values  bool
		Shown   int
		Of      int
		Cut     bool
	}{Run: r.Verdict.Run, Reasons: r.Reasons(), Values: len(order) <= maxMatrixNodes, Shown: len(order), Of: len(r.Graph.Nodes), Cut: cut}
	for k, i := range order {
		name := r.Graph.Nodes[i]
		line := row{Name: name, Leaf: r.Leaf[name], Mark: marks[name], NewRack: newRack(k)}
		for l, j := range order {
			c := cells[[2]int{i, j}]
			s := square{Value: c.GiBps(), Title: fmt.Sprintf("%s - %s", name, r.Graph.Nodes[j])}
			if marks[name] != "" || marks[r.Graph.Nodes[j]] != "" {
				s.Class += " bad"
			}
			if newRack(l) {
				s.Class += " rack"
			}
			if c.Tested {
				s.Colour, s.Title = colour(c.Bandwidth, fastest), fmt.Sprintf("%s: %s, round %d", s.Title, s.Value, c.Batch)
			}
			line.Cells = append(line.Cells, s)
		}
		data.Rows = append(data.Rows, line)
	}
	for step := range 6 {
		value := fastest * float64(step) / 5
		data.Legend = append(data.Legend, square{Colour: colour(value, fastest), Value: fmt.Sprintf("%.4g", value)})
	}
	return pageTemplate.Execute(w, data)
}

// suspects are the marked nodes and their partners, in order.
func (r Run) suspects(order []int, marks map[string]string) []int {
	show := map[int]bool{}
	for _, t := range r.Graph.Tests {
		if marks[r.Graph.Nodes[t.A]] != "" || marks[r.Graph.Nodes[t.B]] != "" {
			show[t.A], show[t.B] = true, true
		}
	}
	order = slices.DeleteFunc(order, func(i int) bool { return !show[i] })
	return order[:min(len(order), maxPageRows)]
}

// ramp is viridis in five steps. Its lightness increases too, so that it is readable without seeing red or green.
var ramp = [...][3]float64{{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}

// colour is the CSS colour of a value between 0 and the fastest.
func colour(value, fastest float64) string {
	if fastest <= 0 {
		return "#888888"
	}
	at := min(value/fastest, 1) * float64(len(ramp)-1)
	k := min(int(at), len(ramp)-2)
	var rgb [3]int
	for c := range rgb {
		rgb[c] = int(ramp[k][c] + (at-float64(k))*(ramp[k+1][c]-ramp[k][c]))
	}
	return fmt.Sprintf("#%02x%02x%02x", rgb[0], rgb[1], rgb[2])
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
