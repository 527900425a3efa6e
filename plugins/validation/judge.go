package main

import (
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits is what is asked of the reports.
type limits struct{ maxAge time.Duration }

// The subjects of the messages.
const (
	ofValidation    = "Health Validation"
	ofCertification = "Cluster Readiness Engine"
)

// judge never takes for passed what no one has reported to have passed.
func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "the last validation found no fault"}
	if v := s.Validation; v != nil {
		switch {
		case l.unfit(v.file, ofValidation, &result):
		case v.Age > s.Boot.Uptime:
			// It is a picture of that moment, and a reboot is a repair.
			result.NotRead(ofValidation, "its verdict is from before the boot")
		default:
			v.judge(&result)
		}
	}
	if c := s.Certification; c != nil {
		if !l.unfit(c.file, ofCertification, &result) && len(c.Failures) == 0 && !c.Passed {
			result.NotRead(ofCertification, "the node is not among those that have succeeded or failed: it was not tested, or no one reports it")
		}
		if !l.old(c.file) {
			c.judge(&result)
		}
	}
	return result
}

func (l *limits) old(f file) bool { return l.maxAge > 0 && f.Age > l.maxAge || f.Age < -time.Hour }

// unfit reports whether a file says nothing of the node as it is now, and adds why.
func (l *limits) unfit(f file, subject string, result *npd.Result) bool {
	switch {
	case f.Err != "":
		result.NotRead(subject, f.Err)
	case l.old(f) && f.Age < 0:
		result.NotRead(subject, "its report is of the future")
	case l.old(f):
		result.NotRead(subject, "its report is too old")
	default:
		return false
	}
	return true
}

func (v *validation) judge(result *npd.Result) {
	explained := false
	for _, c := range v.Components {
		explained = explained || c.Severity == v.Overall
		add(result, ofValidation+" "+c.Category, c.Severity, " by "+strings.Join(c.Checks, ", ")+of(c.Entities))
	}
	if !explained {
		add(result, ofValidation, v.Overall, ", see its checks")
	}
}

// of names what a component is about.
func of(entities []string) string {
	if len(entities) == 0 {
		return ""
	}
	return " of " + strings.Join(entities, ", ")
}

// add adds a verdict. What the tool recommends begins with a reset and ends with a service request: which of them is needed is for a
// person to say.
func add(result *npd.Result, subject string, s severity, text string) {
	text = string(s) + text
	switch s {
	case critical:
		result.Found(conditions.Inspect, subject, text)
	case warning, info:
		result.Found(conditions.Monitor, subject, text)
	case unknown:
		result.NotRead(subject, text)
	}
}

func (c *certification) judge(result *npd.Result) {
	for _, f := range c.Failures {
		repair := conditions.Inspect
		if f.Reason == hardware {
			// It repeats what the node's conditions and taints said before: with more, one of ours would keep itself.
			repair = conditions.Monitor
		}
		text := f.Reason
		if f.Message != "" {
			text += ": " + f.Message
		}
		result.Found(repair, ofCertification, text)
	}
}
