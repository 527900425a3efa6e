package main

import (
	"bytes"
	"time"
)

// record is one line of a container log in the form of the CRI, as the kubelet reads it (kubernetes
// staging/src/k8s.io/cri-client/pkg/logs, parseCRILog):
//
//	2026-11-20T14:00:00.000000001Z stderr F text
//
// The tag, up to the first colon, is P for a part of a line that goes on in the stream's next record, and F else.
type record struct {
	at      time.Time
	stream  stream
	partial bool
	// text is a part of the line that was parsed.
	text []byte
}

// stream is the output of a container that a record comes from.
type stream int

const (
	stdout stream = iota
	stderr
	streams
)

// partials are in every partial record; the CRI has no other way to write one.
var partials = [][]byte{[]byte(" stdout P"), []byte(" stderr P")}

// parse parses a line without its newline; ok is false if it is not of the CRI's form.
func parse(line []byte) (r record, ok bool) {
	at, rest, _ := bytes.Cut(line, []byte{' '})
	var err error
	if r.at, err = time.Parse(time.RFC3339Nano, string(at)); err != nil {
		return record{}, false
	}
	name, rest, _ := bytes.Cut(rest, []byte{' '})
	switch string(name) {
	case "stdout":
		r.stream = stdout
	case "stderr":
		r.stream = stderr
	default:
		return record{}, false
	}
	// An empty text may have lost the space before it.
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	if len(tag) == 0 {
		return record{}, false
	}
	// Like the kubelet, so that a new tag is no loss.
	r.partial = string(tag) == "P"
	r.text = text
	return r, true
}
