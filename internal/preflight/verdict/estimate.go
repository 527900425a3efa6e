package verdict

import (
	"math"
	"slices"
)

// The model: every node slows its tests by its drop d >= 0, in natural logarithms of the bandwidth. The slower end
// decides:
//
//	x = mu - max(d_i, d_j) + noise, noise ~ N(0, sigma²)
//
// In a share of the tests (outlier) a faulty link or congestion slows them further. In a share nu of its tests a slow node
// behaves like a healthy one. The drops are bins, integrated over the noise, and not points: with points that are further
// apart than the noise, every reading between two of them would count as an outlier, and the result would be worse than
// the plain intersection.
var bins = [...]float64{0, 0.05, 0.10, 0.15, 0.22, 0.32, 0.46, 0.65, 0.95, 1.6}

const (
	states = len(bins) - 1
	// healthy is the state of a drop of less than 5 %.
	healthy = 0
	// nu is the share of tests in which a slow node behaves like a healthy one.
	nu = 0.08
	// floor keeps a single reading that no state explains from deciding alone.
	floor = 1e-6
	// rounds is the number of rounds of messages; the beliefs converge after about ten. In the first settle rounds the shares
	// of slow nodes and of outliers are the ones that are assumed for an unknown cluster.
	rounds, settle = 14, 4
	assumedSlow    = 0.02
	assumedOutlier = 0.05
	// outlierDepth is the mean of the exponential distribution of how much a faulty link or congestion slows a test, in
	// natural logarithms: about 40 %. Two flows on one link halve each other; far deeper drops are rare.
	outlierDepth = 0.5
	// weight is the number of nodes, or tests, that the assumed shares count as. leafWeight is the number of nodes that the
	// share of all nodes counts as within a leaf. It is small, because one cause often makes all nodes of a rack slow.
	weight     = 50
	leafWeight = 8
	// slowest is the lower limit of readings, so that the last state explains all of them.
	slowest = -1.5
	// slowReading is how far below the typical bandwidth a test is slow. Natural logarithm, about 4 %.
	slowReading = 0.04
)

// Estimates are what the tests show about the nodes, by the graph's index.
type Estimates struct {
	// P is the probability that the node is slow: that it loses 5 % or more.
	P []float64
	// Typical is the bandwidth of healthy pairs in GiB/s.
	Typical float64
	// Outlier is the share of tests that are slow although both ends are healthy.
	Outlier float64
	// x are the logarithms of the tests' bandwidths, minus that of the typical one.
	x []float64
}

// uninformative is the message that fits all states equally well.
var uninformative = func() (m message) {
	for s := range m {
		m[s] = 1
	}
	return m
}()

// message is what a test shows about one of its ends: the likelihood of each of the end's states, up to a factor. The
// largest is 1, so that no product of messages underflows.
type message [states]float64

func (m *message) scale() {
	largest := m[0]
	for _, v := range m {
		if v > largest {
			largest = v
		}
	}
	by := 1 / largest
	for s := range m {
		m[s] *= by
	}
}

// Estimate runs loopy belief propagation on the graph of pairs: O(rounds × tests). The typical bandwidth and the noise
// are estimated from the run itself; if the reports set a threshold, only tests that reach it count as healthy for that.
// leaf is the rack or leaf switch of each node, by node name, as far as it is known.
func Estimate(g Graph, leaf map[string]string) Estimates {
	b := newBeliefs(g, leaf)
	for round := range rounds {
		b.sum()
		if round >= settle {
			b.relearn()
		}
		for k := range b.tests {
			b.pass(k)
		}
	}
	b.sum()
	e := Estimates{P: make([]float64, len(g.Nodes)), Typical: math.Exp(b.mu), Outlier: b.outlier, x: make([]float64, len(g.Tests))}
	for i, q := range b.state {
		e.P[i] = 1 - q[healthy]
	}
	for i, x := range g.logs() {
		e.x[i] = x - b.mu
	}
	return e
}

type beliefs struct {
	tests     []Test
	mu, sigma float64
	// noise[k] is the density of reading k given each state, and below[k] that of an outlier.
	noise, below []message
	// messages are those to A and to B.
	messages [2][]message
	// state is the belief about each node, as probabilities.
	state []message
	// slow is the expected share of slow nodes around each node: in its leaf if it has one, else in the whole run.
	slow    []float64
	outlier float64
	// leaves are the nodes of each leaf.
	leaves [][]int
	// linked counts the tests of each node. A node without tests does not count in the share of slow nodes.
	linked []int
}

func newBeliefs(g Graph, leaf map[string]string) *beliefs {
	nodes := len(g.Nodes)
	b := &beliefs{slow: make([]float64, nodes), outlier: assumedOutlier, state: make([]message, nodes), linked: make([]int, nodes)}
	byName := map[string]int{}
	for i, node := range g.Nodes {
		b.slow[i] = assumedSlow
		name := leaf[node]
		if name == "" {
			continue
		}
		k, ok := byName[name]
		if !ok {
			k = len(b.leaves)
			byName[name] = k
			b.leaves = append(b.leaves, nil)
		}
		b.leaves[k] = append(b.leaves[k], i)
	}
	var x []float64
	for i, v := range g.logs() {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		x = append(x, v)
		b.tests = append(b.tests, g.Tests[i])
	}
	b.mu, b.sigma = calibrate(x, math.Log(g.typical()), math.Log(g.Threshold))
	n := len(b.tests)
	b.noise, b.below = make([]message, n), make([]message, n)
	b.messages = [2][]message{make([]message, n), make([]message, n)}
	for k, v := range x {
		b.messages[0][k], b.messages[1][k] = uninformative, uninformative
		v = max(v-b.mu, slowest)
		var cdf [states + 1]float64
		for s, edge := range bins {
			cdf[s] = 0.5 * math.Erfc(-(v+edge)/b.sigma/math.Sqrt2)
		}
		for s := range states {
			b.noise[k][s] = (cdf[s+1] - cdf[s]) / (bins[s+1] - bins[s])
			if further := -(v + bins[s]); further > 0 {
				b.below[k][s] = math.Exp(-further/outlierDepth) / outlierDepth
			}
		}
		b.linked[b.tests[k].A]++
		b.linked[b.tests[k].B]++
	}
	return b
}

