package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type lineError struct {
	line int
	err  error
}

// wrong is the error about a value of the wrong type.
func (d *decoder) wrong(n *yaml.Node, at *field.Path, want string) {
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

func (d *decoder) invalid(at *field.Path, value any, why string) {
	d.add(field.Invalid(at, value, why))
}

func (d *decoder) invalidFor(at *field.Path, value any, reasons []string) {
	for _, why := range reasons {
		d.invalid(at, value, why)
	}
}

// add is for errors about the value of a field; its line is that of the field or, if it is missing, of what it is missing in.
func (d *decoder) add(err *field.Error) {
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

func (d *decoder) fail(line int, err error) {
	if !d.isFull() {
		d.errs = append(d.errs, lineError{line, err})
	}
}

// err is everything that is wrong, in the order of the lines.
func (d *decoder) err() error {
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
