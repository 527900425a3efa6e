// Command ettr simulates how much of its time a job makes progress (ETTR), and what failures of nodes cost, with the failure rates that Meta
// has published for two clusters of nodes with 8 GPUs (arXiv 2410.21680). All of its figures are simulated. A time that was measured
// is an input.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"
)

// rates are failures per 1,000 node-days: RSC-1 and RSC-2 of arXiv 2410.21680.
var rates = []float64{6.50, 2.34}

// sizes are nodes of a job.
var sizes = []int{8, 32, 128, 512, 2048}

// response is what follows a failure.
type response struct {
	name string
	// react is the time from the failure until the job is stopped, restart from then until all ranks run and compute.
	react, restart time.Duration
}

// load is how long a framework needs to load a checkpoint and to initialise after its ranks run: an assumption, the same for all.
const load = 5 * time.Minute

// responses: a person who is paged at any hour and takes two hours is an assumption, ten minutes are what EKS and GKE wait before they
// repair. The third has Pitcrew's times as bench/results states them: from the kernel's line to the stop of the job, and to all ranks.
var responses = []response{
	{"nobody acts for 2 h (assumed)", 2 * time.Hour, load},
	{"auto repair after 10 min (as EKS, GKE)", 10 * time.Minute, load},
	{"Pitcrew (5 s, above the measured 3.0 to 3.5 s)", reaction, load},
}

// reaction is longer than what was measured from an Xid in the kernel log to the stop of a job (docs/benchmarks.md).
const reaction = 5 * time.Second

// outcome is what a run of a job has come to.
type outcome struct {
	ettr, lost float64 // lost: rank-hours, a rank being a node, for each day
	failures   int
}

// simulate runs a job of so many nodes that writes a checkpoint at the end of each interval, which takes no time. Failures come as a
// Poisson process while the job computes; one during a restart begins it anew.
func simulate(r *rand.Rand, nodes int, rate float64, interval time.Duration, to response, days float64) outcome {
	perHour := float64(nodes) * rate / 1000 / 24
	total, every := days*24, interval.Hours()
	var now, useful float64
	var o outcome
	next := r.ExpFloat64() / perHour
	for now < total {
		run := min(next, total-now)
		now += run
		if run < next {
			useful += run // the end of the time that is looked at is no failure
			break
		}
		useful += math.Floor(run/every) * every
		o.failures++
		now += to.react.Hours() + to.restart.Hours()
		for next = r.ExpFloat64() / perHour; next < to.restart.Hours(); next = r.ExpFloat64() / perHour {
			o.failures++ // during the restart, which begins anew
			now += next + to.react.Hours()
		}
		next = r.ExpFloat64() / perHour
	}
	now = max(now, total)
	o.ettr = useful / now
	o.lost = (now - useful) * float64(nodes) / (now / 24)
	return o
}

// expected is the same in closed form. Of a run that ends after an exponential time with mean 1/λ, floor(T/Δ)·Δ is kept, on average
// Δ/(e^(λΔ)-1). A restart of length R that begins anew with every failure takes (e^(λR)-1)/λ, and each failure has its reaction.
func expected(nodes int, rate float64, interval time.Duration, to response) float64 {
	perHour := float64(nodes) * rate / 1000 / 24
	every, again := interval.Hours(), to.restart.Hours()
	kept := every / math.Expm1(perHour*every)
	attempts := math.Exp(perHour * again)
	return kept / (1/perHour + attempts*to.react.Hours() + math.Expm1(perHour*again)/perHour)
}

// table writes the figures of a seed.
func table(w io.Writer, seed uint64, interval time.Duration, days float64) error {
	_, err := fmt.Fprintf(w, "| nodes | failures per 1,000 node-days | response | simulated ETTR | simulated node-hours lost a day |\n|--:|--:|---|--:|--:|\n")
	for _, rate := range rates {
		for _, nodes := range sizes {
			for i, to := range responses {
				o := simulate(rand.New(rand.NewPCG(seed, uint64(nodes))), nodes, rate, interval, to, days)
				size := fmt.Sprint(nodes)
				if i > 0 {
					size = ""
				}
				if err == nil {
					_, err = fmt.Fprintf(w, "| %s | %.2f | %s | %.4f | %.1f |\n", size, rate, to.name, o.ettr, o.lost)
				}
			}
		}
	}
	return err
}

func main() {
	seed := flag.Uint64("seed", 1, "seed of the failures")
	interval := flag.Duration("checkpoint", time.Hour, "time between checkpoints")
	days := flag.Float64("days", 20000, "simulated days of each job")
	flag.Parse()
	err := fmt.Errorf("-checkpoint %s and -days %g must be more than zero", *interval, *days)
	if *interval > 0 && *days > 0 && !math.IsInf(*days, 0) {
		err = table(os.Stdout, *seed, *interval, *days)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
