package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// model is how the noise is: as the estimate assumes it, with the heavy tails of Student's t, or with leaves whose
// uplinks are congested in a tenth of the rounds.
type model string

const (
	normal    model = "normal"
	heavy     model = "heavy tails"
	congested model = "congested leaves"
)

var models = []model{normal, heavy, congested}

var sizes = []int{8, 16, 64, 256, 1024, report.MaxRanks}

// entry is a cell of the grid with its results.
type entry struct {
	model model
	simulate.Scenario
	runs   int
	scores [methods]score
}

// runsOf returns how many runs a cell of each size has: one run of 10,000 nodes judges as many nodes as 1250 runs of 8.
var runsOf = map[int]int{8: 200, 16: 100, 64: 48, 256: 12, 1024: 4, report.MaxRanks: 1}

// cells are all cells of the grid, in a random order that is always the same: the measured part is at any time a
// sample of the whole.
func cells() []entry {
	var all []entry
	for _, n := range sizes {
		for _, m := range models {
			for _, s := range scenarios(n) {
				s.HeavyTail = m == heavy
				if m == congested {
					s.Congestion = 0.1
				}
				all = append(all, entry{model: m, Scenario: s, runs: runsOf[n]})
			}
		}
	}
	rand.New(rand.NewPCG(0, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// scenarios are all combinations for a size. A slow rack is tested with a schedule that uses the topology, in which its nodes
// test each other.
func scenarios(nodes int) []simulate.Scenario {
	var all []simulate.Scenario
	slow := []simulate.Scenario{{}}
	for _, k := range slices.Compact(slices.Sorted(slices.Values([]int{1, 2, 4, nodes / 8}))) {
		slow = append(slow, simulate.Scenario{Slow: k})
	}
	slow = append(slow, simulate.Scenario{Slow: min(simulate.NodesPerLeaf, nodes/2), Rack: true, Topology: true})
	for _, s := range slow {
		s.Nodes = nodes
		drops, often := []float64{0.08, 0.12, 0.20, 0.40}, []float64{1, 0.8}
		if s.Slow == 0 {
			drops, often = []float64{0}, []float64{1}
		}
		for _, s.Drop = range drops {
			for _, s.Noise = range []float64{0.01, 0.03, 0.05} {
				for _, s.Missing = range []float64{0, 0.05, 0.15} {
					for _, s.BadLinks = range []float64{0, 0.02, 0.10} {
						for _, s.Intermittent = range often {
							all = append(all, s)
						}
					}
				}
			}
		}
	}
	return all
}

// header names the columns: the factors, the tests that five rounds took, and for each method how many slow nodes it missed, how many others it named, and in how many runs it was exactly right.
func header() []string {
	names := []string{"noise model", "nodes", "slow", "rack", "drop", "noise", "missing", "bad links", "slow in", "runs", "tests"}
	for _, m := range methodNames {
		names = append(names, m+": missed", m+": wrong", m+": exact")
	}
	return names
}

func (e *entry) record() []string {
	g := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	r := []string{
		string(e.model), strconv.Itoa(e.Nodes), strconv.Itoa(e.Slow), strconv.FormatBool(e.Rack), g(e.Drop), g(e.Noise), g(e.Missing), g(e.BadLinks), g(e.Intermittent),
		strconv.Itoa(e.runs), strconv.Itoa(e.scores[estimate].tests),
	}
	for _, s := range e.scores {
		r = append(r, strconv.Itoa(s.missed), strconv.Itoa(s.wrong), strconv.Itoa(s.exact))
	}
	return r
}

// factors is the number of columns with the parameters of a cell. The columns with its results follow.
const factors = 10

// fill reads the results of a record.
func (e *entry) fill(record []string) error {
	if diff := cmp.Diff(e.record()[:factors], record[:factors]); diff != "" {
		return fmt.Errorf("another cell (-want +got): %s", diff)
	}
	var v []int
	for _, text := range record[factors:] {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		v = append(v, n)
	}
	fixed, v := v[0], v[1:]
	for m := range e.scores {
		s := score{missed: v[3*m], wrong: v[3*m+1], exact: v[3*m+2], tests: fixed}
		s.hit = e.runs*e.Slow - s.missed
		e.scores[m] = s
	}
	e.scores[twoRoundMedian].tests = e.runs * (e.Nodes / 2 * 2)
	return nil
}

// readGrid reads the cells that a file has, which are the first ones.
func readGrid(r io.Reader) ([]entry, error) {
	records, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	all := cells()
	if len(records) == 0 || len(records)-1 > len(all) {
		return nil, fmt.Errorf("%d lines, want at most %d", len(records), len(all)+1)
	}
	all = all[:len(records)-1]
	for i := range all {
		if err := all[i].fill(records[i+1]); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
	}
	return all, nil
}

// extendGrid measures the cells that a file lacks, which takes hours; it may be stopped and started again.
func extendGrid(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var done []entry
	w := csv.NewWriter(f)
	if info.Size() == 0 {
		err = w.Write(header())
	} else if done, err = readGrid(f); err != nil {
		err = fmt.Errorf("read %s: %w", path, err)
	}
	if err != nil {
		return err
	}
	for _, e := range cells()[len(done):] {
		e.scores = measure(e.Scenario, e.runs)
		if err := w.Write(e.record()); err != nil {
			return err
		}
		if w.Flush(); w.Error() != nil {
			return w.Error()
		}
	}
	return nil
}
