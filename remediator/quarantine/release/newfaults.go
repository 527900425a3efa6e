// Package release finds out which faults a release covers, by the messages of conditions alone. It is pure.
package release

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

var xidCode = regexp.MustCompile(`^S?Xid \d+`)

// FaultCode is the Xid in the text of a finding, or else the text.
func FaultCode(text string) string { return cmp.Or(xidCode.FindString(text), text) }

// NewFaults is the message of a condition of ours with only the faults that have come since a manual release that covers earlier messages;
// empty if none has, or if the message names no subjects. Another subject is a new fault, and so is one that was released once its class
// may be worse or, where texts are codes, once another code of it may be of the same class. The message names the class of its worst fault
// alone, so a new fault counts as that one. The parts of a message are sorted by class first, then by subject and text: a part before a
// larger one is of a worse class.
func NewFaults(condition, text string, covered []string) string {
	now, err := conditions.ParseMessage(text)
	if err != nil {
		return ""
	}
	var released []conditions.Message
	more := 0
	for _, earlier := range covered {
		m, err := conditions.ParseMessage(earlier)
		if err != nil {
			return ""
		}
		released, more = append(released, m), max(more, m.More)
	}
	hasCodes := conditions.HasCodes(condition)
	found := conditions.Message{Repair: now.Repair}
	for i, part := range now.Parts {
		worst := now.Repair
		if slices.ContainsFunc(now.Parts[:i], func(before conditions.Part) bool {
			return cmp.Or(cmp.Compare(before.Subject, part.Subject), cmp.Compare(before.Text, part.Text)) > 0
		}) {
			worst--
		}
		isCovered := slices.ContainsFunc(released, func(m conditions.Message) bool {
			return slices.ContainsFunc(m.Parts, func(p conditions.Part) bool {
				isSame := worst <= m.Repair
				if hasCodes {
					isSame = FaultCode(p.Text) == FaultCode(part.Text)
				}
				return p.Subject == part.Subject && (isSame || worst < m.Repair)
			})
		})
		if !isCovered {
			found.Parts = append(found.Parts, part)
		}
	}
	// Faults that the message had no room for at the release may show now.
	if len(found.Parts)+now.More <= more {
		return ""
	}
	if len(found.Parts) == 0 {
		return text
	}
	return found.String()
}
