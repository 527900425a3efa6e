package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

const (
	// convict is the probability from which on a node is slow of which every test was slow, and surely that of a node
	// that was also seen healthy. With 0.9 for both, 2 of 100 runs of 8 nodes convict somebody when links are bad and
	// reports missing, and nobody is slow (bench/slownode).
	convict, surely = 0.95, 0.98
	// doubt is the probability from which on a node is worth a retest.
	doubt = 0.5
	// wellBelow is the probability up to which a node is healthy.
	wellBelow = 0.1
	// minPartners is how many partners of its own a conviction needs.
	minPartners = 2
	// retests is how many pairs decide about a doubtful node.
	retests = 2
)

// Options are what Judge is told besides the reports.
type Options struct {
	// Leaf names each node's rack or leaf switch; nodes without one have no topology.
	Leaf map[string]string
	// Missing names nodes of the run that have not reported, as far as others than their peers know them.
	Missing []string
	// Size is how many ranks the run has; 0 takes the reports' word.
	Size int
}

// Verdict is what a run says about its nodes. Its JSON is for machines.
type Verdict struct {
	Run string `json:"run"`
	// Complete tells whether every rank has reported.
	Complete bool   `json:"complete"`
	Slow     []Slow `json:"slow"`
	// Failed are the nodes whose local check failed.
	Failed []string `json:"failed"`
	// Missing are the nodes that did not report: by name, or by address where only their peers named them. They are
	// suspects: a node that hangs reports nothing.
	Missing []string `json:"missing"`
	// Retest are the pairs whose tests would decide what is open.
	Retest [][2]string `json:"retest"`
	// Fabric says what is wrong with more than single nodes. It convicts none of them.
	Fabric []string `json:"fabric"`
	// Figures are what the nodes measured of themselves, with those that are far below the others.
	Figures []Figure `json:"-"`
	// Healthy are the nodes that were measured with enough partners and found well.
	Healthy []string `json:"-"`
}

// Slow is a convicted node.
type Slow struct {
	Node string  `json:"node"`
	P    float64 `json:"p"`
	// Drop is the share of bandwidth lost, in the median of the tests against it; 0 when only failures are known.
	Drop float64 `json:"drop"`
	// Partners is how many healthy partners saw it slow.
	Partners int `json:"partners"`
}

// Judge decides about a run from one report per rank: by [Estimate] when there are bandwidths, else by [Intersect].
// It is deterministic, and the order of the reports does not matter.
func Judge(run string, reports []Report, o Options) Verdict {
	size := o.Size
	for _, r := range reports {
		size = max(size, r.Size)
	}
	g := NewGraph(reports)
	v := Verdict{Run: run, Figures: figures(reports), Complete: size > 0 && len(reports) >= size, Slow: []Slow{}, Failed: []string{}, Missing: []string{}, Retest: [][2]string{}, Fabric: []string{}}
	for i, failed := range g.FailFast {
		if failed {
			v.Failed = append(v.Failed, g.Nodes[i])
		}
	}
	if !v.Complete {
		v.Missing = append(v.Missing, o.Missing...)
		if len(v.Missing) == 0 {
			v.Missing = append(v.Missing, g.Nodes[g.Known:]...)
		}
		slices.Sort(v.Missing)
	}
	if why := g.fabric(); why != "" {
		v.Fabric = append(v.Fabric, why)
		return v
	}
	d := decide(g, size, nil)
	if len(o.Leaf) > 0 {
		v.leaves(g, d, decide(g, size, o.Leaf), o.Leaf)
	}
	v.fill(g, d)
	v.Healthy = slices.DeleteFunc(v.Healthy, v.below)
	return v
}

// below tells whether a figure of a node is far below the others'.
func (v Verdict) below(node string) bool {
	return slices.ContainsFunc(v.Figures, func(f Figure) bool {
		return slices.ContainsFunc(f.Below, func(b Below) bool { return b.Node == node })
	})
}

// fabric says why the whole run is no evidence against single nodes; empty when it is.
func (g Graph) fabric() string {
	failed := 0
	for _, t := range g.Tests {
		if t.Failed {
			failed++
		}
	}
	typical := g.typical()
	switch {
	case len(g.Tests) == 0 && g.Skips > 0:
		return "every pair was skipped: fabric or configuration"
	case len(g.Tests) > 0 && failed == len(g.Tests):
		return "every pair failed: fabric or configuration"
	case typical > 0 && typical < g.Threshold:
		return fmt.Sprintf("typical bandwidth %.4g GiB/s is below the threshold of %.4g GiB/s: fabric or configuration", typical, g.Threshold)
	}
	return ""
}

// decision is about the nodes of a graph, by index.
type decision struct {
	slow []bool
	p    []float64
	// lost is how much bandwidth each of the tests in against has lost, from 0 to 1.
	lost [][]float64
	// against are the healthy partners with which the node itself was slow, by its own report: nobody is convicted on
	// the word of others. partners are all it was measured with.
	against, partners [][]int
	// clean tells which nodes took part in a test that was not slow.
	clean []bool
}

// with adds a node to a list that has each once.
func with(nodes []int, node int) []int {
	if slices.Contains(nodes, node) {
		return nodes
	}
	return append(nodes, node)
}

