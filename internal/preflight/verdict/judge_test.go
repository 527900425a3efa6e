package verdict

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// run builds the reports of a run from lines: the pairs of each batch with their bandwidth in GiB/s, 0 for a failed one,
// -1 for a skipped one.
type run struct {
	names     string
	threshold float64
	failFast  string
	missing   string
	batches   [][]pair
	// change edits the reports at the end.
	change func([]report.Report)
}

type pair struct {
	ends  string
	gibps float64
}

func ip(name byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, name - 'a' + 1}) }

func (r run) reports() []report.Report {
	var reports []report.Report
	for rank, name := range []byte(r.names) {
		own := report.Report{RunID: "r", Size: len(r.names), Rank: rank, Node: string(name), IP: ip(name), GPU: report.Passed, Storage: report.Passed, Threshold: r.threshold}
		if contains(r.failFast, name) {
			own.GPU = report.Failed
		}
		for index, batch := range r.batches {
			for _, p := range batch {
				if !contains(p.ends, name) || own.FailFast() {
					continue
				}
				b := report.Batch{Index: index, Self: ip(name), Pair: [2]netip.Addr{ip(p.ends[0]), ip(p.ends[1])}}
				switch {
				case p.gibps < 0:
					b.Status = report.Skip
				case p.gibps == 0:
					b.Status = report.Fail
				default:
					b.Bandwidth = p.gibps
				}
				own.Batches = append(own.Batches, b)
			}
		}
		if !contains(r.missing, name) {
			reports = append(reports, own)
		}
	}
	if r.change != nil {
		r.change(reports)
	}
	return reports
}

func contains(names string, name byte) bool {
	for i := range len(names) {
		if names[i] == name {
			return true
		}
	}
	return false
}

// circle6 is a full round robin of six, in which the pairs of the slow ones have the given bandwidth.
func circle6(slow string, gibps float64) [][]pair {
	var batches [][]pair
	for _, round := range []string{"af be cd", "bf ca de", "cf db ea", "df ec ab", "ef ad bc"} {
		var batch []pair
		for i := 0; i < len(round); i += 3 {
			p := pair{round[i : i+2], 100}
			if contains(slow, round[i]) || contains(slow, round[i+1]) {
				p.gibps = gibps
			}
			batch = append(batch, p)
		}
		batches = append(batches, batch)
	}
	return batches
}

// onlyWith leaves a node only one partner, which it is tested with in three batches.
func onlyWith(batches [][]pair, node, partner byte) [][]pair {
	gibps := 0.0
	for i, batch := range batches {
		batches[i] = nil
		for _, p := range batch {
			if contains(p.ends, node) {
				gibps = p.gibps
			} else if i > 2 || !contains(p.ends, partner) {
				batches[i] = append(batches[i], p)
			}
		}
		if i <= 2 {
			batches[i] = append(batches[i], pair{string([]byte{node, partner}), gibps})
		}
	}
	return batches
}

// summary is a verdict in a few words.
func summary(v Verdict) string {
	s := ""
	for _, slow := range v.Slow {
		s += " slow " + slow.Node
	}
	for _, list := range []struct {
		word  string
		names []string
	}{{"failed", v.Failed}, {"missing", v.Missing}, {"fabric:", v.Fabric}} {
		for _, name := range list.names {
			s += fmt.Sprintf(" %s %s", list.word, name)
		}
	}
	for _, pair := range v.Retest {
		s += fmt.Sprintf(" retest %s-%s", pair[0], pair[1])
	}
	if !v.Complete {
		s += " incomplete"
	}
	return s
}

