package npd

import "github.com/pitcrew-dev/pitcrew/internal/conditions"

// Found adds a finding.
func (r *Result) Found(repair conditions.Repair, subject, text string) {
	r.Findings = append(r.Findings, conditions.Finding{Repair: repair, Subject: subject, Text: text})
}

// NotRead adds what could not be observed, and why.
func (r *Result) NotRead(subject, why string) {
	r.Unread = append(r.Unread, Unread{subject, why})
}

// Absent adds that something is not there. On a node that is still booting, younger than -grace, that is not known yet.
func (r *Result) Absent(booting bool, repair conditions.Repair, subject, text string) {
	if booting {
		r.NotRead(subject, text+", but the node has only just booted")
		return
	}
	r.Found(repair, subject, text)
}

// Unshared adds that the state could not be kept between runs, unless why is empty.
func (r *Result) Unshared(why string) {
	if why != "" {
		r.Found(conditions.Monitor, "state", "not kept between runs: "+why)
	}
}
