package main

import (
	"bytes"
	"slices"
	"time"
)

// maxJoined is the longest line, in bytes of the file from its first part to its last, that is put together. A longer one is
// matched in pieces of that length, so that neither memory nor what a later look reads again grows without bound.
const maxJoined = 1 << 20

// scanner finds what matters in one container log.
type scanner struct {
	patterns []pattern
	// finder knows the patterns' literals and the mark of partial records, so that all other lines can be passed over.
	finder *finder
	// report gets what was found, with the time of the line's first record and the offset behind its last.
	report func(m match, at time.Time, end int64)
	// malformed counts the lines that hold a literal but are not of the CRI's form.
	malformed int

	open [streams]openLine
}

// openLine is a line of which so far only partial records were read.
type openLine struct {
	open  bool
	start int64
	at    time.Time
	text  []byte
}

// newScanner returns a scanner without a report.
func newScanner(patterns []pattern) scanner {
	literals := slices.Clone(partials)
	for _, p := range patterns {
		literals = append(literals, p.literal)
	}
	return scanner{patterns: patterns, finder: newFinder(literals)}
}

// scan scans whole lines; offset is where in the file they begin.
func (s *scanner) scan(lines []byte, offset int64) {
	for pos := 0; pos < len(lines); {
		if !s.anyOpen() {
			found := s.finder.next(lines[pos:])
			if found < 0 {
				break
			}
			pos += bytes.LastIndexByte(lines[pos:pos+found], '\n') + 1
		}
		end, next := len(lines), len(lines)
		if n := bytes.IndexByte(lines[pos:], '\n'); n >= 0 {
			end, next = pos+n, pos+n+1
		}
		s.line(lines[pos:end], offset+int64(pos), offset+int64(next))
		pos = next
	}
}

func (s *scanner) line(line []byte, start, end int64) {
	r, ok := parse(line)
	if !ok {
		s.malformed++
	} else if o := &s.open[r.stream]; !o.open && !r.partial {
		s.match(r.text, r.at, end)
	} else {
		if !o.open {
			*o = openLine{open: true, start: start, at: r.at, text: o.text[:0]}
		}
		o.text = append(o.text, r.text...)
		if !r.partial {
			s.close(o, end)
		}
	}
	// The other stream may go on without end beside a line that never ends.
	for i := range s.open {
		if o := &s.open[i]; o.open && end-o.start > maxJoined {
			s.close(o, end)
		}
	}
}

// finish matches what is there of the lines that will get no end.
func (s *scanner) finish(end int64) {
	for i := range s.open {
		if s.open[i].open {
			s.close(&s.open[i], end)
		}
	}
}

func (s *scanner) close(o *openLine, end int64) {
	s.match(o.text, o.at, end)
	o.open = false
}

func (s *scanner) match(text []byte, at time.Time, end int64) {
	if m, ok := find(s.patterns, text); ok {
		s.report(m, at, end)
	}
}

func (s *scanner) anyOpen() bool {
	for i := range s.open {
		if s.open[i].open {
			return true
		}
	}
	return false
}

// resume returns where the next scanner must begin if this one got to end: at the first open line.
func (s *scanner) resume(end int64) int64 {
	for i := range s.open {
		if s.open[i].open {
			end = min(end, s.open[i].start)
		}
	}
	return end
}
