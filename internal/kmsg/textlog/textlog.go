// Package textlog reads the lines of a kernel log as text, in the forms in which programs print it.
package textlog

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Line is one line of a plain text log without its prefix.
type Line struct {
	Body string
	// At is the kernel's clock if the line has it, else the wall clock counted from the year's start; HasTime reports whether it has either.
	At      time.Duration
	HasTime bool
	// User is true if the prefix has a facility other than the kernel's, or a host without `kernel:` behind it.
	User bool
	// Unsure is true if the form of the line is not known, or does not say whether the kernel wrote it. User is set in the second case.
	Unsure bool
	// Form is true if the line has a prefix that is known.
	Form bool
}

// A prefix is what a program puts before the text of a kernel record. take notes in the line what the groups of its expression say.
type prefix struct {
	re   func() *regexp.Regexp
	take func(l *Line, groups []string)
}

const (
	isoTime = `[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}`
	// zone is an offset, or a name as in journalctl -o short-full.
	zone = `(?:Z|[+-][0-9]{2}:?[0-9]{2}| [A-Z]{3,5}| [+-][0-9]{2,4})`
	// word is a day or a month in any language.
	word   = `[\pL.0-9]{1,12}`
	levels = `(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)`
)

// prefixes are those of text forms of the kernel log, in the order in which they stand in a line. Each is taken off at most once.
var prefixes = []prefix{
	// kubectl logs --timestamps, docker logs -t: nanoseconds, and no host.
	{lazy(`^` + isoTime + `\.[0-9]{9}Z `), nil},
	// talosctl dmesg (github.com/siderolabs/talos cmd/talosctl/cmd/talos/dmesg.go): node: facility: level: [time]: text
	{lazy(`^(?:\S+: )?([a-z0-9]+): +` + levels + `: +\[` + isoTime + `(?:\.[0-9]+)?` + zone + `\]: `), facility},
	// dmesg -x (util-linux sys-utils/dmesg.c): "kern  :err   : "
	{lazy(`^([a-z0-9]+) *:` + levels + ` *: `), facility},
	// RFC 5424: <pri>1 time host program pid id data text
	{lazy(`^<([0-9]{1,3})>1 (?:-|\S+) \S+ (\S+) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?(?:\x{FEFF})?`), func(l *Line, groups []string) {
		priority(l, groups)
		l.User = l.User || groups[2] != "kernel"
	}},
	// The console and RFC 3164.
	{lazy(`^<([0-9]{1,3})>`), priority},
	// What was copied from /dev/kmsg, and netconsole's extended form, which has the kernel's release first.
	{lazy(`^(?:[0-9]+\.[0-9]+[^\s,;]*,)?([0-9]{1,3}),[0-9]+,([0-9]+),[^;]*;`), func(l *Line, groups []string) {
		priority(l, groups)
		l.usec(groups[2])
	}},
	// dmesg --time-format iso has a comma and no host.
	{lazy(`^(` + isoTime + `),([0-9]+)` + zone + `:? `), func(l *Line, groups []string) { l.wall("2006-01-02T15:04:05", groups[1]) }},
	// A syslog file and journalctl -o short-iso.
	{lazy(`^(` + isoTime + `(?:\.[0-9]+)?` + zone + `) `), func(l *Line, groups []string) {
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02 15:04:05Z07:00"} {
			l.wall(layout, groups[1])
		}
		l.host()
	}},
	// journalctl -o short-full
	{lazy(`^` + word + ` ` + isoTime + `(?:\.[0-9]+)?` + zone + ` `), hosted},
	// RFC 3164 and journalctl -o short, short-precise
	{lazy(`^(` + word + ` [ 0-9]?[0-9] [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)? `), func(l *Line, groups []string) {
		l.wall(time.Stamp, groups[1])
		l.host()
	}},
	// journalctl -o short-unix
	{lazy(`^[0-9]{10}\.[0-9]{6} `), hosted},
	// A syslog file without a host, and what a person has copied.
	{lazy(`^kernel: `), nil},
	// The kernel's own clock: dmesg, its -d (`< 0.000912>`), -T, -H and -e, and the console.
	{lazy(`^\[ *([0-9]+\.[0-9]+)(?: *< *[0-9.+]+ *>| +)?\] ?`), clock},
	{lazy(`^\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4})(?: *< *[0-9.+]+>)?\] ?`), ansi},
	{lazy(`^\[(?:(?:[^\]\[]{1,30} )?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:[ .][^\]\[]{1,24})?| *<? *\+?[0-9]+\.[0-9]+>?)\] ?`), nil},
	// journalctl -o short-monotonic has the host and the program after the clock.
	{lazy(`^[^\s:\[\]]+ kernel: `), nil},
	// CONFIG_PRINTK_CALLER: the thread or the CPU.
	{lazy(`^\[ *[TC][0-9]+\] ?`), nil},
}

// facility takes the name of a facility: that of the kernel is kern.
func facility(l *Line, groups []string) { l.User = l.User || groups[1] != "kern" }

