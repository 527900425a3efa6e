// Package xid understands what the NVIDIA driver writes into the kernel log: it parses the lines, knows the
// catalogue and classifies what was seen. It reads no files and no clocks.
package xid

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
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

var catalogue, unlisted = mustCatalogue(catalogueCSV)

// Lookup returns what is known of an Xid. A number that is in no table gets the catalogue's default row, never
// nothing; known tells which it was.
func Lookup(code int) (entry Entry, known bool) {
	if entry, known = catalogue[code]; known {
		return entry, true
	}
	entry = unlisted
	entry.Code = code
	return entry, false
}

func mustCatalogue(data []byte) (map[int]Entry, Entry) {
	entries, unlisted, err := parseCatalogue(data)
	if err != nil {
		panic(fmt.Sprintf("embedded Xid catalogue: %v", err))
	}
	return entries, unlisted
}

func parseCatalogue(data []byte) (entries map[int]Entry, unlisted Entry, err error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	r.FieldsPerRecord = 9
	rows, err := r.ReadAll()
	if err != nil {
		return nil, Entry{}, err
	}
	entries = make(map[int]Entry, len(rows))
	for _, row := range rows[1:] {
		e := Entry{
			Rule: row[2], Text: row[3], Mnemonic: row[4], Action: row[5], Investigate: row[6], Note: row[7], Source: row[8],
		}
		if e.Repair, err = conditions.ParseRepair(row[1]); err != nil {
			return nil, Entry{}, fmt.Errorf("code %s: %w", row[0], err)
		}
		if row[0] == "*" {
			unlisted = e
			continue
		}
		if e.Code, err = strconv.Atoi(row[0]); err != nil {
			return nil, Entry{}, fmt.Errorf("code %q: %w", row[0], err)
		}
		if _, twice := entries[e.Code]; twice {
			return nil, Entry{}, fmt.Errorf("code %d stands there twice", e.Code)
		}
		entries[e.Code] = e
	}
	if unlisted.Repair == 0 {
		return nil, Entry{}, fmt.Errorf("no row * for numbers that are in no table")
	}
	return entries, unlisted, nil
}