func decide(g Graph, size int, leaf map[string]string) decision {
	n := len(g.Nodes)
	d := decision{slow: make([]bool, n), p: make([]float64, n), lost: make([][]float64, n), against: make([][]int, n), partners: make([][]int, n), clean: make([]bool, n)}
	slowTest := func(k int) bool { return g.bad(g.Tests[k]) }
	lost := func(int) float64 { return 0 }
	if g.measured() {
		e := Estimate(g, leaf)
		d.p = e.P
		slowTest = func(k int) bool { return e.x[k] < -slowReading }
		lost = func(k int) float64 { return 1 - math.Exp(e.x[k]) }
	} else {
		for i, slow := range Intersect(g, size) {
			if slow {
				d.p[i] = 1
			}
		}
	}
	for k, t := range g.Tests {
		d.partners[t.A], d.partners[t.B] = with(d.partners[t.A], t.B), with(d.partners[t.B], t.A)
		if !slowTest(k) {
			d.clean[t.A], d.clean[t.B] = true, true
			continue
		}
		if t.ByA && d.p[t.B] < doubt {
			d.against[t.A] = with(d.against[t.A], t.B)
			d.lost[t.A] = append(d.lost[t.A], lost(k))
		}
		if t.ByB && d.p[t.A] < doubt {
			d.against[t.B] = with(d.against[t.B], t.A)
			d.lost[t.B] = append(d.lost[t.B], lost(k))
		}
	}
	for i := range g.Known {
		enough := convict
		if d.clean[i] {
			enough = surely
		}
		d.slow[i] = d.p[i] > enough && len(d.against[i]) >= minPartners
	}
	return d
}

// leaves blames the switch when more than half of its nodes are slow, and not them.
// That one node of a leaf is slow makes it likelier that the next one is, which together decides; a single node is not
// convicted for its neighbours.
func (v *Verdict) leaves(g Graph, d, together decision, leaf map[string]string) {
	nodes := map[string][]int{}
	for i := range g.Known {
		if name := leaf[g.Nodes[i]]; name != "" && len(d.partners[i]) > 0 {
			nodes[name] = append(nodes[name], i)
		}
	}
	for name, members := range nodes {
		slow := 0
		for _, i := range members {
			if together.slow[i] {
				slow++
			}
		}
		if slow < 2 || 2*slow <= len(members) {
			continue
		}
		v.Fabric = append(v.Fabric, fmt.Sprintf("switch %s: %d of its %d nodes are slow", name, slow, len(members)))
		for _, i := range members { // what they showed is the switch's
			d.slow[i], d.p[i], d.clean[i] = false, 0, true
		}
	}
	slices.Sort(v.Fabric)
}

func (v *Verdict) fill(g Graph, d decision) {
	ranked := d.ranked(g)
	for i := range g.Known {
		switch {
		case d.slow[i]:
			v.Slow = append(v.Slow, Slow{g.Nodes[i], round(d.p[i]), round(median(d.lost[i])), len(d.against[i])})
		case d.p[i] > doubt || !d.clean[i] && len(d.partners[i]) > 0: // or it has met nobody but slow nodes
			for _, partner := range d.deciders(ranked, i) {
				v.Retest = append(v.Retest, [2]string{g.Nodes[i], g.Nodes[partner]})
			}
		case d.p[i] < wellBelow && len(d.partners[i]) >= minPartners && len(v.Fabric) == 0:
			v.Healthy = append(v.Healthy, g.Nodes[i])
		}
	}
	slices.SortStableFunc(v.Slow, func(a, b Slow) int { return cmp.Or(cmp.Compare(b.P, a.P), cmp.Compare(a.Node, b.Node)) })
}

// ranked are the nodes that can be tested, the most surely healthy one first.
func (d decision) ranked(g Graph) []int {
	var list []int
	for i := range g.Known {
		if !g.FailFast[i] {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(d.p[a], d.p[b]) })
	return list
}

// deciders are the partners that a doubtful node should be tested with: healthy ones that it has not met.
func (d decision) deciders(ranked []int, i int) []int {
	var list []int
	for _, j := range ranked {
		if d.p[j] >= doubt || len(list) == retests {
			break
		}
		if j != i && d.vouches(j, i) {
			list = append(list, j)
		}
	}
	return list
}

// vouches tells whether a test with j would say something new about i: j has been measured, and not with i.
func (d decision) vouches(j, i int) bool {
	return len(d.partners[j]) > 0 && !slices.Contains(d.partners[i], j)
}

// Next pairs every node that may be slow with the most trusted node that it has not met: the tests of an adaptive
// round, by node name. It is empty when there is nothing to find out.
func Next(reports []Report) [][2]string {
	const suspicion = 0.01
	g := NewGraph(reports)
	if !g.measured() || g.fabric() != "" {
		return nil
	}
	d := decide(g, 0, nil)
	ranked := d.ranked(g)
	var pairs [][2]string
	taken := make([]bool, len(g.Nodes))
	for _, i := range slices.Backward(ranked) {
		if d.p[i] <= suspicion {
			break
		}
		if taken[i] {
			continue
		}
		for _, j := range ranked {
			if d.p[j] >= d.p[i] {
				break
			}
			if !taken[j] && d.vouches(j, i) {
				taken[i], taken[j] = true, true
				pairs = append(pairs, [2]string{g.Nodes[i], g.Nodes[j]})
				break
			}
		}
	}
	return pairs
}

// round keeps three digits: more would say more than is known.
func round(f float64) float64 { return math.Round(f*1000) / 1000 }
