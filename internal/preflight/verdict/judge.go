// Package verdict finds the slow nodes of a preflight run in its reports. It is pure: it needs no cluster and no clock.
//
// The nodes of a run measure each other in pairs, in rounds in which every node has at most one partner. A slow pair does
// not show which of its two ends is slow, but several pairs do. [Intersect] is the rule of kcover with its bugs fixed,
// [Estimate] is belief propagation on the graph of pairs, and [Judge] decides.
package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

const (
	// assertAbove is the probability above which a node is asserted to be slow if all of its tests were slow.
	// assertMixedAbove is the same for a node that also took part in a healthy test. With 0.9 for both, 2 of 100 runs of 8
	// nodes assert a slow node although there is none, when links are bad and reports are missing (bench/slownode).
	assertAbove, assertMixedAbove = 0.95, 0.98
	// retestAbove is the probability above which a node is worth a retest.
	retestAbove = 0.5
	// healthyBelow is the probability below which a node is healthy.
	healthyBelow = 0.1
	// minPartners is the number of healthy partners with which a node must have been slow.
	minPartners = 2
	// maxRetests is the largest number of pairs that are proposed for a doubtful node.
	maxRetests = 2
)

// Options are what [Judge] needs besides the reports.
type Options struct {
	// Leaf is the rack or leaf switch of each node, by node name. Nodes that are not in it have no topology.
	Leaf map[string]string
	// Missing are the names of nodes of the run that have not reported, as far as they are known from the run's pods.
	Missing []string
	// Size is the number of ranks of the run; 0 takes it from the reports.
	Size int
}

// Verdict is the result of a run. Its JSON is an interface for programs.
type Verdict struct {
	Run string `json:"run"`
	// Complete is true if every rank has reported.
	Complete bool   `json:"complete"`
	Slow     []Slow `json:"slow"`
	// Failed are the nodes whose local check failed.
	Failed []string `json:"failed"`
	// Missing are the nodes that did not report: by name, or by address if only the reports of their peers mention them. They
	// are suspects, because a node that hangs sends no report.
	Missing []string `json:"missing"`
	// Retest are the pairs whose tests would decide about doubtful nodes.
	Retest [][2]string `json:"retest"`
	// Fabric describes faults that affect more than single nodes. No node is asserted to be slow because of them.
	Fabric []string `json:"fabric"`
	// Figures are what the nodes measured about themselves, with the nodes that are far below the others.
	Figures []Figure `json:"-"`
	// Switches are the leaves of Fabric.
	Switches []string `json:"-"`
	// Healthy are the nodes that were measured with enough partners and are not slow.
	Healthy []string `json:"-"`
}

// Slow is a node that is asserted to be slow.
type Slow struct {
	Node string `json:"node"`
	// P is the probability that the node is slow.
	P float64 `json:"p"`
	// Drop is the share of bandwidth that the node loses, the median of its slow tests; 0 when only failures are known.
	Drop float64 `json:"drop"`
	// Partners is the number of healthy partners with which it was slow.
	Partners int `json:"partners"`
}

// Judge decides about a run from one report per rank: by [Estimate] when most tests have a bandwidth, else by [Intersect].
// It is deterministic, and the order of the reports does not matter.
func Judge(run string, reports []report.Report, o Options) Verdict {
	size := o.Size
	for _, r := range reports {
		size = max(size, r.Size)
	}
	g := NewGraph(reports)
	v := Verdict{Run: run, Figures: figures(reports), Complete: size > 0 && len(reports) >= size,
		Slow: []Slow{}, Failed: []string{}, Missing: []string{}, Retest: [][2]string{}, Fabric: []string{}}
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
		v.attributeToSwitch(g, d, decide(g, size, o.Leaf), o.Leaf)
	}
	v.addNodes(g, d)
	v.Healthy = slices.DeleteFunc(v.Healthy, v.below)
	return v
}

// below reports whether a figure of the node is far below the median.
func (v Verdict) below(node string) bool {
	return slices.ContainsFunc(v.Figures, func(f Figure) bool {
		return slices.ContainsFunc(f.Below, func(b Below) bool { return b.Node == node })
	})
}

// fabric is the reason why the tests of the whole run are not evidence against single nodes; empty when they are.
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

// decision is about the nodes of a graph, by their index.
type decision struct {
	slow []bool
	// p is the probability that the node is slow.
	p []float64
	// lost is the share of bandwidth, from 0 to 1, that was lost in each slow test with a partner of slowWith.
	lost [][]float64
	// slowWith are the healthy partners with which the node was slow according to its own report. Reports of others alone
	// are not enough to assert that a node is slow. partners are all nodes with which it was measured.
	slowWith, partners [][]int
	// clean marks the nodes that took part in a test that was not slow.
	clean []bool
}

// appendOnce adds a node to a list unless it is there.
func appendOnce(nodes []int, node int) []int {
	if slices.Contains(nodes, node) {
		return nodes
	}
	return append(nodes, node)
}

