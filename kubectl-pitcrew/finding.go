package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// level is how good or bad a finding is.
type level string

// The levels, the best first.
const (
	isOK level = "ok"
	// isNotKnown: it could not be read, mostly for lack of rights. This is no fault of Pitcrew.
	isNotKnown level = "unknown"
	isWarning  level = "warning"
	// isProblem: something of Pitcrew itself is wrong.
	isProblem level = "problem"
)

// finding is one fact about Pitcrew, as status and doctor print it.
type finding struct {
	// Name is what it is about, in one or two words.
	Name  string `json:"name"`
	Level level  `json:"level"`
	Seen  string `json:"seen"`
	// Do is what to do about it, mostly a command.
	Do string `json:"do,omitempty"`
}

func good(name, format string, args ...any) finding {
	return finding{Name: name, Level: isOK, Seen: fmt.Sprintf(format, args...)}
}

func warning(name, do, format string, args ...any) finding {
	return finding{name, isWarning, fmt.Sprintf(format, args...), do}
}

func problem(name, do, format string, args ...any) finding {
	return finding{name, isProblem, fmt.Sprintf(format, args...), do}
}

// notKnown is what the user may not read, or what is not there to be read.
func notKnown(name string, why any) finding {
	return finding{Name: name, Level: isNotKnown, Seen: fmt.Sprint(why)}
}

// unless returns the finding that an error makes if the user may not read something. Other errors end the command: they are about the
// connection, not about Pitcrew.
func unless(name string, err error) (finding, error) {
	if apierrors.IsForbidden(err) {
		return notKnown(name, err), nil
	}
	return finding{}, err
}

// worst is the worst level of the findings.
func worst(all []finding) level {
	order := map[level]int{isOK: 0, isNotKnown: 1, isWarning: 2, isProblem: 3}
	is := isOK
	for _, f := range all {
		if order[f.Level] > order[is] {
			is = f.Level
		}
	}
	return is
}

// words are what a finding says, its level first where that is worth a word.
func (f finding) words() string {
	switch f.Level {
	case isNotKnown:
		return "not known: " + f.Seen
	case isProblem:
		return "PROBLEM: " + f.Seen
	}
	return f.Seen
}

// levelColours of the lines. A colour never stands alone: the words of a problem start with PROBLEM, and a warning says what is unusual.
var levelColours = map[level]string{isWarning: "33", isProblem: "31"}

// labelWidth is that of the longest label, with a space.
const labelWidth = len("REMEDIATOR") + 2

// printFacts writes a line for each finding, with aligned labels. A label that repeats is written once.
func printFacts(out io.Writer, all []finding, colour bool) {
	before := ""
	for _, f := range all {
		label := strings.ToUpper(f.Name)
		if label == before {
			label = ""
		}
		before = cmp.Or(label, before)
		text := fmt.Sprintf("%-*s%s", labelWidth, label, f.words())
		if f.Level == isProblem && f.Do != "" {
			text += "; " + f.Do
		}
		cli.Coloured(out, text, levelColours[f.Level], colour)
	}
}

// exitBy is the error that makes the exit code of a command which has shown findings.
func exitBy(is level) error {
	if is == isProblem {
		return errUnhealthy
	}
	return nil
}