// likelihood of reading k if the slower end is in state s.
func (b *beliefs) likelihood(k, s int) float64 {
	return (1-b.outlier)*b.noise[k][s] + b.outlier*b.below[k][s] + floor
}

// sum joins the messages to each node.
func (b *beliefs) sum() {
	for i, slow := range b.slow {
		b.state[i][healthy] = 1 - slow
		for s := 1; s < states; s++ {
			b.state[i][s] = slow / float64(states-1)
		}
	}
	for k, t := range b.tests {
		for side, end := range [2]int{t.A, t.B} {
			for s := range states {
				b.state[end][s] *= b.messages[side][k][s]
			}
			b.state[end].scale()
		}
	}
	for i := range b.state {
		b.state[i] = probabilities(b.state[i])
	}
}

// relearn estimates the shares of slow nodes and of outliers from the run. The assumed shares count as much as fifty nodes
// or tests.
func (b *beliefs) relearn() {
	slow, nodes := assumedSlow*weight, float64(weight)
	for i, q := range b.state {
		if b.linked[i] > 0 {
			slow += 1 - q[healthy]
			nodes++
		}
	}
	outliers, tests := assumedOutlier*weight, float64(weight)
	for k, t := range b.tests {
		both := b.state[t.A][healthy] * b.state[t.B][healthy]
		outliers += both * b.outlier * b.below[k][healthy] / b.likelihood(k, healthy)
		tests += both
	}
	b.outlier = min(outliers/tests, 0.3)
	for i := range b.slow {
		b.slow[i] = min(slow/nodes, 0.4)
	}
	for _, members := range b.leaves {
		here, nodes := b.slow[members[0]]*leafWeight, float64(leafWeight)
		for _, i := range members {
			if b.linked[i] > 0 {
				here += 1 - b.state[i][healthy]
				nodes++
			}
		}
		for _, i := range members {
			b.slow[i] = min(here/nodes, 0.4)
		}
	}
}

// pass sends test k's messages to both ends: the geometric mean of the old and the new one, so that loops do not
// oscillate.
func (b *beliefs) pass(k int) {
	t := b.tests[k]
	var likely message
	for s := range states {
		likely[s] = b.likelihood(k, s)
	}
	var fresh [2]message
	for side, other := range [2]int{t.B, t.A} {
		// The belief about the other end from all of its other tests.
		q := b.state[other]
		for s := range states {
			q[s] /= b.messages[1-side][k][s]
		}
		q = probabilities(q)
		for s := 1; s < states; s++ {
			q[healthy] += nu * q[s]
			q[s] *= 1 - nu
		}
		// The slower end decides: the other end if it is in a state above s, this one otherwise.
		above, upTo := 0.0, 1.0
		var f message
		for s := states - 1; s >= 0; s-- {
			f[s] = max(upTo, 0)*likely[s] + above
			above += q[s] * likely[s]
			upTo -= q[s]
		}
		for s := range states {
			fresh[side][s] = (1-nu)*f[s] + nu*f[healthy]
		}
		fresh[side].scale()
	}
	for side := range fresh {
		for s := range states {
			b.messages[side][k][s] = math.Sqrt(b.messages[side][k][s] * fresh[side][s])
		}
	}
}

func probabilities(m message) message {
	total := 0.0
	for _, v := range m {
		total += v
	}
	by := 1 / total
	for s := range m {
		m[s] *= by
	}
	return m
}

// calibrate finds the reading of healthy pairs, mu, and its noise, sigma. It starts at the typical reading and moves to
// the mean of the readings around it until that no longer changes. Readings below least are not from healthy pairs. The
// noise is the spread above mu, because slow pairs are only below. It is at least 1 % and at most 8 %; with few readings
// it stays near the assumed one.
func calibrate(x []float64, typical, least float64) (mu, sigma float64) {
	const around, assumed = 0.08, 0.04
	x = slices.DeleteFunc(slices.Clone(x), func(v float64) bool { return v < least })
	slices.Sort(x)
	mu = typical
	for range 50 {
		from, _ := slices.BinarySearch(x, mu-around)
		to, _ := slices.BinarySearch(x, mu+around)
		if from == to {
			break
		}
		sum := 0.0
		for _, v := range x[from:to] {
			sum += v
		}
		mu = sum / float64(to-from)
	}
	var above []float64
	for _, v := range x {
		if v > mu {
			above = append(above, v-mu)
		}
	}
	trust := min(1, float64(len(above))/20)
	sigma = trust*1.4826*median(above) + (1-trust)*assumed
	return mu, min(max(sigma, 0.01), 0.08)
}
