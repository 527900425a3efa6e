// Package syntax reads a YAML file of one document, and says in which line a text stops being YAML and what was expected there.
package syntax

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Parse returns the content of the only document of a file; nil if it is empty.
func Parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var file, more yaml.Node
	if err := decoder.Decode(&file); errors.Is(err, io.EOF) {
		return nil, nil //nolint:nilnil // nothing is there
	} else if err != nil {
		return nil, describeSyntax(data, err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: more than one YAML document", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, describeSyntax(data, err)
	}
	return file.Content[0], nil
}

// syntaxError is an error of yaml.v3 about a text that is no YAML.
var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// describeSyntax returns in which line a text stops being YAML, and what was expected there. yaml.v3 names the line in which the part
// begins that could not be read, or the one after the mistake.
func describeSyntax(data []byte, err error) error {
	found := syntaxError.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	t := textLines(strings.Split(string(data), "\n"))
	line, _ := strconv.Atoi(found[1])
	line = min(max(line, 1), len(t))
	line, text := t.explain(line, found[2])
	return fmt.Errorf("line %d: %s", line, text)
}

// textLines are the lines of a file. Numbers of lines begin at 1.
type textLines []string

// explain turns what yaml.v3 says of a line into the line of the mistake and what is wrong there.
func (t textLines) explain(line int, problem string) (at int, text string) {
	switch {
	case strings.HasPrefix(problem, "did not find expected key"), strings.HasPrefix(problem, "did not find expected '-'"),
		strings.HasPrefix(problem, "did not find expected <document start>"):
		at = t.firstWith(problem)
		return at, t.indentation(at)
	case strings.HasPrefix(problem, "did not find expected ',' or"):
		return t.clamp(line + 1), "the bracket that opens here is not closed, or what follows in it lacks a comma"
	case strings.HasPrefix(problem, "did not find expected"):
		return t.clamp(line + 1), problem
	case strings.HasPrefix(problem, "mapping values are not allowed"):
		return t.unexpectedColon(line)
	case strings.HasPrefix(problem, "could not find expected ':'"):
		return line, fmt.Sprintf("expected a name and a colon followed by a space, as in `mode: observe`, and not %q", t.at(line))
	case strings.HasPrefix(problem, "found character that cannot start any token"):
		if strings.Contains(t[line-1][:len(t[line-1])-len(strings.TrimLeft(t[line-1], " \t"))], "\t") {
			return line, "the line is indented with a tab: indent it with spaces"
		}
		return line, fmt.Sprintf("a value that begins with %q must be in quotes", firstOfValue(t.at(line)))
	case strings.HasPrefix(problem, "found unexpected end of stream"):
		return line, "the quote that opens here is not closed"
	case strings.HasPrefix(problem, "unknown anchor"):
		name := strings.Trim(strings.TrimSuffix(strings.TrimPrefix(problem, "unknown anchor "), " referenced"), "'")
		if i := slices.IndexFunc(t, func(l string) bool { return strings.Contains(l, "*"+name) }); i >= 0 {
			line = i + 1
		}
	case strings.Contains(problem, "UTF-8"), strings.HasPrefix(problem, "control characters"):
		unreadable := func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\r' || r == utf8.RuneError }
		if i := slices.IndexFunc(t, func(l string) bool { return strings.ContainsFunc(l, unreadable) }); i >= 0 {
			line = i + 1
		}
	}
	return line, problem
}

func (t textLines) clamp(line int) int { return min(line, len(t)) }

// at is a line without its indentation.
func (t textLines) at(line int) string { return strings.TrimSpace(t[line-1]) }

// indent is by how many spaces a line is indented.
func (t textLines) indent(line int) int {
	return len(t[line-1]) - len(strings.TrimLeft(t[line-1], " "))
}

// before is the last line before one that has more than a comment; 0 if there is none.
func (t textLines) before(line int) int {
	for line--; line > 0; line-- {
		if text := t.at(line); text != "" && text[0] != '#' {
			return line
		}
	}
	return 0
}

// firstWith is the first line with which the file has the problem: one of the structure, which no later line can fix.
func (t textLines) firstWith(problem string) int {
	n, _ := slices.BinarySearchFunc(slices.Collect(lineNumbers(len(t))), true, func(line int, _ bool) int {
		decoder := yaml.NewDecoder(strings.NewReader(strings.Join(t[:line], "\n")))
		for {
			err := decoder.Decode(&yaml.Node{})
			if err != nil {
				if strings.HasSuffix(err.Error(), problem) {
					return 0
				}
				return -1
			}
		}
	})
	return t.clamp(n + 1)
}

func lineNumbers(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := 1; i <= n && yield(i); i++ {
		}
	}
}

// indentation returns how a line is indented and how it could be: as a line above that it may continue.
func (t textLines) indentation(line int) string {
	const most = 3
	var could []string
	got, next := t.indent(line), t.indent(line)+1<<20
	for above := t.before(line); above > 0 && len(could) < most; above = t.before(above) {
		if here := t.indent(above); here < next {
			next = here
			if here != got {
				could = append(could, fmt.Sprintf("%d as line %d (%s)", here, above, t.name(above)))
			}
		}
	}
	if len(could) == 0 {
		return "is not indented as the lines around it"
	}
	slices.Reverse(could)
	return fmt.Sprintf("%q is indented by %d spaces; expected %s", t.name(line), got, strings.Join(could, " or "))
}

// name is the key of a line, or what it has instead.
func (t textLines) name(line int) string {
	name, _, _ := strings.Cut(t.at(line), ": ")
	return strings.TrimSuffix(fmt.Sprintf("%.40s", name), ":")
}

// unexpectedColon explains a colon where no key can be. Often the line before lacks its own.
func (t textLines) unexpectedColon(line int) (at int, text string) {
	if strings.Count(t.at(line), ": ") > 1 && !strings.ContainsAny(t.at(line), `"'{`) {
		return line, "a value with a colon and a space in it must be in quotes"
	}
	before := t.before(line)
	if before == 0 {
		return line, "expected a value here, not a name with a colon"
	}
	switch above := strings.TrimPrefix(t.at(before), "- "); {
	case strings.Contains(above, ": "):
		return line, fmt.Sprintf("%q is indented by %d spaces, but line %d (%s) has a value already; expected %d as line %d",
			t.name(line), t.indent(line), before, t.name(before), t.indent(before), before)
	case strings.Contains(above, ":"):
		return before, fmt.Sprintf("expected a space after the colon in %q", above)
	default:
		name, _, _ := strings.Cut(above, " ")
		return before, fmt.Sprintf("expected a colon and a space after %q", name)
	}
}

// firstOfValue is the first character of the value in a line.
func firstOfValue(text string) string {
	if _, value, found := strings.Cut(text, ": "); found {
		text = strings.TrimSpace(value)
	}
	return fmt.Sprintf("%.1s", strings.TrimPrefix(text, "- "))
}
