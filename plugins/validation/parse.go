package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// severity is what Health Validation says of a check, a component or the node.
type severity string

const (
	pass     severity = "PASS"
	info     severity = "INFO"
	warning  severity = "WARNING"
	critical severity = "CRITICAL"
	unknown  severity = "UNKNOWN"
)

func (s severity) known() bool {
	return slices.Contains([]severity{pass, info, warning, critical, unknown}, s)
}

// component is a category with checks that have not passed: AffectedComponent of the verdict schema.
type component struct {
	Category string   `json:"category"`
	Severity severity `json:"max_severity"`
	Checks   []string `json:"check_ids"`
	Entities []string `json:"entities"`
}

// parseComponent reads an element of a list; ok is false if it is no component. What a component does not say in a way that is known stays
// unknown: it hides neither the other components nor itself.
func parseComponent(data json.RawMessage) (c component, ok bool) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields["max_severity"] == nil {
		return component{}, false
	}
	err := json.Unmarshal(data, &c)
	if err != nil || !c.Severity.known() {
		c.Severity = unknown
	}
	c.Category = cmp.Or(c.Category, "component")
	if len(c.Checks) == 0 {
		c.Checks = []string{"checks without a name"}
	}
	return c, true
}

// parseVerdict reads a NodeVerdict (docs.nvidia.com/health-validation, Verdict Schema and FAQ). The public pages name overall_severity
// and the fields of an affected component, but not the field of the list: it is the one whose elements have a max_severity.
func parseVerdict(data []byte) (overall severity, components []component, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return "", nil, fmt.Errorf("it is not a whole NodeVerdict: %w", err)
	}
	if err := json.Unmarshal(fields["overall_severity"], &overall); err != nil || !overall.known() {
		return "", nil, fmt.Errorf("its overall_severity is %.40s, not PASS, INFO, WARNING, CRITICAL or UNKNOWN",
			cmp.Or(string(fields["overall_severity"]), "missing"))
	}
	for _, field := range fields {
		var list []json.RawMessage
		_ = json.Unmarshal(field, &list) // most fields are no lists
		for _, element := range list {
			if c, ok := parseComponent(element); ok {
				components = append(components, c)
			}
		}
	}
	slices.SortFunc(components, func(a, b component) int {
		return cmp.Or(cmp.Compare(a.Category, b.Category), slices.Compare(a.Checks, b.Checks))
	})
	return overall, components, nil
}

// failure is a row of failed-nodes.json.gz of the Cluster Readiness Engine.
type failure struct {
	Name    string `json:"name"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// hardware is the reason of a node that the Cluster Readiness Engine found unhealthy by the node's own conditions, labels and taints, ours
// among them. The others are ThresholdViolation and WorkloadFailed.
const hardware = "HardwareFailureDetected"

// parseFailures reads the rows of failed-nodes.json.gz, unpacked. With an error it has those before it.
func parseFailures(data []byte) (all []failure, err error) {
	in := json.NewDecoder(bytes.NewReader(data))
	if begin, err := in.Token(); err != nil || begin != json.Delim('[') {
		return nil, errors.New("the list of failed nodes is no list")
	}
	for in.More() {
		var f failure
		if err := in.Decode(&f); err != nil {
			return all, fmt.Errorf("the list of failed nodes is not whole: %w", err)
		}
		if f.Name == "" || f.Reason == "" {
			return all, fmt.Errorf("row %d of the failed nodes has no name or no reason", len(all)+1)
		}
		all = append(all, f)
	}
	if _, err := in.Token(); err != nil {
		return all, fmt.Errorf("the list of failed nodes is not whole: %w", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return all, errors.New("the list of failed nodes has something behind its end")
	}
	return all, nil
}

// listed reports whether a comma-separated list has a node.
func listed(list []byte, node string) bool {
	for name := range strings.SplitSeq(string(list), ",") {
		if strings.TrimSpace(name) == node {
			return true
		}
	}
	return false
}
