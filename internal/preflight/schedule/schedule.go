// Package schedule pairs the ranks of a run, round by round.
package schedule

import "math/rand/v2"

// MaxRounds is how many rounds a run has before the adaptive ones. More cost time and decide little.
const MaxRounds = 5

// Rounds pairs n ranks by the circle method: in every round each rank has at most one partner, no two ranks meet twice,
// and with an odd n one rank sits out. There are at most n-1 rounds (n for an odd n), and never more than asked for.
//
// The ranks are shuffled first, by the seed alone, so that all ranks can compute the same pairs: on a circle in name
// order, neighbours meet the same racks in consecutive rounds, and a slow rack convicts its mirror image. If leaf is
// given, the rounds alternate: in every other one as many pairs as possible lie within a leaf, so that a slow uplink is
// told from a slow node.
func Rounds(n, rounds int, seed uint64, leaf []string) [][][2]int {
	random := rand.New(rand.NewPCG(seed, 0))
	order := random.Perm(n)
	m := n + n%2
	all := make([][][2]int, 0, rounds)
	met := map[[2]int]bool{}
	next := 0
	for range min(rounds, m-1) {
		var pairs [][2]int
		if leaf != nil && len(all)%2 == 1 {
			pairs = within(order, leaf, met)
		} else {
			for pairs = nil; pairs == nil && next < m-1; next++ {
				pairs = circle(order, next, met)
			}
		}
		if len(pairs) == 0 {
			break
		}
		for _, p := range pairs {
			met[key(p)] = true
		}
		all = append(all, pairs)
	}
	return all
}

func key(p [2]int) [2]int { return [2]int{min(p[0], p[1]), max(p[0], p[1])} }

// circle is round r of the circle method, without the pairs that have met.
func circle(order []int, r int, met map[[2]int]bool) [][2]int {
	n := len(order)
	m := n + n%2
	pairs := make([][2]int, 0, n/2)
	add := func(a, b int) {
		if a >= n || b >= n {
			return // sits out
		}
		if p := [2]int{order[a], order[b]}; !met[key(p)] {
			pairs = append(pairs, p)
		}
	}
	add(r, m-1)
	for i := 1; i < m/2; i++ {
		add((r+i)%(m-1), (r-i+m-1)%(m-1))
	}
	return pairs
}

// within pairs ranks of one leaf that have not met, in order, and then the ranks that are left over.
func within(order []int, leaf []string, met map[[2]int]bool) [][2]int {
	var pairs [][2]int
	taken := make([]bool, len(order))
	for _, sameLeaf := range [2]bool{true, false} {
		waiting := map[string][]int{}
		for _, i := range order {
			if taken[i] {
				continue
			}
			name := ""
			if sameLeaf {
				name = leaf[i]
			}
			partner := -1
			for k, j := range waiting[name] {
				if !met[key([2]int{i, j})] {
					partner = k
					break
				}
			}
			if partner < 0 {
				waiting[name] = append(waiting[name], i)
				continue
			}
			j := waiting[name][partner]
			waiting[name] = append(waiting[name][:partner:partner], waiting[name][partner+1:]...)
			taken[i], taken[j] = true, true
			pairs = append(pairs, [2]int{j, i})
		}
	}
	return pairs
}
