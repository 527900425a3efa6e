package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// report is the result of one run of the diagnostics. It counts for the boot in which it ran: a reboot is a repair.
type report struct {
	// BootID is that boot's. Reports of older versions of this plugin have none.
	BootID  string    `json:"bootID,omitempty"`
	At      time.Time `json:"at"`
	Level   int       `json:"level,omitempty"`
	Tests   string    `json:"tests,omitempty"`
	Results []result  `json:"results"`
	// Isolate is set for exit status 205 of dcgmi: an error of priority ISOLATE.
	Isolate bool `json:"isolate,omitempty"`
}

// result is the outcome of one test on one entity.
type result struct {
	Test string `json:"test"`
	// Entity is e.g. "gpu 3", in DCGM's numbers; empty for a test of the node.
	Entity   string    `json:"entity,omitempty"`
	Status   status    `json:"status"`
	Warnings []warning `json:"warnings,omitempty"`
	// Software is set for a test of the node's software, category Deployment.
	Software bool `json:"software,omitempty"`
	// Explained is set for a failure that other errors of the test account for.
	Explained bool `json:"explained,omitempty"`
}

func (r result) failing() bool { return r.Status == failed || r.Status == warned }

// warning is one error or warning of a test.
type warning struct {
	// ID is a DCGM_FR_* number of dcgm_errors.h, 0 if not given.
	ID int `json:"id,omitempty"`
	// Severity is a DCGM_ERROR_* number of dcgm_errors.h, nil if not given.
	Severity *int   `json:"severity,omitempty"`
	Text     string `json:"text,omitempty"`
}

// status is the outcome of a test.
type status string

const (
	passed  status = "pass"
	warned  status = "warn"
	failed  status = "fail"
	skipped status = "skip"
	notRun  status = "notrun"
)

func parseStatus(s string) (status, error) {
	switch strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), " ", "")) {
	case "pass":
		return passed, nil
	case "warn", "warning":
		return warned, nil
	case "fail":
		return failed, nil
	case "skip", "skipped":
		return skipped, nil
	case "notrun":
		return notRun, nil
	}
	return "", fmt.Errorf("unknown status %q", s)
}

// document is what `dcgmi diag -j` prints. Its root is called "DCGM GPU Diagnostic" up to DCGM 3 and "DCGM Diagnostic"
// from DCGM 4 on, and its shape is not promised: https://github.com/NVIDIA/DCGM testing/python3/dcgm_diag_schema.json.
type document struct {
	V3 *diagnostic `json:"DCGM GPU Diagnostic"`
	V4 *diagnostic `json:"DCGM Diagnostic"`
}

type diagnostic struct {
	Categories []struct {
		Name  string `json:"category"`
		Tests []struct {
			Name    string    `json:"name"`
			Results []outcome `json:"results"`
			// Summary has all errors of the test from DCGM 4.6 on: those of the results, and those of no entity.
			Summary *outcome `json:"test_summary"`
		} `json:"tests"`
	} `json:"test_categories"`
	RuntimeError string `json:"runtime_error"`
}

type outcome struct {
	Status string `json:"status"`
	// DCGM 4 names the entity, DCGM 3 the GPU, as a number in a string, DCGM 2 several in one string.
	EntityGroup string          `json:"entity_group"`
	EntityID    *int            `json:"entity_id"`
	GPU         string          `json:"gpu_id"`
	GPUs        string          `json:"gpu_ids"`
	Warnings    json.RawMessage `json:"warnings"`
	Warning     string          `json:"warning"`
}

// parseDiag reads the JSON of dcgmi, which may have a banner before it. What it does not know is an error: an unknown
// shape must never pass for "no test failed".
func parseDiag(out []byte) ([]result, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, errors.New("dcgmi printed no JSON")
	}
	var doc document
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return nil, fmt.Errorf("dcgmi's JSON: %w", err)
	}
	root := doc.V4
	if root == nil {
		root = doc.V3
	}
	if root == nil {
		return nil, errors.New("dcgmi's JSON has no diagnostic of a known version")
	}
	if root.RuntimeError != "" {
		return nil, fmt.Errorf("the diagnostic did not run: %s", root.RuntimeError)
	}
	var results []result
	for _, category := range root.Categories {
		for _, test := range category.Tests {
			software := strings.EqualFold(category.Name, "Deployment") || isSoftware(test.Name)
			own, summary := []result{}, result{}
			for _, o := range test.Results {
				r, err := o.result(test.Name)
				if err != nil {
					return nil, fmt.Errorf("dcgmi's JSON, test %q: %w", test.Name, err)
				}
				r.Software = software
				own = append(own, r)
			}
			if test.Summary != nil {
				var err error
				if summary, err = test.Summary.result(test.Name); err != nil {
					return nil, fmt.Errorf("dcgmi's JSON, summary of test %q: %w", test.Name, err)
				}
				summary.Software = software
			}
			results = append(results, explain(own, summary)...)
		}
	}
	return results, nil
}

