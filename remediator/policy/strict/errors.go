package strict

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/suggest"
)

type lineError struct {
	line int
	err  error
}

// wrong is the error about a value of the wrong type.
func (d *Decoder) wrong(n *yaml.Node, at *field.Path, want string) {
	d.failed[at.String()] = true
	if at == nil {
		d.mistyped[""] = true
	} else {
		d.mistyped[at.String()] = true
	}
	if n.Kind == yaml.SequenceNode && want == "a mapping" && at != nil {
		d.fail(n.Line, fmt.Errorf("%s: is a list; write a mapping", describe(at)))
		return
	}
	what := n.ShortTag()
	if n.Kind == yaml.ScalarNode {
		what += fmt.Sprintf(" `%.10s`", n.Value)
	}
	d.fail(n.Line, fmt.Errorf("cannot unmarshal %s into %s (%s)", what, want, describe(at)))
}

// Invalid adds an error about the value of a field.
func (d *Decoder) Invalid(at *field.Path, value any, why string) {
	d.Add(field.Invalid(at, value, why))
}

// InvalidFor adds an error for each of the reasons.
func (d *Decoder) InvalidFor(at *field.Path, value any, reasons []string) {
	for _, why := range reasons {
		d.Invalid(at, value, why)
	}
}

// Add is for errors about the value of a field; its line is that of the field or, if it is missing, of what it is missing in.
func (d *Decoder) Add(err *field.Error) {
	d.failed[err.Field] = true
	line := 0
	for path := err.Field; ; path = parent(path) {
		if d.mistyped[path] {
			return
		}
		if line == 0 {
			line = d.lines[path]
		}
		if path == "" {
			break
		}
	}
	d.fail(max(line, 1), err)
}

func (d *Decoder) fail(line int, err error) {
	if !d.isFull() {
		d.errs = append(d.errs, lineError{line, err})
	}
}

// Err is everything that is wrong, in the order of the lines.
func (d *Decoder) Err() error {
	return errors.Join(inOrder(d.errs)...)
}

// inOrder puts errors in the order of their lines.
func inOrder(errs []lineError) (all []error) {
	slices.SortStableFunc(errs, func(a, b lineError) int { return a.line - b.line })
	for _, e := range errs {
		all = append(all, fmt.Errorf("line %d: %w", e.line, e.err))
	}
	return all
}

// parent is the path of what a field is in.
func parent(path string) string {
	end := strings.LastIndex(path, ".")
	if strings.HasSuffix(path, "]") {
		end = strings.LastIndex(path, "[")
	}
	return path[:max(end, 0)]
}

func describe(at *field.Path) string {
	if at == nil {
		return "the file"
	}
	return at.String()
}

// Warn adds a warning about a field.
func (d *Decoder) Warn(at *field.Path, why string) {
	line := 0
	for path := at.String(); line == 0 && path != ""; path = parent(path) {
		line = d.lines[path]
	}
	d.warnings = append(d.warnings, lineError{line, fmt.Errorf("%s: %s", at, why)})
}

// Warnings are the warnings, in the order of their lines.
func (d *Decoder) Warnings() (all []string) {
	for _, w := range inOrder(d.warnings) {
		all = append(all, w.Error())
	}
	return all
}

// IsSet reports whether the file has a value for the field.
func (d *Decoder) IsSet(at *field.Path) bool { return d.set[at.String()] }

// HasFailed reports whether the field has an error already.
func (d *Decoder) HasFailed(at *field.Path) bool { return d.failed[at.String()] }

// Line is the line of a field that is in the file.
func (d *Decoder) Line(at *field.Path) int { return d.lines[at.String()] }

// hint returns what an unknown field was probably meant to be: another field of the same part, or one of a part in it, which is not
// indented far enough.
func hint(part reflect.Type, name string) string {
	var names []string
	for f := range Fields(part) {
		names = append(names, f.Tag.Get("yaml"))
		if below := f.Type; below.Kind() == reflect.Struct {
			if _, found := fieldOf(below, name); found {
				return fmt.Sprintf("; it is a field of %s: indent it", f.Tag.Get("yaml"))
			}
		}
	}
	if meant := suggest.Closest(name, names); meant != "" {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return ""
}
