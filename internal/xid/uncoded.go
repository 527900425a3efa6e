package xid

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

//go:embed data/driver.csv
var driverCSV []byte

var uncoded = embedded("driver lines", driverCSV, parseUncodedTable)

// uncodedPrefix is what the driver puts before its words: the number that it gives to the GPU, and the function.
const uncodedPrefix = `^NVRM: (?:GPU([0-9]{1,3}) )?(?:[A-Za-z_][A-Za-z_0-9]*: )?`

// DriverLines are the kinds of lines that a [KindUncoded] is made from.
func DriverLines() []Row { return uncoded() }

func parseUncodedTable(data []byte) ([]Row, error) {
	rows, err := table.Rows(data, "repair", "literal", "regexp", "text", "source")
	if err != nil {
		return nil, err
	}
	var table []Row
	for _, row := range rows {
		u := Row{literal: row[1], pattern: lazy(uncodedPrefix + row[2]), Text: row[3]}
		if u.Repair, err = conditions.ParseRepair(row[0]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		table = append(table, u)
	}
	return table, nil
}

// parseUncoded reads a line of the driver that is in no other form. The event's Device is empty if the line has no address, and its Unit is
// the number of the GPU, which only the driver can relate to an address.
func parseUncoded(line string) (Event, bool) {
	for _, row := range uncoded() {
		if !strings.Contains(line, row.literal) {
			continue
		}
		if m := row.pattern().FindStringSubmatch(line); m != nil {
			e := Event{Kind: KindUncoded, Text: row.Text}
			if len(m) > 2 {
				e.Device = Device(m[2])
			} else {
				e.Unit = m[1]
			}
			return e, true
		}
	}
	return Event{}, false
}

// locked is the text of the driver's watchdog in data/driver.csv.
const locked = "GPU is probably locked"

// aroundXid is how near to an Xid that asks for a reset or more a line without a number is a detail of it.
const aroundXid = 2 * time.Minute

// classifyUncoded judges a line without an Xid.
func classifyUncoded(events []Event, e Event) (conditions.Repair, string) {
	isDetail := slices.ContainsFunc(events, func(o Event) bool {
		// Xid 8 is the watchdog's own: it has ended the channel that hung.
		return o.near(e, aroundXid) && (o.asksForReset() || e.Text == locked && o.Kind == KindXid && o.Code == 8)
	})
	i := slices.IndexFunc(uncoded(), func(row Row) bool { return row.Text == e.Text })
	// What the table no longer has, after an upgrade, is looked at.
	repair := conditions.Inspect
	if i >= 0 {
		repair = uncoded()[i].Repair
	}
	if isDetail || repair < conditions.Inspect {
		return conditions.Monitor, e.Text
	}
	return repair, e.Text + ", without an Xid"
}

// asksForReset reports whether the event is one that a GPU reset or more is the answer to.
func (e *Event) asksForReset() bool {
	switch e.Kind {
	case KindLost, KindInit:
		return true
	case KindXid:
		if need, known := e.Action.need(); known {
			return need.Repair >= conditions.ResetGPU
		}
		entry, _ := Lookup(e.Code)
		return entry.Repair >= conditions.ResetGPU
	}
	return false
}
