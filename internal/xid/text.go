package xid

import (
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// drivers are words of the GPU driver about a fault.
var drivers = lazy(`NVRM: |\bS?Xid ?\((?:PCI:)?|fallen off the bus|RmInitAdapter failed`)

// HasDriverWords reports whether a text has words of the GPU driver about a fault in it, wherever they stand.
func HasDriverWords(text string) bool { return drivers().MatchString(text) }

// quoted is a driver's line that does not start the text: a prefix that is not known may stand before it.
var quoted = lazy(`.(?:NVRM: (?:GPU )?|nvidia-nvswitch[0-9]+: S)(?:Xid \((?:PCI:)?)?` + bdf)

// QuotesDriver reports whether a text has a line of the driver behind something else, and is no report of what a user did.
func QuotesDriver(text string) bool {
	return (strings.Contains(text, "NVRM: ") || strings.Contains(text, "SXid")) && quoted().MatchString(text) &&
		!strings.HasPrefix(text, "audit: ") && !kmsg.StartsWithFile(text)
}

// unreadLine is a driver's line about an Xid, SXid or a lost GPU. The address makes what identifies it longer than [kmsg.MaxName], and it
// comes before anything that a user could have named.
var unreadLine = lazy(`^(?:NVRM: (?:GPU[0-9]{1,3} )?(?:[A-Za-z_]\w*: )?Xid ?\((?:PCI:)?` + bdf +
	`|nvidia-nvswitch[0-9]+: (?:\w+ ){0,3}SXid \(PCI:` + bdf +
	`|NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?` + bdf + `.*fallen off the bus)`)

// IsUnreadDriverLine reports whether a record that [Parse] does not understand is one of the driver's about a fault. Further lines of an
// SXid, with data, are none.
func IsUnreadDriverLine(body string) bool {
	if !strings.HasPrefix(body, "NVRM: ") && !strings.HasPrefix(body, "nvidia-nvswitch") || kmsg.StartsWithFile(body) {
		return false
	}
	return unreadLine().MatchString(body) && !sxidLine().MatchString(firstLine(body))
}

// newBoot needs more than "Linux version ": that fits into the name of a process, see [kmsg.MaxName].
var newBoot = lazy(`^Linux version [0-9]+\.[0-9]+`)

// NewBoot reports whether the line is the first one of a Linux boot.
func NewBoot(body string) bool {
	return strings.HasPrefix(body, "Linux version ") && newBoot().MatchString(body) && !kmsg.StartsWithFile(body)
}

// Joiner parses bodies one after the other and puts a message together that was split into several records (format 8).
type Joiner struct {
	// Half is the text of the first Parts records.
	Half  string `json:"half,omitempty"`
	Parts int    `json:"parts,omitempty"`
}

// Parse is [Parse] for the next body.
func (j *Joiner) Parse(body string) (Event, bool) {
	const first, most = "NVRM: The NVIDIA GPU ", 3
	if e, ok := Parse(body); ok {
		*j = Joiner{}
		return e, true
	}
	switch {
	case strings.HasPrefix(body, first):
		*j = Joiner{body, 1}
	case j.Half != "" && j.Parts < most && strings.HasPrefix(body, "NVRM: "):
		*j = Joiner{j.Half + "\n" + body, j.Parts + 1}
		if e, ok := Parse(j.Half); ok {
			*j = Joiner{}
			return e, true
		}
	}
	return Event{}, false
}
