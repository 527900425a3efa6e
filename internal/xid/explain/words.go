package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg/textlog"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

var (
	codeAlone = regexp.MustCompile(`(?i)^\s*(s?)(?:xid)?\s*([0-9]{1,9})\s*$`)
	codeIn    = regexp.MustCompile(`(?i)\b(S?)Xid:? (?:\([^)]*\): )?([0-9]{1,9})\b`)
)

// Code explains "79", "xid 79" or "sxid 20034", and returns "" for anything else.
func Code(text string) string {
	if m := codeAlone.FindStringSubmatch(text); m != nil {
		return explainNumber(m)
	}
	return ""
}

// explainNumber explains what one of the expressions has found.
func explainNumber(m []string) string {
	// At most nine digits fit an int.
	code, _ := strconv.Atoi(m[2])
	if m[1] != "" {
		return SXid(code)
	}
	return Xid(code)
}

// Words explains what a text is about, part by part: a line of a kernel log or a part of one, the message of a condition, or words of
// the catalogue. It returns "" if it finds nothing.
func Words(text string) string {
	const most = 8
	var parts []string
	add := func(part string) {
		if part != "" && len(parts) < most && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	line := explainLine(text)
	add(line)
	for _, m := range codeIn.FindAllStringSubmatch(text, -1) {
		add(explainNumber(m))
	}
	has := func(words string) bool { return strings.Contains(strings.ToLower(line+text), strings.ToLower(words)) }
	if len(parts) == 0 && has("fallen off the bus") {
		add(Xid(79))
	}
	if has("RmInitAdapter failed") {
		add(explainRow("RmInitAdapter failed", "Reboot", "the driver could not bring the GPU up; over when a later load of the driver works"))
	}
	for _, row := range xid.DriverLines() {
		if has(row.Text) {
			add(explainRow(row.Text, row.Repair.String(), "the driver's line without an Xid; Monitor beside an Xid that asks for a reset"))
		}
	}
	for _, row := range xid.HardwareLines() {
		if has(row.Text) {
			add(explainRow(row.Subject+": "+row.Text, row.Repair.String(), "KernelHardwareError; no published table has a repair for it"))
		}
	}
	if len(parts) == 0 {
		for _, e := range xid.Listed() {
			if hasWords(e, strings.TrimSpace(text)) {
				add(Xid(e.Code))
			}
		}
	}
	return strings.Join(parts, "\n")
}

// hasWords reports whether a text has the catalogue's words for the Xid, or is a part of them that says something.
func hasWords(e xid.Entry, text string) bool {
	const least = 6
	lower := strings.ToLower(text)
	for _, words := range append(strings.Split(e.Mnemonic, " / "), e.Text) {
		words = strings.ToLower(words)
		if len(words) >= least && words != "reserved code" && len(lower) >= least &&
			(strings.Contains(lower, words) || strings.Contains(words, lower)) {
			return true
		}
	}
	return false
}

// explainLine returns what one line of a kernel log alone is taken for.
func explainLine(text string) string {
	body := kmsg.Unescape(textlog.Parse(text).Body)
	e, ok := xid.Parse(body)
	for _, start := range []string{"NVRM: ", "nvidia-nvswitch", "nvidia-peermem "} {
		if i := strings.Index(body, start); !ok && i > 0 {
			e, ok = xid.Parse(body[i:])
		}
	}
	if !ok {
		return ""
	}
	faults := xid.Case{Events: []xid.Event{e}, Now: time.Hour}.Judge()
	if len(faults) == 0 {
		return fmt.Sprintf("This line:   no fault, it ends earlier ones (%s)\n", e.Kind)
	}
	return fmt.Sprintf("This line:   %s %s: %s\n", faults[0].Repair, faults[0].Subject, faults[0].Text)
}

func explainRow(words, class, note string) string {
	return fmt.Sprintf("%s\nclass:       %s; %s\n", words, class, note)
}
