// Package recording_test runs the recording rules and the dashboard of reliability on a real Prometheus, over a replayed month.
package recording_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

const (
	tools = "../../bin/debian/usr/bin/"
	month = 30 * 24 * time.Hour
	// every is between two scrapes of the replay.
	every = 4 * time.Minute
)

// ledger is the truth, kept without Prometheus: what happened in the last month, by the labels of the figure.
type ledger struct {
	sums  map[string]float64
	waits map[string][]float64
}

// replay has the counters of two leaders, of which the second begins in the middle of the month.
type replay struct {
	at                           time.Time
	counters                     [2]map[string]float64
	out                          *bytes.Buffer
	lines                        map[string]*bytes.Buffer
	ledger                       ledger
	start, changeOfLeader, ended time.Time
}

func (r *replay) leader() map[string]float64 {
	if r.at.Before(r.changeOfLeader) {
		return r.counters[0]
	}
	return r.counters[1]
}

// add counts something in a series, and in the ledger under a figure.
func (r *replay) add(series, figure string, by float64) {
	r.leader()[series] += by
	if figure != "" && !r.at.Before(r.ended.Add(-month)) {
		r.ledger.sums[figure] += by
	}
}

var bounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}

func (r *replay) observe(metric string, value float64) {
	for _, bound := range append(slices.Clone(bounds), math.Inf(1)) {
		if value <= bound {
			r.leader()[fmt.Sprintf("pitcrew_%s_bucket{le=%q}", metric, le(bound))]++
		}
	}
	if !r.at.Before(r.ended.Add(-month)) {
		r.ledger.waits[metric] = append(r.ledger.waits[metric], value)
	}
}

