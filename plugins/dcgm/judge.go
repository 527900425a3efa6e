package main

import (
	"fmt"

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
	ran := false
	for _, r := range s.Report.Results {
		ran = ran || r.Status == passed || r.Status == warned || r.Status == failed
		if f, sick := r.finding(); sick {
			result.Found(f.Repair, f.Subject, f.Text)
		}
	}
	if s.Report.Isolate {
		result.Found(conditions.Inspect, "diag", "dcgmi asks to isolate the node")
	}
	if !ran {
		result.NotRead("diag", "no test ran")
	}
	return result
}

// finding classifies a test: the worst of its warnings, by what it is and else by how severe DCGM calls it. In dcgmi's
// JSON a test that passed with warnings says Fail, too (DCGM 4.6, unless the display of warnings is on).
func (r result) finding() (conditions.Finding, bool) {
	if r.Status != failed && r.Status != warned {
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
	}
	return f, true
}

// classify returns 0 for a warning whose repair is not known. The library does not give the severity of its errors;
// the table does.
func (w warning) classify() (conditions.Repair, string) {
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
	repair, text := i.Warning.classify()
	if repair == 0 {
		repair = conditions.Monitor
		if i.Failure {
			repair = conditions.Inspect
		}
	}
	return conditions.Finding{Repair: repair, Subject: "dcgm " + i.Entity, Text: "health watch, " + text}
}
