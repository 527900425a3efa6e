package verdict

// maxBatches is the number of batches that kcover evaluates.
const maxBatches = 5

// Intersect is kcover's rule. It decides when the tests have no bandwidths. A node is slow when it was in a bad pair in
// every batch in which it was measured, of the first min(size-1, 5) batches of the run, and when at least two of these
// pairs had different partners. It corrects the original in these points:
//
//   - Only the batches in which the node was measured count. A lost report, or a round that the node sits out because the
//     number of nodes is odd, does not hide a slow node.
//   - Pairs with an end whose local check failed are left out, see [NewGraph].
//   - A slow node needs two partners, so that in a run of two nodes neither is asserted to be slow.
//   - If two ranks run on one node, one good pair is enough to clear the node.
//   - A skipped pair is not a measurement.
//
// The result has an entry for each node of the graph.
func Intersect(g Graph, size int) []bool {
	batches := min(size-1, maxBatches)
	type nodeInBatch struct{ node, batch int }
	good, measured := map[nodeInBatch]bool{}, map[nodeInBatch]bool{}
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
			key := nodeInBatch{pair[0], t.Batch}
			measured[key] = true
			good[key] = good[key] || !bad
			if bad {
				partners[pair[0]][pair[1]] = true
			}
		}
	}
	slow := make([]bool, len(g.Nodes))
	for i := range slow {
		slow[i] = len(partners[i]) >= minPartners
	}
	for key := range measured {
		if good[key] {
			slow[key.node] = false
		}
	}
	return slow
}
