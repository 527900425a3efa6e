// Package xid understands what the NVIDIA driver writes into the kernel log: it parses the lines, knows the
// catalogue and classifies what was seen. It reads no files and no clocks.
package xid

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// Entry is one row of the catalogue.
type Entry struct {
	Code   int
	Repair conditions.Repair
	// Rule names what refines the class; "bucket" and "override" mean nothing does.
	Rule string
	// Text is a short name for messages.
	Text string
	// Mnemonic, Action and Investigate are NVIDIA's own words.
	Mnemonic, Action, Investigate string
	Note, Source                  string
}

//go:embed data/xid.csv
var catalogueCSV []byte

// catalogue is the table by code, and the row for numbers that are in no table.
type catalogue struct {
	listed   map[int]Entry
	unlisted Entry
}

var xids = embedded("Xids", catalogueCSV, parseCatalogue)

// embedded reads an embedded table when it is first needed.
func embedded[T any](name string, data []byte, parse func([]byte) (T, error)) func() T {
	return sync.OnceValue(func() T {
		t, err := parse(data)
		if err != nil {
			panic(fmt.Sprintf("embedded table of %s: %v", name, err))
		}
		return t
	})
}

// Lookup returns the catalogue's row of an Xid. A number that is in no table gets the default row, never
// an empty one; known is false then.
func Lookup(code int) (entry Entry, known bool) {
	if entry, known = xids().listed[code]; known {
		return entry, true
	}
	entry = xids().unlisted
	entry.Code = code
	return entry, false
}

// Listed is the catalogue by code.
func Listed() []Entry {
	return slices.SortedFunc(maps.Values(xids().listed), func(a, b Entry) int { return a.Code - b.Code })
}

// numbered is the text of a fault that is an Xid.
var numbered = regexp.MustCompile(`^Xid ([0-9]{1,9}) `)

// IsOfApplication reports whether the text of a fault is an Xid for which NVIDIA has the application restarted, or nothing done, whatever
// class repetition, an exception or an override gives it here. An Xid that another one has caused stands for that one.
func IsOfApplication(text string) bool {
	code := numbered.FindStringSubmatch(text)
	if code == nil || strings.Contains(text, ", caused by Xid ") {
		return false
	}
	n, err := strconv.Atoi(code[1])
	entry, _ := Lookup(n)
	return err == nil && (entry.Action == "RESTART_APP" || entry.Action == "IGNORE")
}

func parseCatalogue(data []byte) (c catalogue, err error) {
	rows, err := table.Rows(data, "code", "repair", "rule", "text", "mnemonic", "action", "investigate", "note", "source")
	if err != nil {
		return c, err
	}
	c.listed = make(map[int]Entry, len(rows))
	for _, row := range rows {
		e := Entry{
			Rule: row[2], Text: row[3], Mnemonic: row[4], Action: row[5], Investigate: row[6], Note: row[7], Source: row[8],
		}
		if e.Repair, err = conditions.ParseRepair(row[1]); err != nil {
			return c, fmt.Errorf("code %s: %w", row[0], err)
		}
		if row[0] == "*" {
			c.unlisted = e
			continue
		}
		if e.Code, err = strconv.Atoi(row[0]); err != nil {
			return c, fmt.Errorf("code %q: %w", row[0], err)
		}
		if _, twice := c.listed[e.Code]; twice {
			return c, fmt.Errorf("code %d stands there twice", e.Code)
		}
		c.listed[e.Code] = e
	}
	if c.unlisted.Repair == 0 {
		return c, fmt.Errorf("no row * for numbers that are in no table")
	}
	return c, nil
}
