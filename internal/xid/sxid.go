package xid

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

// SwitchEntry is one row of the SXid catalogue.
type SwitchEntry struct {
	Code int
	// Class and Action are NVIDIA's words; Note is short and may be empty.
	Class, Action, Note string
}

//go:embed data/sxid.csv
var sxidCSV []byte

var switchCatalogue = embedded("SXids", sxidCSV, parseSwitchCatalogue)

// LookupSXid returns the catalogue's row of an SXid, if there is one.
func LookupSXid(code int) (entry SwitchEntry, known bool) {
	entry, known = switchCatalogue()[code]
	return entry, known
}

func parseSwitchCatalogue(data []byte) (map[int]SwitchEntry, error) {
	rows, err := table.Rows(data, "code", "class", "action", "note")
	if err != nil {
		return nil, err
	}
	entries := make(map[int]SwitchEntry, len(rows))
	for _, row := range rows {
		code, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, fmt.Errorf("code %q: %w", row[0], err)
		}
		if _, twice := entries[code]; twice {
			return nil, fmt.Errorf("code %d stands there twice", code)
		}
		entries[code] = SwitchEntry{code, row[1], row[2], row[3]}
	}
	return entries, nil
}

// Format 12. The function is part of the address here, unlike in an Xid.
var (
	sxidLine = lazy(`^nvidia-nvswitch[0-9]+: SXid \(PCI:(` + bdf + `)(?:\.[0-9a-fA-F])?\): ([0-9]{1,9})(?:, ?(.*))?$`)
	sxidWord = lazy(`(?i)^(fatal|non-?fatal|correctable)\b,?\s*`)
	// sxidData are the lines that follow an error with the same number.
	sxidData = lazy(`^(?:Severity|Data)\b`)
	sxidLink = lazy(`^Link ([0-9]+)\s*`)
)

func parseSXid(line string) (Event, bool) {
	m := sxidLine().FindStringSubmatch(line)
	if m == nil || sxidData().MatchString(m[3]) {
		return Event{}, false
	}
	e := Event{Kind: KindSXid, Device: Device(m[1]), Text: m[3]}
	// At most nine digits fit an int.
	e.Code, _ = strconv.Atoi(m[2])
	if word := sxidWord().FindStringSubmatch(e.Text); word != nil {
		e.Severity, e.Text = word[1], e.Text[len(word[0]):]
	}
	if link := sxidLink().FindStringSubmatch(e.Text); link != nil {
		e.Link, e.Text = link[1], e.Text[len(link[0]):]
	}
	e.Text = strings.TrimSpace(strings.TrimSuffix(e.Text, "(First)"))
	return e, true
}

// ltssmFaultUp is the SXid of a link that went down, also when the driver of its other end is unloaded.
const ltssmFaultUp = 20034

// aroundUnload is how close to a driver unload an ltssmFaultUp is its consequence.
const aroundUnload = 30 * time.Second

// classifySXid judges an NVSwitch error: the severity in the line decides how bad it is, the catalogue what to do about it.
func classifySXid(events []Event, e Event) (conditions.Repair, string) {
	text := fmt.Sprintf("SXid %d", e.Code)
	if e.Severity != "" {
		text += " " + e.Severity
	}
	if e.Text != "" {
		text += " " + clip(e.Text)
	}
	entry := switchCatalogue()[e.Code]
	switch strings.ToLower(e.Severity) {
	case "fatal":
		unloaded := func(o Event) bool { return o.Kind == KindUnload && o.near(e, aroundUnload) }
		if e.Code == ltssmFaultUp && slices.ContainsFunc(events, unloaded) {
			return conditions.Monitor, text + ", the driver was unloaded"
		}
		if entry.Action == "RESTART_HOST_OR_SBR" {
			return conditions.Reboot, text
		}
		return conditions.ResetGPU, text
	case "":
		return conditions.Inspect, text
	}
	if entry.Action == "CHECK_MECHANICALS" {
		return conditions.Inspect, text
	}
	return conditions.Monitor, text
}

// clip bounds foreign words in a message.
func clip(s string) string { return s[:min(len(s), 80)] }
