// Package report is the JSON format of a preflight report: its types, a strict parser and the encoder. It is shared by
// the init container that writes reports, the remediator and kubectl-pitcrew that read them. It is pure: it needs no
// cluster and no clock.
package report

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
	// MaxBytes is the largest size of an encoded report, in bytes.
	MaxBytes = 16 << 10
	// MaxRanks is the largest number of ranks in a run.
	MaxRanks = 10_000
	// maxBandwidth is far beyond any fabric, in GiB/s. A larger value has the wrong unit.
	maxBandwidth = 100_000
	// unitTolerance is smaller than the relative difference between GB/s and GiB/s, which is 7.4 %.
	unitTolerance = 0.05
	// maxFigures is the largest number of figures in a report.
	maxFigures = 16
)

// Check is the result of a local check.
type Check int

// The results of local checks, with the numbers that the format uses.
const (
	Skipped Check = iota
	Passed
	Failed
)

// Status is the result of one pair test.
type Status int

// The statuses of a pair test. A skipped test is not a measurement.
const (
	OK Status = iota
	Fail
	Skip
)

// Report is what one rank measured. The JSON is kcover's, raw or compacted, plus run_id, busbw_gbps and figures.
type Report struct {
	// RunID names one attempt of one run. It is empty in kcover's own reports.
	RunID    string
	Workload string
	// Size is the number of ranks of the run. Rank is from 0 to Size-1.
	Size, Rank int
	Node       string
	// IP is the zero Addr when the report has no address.
	IP           netip.Addr
	GPU, Storage Check
	// Threshold is the lowest acceptable bus bandwidth in GiB/s; 0 means that none was set.
	Threshold float64
	// Figures are what the node has measured about itself, by name. More is better.
	Figures map[string]float64
	Batches []Batch
}

// Batch is the test of one pair in one round.
type Batch struct {
	Index int
	// Pair holds the addresses of both ends, the smaller first. Both are the reporter's own in a test without a partner.
	Pair [2]netip.Addr
	// Self is the end of the pair that reports.
	Self   netip.Addr
	Status Status
	// Bandwidth is the bus bandwidth in GiB/s; 0 when nothing was measured.
	Bandwidth float64
}

// FailFast reports whether a local check failed. The pair tests of such a node do not count.
func (r Report) FailFast() bool { return r.GPU == Failed || r.Storage == Failed }

// rawReport is the JSON. A nil pointer means that the field is absent, which is not the same as zero.
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
	// As in kcover, bandwidths are in GiB/s although the field names end in gbps.
	Milliseconds *float64 `json:"allreduce_ms"`
	WorldSize    *int     `json:"world_size"`
	Shape        *float64 `json:"allreduce_shape"`
	Bytes        *float64 `json:"dtype_bytes"`
	Bandwidth    *float64 `json:"busbw_gbps"`
}

