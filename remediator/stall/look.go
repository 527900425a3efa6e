package stall

import (
	"bytes"
	"cmp"
	"strconv"
	"time"
)

// Asked is what was asked of a log: its last lines, each with the time at which it was written, and no more than some bytes.
type Asked struct {
	// Lines is how many of the last lines, Bytes how many bytes from the first of these.
	Lines, Bytes int
}

// entryBytes is the longest entry of a log (kubelet and container runtimes): a longer line is several, each of which counts as a line.
const entryBytes = 16 << 10

// budget bounds the time of matching the answer to one look: bytes times the instructions of the expressions, some 0.2 s.
const budget = 4 << 20

// partCost is what it costs to match a part of a line, however short it is, in bytes.
const partCost = 16

// maxStamp is the length of the longest time that a kubelet puts before a line.
const maxStamp = len("2006-01-02T15:04:05.999999999-07:00")

// maxStepDigits is the longest number that is taken for a step.
const maxStepDigits = 18

// kind is what the last line that matches says.
type kind int

const (
	nothing kind = iota // no line matches
	step
	pause
)

// Sighting is what one look at the log of a rank has shown. It holds no text of the log but the number of a step. The times are those of
// the node's clock.
type Sighting struct {
	kind kind
	// number is the step; none: the expression has no such group.
	number    uint64
	hasNumber bool
	// at is when the line that matches was written, from when the first one of those before it that all have the same step. first and last
	// are the same of the lines that were read. They are texts, to be compared.
	at, from, first, last string
	// bar: the line that matches ends in a carriage return, or the last line has not ended yet. What follows is seen when 16 KiB of it have
	// been written.
	bar bool
	// whole: the file was read from its begin. contiguous: no line between the last look and this one was missed.
	whole, contiguous bool
	// hidden: lines may have been missed that match.
	hidden bool
}

// Cut reports whether lines may have been missed at the end of the log: fewer lines have to be asked for.
func Cut(text []byte, asked Asked) bool { return len(text) >= asked.Bytes }

// Read reads the answer to a look. anchor is [Sighting.Anchor] of the last one; empty: there was none, or the log was empty.
func Read(text []byte, asked Asked, s Settings, anchor string) Sighting {
	if bytes.Count(text, []byte("\n")) > asked.Lines { // no kubelet answers that
		return Sighting{hidden: true}
	}
	lines := bytes.Split(text, []byte("\n"))
	unfinished := len(lines[len(lines)-1]) > 0
	if !unfinished {
		lines = lines[:len(lines)-1]
	}
	seen := Sighting{whole: len(lines)+len(text)/entryBytes+1 < asked.Lines}
	seen.readTimes(lines, anchor)
	left, i := budget, len(lines)-1
	for ; i >= 0 && !seen.Found() && !seen.hidden; i-- {
		at, content := timeOf(lines[i])
		matched, spent := seen.match(content, s, &left)
		if matched {
			seen.at, seen.from = at, at
		}
		seen.hidden = spent || !matched && unfinished && i == len(lines)-1
	}
	for ; i >= 0 && seen.hasNumber; i-- { // the lines before it with the same step
		var one Sighting
		at, content := timeOf(lines[i])
		matched, spent := one.match(content, s, &left)
		if spent || matched && (one.kind != step || one.number != seen.number) {
			break
		}
		if matched {
			seen.from = at
		}
	}
	seen.bar = seen.bar || unfinished
	seen.hidden = seen.hidden || Cut(text, asked)
	return seen
}

// readTimes reads when the first and the last line were written, and whether the line of the last look is among them.
func (s *Sighting) readTimes(lines [][]byte, anchor string) {
	s.contiguous = anchor == "" && s.whole
	for _, line := range lines {
		at, _ := timeOf(line)
		if at == "" {
			continue
		}
		s.first, s.last = cmp.Or(s.first, at), at
		s.contiguous = s.contiguous || at == anchor
	}
}

// Anchor is what the next look at this log is given.
func (s Sighting) Anchor() string { return s.last }

// Found reports whether a line matches.
func (s Sighting) Found() bool { return s.kind != nothing }

// Missed reports whether lines before those that were read may match: more lines have to be asked for.
func (s Sighting) Missed() bool { return s.kind == nothing && !s.hidden && !s.contiguous && !s.whole }

// match looks for the last match in a line, of which each part that ends in a carriage return is one by itself. A line such as "saving the
// checkpoint of step 1200" is a pause. spent: the budget is.
func (s *Sighting) match(line []byte, of Settings, left *int) (found, spent bool) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	for end := len(line); ; {
		begin := bytes.LastIndexByte(line[:end], '\r') + 1
		part := line[begin:end]
		for _, e := range []struct {
			kind kind
			*Expression
		}{{pause, of.pause}, {step, of.progress}} {
			if e.Expression == nil {
				continue
			}
			if *left -= (len(part) + partCost) * e.cost; *left < 0 {
				return false, true
			}
			if s.matches(e.kind, e.Expression, part) {
				s.bar = end < len(line) || begin > 0
				return true, false
			}
		}
		if begin == 0 {
			return false, false
		}
		end = begin - 1
	}
}

// matches notes what a part of a line says. One whose step is no number does not match.
func (s *Sighting) matches(k kind, e *Expression, part []byte) bool {
	if k == pause || e.step < 0 {
		if !e.re.Match(part) {
			return false
		}
		s.kind = k
		return true
	}
	at := e.re.FindSubmatchIndex(part)
	if at == nil || at[2*e.step] < 0 {
		return false
	}
	digits := string(part[at[2*e.step]:at[2*e.step+1]])
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || len(digits) > maxStepDigits {
		return false
	}
	s.kind, s.number, s.hasNumber = k, number, true
	return true
}

// timeOf splits a line into the time that the node has put before it, as text, and the rest.
func timeOf(line []byte) (at string, rest []byte) {
	stamp, rest, _ := bytes.Cut(line, []byte(" "))
	if len(stamp) > maxStamp {
		return "", line
	}
	if _, err := time.Parse(time.RFC3339Nano, string(stamp)); err != nil {
		return "", line
	}
	return string(stamp), rest
}
