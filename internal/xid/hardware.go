package xid

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// A Row is one kind of kernel line that reports a fault.
type Row struct {
	Repair conditions.Repair
	// Subject is empty for a line of the GPU driver.
	Subject, Text string
	// literal is in every line that pattern matches: most lines are ruled out by it alone.
	literal string
	pattern func() *regexp.Regexp
}

//go:embed data/hardware.csv
var hardwareCSV []byte

var hardware = embedded("hardware lines", hardwareCSV, parseHardwareTable)

// HardwareLines are the kinds of lines that a [KindHardware] is made from.
func HardwareLines() []Row { return hardware() }

func parseHardwareTable(data []byte) ([]Row, error) {
	rows, err := table.Rows(data, "repair", "subject", "literal", "regexp", "text", "source")
	if err != nil {
		return nil, err
	}
	var table []Row
	for _, row := range rows {
		h := Row{Subject: row[1], literal: row[2], pattern: lazy(row[3]), Text: row[4]}
		if h.Repair, err = conditions.ParseRepair(row[0]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		table = append(table, h)
	}
	return table, nil
}

func parseHardware(line string) (Event, bool) {
	for _, row := range hardware() {
		if !strings.Contains(line, row.literal) {
			continue
		}
		if m := row.pattern().FindStringSubmatch(line); m != nil {
			return Event{Kind: KindHardware, Device: row.Subject + " " + m[1], Text: row.Text}, true
		}
	}
	return Event{}, false
}

// hardwareRepair gives the class of a hardware event. What the table no longer has, after an upgrade, is looked at.
func hardwareRepair(e Event) conditions.Repair {
	for _, row := range hardware() {
		if row.Text == e.Text && strings.HasPrefix(e.Device, row.Subject+" ") {
			return row.Repair
		}
	}
	return conditions.Inspect
}
