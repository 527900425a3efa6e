// Package verdict reads preflight reports and names the slow node of a run. All of it is pure: no cluster, no clock.
//
// A run's nodes measure each other pairwise, in rounds in which every node has one partner. A slow pair never tells
// which of its ends is slow; several pairs do. [Intersect] is the rule of kcover with its bugs fixed, [Estimate] is
// belief propagation on the graph of pairs, [Judge] decides.
package verdict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

const (
	// MaxReport is the largest report in bytes.
	MaxReport = 16 << 10
	// MaxSize is the largest run in nodes.
	MaxSize = 10_000
	// maxBandwidth is far beyond any fabric; more is a wrong unit. GiB/s.
	maxBandwidth = 100_000
	// unitTolerance is less than what tells GB/s (1.074) from GiB/s.
	unitTolerance = 0.05
)

// Check is the result of a local check.
type Check int

// The results of local checks, with the numbers of the format.
const (
	Skipped Check = iota
	Passed
	Failed
)

// Status is what a node says of one pair test.
type Status int

// The statuses. A skipped test is no measurement.
const (
	OK Status = iota
	Fail
	Skip
)

// Report is what one rank measured, see contract 4. The JSON is kcover's, raw or compacted, plus run_id, busbw_gbps and
// figures.
type Report struct {
	// RunID is empty in kcover's own reports.
	RunID    string
	Workload string
	// Size is how many ranks the run has, and Rank is from 0 to Size-1.
	Size, Rank int
	Node       string
	// IP is the zero Addr when the report names none.
	IP           netip.Addr
	GPU, Storage Check
	// Threshold is the least good bus bandwidth, GiB/s; 0 means none was set.
	Threshold float64
	// Figures are what the node has measured of itself, by name.
	Figures map[string]float64
	Batches []Batch
}

// Batch is the test of one pair in one round.
type Batch struct {
	Index int
	// Pair are the addresses of both ends, the smaller first. Both are the reporter's own in a test without a partner.
	Pair [2]netip.Addr
	// Self is the reporter's end.
	Self   netip.Addr
	Status Status
	// Bandwidth is the bus bandwidth in GiB/s; 0 when nothing was measured.
	Bandwidth float64
}

// FailFast tells whether a local check failed. Such a node's pairs say nothing.
func (r Report) FailFast() bool { return r.GPU == Failed || r.Storage == Failed }

// rawReport is the JSON. Pointers tell what is absent from zero.
type rawReport struct {
	RunID     string             `json:"run_id"`
	Workload  string             `json:"workload"`
	Size      *int               `json:"workload_size"`
	Rank      *int               `json:"rank"`
	Node      string             `json:"node_name"`
	IP        string             `json:"node_ip"`
	Storage   Check              `json:"storage_check"`
	GPU       Check              `json:"gpu_check"`
	Threshold *string            `json:"node_check_busbw_threshold_gbps"`
	Figures   map[string]float64 `json:"figures"`
	Batches   json.RawMessage    `json:"batches"`
}

type rawBatch struct {
	Index  json.RawMessage `json:"batch_idx"`
	Pair   []string        `json:"pair"`
	Self   string          `json:"self_ip"`
	Status string          `json:"status"`
	// The maths of kcover: GiB/s, though the threshold's name says gbps.
	Milliseconds *float64 `json:"allreduce_ms"`
	WorldSize    *int     `json:"world_size"`
	Shape        *float64 `json:"allreduce_shape"`
	Bytes        *float64 `json:"dtype_bytes"`
	Bandwidth    *float64 `json:"busbw_gbps"`
}

// A Kubernetes node name, which also ends up in messages and pages.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// RunID names one attempt of one run; it is a label value.
var runID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// ParseReport reads a report strictly: what it accepts can be judged. Fields that kcover writes and nobody needs are
// ignored. The batches of a node whose local check failed are not read, as in kcover.
func ParseReport(data []byte) (Report, error) {
	if len(data) > MaxReport {
		return Report{}, fmt.Errorf("more than %d bytes", MaxReport)
	}
	var raw rawReport
	if err := decode(data, &raw); err != nil {
		return Report{}, err
	}
	r := Report{RunID: raw.RunID, Workload: raw.Workload, Node: raw.Node, GPU: raw.GPU, Storage: raw.Storage, Figures: raw.Figures}
	if err := r.identify(raw); err != nil {
		return Report{}, err
	}
	for name, c := range map[string]Check{"gpu_check": r.GPU, "storage_check": r.Storage} {
		if c < Skipped || c > Failed {
			return Report{}, fmt.Errorf("%s %d is not 0, 1 or 2", name, c)
		}
	}
	var err error
	if r.Threshold, err = threshold(raw.Threshold); err != nil {
		return Report{}, err
	}
	if err := checkFigures(r.Figures); err != nil {
		return Report{}, err
	}
	if r.FailFast() {
		return r, nil
	}
	var batches []rawBatch
	if len(raw.Batches) > 0 {
		if err := decode(raw.Batches, &batches); err != nil {
			return Report{}, fmt.Errorf("batches: %w", err)
		}
	}
	seen := map[int]bool{}
	for i, rb := range batches {
		b, err := rb.parse(r)
		if err == nil && seen[b.Index] {
			err = fmt.Errorf("batch_idx %d stands twice", b.Index)
		}
		if err != nil {
			return Report{}, fmt.Errorf("batch %d: %w", i, err)
		}
		seen[b.Index] = true
		r.Batches = append(r.Batches, b)
	}
	return r, nil
}

func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("not the JSON of a report: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("not the JSON of a report: more follows it")
	}
	return nil
}

