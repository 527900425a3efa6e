// Package schedule pairs the ranks of a preflight run, round by round. It is pure: the same arguments give the same pairs.
package schedule

import "math/rand/v2"

// MaxRounds is the largest number of rounds before the adaptive ones. More rounds take time and hardly change the verdict.
const MaxRounds = 5

// Rounds pairs n ranks by the circle method. In every round each rank has at most one partner, no two ranks meet twice,
// and with an odd n one rank sits out. There are at most n-1 rounds (n for an odd n), and at most rounds.
//
// The seed alone shuffles the ranks first. Without the shuffle neighbours would meet the same racks in consecutive rounds,
// and a slow rack would make the rack opposite of it look slow. leaf is the leaf switch of each rank, or nil. If it is
// given, every other round has as many pairs as possible within a leaf, so that a slow uplink can be distinguished from a
// slow node.
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
			pairs = withinLeaves(order, leaf, met)
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

// circle is round r of the circle method, without the pairs that were already tested.
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

// withinLeaves pairs ranks of one leaf that have not met, in order, and then the remaining ranks.
func withinLeaves(order []int, leaf []string, met map[[2]int]bool) [][2]int {
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
