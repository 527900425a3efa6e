// Package explain says what Xids, SXids and other lines of a kernel log mean.
package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// rules describe what the code refines.
var rules = map[string]string{
	"settle": "waits 2 s for its neighbours: with Xid 94 and without 64 and 95 it is RestartApp, else ResetGPU",
	"cause":  "inherits the class of `caused by previous Xid N`; alone or in a burst it is never above Monitor",
	"text":   "the recovery action in the line decides, by number, then by name; None clears what a reset clears",
	"episodes": "Inspect after three episodes at least 30 minutes apart from two named applications, " +
		"if no other GPU shows it within 5 minutes",
	"registers":   "the registers in the line decide; a link's second serious error within 24 hours is reported",
	"nvlink5":     "unit, interrupt information and error status decide by NVIDIA's table; without a row the severity in the line",
	"uncontained": "Reboot on an A100 with MIG off",
}

// clears describe what ends a fault of the class.
func clears(r conditions.Repair) string {
	if r == conditions.Reboot {
		return "a reboot, or `kubectl pitcrew clear`"
	}
	return "a driver load, Xid 154 going to None on that GPU, a reboot, or `kubectl pitcrew clear`"
}

// Xid describes an Xid: its meaning, its class, what clears it, and the source of that.
func Xid(code int) string {
	e, known := xid.Lookup(code)
	var b strings.Builder
	fmt.Fprintf(&b, "Xid %d: %s\n", code, e.Text)
	if !known {
		fmt.Fprintf(&b, "class:       %s, because its repair is not known; it is kept, never dropped\n", e.Repair)
		fmt.Fprintf(&b, "cleared by:  %s\n", clears(e.Repair))
		return b.String()
	}
	fmt.Fprintf(&b, "mnemonic:    %s\n", e.Mnemonic)
	fmt.Fprintf(&b, "NVIDIA says: %s", orNone(e.Action))
	if e.Investigate != "" {
		fmt.Fprintf(&b, "; to investigate: %s", e.Investigate)
	}
	fmt.Fprintf(&b, "\nclass:       %s", e.Repair)
	if words, refined := rules[e.Rule]; refined {
		fmt.Fprintf(&b, "; %s", words)
	} else if e.Note != "" {
		fmt.Fprintf(&b, " (%s)", e.Note)
	}
	fmt.Fprintf(&b, "\ncleared by:  %s\nsource:      %s\n", clears(e.Repair), e.Source)
	return b.String()
}

// SXid does the same for an NVSwitch error.
func SXid(code int) string {
	var b strings.Builder
	entry, known := xid.LookupSXid(code)
	if known {
		fmt.Fprintf(&b, "SXid %d: %s\nNVIDIA says: %s", code, entry.Class, entry.Action)
		if entry.Note != "" {
			fmt.Fprintf(&b, " (%s)", entry.Note)
		}
		b.WriteByte('\n')
	} else {
		fmt.Fprintf(&b, "SXid %d: not in the catalogue; the severity in its line decides\n", code)
	}
	for _, word := range []string{"Fatal", "Non-fatal", "Correctable"} {
		event := xid.Event{Kind: xid.KindSXid, Code: code, Detail: xid.Detail{Severity: word}}
		repair := xid.Case{Events: []xid.Event{event}, Now: time.Hour}.Judge()[0].Repair
		fmt.Fprintf(&b, "%-12s %s, cleared by %s\n", word+":", repair, clears(repair))
	}
	b.WriteString("source:      NVIDIA Fabric Manager User Guide\n")
	return b.String()
}

// List is the Xid catalogue, a line per code.
func List() string {
	var b strings.Builder
	for _, e := range xid.Listed() {
		fmt.Fprintf(&b, "%3d  %-10s  %-55s  %s\n", e.Code, e.Repair, e.Text, orNone(e.Action))
	}
	return b.String()
}

func orNone(action string) string {
	if action == "" {
		return "nothing published"
	}
	return action
}