func TestJudge(t *testing.T) {
	leaves := Options{Leaf: map[string]string{"a": "left", "b": "left", "c": "left", "d": "right", "e": "right", "f": "right"}}
	okOnly := func(reports []report.Report) {
		for _, r := range reports {
			for i := range r.Batches {
				r.Batches[i].Bandwidth = 0
			}
		}
	}
	skips := func(batches [][]pair) [][]pair {
		for _, b := range batches {
			for i := range b {
				b[i].gibps = -1
			}
		}
		return batches
	}
	tests := map[string]struct {
		run  run
		o    Options
		want string
	}{
		"all healthy":                                   {run{names: "abcdef", batches: circle6("", 0)}, Options{}, ""},
		"one slow":                                      {run{names: "abcdef", batches: circle6("c", 80)}, Options{}, " slow c"},
		"two slow":                                      {run{names: "abcdef", batches: circle6("cf", 60)}, Options{}, " slow c slow f"},
		"one fails every pair":                          {run{names: "abcdef", batches: circle6("c", 0)}, Options{}, " slow c"},
		"one fails every pair, no figures":              {run{names: "abcdef", batches: circle6("c", 0), change: okOnly}, Options{}, " slow c"},
		"half are slow, above a threshold":              {run{names: "abcdef", batches: circle6("abc", 60), threshold: 90}, Options{}, " slow a slow b slow c"},
		"a slow leaf is attributed to its switch":       {run{names: "abcdef", batches: circle6("ab", 60)}, leaves, " fabric: switch left: 2 of its 3 nodes are slow"},
		"one slow node of a leaf is attributed to it":   {run{names: "abcdef", batches: circle6("a", 60)}, leaves, " slow a"},
		"all pairs are below the threshold":             {run{names: "abcdef", batches: circle6("c", 80), threshold: 120}, Options{}, " fabric: typical bandwidth 100 GiB/s is below the threshold of 120 GiB/s: fabric or configuration"},
		"every pair was skipped":                        {run{names: "abcdef", batches: skips(circle6("", 0))}, Options{}, " fabric: every pair was skipped: fabric or configuration"},
		"every pair failed":                             {run{names: "abcdef", batches: circle6("abcdef", 0)}, Options{}, " fabric: every pair failed: fabric or configuration"},
		"a local check failed":                          {run{names: "abcdef", batches: circle6("d", 0), failFast: "d"}, Options{}, " failed d"},
		"two nodes, their only pair is bad":             {run{names: "ab", batches: [][]pair{{{"ab", 1}}}, threshold: 90}, Options{}, " fabric: typical bandwidth 1 GiB/s is below the threshold of 90 GiB/s: fabric or configuration"},
		"two nodes, no threshold":                       {run{names: "ab", batches: [][]pair{{{"ab", 1}}}}, Options{}, ""},
		"two nodes, one failed, its peer saw it":        {run{names: "ab", batches: [][]pair{{{"ab", 0}}}, failFast: "b"}, Options{}, " failed b"},
		"kcover bug: failed fast and one transient":     {run{names: "abcd", failFast: "a", batches: [][]pair{{{"ad", 0}, {"bc", 0}}, {{"ac", 0}, {"bd", 100}}, {{"ab", 0}, {"cd", 100}}}}, Options{}, " failed a"},
		"kcover bug: three of four slow, a healthy one": {run{names: "abcd", threshold: 50, batches: [][]pair{{{"ad", 10}, {"bc", 10}}, {{"ac", 10}, {"bd", 10}}, {{"ab", 10}, {"cd", 10}}}}, Options{}, " fabric: typical bandwidth 10 GiB/s is below the threshold of 50 GiB/s: fabric or configuration"},
		"one hangs and does not report":                 {run{names: "abcdef", missing: "e", batches: circle6("e", 0)}, Options{}, " missing 10.0.0.5 incomplete"},
		"one that is known hangs":                       {run{names: "abcdef", missing: "e", batches: circle6("e", 0)}, Options{Missing: []string{"e"}}, " missing e incomplete"},
		"one is missing, another slow":                  {run{names: "abcdef", missing: "e", batches: circle6("b", 60)}, Options{Missing: []string{"e"}}, " slow b missing e incomplete"},
		"odd number, one slow": {run{names: "abcde", batches: [][]pair{
			{{"ab", 60}, {"cd", 100}}, {{"ac", 60}, {"de", 100}}, {{"ad", 60}, {"be", 100}}, {{"ae", 60}, {"bc", 100}}, {{"bd", 100}, {"ce", 100}},
		}}, Options{}, " slow a"},
		"the ends disagree": {run{names: "abcdef", batches: circle6("", 0), change: func(r []report.Report) {
			for i := range r[2].Batches { // c reports wrong values
				r[2].Batches[i].Bandwidth = 50
			}
		}}, Options{}, ""},
		"only its peers report it": {run{names: "abcdef", batches: circle6("c", 50), change: func(r []report.Report) {
			r[2].Batches = nil
		}}, Options{}, ""},
		"an address that two nodes claim is not used": {run{names: "abcdef", batches: circle6("c", 50), change: func(r []report.Report) {
			r[5].IP = r[2].IP
		}}, Options{}, ""},
		"one partner is not enough":                 {run{names: "abcdef", batches: onlyWith(circle6("c", 40), 'c', 'a')}, Options{}, " retest c-b retest c-d"},
		"half of a leaf is attributed to the nodes": {run{names: "abcdef", batches: circle6("ad", 60)}, Options{Leaf: map[string]string{"a": "left", "b": "left", "c": "left", "d": "left"}}, " slow a slow d"},
		"a leaf of one":                             {run{names: "abcdef", batches: circle6("a", 60)}, Options{Leaf: map[string]string{"a": "left"}}, " slow a"},
		"just at the threshold":                     {run{names: "abcdef", batches: circle6("c", 60), threshold: 100}, Options{}, " slow c"},
		"no report":                                 {run{}, Options{Size: 4, Missing: []string{"x"}}, " missing x incomplete"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := Judge("r", tt.run.reports(), tt.o)
			if diff := cmp.Diff(tt.want, summary(v)); diff != "" {
				t.Errorf("%s\n%+v", diff, v)
			}
		})
	}
}