func (r *Report) identify(raw rawReport) error {
	switch {
	case raw.Size == nil:
		return errors.New("no workload_size")
	case *raw.Size < 1 || *raw.Size > MaxSize:
		return fmt.Errorf("workload_size %d is not from 1 to %d", *raw.Size, MaxSize)
	case raw.Rank == nil:
		return errors.New("no rank")
	case *raw.Rank < 0 || *raw.Rank >= *raw.Size:
		return fmt.Errorf("rank %d of workload_size %d", *raw.Rank, *raw.Size)
	case !nodeName.MatchString(raw.Node):
		return fmt.Errorf("node_name %.80q is no node name", raw.Node)
	case raw.RunID != "" && !runID.MatchString(raw.RunID):
		return fmt.Errorf("run_id %.80q is no label value", raw.RunID)
	}
	r.Size, r.Rank = *raw.Size, *raw.Rank
	if raw.IP == "" {
		return nil
	}
	var err error
	r.IP, err = address(raw.IP)
	return err
}

func address(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%.80q is no IP address", s)
	}
	return a.Unmap(), nil
}

func threshold(text *string) (float64, error) {
	if text == nil || strings.TrimSpace(*text) == "" {
		return 0, nil
	}
	t, err := strconv.ParseFloat(strings.TrimSpace(*text), 64)
	if err != nil || math.IsNaN(t) || t < 0 || t > maxBandwidth {
		return 0, fmt.Errorf("node_check_busbw_threshold_gbps %.40q is no bandwidth", *text)
	}
	return t, nil
}

func (rb rawBatch) parse(r Report) (Batch, error) {
	var b Batch
	var err error
	// A number or its text.
	if b.Index, err = strconv.Atoi(strings.Trim(string(rb.Index), `"`)); err != nil || b.Index < 0 {
		return b, fmt.Errorf("batch_idx %.40q is no whole number from 0", rb.Index)
	}
	switch strings.ToLower(rb.Status) {
	case "ok", "":
		b.Status = OK
	case "fail", "timeout", "error":
		b.Status = Fail
	case "skip":
		b.Status = Skip
	default: // kcover takes it for ok
		return b, fmt.Errorf("status %.40q is not ok, fail, timeout, error or skip", rb.Status)
	}
	if err := b.between(rb, r.IP); err != nil {
		return b, err
	}
	if b.Bandwidth, err = rb.bandwidth(); err != nil || b.Status != OK {
		b.Bandwidth = 0
		return b, err
	}
	if r.Threshold > 0 && b.Bandwidth == 0 {
		if rb.measured() {
			b.Status = Fail // a time or size of zero: nothing was moved
			return b, nil
		}
		return b, errors.New("a threshold is set, but there are no figures to hold against it")
	}
	return b, nil
}

func (b *Batch) between(rb rawBatch, self netip.Addr) error {
	var err error
	if b.Self = self; rb.Self != "" {
		if b.Self, err = address(rb.Self); err != nil {
			return err
		}
	}
	if !b.Self.IsValid() {
		return errors.New("neither self_ip nor node_ip says which end of the pair reports")
	}
	if len(rb.Pair) == 0 && b.Status == Skip {
		b.Pair = [2]netip.Addr{b.Self, b.Self}
		return nil
	}
	if len(rb.Pair) != 2 {
		return fmt.Errorf("a pair of %d", len(rb.Pair))
	}
	for i, text := range rb.Pair {
		if b.Pair[i], err = address(text); err != nil {
			return err
		}
	}
	if b.Pair[1].Less(b.Pair[0]) {
		b.Pair[0], b.Pair[1] = b.Pair[1], b.Pair[0]
	}
	if b.Self != b.Pair[0] && b.Self != b.Pair[1] {
		return fmt.Errorf("self_ip %s is no end of the pair", b.Self)
	}
	return nil
}

// measured tells whether there are figures at all.
func (rb rawBatch) measured() bool {
	return rb.Bandwidth != nil || rb.Milliseconds != nil && rb.WorldSize != nil && rb.Shape != nil && rb.Bytes != nil
}

// bandwidth is the bus bandwidth of an all-reduce in GiB/s, as nccl-tests define it: the bytes per second times
// 2(n-1)/n. It is 0 when a figure is absent or zero.
func (rb rawBatch) bandwidth() (float64, error) {
	figures := map[string]*float64{"allreduce_ms": rb.Milliseconds, "allreduce_shape": rb.Shape, "dtype_bytes": rb.Bytes, "busbw_gbps": rb.Bandwidth}
	if rb.WorldSize != nil {
		n := float64(*rb.WorldSize)
		figures["world_size"] = &n
	}
	for name, f := range figures {
		if f != nil && *f < 0 {
			return 0, fmt.Errorf("%s %g is negative", name, *f)
		}
	}
	var computed float64
	if rb.Milliseconds != nil && rb.WorldSize != nil && rb.Shape != nil && rb.Bytes != nil && *rb.Milliseconds > 0 && *rb.WorldSize > 1 {
		n := float64(*rb.WorldSize)
		computed = *rb.Shape * *rb.Bytes / (1 << 30) / (*rb.Milliseconds / 1000) * 2 * (n - 1) / n
	}
	stated := computed
	if rb.Bandwidth != nil {
		stated = *rb.Bandwidth
	}
	switch {
	case stated > maxBandwidth || math.IsInf(computed, 1):
		return 0, fmt.Errorf("bus bandwidth of %g GiB/s: wrong unit?", stated)
	case computed > 0 && math.Abs(stated-computed) > unitTolerance*computed:
		return 0, fmt.Errorf("busbw_gbps %g, but allreduce_ms gives %.4g GiB/s: wrong unit?", stated, computed)
	}
	return stated, nil
}