// priority takes a number of which the facility is all but the last three bits.
func priority(l *Line, groups []string) {
	n, err := strconv.Atoi(groups[1])
	l.User = l.User || err != nil || n>>3 != 0
}

func clock(l *Line, groups []string) {
	if seconds, err := strconv.ParseFloat(groups[1], 64); err == nil {
		l.At, l.HasTime = time.Duration(seconds*float64(time.Second)), true
	}
}

// usec takes the kernel's clock in microseconds.
func (l *Line) usec(text string) {
	if usec, err := strconv.ParseInt(text, 10, 64); err == nil {
		l.At, l.HasTime = time.Duration(usec)*time.Microsecond, true
	}
}

func ansi(l *Line, groups []string) { l.wall(time.ANSIC, groups[1]) }

func hosted(l *Line, _ []string) { l.host() }

// host takes the host and the program that logged, which stand after a time: `logger -t NVRM` is one. The kernel's own clock may follow
// instead. Without a host, "NVRM:" may be the driver or a program of that name.
func (l *Line) host() {
	host, rest, _ := strings.Cut(l.Body, " ")
	switch {
	case host == "kernel:", strings.HasPrefix(host, "["): // is taken off next
	case strings.HasSuffix(host, ":"):
		l.User, l.Unsure = true, true
	default:
		text, kernel := strings.CutPrefix(rest, "kernel:")
		l.Body, l.User = strings.TrimPrefix(text, " "), l.User || !kernel
		l.Unsure = l.Unsure || !kernel && !program().MatchString(rest)
	}
}

// program is the name of one that logged, and its process.
var program = lazy(`^[^\s:\[\]]+(?:\[[0-9]+\])?: `)

// colours are the sequences by which dmesg and journalctl colour a terminal (ECMA-48, SGR and erase).
var colours = lazy(`\x1b\[[0-9;]*[mKGH]`)

// bare takes off what comes from copying a line: colours, indentation, the quotes of mails and of shells.
func bare(line string) string {
	if strings.Contains(line, "\x1b") {
		line = colours().ReplaceAllString(line, "")
	}
	// A file that was not closed when the machine went down is filled with zeros.
	line = strings.TrimLeft(strings.TrimRight(line, " \t\r\n"), "\x00\ufeff \t")
	for strings.HasPrefix(line, "> ") {
		line = strings.TrimLeft(line[2:], " \t")
	}
	for _, quote := range []string{`"`, "'", "`"} {
		if len(line) > 1 && strings.HasPrefix(line, quote) && strings.HasSuffix(line, quote) {
			return line[1 : len(line)-1]
		}
	}
	return line
}

// journalLine is a line of `journalctl -o json`.
type journalLine struct {
	Transport  string `json:"_TRANSPORT"`
	Identifier string `json:"SYSLOG_IDENTIFIER"`
	Facility   string `json:"SYSLOG_FACILITY"`
	Monotonic  string `json:"_SOURCE_MONOTONIC_TIMESTAMP"`
	Message    text   `json:"MESSAGE"`
}

// text is a field that journalctl writes as a list of bytes if it is not all printable (systemd, JOURNAL_EXPORT_FORMATS).
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(t)) == nil {
		return nil
	}
	var codes []uint16 // a list of bytes would be read from base64
	err := json.Unmarshal(data, &codes)
	var all []byte
	for _, code := range codes {
		all = append(all, byte(code))
	}
	*t = text(all)
	return err
}

// Parse takes the prefixes off a line of a plain text log.
func Parse(line string) Line {
	l := Line{Body: bare(line)}
	if strings.HasPrefix(l.Body, "{") {
		var j journalLine
		if json.Unmarshal([]byte(l.Body), &j) == nil && j.Message != "" && (j.Transport != "" || j.Identifier != "") {
			l = Line{Body: string(j.Message), User: j.Transport != "" && j.Transport != "kernel" || j.Identifier != "" && j.Identifier != "kernel" ||
				j.Facility != "" && j.Facility != "0"}
			l.Form = true
			l.usec(j.Monotonic)
			return l
		}
	}
	for _, p := range prefixes {
		groups := p.re().FindStringSubmatch(l.Body)
		if groups == nil {
			continue
		}
		l.Body, l.Form = l.Body[len(groups[0]):], true
		if p.take != nil {
			p.take(&l, groups)
		}
	}
	l.Body = strings.TrimLeft(l.Body, " ")
	l.Unsure = l.Unsure || !l.Form && !strings.HasPrefix(l.Body, "NVRM: ") && !strings.HasPrefix(l.Body, "audit: ")
	return l
}

// wall takes the wall clock as a distance from the start of the year; a line without a year has no better one.
func (l *Line) wall(layout, text string) {
	if t, err := time.Parse(layout, text); err == nil {
		l.At, l.HasTime = t.Sub(time.Date(t.Year(), 1, 1, 0, 0, 0, 0, t.Location())), true
	}
}

// lazy compiles an expression when it is first needed.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
