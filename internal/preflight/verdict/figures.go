package verdict

import (
	"cmp"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

const (
	// figureDrop is the share below the median from which on a node is a suspect. GPUs of one model differ by half of it.
	figureDrop = 0.10
	// figurePeers is the number of other nodes that must have the figure.
	figurePeers = 4
	// figureCrowd is the share of nodes below the median above which they are probably another kind of node.
	figureCrowd = 0.25
)

// Figure is one thing that each node has measured about itself. Its unit is the user's own; more is better.
type Figure struct {
	Name string
	// Median over Nodes nodes.
	Median float64
	Nodes  int
	// Below are the nodes far below the median, the slowest first. They are suspects only: what a node reports about itself
	// is not confirmed by another node.
	Below []Below
}

// Below is a node that is far below a figure's median.
type Below struct {
	Node  string
	Value float64
	// Drop is how far the value is below the median, as a share of the median.
	Drop float64
}

// figures compares what the nodes have measured about themselves, by name. With two ranks on one node the lower value
// counts.
func figures(reports []report.Report) []Figure {
	values := map[string]map[string]float64{}
	for _, r := range reports {
		for name, v := range r.Figures {
			if values[name] == nil {
				values[name] = map[string]float64{}
			}
			if before, ok := values[name][r.Node]; !ok || v < before {
				values[name][r.Node] = v
			}
		}
	}
	var all []Figure
	for name, byNode := range values {
		f := Figure{Name: name, Nodes: len(byNode)}
		var list []float64
		for _, v := range byNode {
			list = append(list, v)
		}
		f.Median = median(list)
		for node, v := range byNode {
			if drop := 1 - v/f.Median; drop > figureDrop {
				f.Below = append(f.Below, Below{node, v, drop})
			}
		}
		if f.Nodes <= figurePeers || float64(len(f.Below)) > figureCrowd*float64(f.Nodes) {
			f.Below = nil
		}
		slices.SortFunc(f.Below, func(a, b Below) int { return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Node, b.Node)) })
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Figure) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