func le(bound float64) string {
	if math.IsInf(bound, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(bound, 'f', 1, 64)
}

const nodes = 700

// kinds are the conditions of the replay with their quarantines a day.
var kinds = []struct {
	condition, repair string
	perDay            float64
}{{"GPUXidError", "ResetGPU", 3}, {"GPUXidError", "Reboot", 1}, {"GPUMemoryError", "Replace", 0.5}, {"HCAPortDown", "Inspect", 0.2}, {"NVLinkDown", "Reboot", 0},
	{"ByHand", "Inspect", 0.4}}

func quarantines(k int) string {
	return fmt.Sprintf("{condition=%q,repair=%q}", kinds[k].condition, kinds[k].repair)
}

// zero makes the series of a leader, as the remediator does.
func zero(into map[string]float64) {
	for k, kind := range kinds {
		into["pitcrew_quarantines_total"+quarantines(k)] = 0
		into["pitcrew_repairs_relapsed_total"+quarantines(k)] = 0
		for _, end := range []string{"cleared", "wrong", "repaired", "other", "unstated"} {
			into[ended(k, end)] = 0
		}
		for _, part := range []string{"redone", "stopped"} {
			into[lost(kind.condition, part)] = 0
		}
	}
	for _, metric := range []string{"time_to_quarantine_seconds", "job_restart_seconds", "repair_seconds"} {
		for _, bound := range append(slices.Clone(bounds), math.Inf(1)) {
			into[fmt.Sprintf("pitcrew_%s_bucket{le=%q}", metric, le(bound))] = 0
		}
	}
}

func ended(k int, end string) string {
	return fmt.Sprintf("pitcrew_quarantines_ended_total{condition=%q,repair=%q,ended=%q}", kinds[k].condition, kinds[k].repair, end)
}

func lost(condition, part string) string {
	return fmt.Sprintf("pitcrew_job_rank_seconds_lost_total{cause=%q,part=%q}", condition, part)
}

// happens is one quarantine with all that follows.
func (r *replay) happens(rnd *rand.Rand, k int) {
	kind := kinds[k]
	r.add("pitcrew_quarantines_total"+quarantines(k), "quarantines "+kind.condition+" "+kind.repair, 1)
	r.observe("time_to_quarantine_seconds", 1+20*rnd.ExpFloat64())
	redone, stopped := float64(rnd.IntN(1e6)), 1+30*rnd.ExpFloat64()
	r.observe("job_restart_seconds", stopped)
	r.add(lost(kind.condition, "redone"), "lost "+kind.condition+" redone", 64*redone)
	r.add(lost(kind.condition, "stopped"), "lost "+kind.condition+" stopped", 64*stopped)
	end := []string{"cleared", "cleared", "cleared", "wrong", "repaired", "other", "unstated"}[rnd.IntN(7)]
	r.add(ended(k, end), "ended "+kind.condition+" "+end, 1)
	if end == "repaired" || end == "cleared" && kind.repair != "Inspect" {
		r.observe("repair_seconds", 60+300*rnd.ExpFloat64())
		r.add("-", "repairs "+kind.condition, 1)
		if rnd.IntN(5) == 0 {
			r.add("pitcrew_repairs_relapsed_total"+quarantines(k), "relapsed "+kind.condition, 1)
		}
	}
}

// run writes 35 days up to the end in the text format of OpenMetrics, all samples of a series together.
func run(end time.Time) *replay {
	rnd := rand.New(rand.NewPCG(42, 1))
	r := &replay{
		start: end.Add(-month - 5*24*time.Hour), ended: end, changeOfLeader: end.Add(-month / 2), out: &bytes.Buffer{},
		lines: map[string]*bytes.Buffer{}, ledger: ledger{map[string]float64{}, map[string][]float64{}},
	}
	for i := range r.counters {
		r.counters[i] = map[string]float64{}
		zero(r.counters[i])
	}
	for r.at = r.start; !r.at.After(end); r.at = r.at.Add(every) {
		r.sample("pitcrew_watched_nodes{", nodes)
		for series, value := range r.leader() {
			if series != "-" {
				r.sample(series, value)
			}
		}
		if restarted := r.changeOfLeader.Add(month / 4); !r.at.Before(restarted) && r.at.Before(restarted.Add(every)) {
			zero(r.leader()) // the second leader starts anew under its name
		}
		if r.at.After(end.Add(-time.Hour)) { // nothing happens at the end, so that the time of the evaluation does not matter
			continue
		}
		for k, kind := range kinds {
			if rnd.Float64() < kind.perDay*every.Hours()/24 {
				r.happens(rnd, k)
			}
		}
	}
	family := ""
	for _, series := range slices.Sorted(maps.Keys(r.lines)) {
		name, _, _ := strings.Cut(series, "{")
		if name = strings.TrimSuffix(strings.TrimSuffix(name, "_total"), "_bucket"); name != family {
			family = name
			fmt.Fprintf(r.out, "# TYPE %s unknown\n", family+strings.TrimPrefix(strings.SplitN(series, "{", 2)[0], family))
		}
		r.out.Write(r.lines[series].Bytes())
	}
	r.out.WriteString("# EOF\n")
	return r
}

func (r *replay) sample(series string, value float64) {
	leader := "a"
	if !r.at.Before(r.changeOfLeader) {
		leader = "b"
	}
	name := strings.Replace(series, "{", fmt.Sprintf("{pod=%q,", leader), 1)
	name = strings.TrimSuffix(strings.TrimSuffix(name, "}"), ",") + "}"
	if r.lines[name] == nil {
		r.lines[name] = &bytes.Buffer{}
	}
	fmt.Fprintf(r.lines[name], "%s %v %d\n", name, value, r.at.Unix())
}

// start has a real Prometheus evaluate the rules over the replay, and returns its URL.
func start(t *testing.T, r *replay) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("reliability.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"month.txt": r.out.Bytes(), "rules.yaml": bytes.Replace(text, []byte("interval: 4m"), []byte("interval: 5s"), 1),
		"prometheus.yaml": []byte("rule_files: [rules.yaml]\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blocks := exec.CommandContext(t.Context(), tools+"promtool", "tsdb", "create-blocks-from", "openmetrics", "-q",
		"--max-block-duration=720h", // by default it writes 420 blocks, and reads the file for each
		filepath.Join(dir, "month.txt"), filepath.Join(dir, "data"))
	if out, err := blocks.CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var log bytes.Buffer
	prometheus := exec.CommandContext(ctx, tools+"prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--storage.tsdb.retention.time=60d", "--web.listen-address="+address)
	prometheus.Stderr = &log
	if err := prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = prometheus.Wait() // it was killed
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return "http://" + address
}

// ask returns the values of a query by its labels, sorted by name.
func ask(t *testing.T, prometheus, query string) map[string]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, prometheus+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil // it is not up yet
	}
	defer func() { _ = response.Body.Close() }() // it was read
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Error != "" {
		t.Fatalf("%s: %v %s", query, err, answer.Error)
	}
	values := map[string]float64{}
	for _, r := range answer.Data.Result {
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(r.Metric)) {
			if name != "__name__" {
				labels = append(labels, r.Metric[name])
			}
		}
		value, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		values[strings.Join(labels, " ")] = value
	}
	return values
}

