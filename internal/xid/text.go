package xid

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// Line is one line of a plain text log without its prefix.
type Line struct {
	Body string
	// At is the kernel's clock if the line has it, else the wall clock counted from the year's start; HasTime tells
	// whether it has either.
	At      time.Duration
	HasTime bool
	// User is true if the prefix has a facility other than the kernel's, or a host without `kernel:` behind it.
	User bool
}

// The prefixes that plain text logs put before a kernel line, and no others:
// `<pri>`, `Mon dd hh:mm:ss host`, ISO time + host, `kernel:`, `[t]`, `[t] [ Tn]`.
var (
	textPri    = lazy(`^<([0-9]{1,3})>`)
	textSyslog = lazy(`^([A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}) \S+ `)
	textISO    = lazy(`^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})) \S+ `)
	textClock  = lazy(`^\[ *([0-9]+\.[0-9]+|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4})\] `)
	textThread = lazy(`^\[ *[TC][0-9]+\] `)
)

// ParseText takes the prefixes off a line of a plain text log.
func ParseText(line string) Line {
	l := Line{Body: strings.TrimRight(line, "\r\n")}
	take := func(re func() *regexp.Regexp) (string, bool) {
		m := re().FindStringSubmatch(l.Body)
		if m == nil {
			return "", false
		}
		l.Body = l.Body[len(m[0]):]
		return m[len(m)-1], true
	}
	if pri, ok := take(textPri); ok {
		n, err := strconv.Atoi(pri)
		l.User = err == nil && n>>3 != 0
	}
	hosted := false
	if t, ok := take(textSyslog); ok {
		hosted = true
		l.wall(time.Stamp, t)
	} else if t, ok := take(textISO); ok {
		hosted = true
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05Z0700"} {
			l.wall(layout, t)
		}
	}
	body, kernel := strings.CutPrefix(l.Body, "kernel: ")
	l.Body = body
	// The program that logged comes after the host: `logger -t NVRM` is one.
	l.User = l.User || hosted && !kernel
	if t, ok := take(textClock); ok {
		if seconds, err := strconv.ParseFloat(t, 64); err == nil {
			l.At, l.HasTime = time.Duration(seconds*float64(time.Second)), true
		} else {
			l.wall(time.ANSIC, t)
		}
		take(textThread)
	}
	return l
}

// wall takes the wall clock as a distance from the start of the year; a line without a year has no better one.
func (l *Line) wall(layout, text string) {
	if t, err := time.Parse(layout, text); err == nil {
		l.At, l.HasTime = t.Sub(time.Date(t.Year(), 1, 1, 0, 0, 0, 0, t.Location())), true
	}
}

// newBoot needs more than "Linux version ": that fits into the name of a process, see [kmsg.MaxName].
var newBoot = lazy(`^Linux version [0-9]+\.[0-9]+`)

// NewBoot reports whether the line is the first one of a Linux boot.
func NewBoot(body string) bool {
	return strings.HasPrefix(body, "Linux version ") && newBoot().MatchString(body) && !kmsg.StartsWithFile(body)
}

// Joiner parses bodies one after the other and puts a message together that was split into several records (format 8).
type Joiner struct {
	half  string
	parts int
}

// Parse is [Parse] for the next body.
func (j *Joiner) Parse(body string) (Event, bool) {
	const first, most = "NVRM: The NVIDIA GPU ", 3
	if e, ok := Parse(body); ok {
		j.half = ""
		return e, true
	}
	switch {
	case strings.HasPrefix(body, first):
		j.half, j.parts = body, 1
	case j.half != "" && j.parts < most && strings.HasPrefix(body, "NVRM: "):
		j.half, j.parts = j.half+"\n"+body, j.parts+1
		if e, ok := Parse(j.half); ok {
			j.half = ""
			return e, true
		}
	}
	return Event{}, false
}