func decide(g Graph, size int, leaf map[string]string) decision {
	n := len(g.Nodes)
	d := decision{
		slow: make([]bool, n), p: make([]float64, n), lost: make([][]float64, n),
		slowWith: make([][]int, n), partners: make([][]int, n), clean: make([]bool, n),
	}
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
		d.partners[t.A], d.partners[t.B] = appendOnce(d.partners[t.A], t.B), appendOnce(d.partners[t.B], t.A)
		if !slowTest(k) {
			d.clean[t.A], d.clean[t.B] = true, true
			continue
		}
		if t.ByA && d.p[t.B] < retestAbove {
			d.slowWith[t.A] = appendOnce(d.slowWith[t.A], t.B)
			d.lost[t.A] = append(d.lost[t.A], lost(k))
		}
		if t.ByB && d.p[t.A] < retestAbove {
			d.slowWith[t.B] = appendOnce(d.slowWith[t.B], t.A)
			d.lost[t.B] = append(d.lost[t.B], lost(k))
		}
	}
	for i := range g.Known {
		limit := assertAbove
		if d.clean[i] {
			limit = assertMixedAbove
		}
		d.slow[i] = d.p[i] > limit && len(d.slowWith[i]) >= minPartners
	}
	return d
}

// attributeToSwitch reports the switch instead of its nodes when more than half of them are slow. byLeaf is the decision in
// which one slow node of a leaf makes it more likely that the other ones are slow. It decides about switches only: no
// single node is asserted to be slow because of its neighbours.
func (v *Verdict) attributeToSwitch(g Graph, d, byLeaf decision, leaf map[string]string) {
	nodes := map[string][]int{}
	for i := range g.Known {
		if name := leaf[g.Nodes[i]]; name != "" && len(d.partners[i]) > 0 {
			nodes[name] = append(nodes[name], i)
		}
	}
	for name, members := range nodes {
		slow := 0
		for _, i := range members {
			if byLeaf.slow[i] {
				slow++
			}
		}
		if slow < 2 || 2*slow <= len(members) {
			continue
		}
		v.Fabric = append(v.Fabric, fmt.Sprintf("switch %s: %d of its %d nodes are slow", name, slow, len(members)))
		v.Switches = append(v.Switches, name)
		for _, i := range members { // the switch explains their slow tests
			d.slow[i], d.p[i], d.clean[i] = false, 0, true
		}
	}
	slices.Sort(v.Fabric)
	slices.Sort(v.Switches)
}

// addNodes adds the slow and the healthy nodes, and the retests of doubtful ones.
func (v *Verdict) addNodes(g Graph, d decision) {
	ranked := d.ranked(g)
	for i := range g.Known {
		switch {
		case d.slow[i]:
			v.Slow = append(v.Slow, Slow{g.Nodes[i], round(d.p[i]), round(median(d.lost[i])), len(d.slowWith[i])})
		case d.p[i] > retestAbove || !d.clean[i] && len(d.partners[i]) > 0: // the latter: all of its partners may be slow
			for _, partner := range d.retestPartners(ranked, i) {
				v.Retest = append(v.Retest, [2]string{g.Nodes[i], g.Nodes[partner]})
			}
		case d.p[i] < healthyBelow && len(d.partners[i]) >= minPartners && len(v.Fabric) == 0:
			v.Healthy = append(v.Healthy, g.Nodes[i])
		}
	}
	slices.SortStableFunc(v.Slow, func(a, b Slow) int { return cmp.Or(cmp.Compare(b.P, a.P), cmp.Compare(a.Node, b.Node)) })
}

// ranked are the nodes that can be tested, those with the lowest probability of being slow first.
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

// retestPartners are the partners with which a doubtful node should be tested: healthy ones that it was not tested with.
func (d decision) retestPartners(ranked []int, i int) []int {
	var list []int
	for _, j := range ranked {
		if d.p[j] >= retestAbove || len(list) == maxRetests {
			break
		}
		if j != i && d.isNewPartner(j, i) {
			list = append(list, j)
		}
	}
	return list
}

// isNewPartner reports whether a test with j would add information about i: j was measured, but not with i.
func (d decision) isNewPartner(j, i int) bool {
	return len(d.partners[j]) > 0 && !slices.Contains(d.partners[i], j)
}

// Next returns the pairs of an adaptive round, by node name. It pairs every node that may be slow with the node that is most
// probably healthy and with which it was not tested. It is empty when no node is in doubt.
func Next(reports []report.Report) [][2]string {
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
			if !taken[j] && d.isNewPartner(j, i) {
				taken[i], taken[j] = true, true
				pairs = append(pairs, [2]string{g.Nodes[i], g.Nodes[j]})
				break
			}
		}
	}
	return pairs
}

// round keeps three digits, because the estimate is not more precise.
func round(f float64) float64 { return math.Round(f*1000) / 1000 }