// nodeName matches a Kubernetes node name. The name is also printed in messages and HTML pages.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// runID matches a label value.
var runID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// FigureName matches the name of a figure, such as gemm or host-to-device.
var FigureName = regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,30}$`)

// Parse reads a report strictly: every report that it accepts can be judged. Unknown fields are ignored, because kcover
// writes some that have no use here. As in kcover, the batches of a node whose local check failed are not read.
//
// The error names the field that is wrong. It is shown to the owner of the job.
func Parse(data []byte) (Report, error) {
	if len(data) > MaxBytes {
		return Report{}, fmt.Errorf("more than %d bytes", MaxBytes)
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
			err = fmt.Errorf("batch_idx %d appears twice", b.Index)
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
	case *raw.Size < 1 || *raw.Size > MaxRanks:
		return fmt.Errorf("workload_size %d is not from 1 to %d", *raw.Size, MaxRanks)
	case raw.Rank == nil:
		return errors.New("no rank")
	case *raw.Rank < 0 || *raw.Rank >= *raw.Size:
		return fmt.Errorf("rank %d of workload_size %d", *raw.Rank, *raw.Size)
	case !nodeName.MatchString(raw.Node):
		return fmt.Errorf("node_name %.80q is not a node name", raw.Node)
	case raw.RunID != "" && !runID.MatchString(raw.RunID):
		return fmt.Errorf("run_id %.80q is not a label value", raw.RunID)
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
		return netip.Addr{}, fmt.Errorf("%.80q is not an IP address", s)
	}
	return a.Unmap(), nil
}

func threshold(text *string) (float64, error) {
	if text == nil || strings.TrimSpace(*text) == "" {
		return 0, nil
	}
	t, err := strconv.ParseFloat(strings.TrimSpace(*text), 64)
	if err != nil || math.IsNaN(t) || t < 0 || t > maxBandwidth {
		return 0, fmt.Errorf("node_check_busbw_threshold_gbps %.40q is not a bandwidth", *text)
	}
	return t, nil
}

func (rb rawBatch) parse(r Report) (Batch, error) {
	var b Batch
	var err error
	// kcover writes a number or a string.
	if b.Index, err = strconv.Atoi(strings.Trim(string(rb.Index), `"`)); err != nil || b.Index < 0 {
		return b, fmt.Errorf("batch_idx %.40q is not a whole number from 0 on", rb.Index)
	}
	switch strings.ToLower(rb.Status) {
	case "ok", "":
		b.Status = OK
	case "fail", "timeout", "error":
		b.Status = Fail
	case "skip":
		b.Status = Skip
	default: // kcover treats an unknown status as ok
		return b, fmt.Errorf("status %.40q is not ok, fail, timeout, error or skip", rb.Status)
	}
	if err := b.setPair(rb, r.IP); err != nil {
		return b, err
	}
	if b.Bandwidth, err = rb.bandwidth(); err != nil || b.Status != OK {
		b.Bandwidth = 0
		return b, err
	}
	if r.Threshold > 0 && b.Bandwidth == 0 {
		if rb.measured() {
			b.Status = Fail // a time or a size of zero: no data was transferred
			return b, nil
		}
		return b, errors.New("a threshold is set, but the batch has no bandwidth to compare with it")
	}
	return b, nil
}

// setPair reads the two ends of the test; self is the address of the report.
func (b *Batch) setPair(rb rawBatch, self netip.Addr) error {
	var err error
	if b.Self = self; rb.Self != "" {
		if b.Self, err = address(rb.Self); err != nil {
			return err
		}
	}
	if !b.Self.IsValid() {
		return errors.New("neither self_ip nor node_ip is set, so it is unknown which end of the pair reports")
	}
	if len(rb.Pair) == 0 && b.Status == Skip {
		b.Pair = [2]netip.Addr{b.Self, b.Self}
		return nil
	}
	if len(rb.Pair) != 2 {
		return fmt.Errorf("pair has %d addresses instead of 2", len(rb.Pair))
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
		return fmt.Errorf("self_ip %s is not an end of the pair", b.Self)
	}
	return nil
}

// measured reports whether the batch has a bandwidth, or all fields that it is computed from.
func (rb rawBatch) measured() bool {
	return rb.Bandwidth != nil || rb.Milliseconds != nil && rb.WorldSize != nil && rb.Shape != nil && rb.Bytes != nil
}

// bandwidth is the bus bandwidth of an all-reduce in GiB/s, as nccl-tests define it (doc/PERFORMANCE.md): the bytes per
// second times 2(n-1)/n. It is 0 when a field is absent or zero.
func (rb rawBatch) bandwidth() (float64, error) {
	fields := map[string]*float64{
		"allreduce_ms": rb.Milliseconds, "allreduce_shape": rb.Shape, "dtype_bytes": rb.Bytes, "busbw_gbps": rb.Bandwidth,
	}
	if rb.WorldSize != nil {
		n := float64(*rb.WorldSize)
		fields["world_size"] = &n
	}
	for name, f := range fields {
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

// checkFigures refuses figures that cannot be compared between nodes.
func checkFigures(figures map[string]float64) error {
	if len(figures) > maxFigures {
		return fmt.Errorf("%d figures, at most %d", len(figures), maxFigures)
	}
	for name, v := range figures {
		if !FigureName.MatchString(name) {
			return fmt.Errorf("figure %.40q is not named in small letters, digits and -", name)
		}
		if !(v > 0) || math.IsInf(v, 0) { // JSON has no NaN
			return fmt.Errorf("figure %s is %g", name, v)
		}
	}
	return nil
}
