// Package cli has what all commands share: the only way to print. Whoever may write a Node, Job, Pod, Event or ConfigMap writes text that
// an administrator reads in a terminal, so every value is cleaned by Text.
package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
)

// Text returns text of others on one line, see [plain.Line].
func Text(text string) string { return plain.Line(text) }

// Lines is text of several lines that we have put together: its values were cleaned, its line feeds are ours.
type Lines string

// value is an argument of Fprintf.
type value struct{ any }

// Format prints the value as its verb says, and cleans what that gave.
func (v value) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), v.any)
	if _, ours := v.any.(Lines); !ours {
		text = Text(text)
	}
	fmt.Fprint(f, text)
}

func values(args []any) []any {
	clean := make([]any, len(args))
	for i, arg := range args {
		clean[i] = value{arg}
	}
	return clean
}

// Fprintf prints by the format, which is ours, with each argument cleaned by Text.
func Fprintf(out io.Writer, format string, args ...any) { fmt.Fprintf(out, format, values(args)...) }

// Fprintln prints the text, cleaned, as a line.
func Fprintln(out io.Writer, text ...string) { fmt.Fprintln(out, Text(strings.Join(text, " "))) }

// PrintError prints an error, which may have text from the cluster. Several errors are on a line each. A line after the first is indented,
// so that text of others is not taken for an answer of ours.
func PrintError(out io.Writer, err error) {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	fmt.Fprintln(out, "Error:", strings.Join(lines, "\n  "))
}

// Encode prints a value as json or yaml. In json a character that is not visible is escaped. In yaml, which does not escape all of them,
// each string is cleaned by Text.
func Encode(out io.Writer, format string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", format, err)
	}
	if format == "json" {
		text = append(escaped(text), '\n')
	} else {
		var plain any
		if err = json.Unmarshal(text, &plain); err == nil {
			text, err = yaml.Marshal(cleaned(plain))
		}
	}
	if err != nil {
		return fmt.Errorf("encode %s: %w", format, err)
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("write %s: %w", format, err)
	}
	return nil
}

// escaped returns json whose strings have an escape for each character that is not visible.
func escaped(text []byte) (clean []byte) {
	for _, r := range string(text) {
		if r == '\n' || plain.Visible(r) == r {
			clean = utf8.AppendRune(clean, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			clean = fmt.Appendf(clean, `\u%04x`, unit)
		}
	}
	return clean
}

// cleaned returns a value of json with each string and key cleaned by Text.
func cleaned(value any) any {
	switch v := value.(type) {
	case string:
		return Text(v)
	case []any:
		for i := range v {
			v[i] = cleaned(v[i])
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for key, inner := range v {
			clean[Text(key)] = cleaned(inner)
		}
		return clean
	}
	return value
}

// Line is one of a table: its cells, and the number of its colour in the terminal; empty: none. A colour never stands alone: the word is
// in the line.
type Line struct {
	Cells  []string
	Colour string
}

// Table prints lines with aligned cells; an empty cell is "-".
func Table(out io.Writer, lines []Line, colour bool) error {
	var aligned bytes.Buffer
	writer := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		cells := make([]string, len(l.Cells))
		for i, cell := range l.Cells {
			if cells[i] = Text(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(writer, strings.Join(cells, "\t"))
	}
	if err := writer.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for i, text := range strings.Split(strings.TrimSuffix(aligned.String(), "\n"), "\n") {
		if _, err := fmt.Fprintln(out, paint(text, lines[i].Colour, colour)); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return nil
}

// Coloured prints the text, cleaned, as a line in the colour.
func Coloured(out io.Writer, text, code string, colour bool) {
	fmt.Fprintln(out, paint(Text(text), code, colour))
}

func paint(text, code string, colour bool) string {
	if colour && code != "" {
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text
}

// IsTerminal reports whether colours and a cleared screen are wanted, see no-color.org.
func IsTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
}
