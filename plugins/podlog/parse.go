package main

import (
	"bytes"
	"time"
)

// record is one line of a container log in the form of the CRI (kubernetes/kubernetes, Container Runtime Interface logging
// format, design-proposals "kubelet-cri-logging"):
//
//	2026-11-20T14:00:00.000000001Z stderr F text
//
// The tag, up to the first colon, is P for a part of a line that goes on in the stream's next record, else F.
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
	at, rest, found := bytes.Cut(line, []byte{' '})
	if !found {
		return record{}, false
	}
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
	switch string(tag) {
	case "P":
		r.partial = true
	case "F":
	default:
		return record{}, false
	}
	r.text = text
	return r, true
}
