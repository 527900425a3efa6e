package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestTheSimulationAgreesWithTheClosedForm(t *testing.T) {
	for _, rate := range rates {
		for _, nodes := range sizes {
			for _, to := range responses {
				got := simulate(rand.New(rand.NewPCG(1, uint64(nodes))), nodes, rate, time.Hour, to, 100_000)
				if want := expected(nodes, rate, time.Hour, to); math.Abs(got.ettr/want-1) > 0.003 {
					t.Errorf("%d nodes, %.2f, %s: simulated %.4f, computed %.4f", nodes, rate, to.name, got.ettr, want)
				}
				perDay := float64(nodes) * (1 - got.ettr) * 24
				if math.Abs(got.lost/perDay-1) > 1e-6 {
					t.Errorf("%d nodes: %.3f node-hours lost a day at an ETTR of %.4f", nodes, got.lost, got.ettr)
				}
			}
		}
	}
}

// The first order of arXiv 2410.21680: 1 - nodes·rate·(restart + interval/2).
func TestTheClosedFormAgreesWithThePaperWhereFailuresAreRare(t *testing.T) {
	for _, to := range responses {
		perHour := 8 * 6.50 / 1000 / 24
		first := 1 - perHour*(to.react+to.restart+30*time.Minute).Hours()
		if got := expected(8, 6.50, time.Hour, to); math.Abs(got-first) > 1e-4 {
			t.Errorf("%s: %.6f, to the first order %.6f", to.name, got, first)
		}
	}
}

func TestASeedGivesTheSameTable(t *testing.T) {
	var a, b, c bytes.Buffer
	for w, seed := range map[*bytes.Buffer]uint64{&a: 7, &b: 7, &c: 8} {
		if err := table(w, seed, time.Hour, 300); err != nil {
			t.Fatal(err)
		}
	}
	if a.String() != b.String() || a.String() == c.String() {
		t.Error("the seed does not decide")
	}
}

func TestFasterIsNeverWorse(t *testing.T) {
	for _, nodes := range sizes {
		var last float64
		for _, to := range responses {
			now := expected(nodes, 6.50, time.Hour, to)
			if now <= last {
				t.Errorf("%d nodes: %s has %.4f, what is slower %.4f", nodes, to.name, now, last)
			}
			last = now
		}
	}
}
