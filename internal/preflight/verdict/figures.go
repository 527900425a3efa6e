package verdict

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
)

const (
	// maxFigures is how many figures a report may have.
	maxFigures = 16
	// figureDrop is how far below the median a node's figure makes it a suspect. GPUs of one kind differ by half of that.
	figureDrop = 0.10
	// figurePeers is how many other nodes must have the figure.
	figurePeers = 4
	// figureCrowd is the share of nodes below the median from which on they are rather another kind of node.
	figureCrowd = 0.25
)

// FigureName is a word of a message, such as gemm or host-to-device.
var FigureName = regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,30}$`)

// Figure is one thing that each node has measured of itself, in a unit of its own in which more is better.
type Figure struct {
	Name string
	// Median over Nodes nodes.
	Median float64
	Nodes  int
	// Below are the nodes far below the median, the slowest first. They are suspects: a node's word about itself convicts
	// nobody.
	Below []Below
}

// Below is a node that is far below a figure's median.
type Below struct {
	Node  string
	Value float64
	// Drop is the share that is missing to the median.
	Drop float64
}

// figures compares what the nodes have measured of themselves, by name. Of two ranks on a node the lower figure counts.
func figures(reports []Report) []Figure {
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

// checkFigures refuses what cannot be compared.
func checkFigures(figures map[string]float64) error {
	if len(figures) > maxFigures {
		return fmt.Errorf("%d figures, at most %d", len(figures), maxFigures)
	}
	for name, v := range figures {
		if !FigureName.MatchString(name) {
			return fmt.Errorf("figure %.40q is not named in small letters, digits and -", name)
		}
		if !(v > 0) || math.IsInf(v, 0) { // JSON has no NaN
			return fmt.Errorf("figure %s is %g", name, v)
		}
	}
	return nil
}
