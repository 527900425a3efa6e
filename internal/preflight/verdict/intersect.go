package verdict

// maxBatches is how many batches kcover counts.
const maxBatches = 5

// Intersect is kcover's rule, the verdict where no bandwidths exist: a node is slow when it was in a bad pair in every
// one of the run's first min(n-1, 5) batches that it was measured in, at least two of them with different partners. It
// differs from the original where that was wrong:
//
//   - only the batches in which the node was measured count, so that a lost report or the odd one out of an odd number
//     does not hide a slow node;
//   - pairs with an end that failed fast are dropped (see [NewGraph]), and the others are judged as if it were not there;
//   - two partners are needed, so a run of two nodes convicts nobody;
//   - of two ranks on one node, a good pair speaks for the node;
//   - a skipped pair is no measurement.
//
// The result has an entry for each node of the graph.
func Intersect(g Graph, size int) []bool {
	batches := min(size-1, maxBatches)
	type look struct{ node, batch int }
	good, seen := map[look]bool{}, map[look]bool{}
	partners := make([]map[int]bool, len(g.Nodes))
	for i := range partners {
		partners[i] = map[int]bool{}
	}
	for _, t := range g.Tests {
		if t.Batch >= batches {
			continue
		}
		bad := g.bad(t)
		for _, pair := range [2][2]int{{t.A, t.B}, {t.B, t.A}} {
			l := look{pair[0], t.Batch}
			seen[l] = true
			good[l] = good[l] || !bad
			if bad {
				partners[pair[0]][pair[1]] = true
			}
		}
	}
	slow := make([]bool, len(g.Nodes))
	for i := range slow {
		slow[i] = len(partners[i]) >= minPartners
	}
	for l := range seen {
		if good[l] {
			slow[l.node] = false
		}
	}
	return slow
}
