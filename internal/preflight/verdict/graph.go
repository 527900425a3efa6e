package verdict

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// maxDisagreement is how far the bandwidths that the two ends of a pair report may differ, as a share of the larger one.
// Both ends took part in the same test.
const maxDisagreement = 0.2

// Graph is what a run has measured: its nodes, and the tests of pairs of them.
type Graph struct {
	// Nodes are the names of the nodes that have reported, Known of them, and after these the addresses of nodes that only
	// appear in the reports of their peers.
	Nodes []string
	Known int
	// FailFast is true for each node on which a local check failed.
	FailFast []bool
	// Tests are in the order of batches. Tests with a node of FailFast are left out.
	Tests []Test
	// Threshold is the lowest acceptable bus bandwidth in GiB/s, the median of the reports' thresholds; 0: none.
	Threshold float64
	// Skips counts reports of skipped tests. Disagree counts tests whose ends contradict each other. Neither is a
	// measurement.
	Skips, Disagree int
}

// Test is one test of the pair of nodes A < B.
type Test struct {
	A, B, Batch int
	// Bandwidth is in GiB/s. It is 0 in a test that failed, or that reports ok without a bandwidth.
	Bandwidth float64
	Failed    bool
	// ByA and ByB are true if that end has reported the test.
	ByA, ByB bool
}

// NewGraph joins the reports of one run. Two ranks on one node are one node. Tests of an address that two nodes report as
// their own are left out.
func NewGraph(reports []report.Report) Graph {
	reports = slices.Clone(reports)
	slices.SortStableFunc(reports, func(a, b report.Report) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Rank, b.Rank)) })
	j := joiner{index: map[string]int{}, owner: map[netip.Addr]int{}, tests: map[[3]int]*ends{}}
	j.addNodes(reports)
	for _, r := range reports {
		for _, b := range r.Batches {
			j.addBatch(r.Node, b)
		}
	}
	return j.graph()
}

// joiner makes a graph of reports.
type joiner struct {
	Graph
	// index are the nodes by name, owner by address.
	index map[string]int
	owner map[netip.Addr]int
	// tests are what the ends report, by batch and nodes.
	tests map[[3]int]*ends
}

// node returns the index of a node, which is new where no report has named it yet.
func (j *joiner) node(name string) int {
	if i, ok := j.index[name]; ok {
		return i
	}
	j.index[name] = len(j.Nodes)
	j.Nodes = append(j.Nodes, name)
	j.FailFast = append(j.FailFast, false)
	return len(j.Nodes) - 1
}

// claim notes that node i reports the address as its own.
func (j *joiner) claim(a netip.Addr, i int) {
	if before, ok := j.owner[a]; ok && before != i {
		i = ambiguous
	}
	j.owner[a] = i
}

// addNodes adds the nodes that have reported, their addresses, and the threshold.
func (j *joiner) addNodes(reports []report.Report) {
	var thresholds []float64
	for _, r := range reports {
		i := j.node(r.Node)
		j.FailFast[i] = j.FailFast[i] || r.FailFast()
		thresholds = append(thresholds, r.Threshold)
		if r.IP.IsValid() {
			j.claim(r.IP, i)
		}
		for _, b := range r.Batches {
			j.claim(b.Self, i)
		}
	}
	j.Threshold = median(thresholds)
	j.Known = len(j.Nodes)
}

// addBatch adds what a node reports about one test.
func (j *joiner) addBatch(name string, b report.Batch) {
	if b.Status == report.Skip {
		j.Skips++
		return
	}
	peer := b.Pair[0]
	if peer == b.Self {
		peer = b.Pair[1]
	}
	self := j.index[name]
	other, ok := j.owner[peer]
	if !ok {
		other = j.node(peer.String())
	}
	if other == ambiguous || j.owner[b.Self] == ambiguous || other == self {
		return
	}
	key := [3]int{b.Index, min(self, other), max(self, other)}
	if j.tests[key] == nil {
		j.tests[key] = &ends{}
	}
	j.tests[key].add(self > other, b)
}

// graph returns the graph, with the tests in order.
func (j *joiner) graph() Graph {
	g := j.Graph
	for key, e := range j.tests {
		t, ok := e.test()
		if t.Batch, t.A, t.B = key[0], key[1], key[2]; g.FailFast[t.A] || g.FailFast[t.B] {
			continue
		}
		if !ok {
			g.Disagree++
			continue
		}
		g.Tests = append(g.Tests, t)
	}
	slices.SortFunc(g.Tests, func(a, b Test) int {
		return cmp.Or(cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B))
	})
	return g
}

// ambiguous is the owner of an address that two nodes report as their own.
const ambiguous = -1

// ends is what the two ends of a pair report about one test.
type ends struct {
	reported, failed [2]bool
	bandwidth        [2]float64
}

func (e *ends) add(second bool, b report.Batch) {
	i := 0
	if second {
		i = 1
	}
	e.reported[i] = true
	e.failed[i] = e.failed[i] || b.Status == report.Fail
	e.bandwidth[i] = max(e.bandwidth[i], b.Bandwidth)
}

// test joins what the two ends report; not ok when they disagree. A bandwidth at one end outweighs a failure at the other.
func (e *ends) test() (Test, bool) {
	t := Test{ByA: e.reported[0], ByB: e.reported[1]}
	low, high := min(e.bandwidth[0], e.bandwidth[1]), max(e.bandwidth[0], e.bandwidth[1])
	switch {
	case high == 0:
		t.Failed = e.failed[0] || e.failed[1]
	case low == 0:
		t.Bandwidth = high
	case high-low > maxDisagreement*high:
		return t, false
	default:
		t.Bandwidth = (low + high) / 2
	}
	return t, true
}

// measured reports whether most tests have a bandwidth.
func (g Graph) measured() bool {
	n := 0
	for _, t := range g.Tests {
		if t.Bandwidth > 0 {
			n++
		}
	}
	return 2*n > len(g.Tests)
}

// typical is the upper median, over the nodes, of the best bandwidth that each has reached with any partner, in GiB/s. Slow
// nodes do not lower it as long as they are at most half of all nodes; the median of all tests would fall with every
// partner of a slow node. It is 0 when no test has a bandwidth.
func (g Graph) typical() float64 {
	best := map[int]float64{}
	for _, t := range g.Tests {
		best[t.A], best[t.B] = max(best[t.A], t.Bandwidth), max(best[t.B], t.Bandwidth)
	}
	var all []float64
	for _, b := range best {
		all = append(all, b)
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)/2]
}

// median is the lower median; 0 for an empty list.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[(len(v)-1)/2]
}

// bad reports whether a test failed or was slower than the threshold.
func (g Graph) bad(t Test) bool {
	return t.Failed || t.Bandwidth > 0 && g.Threshold > 0 && t.Bandwidth < g.Threshold
}

// logs are the natural logarithms of the tests' bandwidths. A failed test counts as a quarter of the typical bandwidth. Tests
// without a bandwidth are NaN.
func (g Graph) logs() []float64 {
	failed := math.Log(g.typical() / 4)
	x := make([]float64, len(g.Tests))
	for i, t := range g.Tests {
		switch {
		case t.Bandwidth > 0:
			x[i] = math.Log(t.Bandwidth)
		case t.Failed:
			x[i] = failed
		default:
			x[i] = math.NaN()
		}
	}
	return x
}
