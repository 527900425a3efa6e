package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Level is how good or bad a finding is.
type Level string

// The levels, the best first.
const (
	IsOK Level = "ok"
	// IsNotKnown: it could not be read, mostly for lack of rights. This is no fault of Pitcrew.
	IsNotKnown Level = "unknown"
	IsWarning  Level = "warning"
	// IsProblem: something of Pitcrew itself is wrong.
	IsProblem Level = "problem"
)

// Finding is one fact about Pitcrew, as status and doctor print it.
type Finding struct {
	// Name is what it is about, in one or two words.
	Name  string `json:"name"`
	Level Level  `json:"level"`
	Seen  string `json:"seen"`
	// Do is what to do about it, mostly a command.
	Do string `json:"do,omitempty"`
}

func Good(name, format string, args ...any) Finding {
	return Finding{Name: name, Level: IsOK, Seen: fmt.Sprintf(format, args...)}
}

func Warning(name, do, format string, args ...any) Finding {
	return Finding{name, IsWarning, fmt.Sprintf(format, args...), do}
}

func Problem(name, do, format string, args ...any) Finding {
	return Finding{name, IsProblem, fmt.Sprintf(format, args...), do}
}

// NotKnown is what the user may not read, or what is not there to be read.
func NotKnown(name string, why any) Finding {
	return Finding{Name: name, Level: IsNotKnown, Seen: fmt.Sprint(why)}
}

// Unless returns the finding that an error makes if the user may not read something. Other errors end the command: they are about the
// connection, not about Pitcrew.
func Unless(name string, err error) (Finding, error) {
	if apierrors.IsForbidden(err) {
		return NotKnown(name, err), nil
	}
	return Finding{}, err
}

// Worst is the worst level of the findings.
func Worst(all []Finding) Level {
	order := map[Level]int{IsOK: 0, IsNotKnown: 1, IsWarning: 2, IsProblem: 3}
	is := IsOK
	for _, f := range all {
		if order[f.Level] > order[is] {
			is = f.Level
		}
	}
	return is
}

// words are what a finding says, its level first where that is worth a word.
func (f Finding) words() string {
	switch f.Level {
	case IsNotKnown:
		return "not known: " + f.Seen
	case IsProblem:
		return "PROBLEM: " + f.Seen
	}
	return f.Seen
}

// LevelColours of the lines. A colour never stands alone: the words of a problem start with PROBLEM, and a warning says what is unusual.
var LevelColours = map[Level]string{IsWarning: "33", IsProblem: "31"}

// labelWidth is that of the longest label, with a space.
const labelWidth = len("REMEDIATOR") + 2

// PrintFacts writes a line for each finding, with aligned labels. A label that repeats is written once.
func PrintFacts(out io.Writer, all []Finding, colour bool) {
	before := ""
	for _, f := range all {
		label := strings.ToUpper(f.Name)
		if label == before {
			label = ""
		}
		before = cmp.Or(label, before)
		text := fmt.Sprintf("%-*s%s", labelWidth, label, f.words())
		if f.Level == IsProblem && f.Do != "" {
			text += "; " + f.Do
		}
		Coloured(out, text, LevelColours[f.Level], colour)
	}
}

// ExitBy is the error that makes the exit code of a command which has shown findings.
func ExitBy(is Level) error {
	if is == IsProblem {
		return ErrUnhealthy
	}
	return nil
}

// ErrUnhealthy makes the exit code 2: the command has worked, and something of Pitcrew itself is wrong. What is wrong was printed.
var ErrUnhealthy = errors.New("something of Pitcrew itself is wrong")

// Forbidden drops the errors that are not about rights: these end the command.
func Forbidden(err error) (forbidden, other error) {
	if apierrors.IsForbidden(err) {
		return err, nil
	}
	return nil, err
}

// Some lists the first names of a list, and counts the others.
func Some(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
