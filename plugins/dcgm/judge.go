package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "the last diag found no fault"}
	for _, i := range s.Incidents {
		f := i.finding()
		result.Found(f.Repair, f.Subject, f.Text)
	}
	for _, u := range s.Unread {
		result.NotRead(u.Subject, u.Why)
	}
	switch {
	case s.NoGPU:
		result.Healthy = gpu.NoGPU
		return result
	case s.HealthOnly:
		result.Healthy = "the health watches have seen no fault"
		return result
	case s.Report == nil:
		result.Healthy = "no diag yet"
		return result
	case s.Report.BootID == "":
		result.NotRead("diag", "the last report does not say in which boot it ran")
		return result
	case s.TooOld:
		result.NotRead("diag", "the last report is too old")
		return result
	}
	for _, r := range s.Report.Results {
		if f, sick := r.finding(); sick {
			result.Found(f.Repair, f.Subject, f.Text)
		}
	}
	if s.Report.isolates() {
		result.Found(conditions.Inspect, "diag", "dcgmi asks to isolate the node")
	}
	s.Report.skipped(result.NotRead)
	return result
}

// isolates reports whether the diagnostic asks to isolate the node, other than for errors that we take for less.
func (r *report) isolates() bool {
	errors, ours := 0, 0
	for _, result := range r.Results {
		for _, w := range result.Warnings {
			if w.Severity != nil && *w.Severity == isolate {
				errors++
				if errorRows()[w.ID].text != "" {
					ours++
				}
			}
		}
	}
	return r.Isolate && (errors == 0 || ours < errors)
}

// skipped names what a diagnostic did not look at, although it was to: one that only looked at the software says nothing of the GPUs.
func (r *report) skipped(notRead func(subject, why string)) {
	ran, looked := false, false
	var tests, gpus []string
	ranOn := map[string]bool{}
	for _, result := range r.Results {
		did := result.failing() || result.Status == passed
		ran = ran || did
		if result.Software {
			continue
		}
		looked = looked || did
		ranOn[result.Entity] = ranOn[result.Entity] || did
		if !did && !slices.Contains(tests, result.Test) {
			tests = append(tests, result.Test)
		}
		if strings.HasPrefix(result.Entity, "gpu ") && !slices.Contains(gpus, result.Entity) {
			gpus = append(gpus, result.Entity)
		}
	}
	switch {
	case !ran && len(tests) == 0:
		notRead("diag", "no test ran")
	case !looked && len(tests) > 0:
		notRead("diag", "no hardware test ran, skipped: "+strings.Join(tests, ", "))
	case looked:
		for _, gpu := range gpus {
			if !ranOn[gpu] {
				notRead("dcgm "+gpu, "every hardware test was skipped")
			}
		}
	}
}

// finding classifies a test: the worst of its warnings, by what it is and else by how severe DCGM calls it. In dcgmi's
// JSON a test that passed with warnings says Fail, too (DCGM 4.6, unless the display of warnings is on).
func (r result) finding() (conditions.Finding, bool) {
	if !r.failing() || r.Explained {
		return conditions.Finding{}, false
	}
	subject := r.Entity
	if subject == "" {
		subject = "node"
	}
	f := conditions.Finding{Subject: "dcgm " + subject, Text: "diag test " + r.Test + " failed"}
	for _, w := range r.Warnings {
		repair, text := w.classify()
		if repair > f.Repair {
			f.Repair, f.Text = repair, "diag test "+r.Test+" failed, "+text
		}
	}
	if f.Repair == 0 {
		f.Repair = conditions.Inspect
		// Before DCGM 4 it is a test of its own, without a number.
		if r.Status == warned || r.Test == "persistence mode" {
			f.Repair = conditions.Monitor
		}
		// Warnings without a number have the reason all the same.
		if i := slices.IndexFunc(r.Warnings, func(w warning) bool { return w.Text != "" }); i >= 0 {
			f.Text += ": " + r.Warnings[i].Text
		}
	}
	return f, true
}

// isolate is DCGM_ERROR_ISOLATE.
const isolate = 2

// xid45 is the text of DCGM_FR_XID_ERROR for the Xid by which the driver cleans up after a process, the diagnostic's own among them.
var xid45 = regexp.MustCompile(`\bXID 45\b`)

func (w warning) isXid45() bool { return w.ID == xidError && xid45.MatchString(w.Text) }

// classify returns 0 for a warning whose repair is not known. The text ends with DCGM's own.
func (w warning) classify() (conditions.Repair, string) {
	repair, text := w.class()
	if w.isXid45() {
		repair = conditions.Monitor
	}
	if w.Text != "" {
		text += ": " + w.Text
	}
	return repair, text
}

// class is [warning.classify] by number and severity. Health watches do not give the severity of their errors; the table does.
func (w warning) class() (conditions.Repair, string) {
	row, known := errorRows()[w.ID]
	if row.text != "" {
		return row.repair, row.text
	}
	text := fmt.Sprintf("DCGM error %d", w.ID)
	switch {
	case known:
		text += " " + row.name
	case w.ID == 0:
		text = "see the report"
	}
	if w.Severity == nil {
		return row.repair, text
	}
	if *w.Severity < 0 || *w.Severity >= len(severities) {
		return conditions.Inspect, text
	}
	return severities[*w.Severity].repair, text
}

// incident is what a passive health watch of the host engine has seen.
type incident struct {
	Entity  string  `json:"entity"`
	Failure bool    `json:"failure"`
	Warning warning `json:"warning"`
}

func (i incident) finding() conditions.Finding {
	// Without DCGM's text, which counts: the message would change from look to look.
	repair, text := warning{ID: i.Warning.ID, Severity: i.Warning.Severity}.classify()
	if i.Warning.isXid45() {
		repair = conditions.Monitor
	}
	if repair == 0 {
		repair = conditions.Monitor
		if i.Failure {
			repair = conditions.Inspect
		}
	}
	return conditions.Finding{Repair: repair, Subject: "dcgm " + i.Entity, Text: "health watch, " + text}
}