func TestAReplayedMonth(t *testing.T) {
	r := run(time.Now().Truncate(time.Minute))
	prometheus := start(t, r)
	rules, queries := shipped(t)
	clustertest.Until(t, 3*time.Minute, "the rules to be evaluated, one after another", func() error {
		if len(ask(t, prometheus, rules[len(rules)-1])) == 0 {
			return errors.New("the last one has no value")
		}
		return nil
	})
	truths := r.truths()
	for _, query := range append(rules, queries...) {
		want, known := truths[query]
		if !known && !strings.HasSuffix(query, "_bucket") { // buckets are what the quantiles are made of
			t.Errorf("%s: the test has no truth for it", query)
		}
		if !known {
			continue
		}
		got := ask(t, prometheus, query)
		tolerance := 0.01
		if strings.HasSuffix(query, "_lower") {
			tolerance = 0.02 // of Byar's approximation, see docs/reliability.md
		}
		for _, labels := range slices.Compact(slices.Sorted(maps.Keys(merged(got, want)))) {
			value, answered := got[labels]
			truth := want[labels]
			if isNear := math.Abs(value-truth) <= tolerance*math.Abs(truth); !isNear || truth != 0 && !answered { // NaN is near nothing
				t.Errorf("%s: {%s} is %v, the truth is %v", query, labels, value, truth)
			}
		}
	}
	for metric, waits := range r.ledger.waits {
		slices.Sort(waits)
		for _, q := range []float64{0.5, 0.9} {
			exact := waits[int(q*float64(len(waits)))]
			if known := interpolated(waits, q); known < exact/2 || known > exact*2 {
				t.Errorf("%s %g: %v is not within a bucket of %v", metric, q, known, exact)
			}
		}
	}
}

