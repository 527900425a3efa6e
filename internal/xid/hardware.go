package xid

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// hardwareRow is one kind of kernel line that reports failing hardware.
type hardwareRow struct {
	repair        conditions.Repair
	subject, text string
	// literal is in every line that pattern matches: most lines are ruled out by it alone.
	literal string
	pattern func() *regexp.Regexp
}

//go:embed data/hardware.csv
var hardwareCSV []byte

var hardware = embedded("hardware lines", hardwareCSV, parseHardwareTable)

func parseHardwareTable(data []byte) ([]hardwareRow, error) {
	rows, err := table.Rows(data, "repair", "subject", "literal", "regexp", "text", "source")
	if err != nil {
		return nil, err
	}
	var table []hardwareRow
	for _, row := range rows {
		h := hardwareRow{subject: row[1], literal: row[2], pattern: lazy(row[3]), text: row[4]}
		if h.repair, err = conditions.ParseRepair(row[0]); err != nil {
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
			return Event{Kind: KindHardware, Device: row.subject + " " + m[1], Text: row.text}, true
		}
	}
	return Event{}, false
}

// hardwareRepair gives the class of a hardware event. What the table no longer has, after an upgrade, is looked at.
func hardwareRepair(e Event) conditions.Repair {
	for _, row := range hardware() {
		if row.text == e.Text && strings.HasPrefix(e.Device, row.subject+" ") {
			return row.repair
		}
	}
	return conditions.Inspect
}
