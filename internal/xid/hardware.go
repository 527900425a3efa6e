package xid

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

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
	// rate is how many lines in an hour make a storm, 0 if none do.
	rate int
}

// rateWindow is the time for which the lines of a row with a rate are counted.
const rateWindow = time.Hour

// Rate counts the equal lines of an hour; Most is the largest such count.
type Rate struct {
	From  time.Duration `json:"from"`
	Lines int           `json:"lines"`
	Most  int           `json:"most"`
}

// add counts the lines of a burst that began at a time.
func (r *Rate) add(at time.Duration, o Rate) {
	if at-r.From >= rateWindow {
		r.From, r.Lines = at, 0
	}
	r.Lines += o.Lines
	r.Most = max(r.Most, r.Lines, o.Most)
}

//go:embed data/hardware.csv
var hardwareCSV []byte

var hardware = embedded("hardware lines", hardwareCSV, parseHardwareTable)

// HardwareLines are the kinds of lines that a [KindHardware] is made from.
func HardwareLines() []Row { return hardware() }

func parseHardwareTable(data []byte) ([]Row, error) {
	rows, err := table.Rows(data, "repair", "subject", "literal", "regexp", "text", "rate", "source")
	if err != nil {
		return nil, err
	}
	var table []Row
	for _, row := range rows {
		h := Row{Subject: row[1], literal: row[2], pattern: lazy(row[3]), Text: row[4]}
		if h.Repair, err = conditions.ParseRepair(row[0]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		if h.rate, err = strconv.Atoi(row[5]); err != nil {
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
			device := strings.Fields(row.Subject + " " + strings.Join(m[1:], " "))
			return Event{Kind: KindHardware, Device: strings.Join(device, " "), Text: row.Text}, true
		}
	}
	return Event{}, false
}

// classifyHardware judges a line about other hardware. What the table no longer has, after an upgrade, is looked at.
func classifyHardware(e Event, storms bool) (conditions.Repair, string) {
	for _, row := range hardware() {
		if row.Text != e.Text || !strings.HasPrefix(e.Device, row.Subject+" ") {
			continue
		}
		switch {
		case !storms || row.rate == 0 || e.Rate.Most < row.rate || row.Repair >= conditions.Inspect:
			return row.Repair, e.Text
		case row.rate == 1:
			return conditions.Inspect, e.Text
		}
		return conditions.Inspect, fmt.Sprintf("%s, %d lines an hour or more", e.Text, row.rate)
	}
	return conditions.Inspect, e.Text
}
