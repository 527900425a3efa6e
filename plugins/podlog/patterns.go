package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// role is what a text means for this node.
type role string

const (
	// hardware is a device's own fault.
	hardware role = "hardware"
	// xidText is a device's own fault too; the pattern's one group is the Xid.
	xidText role = "xid"
	// peer is the fault of another process, so the one that logs it is a victim.
	peer role = "peer"
	// workload is everything else.
	workload role = "workload"
)

// pattern is one row of the pattern file, whose head explains the columns.
type pattern struct {
	Name   string            `json:"name"`
	Repair conditions.Repair `json:"repair"`
	Count  int               `json:"count"`
	Role   role              `json:"role"`
	Text   string            `json:"text"`
	Expr   string            `json:"pattern"`
	Source string            `json:"source"`

	regexp *regexp.Regexp
	// literal is in every text that matches; looking for it first spares most lines the regexp.
	literal []byte
}

// minLiteral is the shortest literal in bytes that a pattern may rest on: a shorter one is in too many lines, and the
// shortest of all bounds how far the finder can skip.
const minLiteral = 8

//go:embed patterns.csv
var embedded []byte

// loadPatterns reads the pattern file, or the embedded one for "".
func loadPatterns(path string) ([]pattern, error) {
	data := embedded
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	patterns, err := parsePatterns(data)
	if err != nil {
		return nil, fmt.Errorf("patterns %s: %w", path, err)
	}
	return patterns, nil
}

func parsePatterns(data []byte) ([]pattern, error) {
	rows, err := table.Rows(data, "name", "repair", "count", "role", "text", "pattern", "source")
	if err != nil {
		return nil, err
	}
	var patterns []pattern
	for _, row := range rows {
		p, err := parsePattern(row)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", row[0], err)
		}
		if slices.ContainsFunc(patterns, func(q pattern) bool { return q.Name == p.Name }) {
			return nil, fmt.Errorf("pattern %q stands there twice", p.Name)
		}
		patterns = append(patterns, p)
	}
	if len(patterns) == 0 {
		return nil, fmt.Errorf("no pattern")
	}
	return patterns, nil
}

func parsePattern(row []string) (pattern, error) {
	p := pattern{Name: row[0], Role: role(row[3]), Text: row[4], Expr: row[5], Source: row[6]}
	var err error
	if p.Repair, err = conditions.ParseRepair(row[1]); err != nil {
		return p, err
	}
	if p.Repair > conditions.Inspect {
		return p, fmt.Errorf("%s: a tenant can write any line into a log, so its class is never more than %s", p.Repair, conditions.Inspect)
	}
	if p.Count, err = strconv.Atoi(row[2]); err != nil || p.Count < 1 {
		return p, fmt.Errorf("count %q is not a number from 1", row[2])
	}
	if p.Name == "" || p.Source == "" {
		return p, fmt.Errorf("no name or no source")
	}
	if conditions.Sanitize(p.Text) != p.Text {
		return p, fmt.Errorf("text %q cannot stand in a message", p.Text)
	}
	if p.regexp, err = regexp.Compile(p.Expr); err != nil {
		return p, err
	}
	groups := 0
	switch p.Role {
	case hardware, peer, workload:
	case xidText:
		groups = 1
	default:
		return p, fmt.Errorf("%q is no role (%s, %s, %s, %s)", p.Role, hardware, xidText, peer, workload)
	}
	if got := p.regexp.NumSubexp(); got != groups {
		return p, fmt.Errorf("%d groups, want %d", got, groups)
	}
	tree, err := syntax.Parse(p.Expr, syntax.Perl)
	if err != nil {
		return p, err
	}
	p.literal = []byte(literal(tree))
	if len(p.literal) < minLiteral || bytes.ContainsRune(p.literal, '\n') {
		return p, fmt.Errorf("the longest text that is in every match is %q, at least %d bytes on one line are needed", p.literal, minLiteral)
	}
	return p, nil
}

// literal returns the longest text that is part of every match of re, or "".
func literal(re *syntax.Regexp) string {
	switch {
	case re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0:
		return string(re.Rune)
	case re.Op == syntax.OpConcat, re.Op == syntax.OpCapture, re.Op == syntax.OpPlus, re.Op == syntax.OpRepeat && re.Min > 0:
		longest := ""
		for _, sub := range re.Sub {
			if s := literal(sub); len(s) > len(longest) {
				longest = s
			}
		}
		return longest
	}
	return ""
}

// match is what was found in one line.
type match struct {
	pattern string
	// xid is the number that an [xidText] pattern found, else 0.
	xid int
	// relayed reports that the text came from another process, perhaps on another node.
	relayed bool
	// text is what matched.
	text []byte
}

// relayedLine is the mark that launchers put before what a process elsewhere printed: Ray's driver, only for other nodes
// (`(WorkerDict pid=17, ip=10.0.0.7)`, ray/_private/worker.py), Open MPI (`[1,9]<stderr>:`, mpirun --tag-output) and
// Horovod (`[9]<stderr>:`), which do not say where the rank runs. Colours may stand before it.
var relayedLine = regexp.MustCompile(`^(\x1b\[[0-9;]*m)*(\([^()]*pid=[0-9]+, ip=[^()]*\)|\[[0-9]+(,[0-9]+)?\]<std(out|err)>)`)

// find matches a line's text; ok is false if no pattern matches.
func find(patterns []pattern, text []byte) (m match, ok bool) {
	for i := range patterns {
		p := &patterns[i]
		if !bytes.Contains(text, p.literal) {
			continue
		}
		at := p.regexp.FindSubmatchIndex(text)
		if at == nil {
			continue
		}
		m = match{pattern: p.Name, relayed: relayedLine.Match(text), text: text[at[0]:at[1]]}
		if p.Role == xidText {
			var err error
			if m.xid, err = strconv.Atoi(string(text[at[2]:at[3]])); err != nil {
				continue // more digits than any Xid has
			}
		}
		return m, true
	}
	return match{}, false
}
