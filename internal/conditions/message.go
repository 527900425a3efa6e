package conditions

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxMessage is the longest message in bytes; the monitors' max_output_length is the same number.
const MaxMessage = 512

// Finding is one thing a check found: what is wrong with which subject, and what it needs.
type Finding struct {
	Repair Repair `json:"repair"`
	// Subject is a kind and a name, e.g. "gpu 0000:4e:00" or "hca mlx5_3 port 1".
	Subject string `json:"subject"`
	// Text must be stable from run to run: no counters, temperatures or times, because each changed message
	// becomes an Event and a PATCH.
	Text string `json:"text"`
}

// Part is one subject of a message.
type Part struct{ Subject, Text string }

// Message is the problem line of a plugin and, unchanged, the message of its NodeCondition:
//
//	<Repair> <subject>: <text>[; <subject>: <text>]...[; +N more]
type Message struct {
	// Repair is the class of the worst part, which comes first.
	Repair Repair
	Parts  []Part
	// More counts parts that did not fit.
	More int
}

// NotRead begins the text of a part that is no fault: what could not be read beside one.
const NotRead = "not read: "

// Summarize puts findings into one message of at most [MaxMessage] bytes, worst first and in a stable order.
// Foreign text is made safe: `;`, `%` and everything that is not printable ASCII are replaced.
func Summarize(findings []Finding) Message {
	safe := make([]Finding, 0, len(findings))
	for _, f := range findings {
		safe = append(safe, Finding{f.Repair, Sanitize(strings.ReplaceAll(f.Subject, ": ", ":")), Sanitize(f.Text)})
	}
	slices.SortStableFunc(safe, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Repair, a.Repair), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Text, b.Text))
	})
	safe = slices.Compact(safe)
	if len(safe) == 0 {
		return Message{}
	}
	m := Message{Repair: safe[0].Repair}
	used := len(m.Repair.String())
	// Room that "; +N more" may need, for any N that fits an int.
	const reserve = len("; +") + 19 + len(" more")
	for i, f := range safe {
		size := len("; ") + len(f.Subject) + len(": ") + len(f.Text)
		if i == 0 {
			f.Subject, f.Text = clip(f.Subject, MaxMessage/4), clip(f.Text, MaxMessage/2)
			size = len(" ") + len(f.Subject) + len(": ") + len(f.Text)
		} else if used+size+reserve > MaxMessage {
			m.More = len(safe) - i
			break
		}
		used += size
		m.Parts = append(m.Parts, Part{f.Subject, f.Text})
	}
	return m
}

// String formats the message. A message without parts is empty.
func (m Message) String() string {
	if len(m.Parts) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(m.Repair.String())
	for i, p := range m.Parts {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(" " + p.Subject + ": " + p.Text)
	}
	if m.More > 0 {
		fmt.Fprintf(&b, "; +%d more", m.More)
	}
	return b.String()
}

// ParseMessage reads a message back. What it accepts, [Message.String] gives back unchanged.
func ParseMessage(s string) (Message, error) {
	if len(s) > MaxMessage {
		return Message{}, fmt.Errorf("message of %d bytes, at most %d", len(s), MaxMessage)
	}
	class, rest, found := strings.Cut(s, " ")
	if !found {
		return Message{}, fmt.Errorf("message %q has no subject", s)
	}
	repair, err := ParseRepair(class)
	if err != nil {
		return Message{}, fmt.Errorf("message %q: %w", s, err)
	}
	m := Message{Repair: repair}
	segments := strings.Split(rest, "; ")
	for i, segment := range segments {
		if n, ok := parseMore(segment); ok && i > 0 && i == len(segments)-1 {
			m.More = n
			break
		}
		subject, text, found := strings.Cut(segment, ": ")
		if !found || subject == "" || text == "" || Sanitize(subject) != subject || Sanitize(text) != text {
			return Message{}, fmt.Errorf("message %q: %q is not `<subject>: <text>`", s, segment)
		}
		m.Parts = append(m.Parts, Part{subject, text})
	}
	return m, nil
}

func parseMore(segment string) (int, bool) {
	digits, ok := strings.CutPrefix(segment, "+")
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, " more")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0 && strconv.Itoa(n) == digits
}

// Sanitize makes foreign text safe for a message: `;` separates parts, NPD uses the line as a printf format in
// Events, so `%` is mangled there, and control bytes or bytes outside ASCII could be cut in the middle.
// Empty text becomes "-".
func Sanitize(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == ';':
			return ','
		case r == '%':
			return '/'
		case r == '\t' || r == '\n':
			return ' '
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	// A colon at an end would run into the separator ": ".
	s = strings.Trim(s, ": ")
	if s == "" {
		return "-"
	}
	return s
}

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.TrimRight(s[:limit-3], ": ") + "..."
}
