package schedule

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryRankHasAtMostOnePartnerARoundAndNoPartnerTwice(t *testing.T) {
	for n := range 40 {
		leaf := make([]string, n)
		for i := range leaf {
			leaf[i] = strconv.Itoa(i / 4)
		}
		for name, leaf := range map[string][]string{"shuffled": nil, "by leaf": leaf} {
			met := map[[2]int]bool{}
			rounds := Rounds(n, MaxRounds, 7, leaf)
			for r, pairs := range rounds {
				busy := map[int]bool{}
				for _, p := range pairs {
					if busy[p[0]] || busy[p[1]] || p[0] == p[1] {
						t.Errorf("%s, n=%d round %d: %v: a rank has two partners", name, n, r, p)
					}
					if met[key(p)] {
						t.Errorf("%s, n=%d round %d: %v are paired again", name, n, r, p)
					}
					busy[p[0]], busy[p[1]], met[key(p)] = true, true, true
				}
				if leaf == nil && len(pairs) != n/2 {
					t.Errorf("n=%d round %d: %d pairs, want %d", n, r, len(pairs), n/2)
				}
			}
			want := min(MaxRounds, n+n%2-1)
			if n < 2 {
				want = 0
			}
			if leaf == nil && len(rounds) != want {
				t.Errorf("n=%d: %d rounds, want %d", n, len(rounds), want)
			}
		}
	}
}

func TestTheSeedAloneDecidesThePairs(t *testing.T) {
	if diff := cmp.Diff(Rounds(16, 5, 1, nil), Rounds(16, 5, 1, nil)); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(Rounds(16, 5, 1, nil), Rounds(16, 5, 2, nil)) {
		t.Error("two seeds made the same pairs")
	}
}

func TestEveryOtherRoundStaysWithinTheLeaf(t *testing.T) {
	leaf := slices.Concat(slices.Repeat([]string{"a"}, 8), slices.Repeat([]string{"b"}, 8))
	for r, pairs := range Rounds(16, 4, 3, leaf) {
		crossing := 0
		for _, p := range pairs {
			if leaf[p[0]] != leaf[p[1]] {
				crossing++
			}
		}
		if r%2 == 1 && crossing > 0 {
			t.Errorf("round %d: %d pairs leave their leaf", r, crossing)
		}
	}
}