func merged(a, b map[string]float64) map[string]float64 {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// truths are the values of every figure and of every query of the dashboard by its labels, from the ledger.
func (r *replay) truths() map[string]map[string]float64 {
	const nodeDays = float64(nodes * 30)
	of := func(figure string, change func(float64) float64) map[string]float64 {
		values := map[string]float64{}
		for key, value := range r.ledger.sums {
			if labels, found := strings.CutPrefix(key, figure+" "); found {
				values[labels] = change(value)
			}
		}
		return values
	}
	same := func(v float64) float64 { return v }
	sum := func(figure string, counts func(labels string) bool) float64 {
		total := 0.0
		for labels, value := range of(figure, same) {
			if counts(labels) {
				total += value
			}
		}
		return total
	}
	all := func(string) bool { return true }
	one := func(value float64) map[string]float64 { return map[string]float64{"": value} }
	perThousand := func(v float64) float64 { return 1000 * v / nodeDays }
	ended, lost := of("ended", same), of("lost", func(v float64) float64 { return v / 3600 })
	upper := of("quarantines", func(v float64) float64 { return perThousand(upperBound(v)) })
	for _, kind := range kinds {
		if labels := kind.condition + " " + kind.repair; upper[labels] == 0 { // nothing happened, which proves little
			upper[labels] = perThousand(upperBound(0))
		}
	}
	truths := map[string]map[string]float64{
		"pitcrew:node_days:30d":                            one(nodeDays),
		"pitcrew:quarantines:30d":                          of("quarantines", same),
		"pitcrew:quarantines_per_1000_node_days:30d":       of("quarantines", perThousand),
		"pitcrew:quarantines_per_1000_node_days:30d_lower": of("quarantines", func(v float64) float64 { return perThousand(lowerBound(v)) }),
		"pitcrew:quarantines_per_1000_node_days:30d_upper": upper,
		"pitcrew:quarantines_ended:30d":                    ended,
		"pitcrew:repairs:30d":                              of("repairs", same),
		"pitcrew:repairs_relapsed:30d":                     of("relapsed", same),
		"pitcrew:job_rank_hours_lost:30d":                  lost,
		`sum(pitcrew:quarantines_per_1000_node_days:30d{condition!="ByHand"})`: one(perThousand(sum("quarantines", func(labels string) bool {
			return !strings.HasPrefix(labels, "ByHand ")
		}))),
		`sum(pitcrew:quarantines_ended:30d{ended="wrong"}) / (sum(pitcrew:quarantines_ended:30d) > 0)`: one(
			sum("ended", func(labels string) bool { return strings.HasSuffix(labels, " wrong") }) / sum("ended", all)),
		"1 - sum(pitcrew:repairs_relapsed:30d) / (sum(pitcrew:repairs:30d) > 0)": one(1 - sum("relapsed", all)/sum("repairs", all)),
		"sum by (condition, ended) (pitcrew:quarantines_ended:30d) > 0.5":        ended,
		"pitcrew:job_rank_hours_lost:30d > 0":                                    lost,
	}
	for metric, waits := range r.ledger.waits {
		for _, q := range []float64{0.5, 0.9} {
			truths[fmt.Sprintf("histogram_quantile(%g, pitcrew:%s:30d_bucket)", q, metric)] = one(interpolated(waits, q))
		}
	}
	return truths
}

// shipped returns the names of the recording rules, in their order, and the queries of the dashboard.
func shipped(t *testing.T) (rules, queries []string) {
	t.Helper()
	text, err := os.ReadFile("reliability.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, name, found := strings.Cut(line, "- record: "); found {
			rules = append(rules, strings.TrimSpace(name))
		}
	}
	if text, err = os.ReadFile("../dashboards/reliability.json"); err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	if len(rules) < 12 || len(queries) < 15 {
		t.Fatalf("%d rules, %d queries", len(rules), len(queries))
	}
	return rules, queries
}

// interpolated is a quantile as the bounds of the histogram let it be known.
func interpolated(values []float64, q float64) float64 {
	rank, below, last := q*float64(len(values)), 0.0, 0.0
	for _, bound := range bounds {
		upTo := 0.0
		for _, v := range values {
			if v <= bound {
				upTo++
			}
		}
		if upTo >= rank {
			return last + (bound-last)*(rank-below)/(upTo-below)
		}
		below, last = upTo, bound
	}
	return last
}

// upperBound and lowerBound are the exact bounds of 95 % for a Poisson count, by bisection.
func upperBound(n float64) float64 {
	return bisect(func(mean float64) bool { return atMost(n, mean) > 0.025 })
}

func lowerBound(n float64) float64 {
	if n == 0 {
		return 0
	}
	return bisect(func(mean float64) bool { return 1-atMost(n-1, mean) < 0.025 })
}

func bisect(isBelow func(float64) bool) float64 {
	low, high := 0.0, 1e4
	for range 100 {
		if middle := (low + high) / 2; isBelow(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// atMost is the probability of at most n events of a Poisson distribution.
func atMost(n, mean float64) float64 {
	sum := 0.0
	for k := 0.0; k <= n; k++ {
		factorial, _ := math.Lgamma(k + 1)
		sum += math.Exp(k*math.Log(mean) - mean - factorial)
	}
	return sum
}