func TestIntersect(t *testing.T) {
	twoRanks := run{names: "abcd", threshold: 90, batches: [][]pair{{{"ad", 10}, {"bc", 100}}, {{"ac", 10}, {"bd", 100}}, {{"ab", 100}, {"cd", 100}}}}
	tests := map[string]struct {
		run  run
		want string
	}{
		"one slow":                     {run{names: "abcdef", threshold: 90, batches: circle6("c", 80)}, "c"},
		"two slow":                     {run{names: "abcdef", threshold: 90, batches: circle6("cf", 80)}, "cf"},
		"four bad batches of five":     {run{names: "abcdef", threshold: 90, batches: circle6("c", 80), change: func(r []report.Report) { faster(r, 2, 0) }}, ""},
		"one batch lost":               {run{names: "abcdef", threshold: 90, batches: circle6("c", 80)[1:]}, "c"},
		"just at the threshold":        {run{names: "abcdef", threshold: 80, batches: circle6("c", 80)}, ""},
		"no threshold, no failure":     {run{names: "abcdef", batches: circle6("c", 80)}, ""},
		"n=2":                          {run{names: "ab", threshold: 90, batches: [][]pair{{{"ab", 10}}}}, ""},
		"batches beyond five":          {run{names: "abcdef", threshold: 90, batches: append(circle6("c", 80), []pair{{"ca", 100}})}, "c"},
		"two bad pairs, one good":      {twoRanks, ""},
		"a good pair of another rank":  {run{names: "abcdef", threshold: 90, batches: circle6("c", 80), change: func(r []report.Report) { secondRank(r, 2) }}, ""},
		"skip is no measurement":       {run{names: "abcdef", threshold: 90, batches: [][]pair{{{"ab", -1}}, {{"ac", -1}}, {{"ad", -1}}}}, ""},
		"failed fast ends are dropped": {run{names: "abcd", failFast: "a", batches: [][]pair{{{"ad", 0}, {"bc", 0}}, {{"ac", 0}, {"bd", 100}}, {{"ab", 0}, {"cd", 100}}}}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewGraph(tt.run.reports())
			got := ""
			for i, slow := range Intersect(g, len(tt.run.names)) {
				if slow {
					got += g.Nodes[i]
				}
			}
			if got != tt.want {
				t.Errorf("slow %q, want %q", got, tt.want)
			}
		})
	}
}

// faster makes one batch of a node and its partner good.
func faster(reports []report.Report, node, batch int) {
	p := reports[node].Batches[batch].Pair
	for _, r := range reports {
		for i, b := range r.Batches {
			if b.Index == batch && b.Pair == p {
				r.Batches[i].Bandwidth = 100
			}
		}
	}
}

// secondRank gives a node a good pair in every batch, by a rank with another address.
func secondRank(reports []report.Report, node int) {
	second := netip.AddrFrom4([4]byte{10, 0, 1, 1})
	for i := range reports[node].Batches {
		reports[node].Batches = append(reports[node].Batches, report.Batch{
			Index: i, Self: second, Pair: [2]netip.Addr{reports[(node+1+i)%len(reports)].IP, second}, Bandwidth: 100,
		})
	}
	for i, b := range reports[node].Batches {
		if b.Pair[0] == b.Pair[1] || b.Pair[0] == reports[node].IP && b.Self == second {
			reports[node].Batches[i].Pair[0] = ip('a')
		}
	}
}

func TestKcoversSampleHasKcoversVerdict(t *testing.T) {
	var reports []report.Report
	for _, name := range []string{"raw", "peer", "compact", "failfast"} {
		data, err := os.ReadFile("../report/testdata/kcover-" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		r, err := report.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}
	v := Judge("r", reports, Options{})
	if got := summary(v); got != " slow gpu-c failed gpu-d" {
		t.Fatal(got)
	}
	if c := v.Slow[0]; c.Drop != 0.8 || c.Partners != 2 || c.P <= assertAbove { // 600 ms instead of 120 ms, by a and b
		t.Errorf("%+v", c)
	}
}

func TestTheOrderOfReportsDoesNotMatter(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		r := run{names: "abcdef", batches: circle6(string("abcdef"[random.IntN(6)]), 40+50*random.Float64()), threshold: float64(random.IntN(2)) * 90}
		reports := r.reports()
		want := Judge("r", reports, Options{})
		random.Shuffle(len(reports), func(i, j int) { reports[i], reports[j] = reports[j], reports[i] })
		if diff := cmp.Diff(want, Judge("r", reports, Options{})); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTheNamesOfNodesDoNotMatter(t *testing.T) {
	want := Judge("r", run{names: "abcdef", batches: circle6("b", 70)}.reports(), Options{}).Slow
	renamed := run{names: "abcdef", batches: circle6("b", 70)}.reports()
	for i := range renamed {
		renamed[i].Node = string("zyxwvu"[i])
	}
	got := Judge("r", renamed, Options{}).Slow
	if len(got) != 1 || len(want) != 1 || got[0].Node != "y" || got[0].Partners != want[0].Partners {
		t.Errorf("%+v, want y instead of b in %+v", got, want)
	}
}
