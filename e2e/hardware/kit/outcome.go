package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// outcome is what became of a step.
type outcome struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Differs says what is not as it must be.
	Differs []string `json:"differs,omitempty"`
	// Noted says why something could not be checked, or what else is worth knowing.
	Noted string `json:"noted,omitempty"`
	// Answered are the questions to the driver that a GPU has answered, Unsupported those that the driver does not answer on this machine.
	Answered    []string `json:"answered,omitempty"`
	Unsupported []string `json:"unsupported,omitempty"`
	Runs        []ran    `json:"runs,omitempty"`
	// compared says that something was checked, without a run of a program.
	compared bool
}

func (o *outcome) differs(format string, a ...any) {
	o.Differs = append(o.Differs, fmt.Sprintf(format, a...))
}

func (o *outcome) note(format string, a ...any) {
	if o.Noted != "" {
		o.Noted += "; "
	}
	o.Noted += fmt.Sprintf(format, a...)
}

func (o *outcome) verdict() string {
	switch {
	case len(o.Differs) > 0:
		return "DIFFERS"
	case len(o.Runs) == 0 && !o.compared:
		return "noted"
	}
	return "expected"
}

// short is the outcome in one line.
func (o *outcome) short() string {
	switch {
	case len(o.Differs) > 0:
		return strings.Join(o.Differs, "; ")
	case o.Noted != "":
		return o.Noted
	case len(o.Runs) > 0:
		return o.Runs[len(o.Runs)-1].Says
	}
	return ""
}

// file files a run and what is wrong with every program that does so: it did not end, or left something.
func (o *outcome) file(r ran) ran {
	o.Runs = append(o.Runs, r)
	name := strings.Join(r.Argv, " ")
	if len(r.Argv) > 0 {
		name = r.Argv[0][strings.LastIndexByte(r.Argv[0], '/')+1:]
	}
	if r.Failed != "" {
		o.differs("%s: %s %s", name, r.Failed, firstLine(r.stderr))
	}
	if len(r.Left) > 0 {
		o.differs("%s has left %s", name, strings.Join(r.Left, ", "))
	}
	return r
}

// answered files a run of a plugin, and what is wrong with its answer: NPD takes exit codes 0, 1 and 2 and one line.
func (o *outcome) answered(r ran) ran {
	o.file(r)
	line := strings.TrimSuffix(r.stdout, "\n")
	foreign := func(c rune) bool { return c < ' ' || c > '~' || c == '%' }
	switch {
	case r.Failed != "":
	case r.Exit > 2:
		o.differs("exit %d: %s", r.Exit, firstLine(r.stderr))
	case line == "" || len(line) > conditions.MaxMessage || strings.ContainsFunc(line, foreign):
		o.differs("exit %d and %.80q, which is not one line for NPD: %s", r.Exit, r.stdout, firstLine(r.stderr))
	}
	return r
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// result is the form of result.json.
type result struct {
	Version string    `json:"version"`
	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds"`
	// Result is expected, differs, or unknown where no GPU was checked.
	Result  string  `json:"result"`
	Machine machine `json:"machine"`
	// HoldersAfter are the processes that have a device open after the run.
	HoldersAfter []string  `json:"holdersAfter,omitempty"`
	Steps        []outcome `json:"steps"`
}

func (r *result) conclude() {
	r.Result = "expected"
	if len(r.Machine.GPUs) == 0 {
		r.Result = "unknown"
	}
	for _, s := range r.Steps {
		if len(s.Differs) > 0 {
			r.Result = "differs"
		}
	}
}

func (r *result) code() int {
	switch r.Result {
	case "expected":
		return exitExpected
	case "differs":
		return exitDiffers
	}
	return exitUnknown
}