// isSoftware reports whether a test is the one of DCGM 4 and later that looks at the node's software.
func isSoftware(test string) bool { return strings.EqualFold(test, "software") }

// namedGPU is how DCGM's errors name a GPU (DCGM_FR_*_MSG of dcgm_errors.h).
var namedGPU = regexp.MustCompile(`\bGPU (\d+)\b`)

// explain gives the errors of a test to those whom they are about. An error that is of no GPU makes every GPU fail, without a word
// (DCGM 4.6, dcgmi/Diag.cpp): it stands in the summary of the test alone, and it may name a GPU. So does an error of one GPU in the test of
// the software.
func explain(own []result, summary result) []result {
	said := func(w warning) bool {
		return slices.ContainsFunc(own, func(r result) bool {
			return slices.ContainsFunc(r.Warnings, func(o warning) bool { return o.ID == w.ID && o.Text == w.Text })
		})
	}
	words := slices.ContainsFunc(own, func(r result) bool { return len(r.Warnings) > 0 })
	of := func(entity string) *result {
		for i := range own {
			if own[i].Entity == entity {
				return &own[i]
			}
		}
		own = append(own, result{Test: summary.Test, Entity: entity, Status: summary.Status, Software: summary.Software})
		return &own[len(own)-1]
	}
	foreign := false
	for _, w := range summary.Warnings {
		if !summary.failing() || said(w) {
			continue
		}
		entity := ""
		if gpus := namedGPU.FindAllStringSubmatch(w.Text, 2); len(gpus) == 1 {
			entity = "gpu " + gpus[0][1]
		}
		r := of(entity)
		r.Warnings, foreign = append(r.Warnings, w), true
	}
	failing := slices.ContainsFunc(own, result.failing)
	if summary.failing() && !failing {
		of("").Status = summary.Status
	}
	for i, r := range own {
		own[i].Explained = r.failing() && len(r.Warnings) == 0 && (foreign || r.Software && words)
	}
	return own
}

func (o outcome) result(test string) (result, error) {
	s, err := parseStatus(o.Status)
	if err != nil {
		return result{}, err
	}
	r := result{Test: strings.ToLower(test), Status: s}
	switch {
	case o.EntityID != nil:
		r.Entity = fmt.Sprintf("%s %d", strings.ToLower(o.EntityGroup), *o.EntityID)
	case o.GPU != "":
		r.Entity = "gpu " + o.GPU
	case o.GPUs != "":
		r.Entity = "gpu " + o.GPUs
	}
	if o.Warning != "" {
		r.Warnings = append(r.Warnings, warning{Text: o.Warning})
	}
	if len(o.Warnings) == 0 {
		return r, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(o.Warnings, &list) != nil {
		list = []json.RawMessage{o.Warnings}
	}
	for _, w := range list {
		read, err := parseWarning(w)
		if err != nil {
			return result{}, fmt.Errorf("warnings: %w", err)
		}
		r.Warnings = append(r.Warnings, read)
	}
	return r, nil
}

// parseWarning reads a warning: a text up to DCGM 3 (nvvs/include/NvvsCommon.h), an object from 3.3 on.
func parseWarning(data json.RawMessage) (warning, error) {
	var w struct {
		Text     string `json:"warning"`
		ID       int    `json:"error_id"`
		Severity *int   `json:"error_severity"`
	}
	if json.Unmarshal(data, &w.Text) == nil {
		return warning{Text: w.Text}, nil
	}
	err := json.Unmarshal(data, &w)
	return warning{w.ID, w.Severity, w.Text}, err
}
