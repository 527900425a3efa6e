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

// Xid 74, A100 and H100:
//
//	NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
//
// Xids 144-150, NVLink5 (B100, GB200); the severity may be padded, the link may be -1, words may be missing:
//
//	RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 ...)
//	NETIR_INT  Fatal   XC0 i0 Link -1
var (
	linkNumber = lazy(`(?i)\blink (-?[0-9]+)`)
	words      = lazy(`\((0x[0-9a-fA-F]+(?:,? 0x[0-9a-fA-F]+)*)\)`)
	nvlinkUnit = lazy(`^([A-Z][A-Z0-9_]+)\b`)
	severity   = lazy(`(?i)\b(link fatal|non-?fatal|fatal|correctable)\b`)
)

func (e *Event) parseLink() {
	if m := linkNumber().FindStringSubmatch(e.Text); m != nil {
		e.Link = m[1]
	}
}

func (e *Event) parseRegisters() {
	e.parseLink()
	m := words().FindStringSubmatch(e.Text)
	if m == nil {
		return
	}
	for word := range strings.FieldsSeq(strings.ReplaceAll(m[1], ",", " ")) {
		v, err := strconv.ParseUint(word, 0, 32)
		if err != nil || e.Registered == len(e.Registers) {
			return
		}
		e.Registers[e.Registered] = uint32(v)
		e.Registered++
	}
}

func (e *Event) parseNVLink5() {
	e.parseRegisters()
	// Only the first two words decide; the others are data of the moment.
	clear(e.Registers[2:])
	e.Registered = min(e.Registered, 2)
	if m := nvlinkUnit().FindStringSubmatch(e.Text); m != nil {
		e.Unit = m[1]
	}
	e.Severity = severity().FindString(e.Text)
}

// onLink names the link for a message.
func (e Event) onLink() string {
	if e.Link == "" || e.Link == "-1" {
		return ""
	}
	return " on link " + e.Link
}

// The bits of an Xid 74 on the Hopper register layout, in the registers that have a meaning there (0, 2, 3 and 4).
// Source: NVIDIA's catalogue, workflow for NVLink errors.
const (
	bitsHarmless = 1<<0 | 1<<1 | 1<<20 | 1<<23 | 1<<30
	bitsECC      = 1<<4 | 1<<5
	bitsReset    = 1<<8 | 1<<9 | 1<<12 | 1<<16 | 1<<17 | 1<<21 | 1<<22 | 1<<24 | 1<<28
)

// classify74 judges an Xid 74 by its registers and by what the same link has shown in the last 24 hours. A reset does
// not take a link's history away.
func classify74(events []Event, i int) (conditions.Repair, string) {
	e := events[i]
	text := "NVLink error" + e.onLink()
	set := e.bits74()
	switch {
	case e.Registered == 0:
		return conditions.ResetGPU, text
	case set&bitsReset != 0:
		if e.linkCount(events[:i+1], bitsReset) >= 2 {
			text += ", again within 24 hours, inspect it too"
		}
		return conditions.ResetGPU, text
	case set&^(bitsHarmless|bitsECC) != 0:
		return conditions.Inspect, text + ", bits that no table has"
	case set&bitsECC != 0 && e.linkCount(events[:i+1], bitsECC) > 2:
		return conditions.Inspect, text + ", more than two ECC errors within 24 hours"
	}
	return conditions.Monitor, text
}

func (e Event) bits74() uint32 {
	return e.Registers[0] | e.Registers[2] | e.Registers[3] | e.Registers[4]
}

// linkCount counts the bursts of this link's errors with one of the bits, in the last 24 hours.
func (e Event) linkCount(events []Event, mask uint32) int {
	n := 0
	for _, o := range events {
		if o.Kind == KindXid && o.Code == e.Code && o.Device == e.Device && o.Link == e.Link &&
			o.bits74()&mask != 0 && e.At-o.Last <= 24*time.Hour {
			n++
		}
	}
	return n
}

// nvlinkRule is one row of the NVLink5 table.
type nvlinkRule struct {
	code          int
	units         []string
	before, since pattern // of the interrupt information, for drivers before and since R575
	status        uint32
	repair        conditions.Repair
	// investigate is what NVIDIA has a person look at, beyond its support; empty if nothing.
	investigate string
}

// pattern matches a word in the bits of mask.
type pattern struct{ mask, value uint32 }

func (p pattern) matches(word uint32) bool { return word&p.mask == p.value }

//go:embed data/nvlink5.csv
var nvlinkCSV []byte

var nvlinkRules = embedded("NVLink5 errors", nvlinkCSV, parseNVLinkTable)

// nvlinkActions give the class of NVIDIA's buckets here. A row that leaves the verdict to a following Xid 154 is no
// fault by itself: that 154 is judged by itself.
var nvlinkActions = map[string]conditions.Repair{
	"RESET_GPU": conditions.ResetGPU, "IGNORE": conditions.Monitor, "XID_154_EVAL": conditions.Monitor,
}

func parseNVLinkTable(data []byte) ([]nvlinkRule, error) {
	rows, err := table.Rows(data, "xid", "unit", "before", "since", "status", "action", "investigate", "severity", "second")
	if err != nil {
		return nil, err
	}
	var rules []nvlinkRule
	for _, row := range rows {
		rule := nvlinkRule{units: strings.Split(row[1], "/")}
		status, err := strconv.ParseUint(row[4], 0, 32)
		if err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		rule.status = uint32(status)
		if rule.code, err = strconv.Atoi(row[0]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		if rule.before, err = parsePattern(row[2]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		if rule.since, err = parsePattern(row[3]); err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
		var known bool
		if rule.repair, known = nvlinkActions[row[5]]; !known {
			return nil, fmt.Errorf("row %q: action %q is not known", row, row[5])
		}
		if row[6] != "IGNORE" && row[6] != "CONTACT_SUPPORT" {
			rule.investigate = row[6]
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// parsePattern reads 32 characters, most significant bit first: 0, 1 or - for any.
func parsePattern(s string) (p pattern, err error) {
	if len(s) != 32 {
		return p, fmt.Errorf("pattern %q has %d bits, want 32", s, len(s))
	}
	for _, c := range s {
		p.mask, p.value = p.mask<<1, p.value<<1
		switch c {
		case '0':
			p.mask |= 1
		case '1':
			p.mask |= 1
			p.value |= 1
		case '-':
		default:
			return p, fmt.Errorf("pattern %q holds %q", s, c)
		}
	}
	return p, nil
}

// classifyNVLink5 judges an Xid 144-150 by the table. The driver's version is not known here, so both layouts of the
// interrupt information are tried; no word fits rows of both that disagree, which a test holds. Without a row the
// severity in the line decides.
func classifyNVLink5(e Event, name string) (conditions.Repair, string) {
	text := name
	if e.Unit != "" {
		text += " " + e.Unit
	}
	if e.Severity != "" {
		text += " " + e.Severity
	}
	text += e.onLink()
	if e.Registered == 2 {
		for _, rule := range nvlinkRules() {
			if rule.code == e.Code && slices.Contains(rule.units, e.Unit) && rule.status == e.Registers[1] &&
				(rule.before.matches(e.Registers[0]) || rule.since.matches(e.Registers[0])) {
				if rule.investigate != "" {
					text += ", to investigate: " + rule.investigate
				}
				return rule.repair, text
			}
		}
	}
	switch strings.ToLower(e.Severity) {
	case "fatal", "link fatal":
		return conditions.ResetGPU, text
	case "":
		return conditions.Inspect, text
	}
	return conditions.Monitor, text
}
