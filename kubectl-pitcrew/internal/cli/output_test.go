package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

// hostile has one member for each way in which text steers or deceives a terminal.
var hostile = map[string]string{
	"colour":                    "\x1b[31mred",
	"clear screen":              "\x1b[2J",
	"title":                     "\x1b]0;title\a",
	"clipboard":                 "\x1b]52;c;cm0gLXJm\a",
	"hyperlink":                 "\x1b]8;;https://example.com\x1b\\text\x1b]8;;\x1b\\",
	"8-bit CSI":                 "\u009b31m",
	"backspace":                 "bad\b\b\bok",
	"carriage return":           "Status:   quarantined\rStatus:   healthy",
	"line feed":                 "n\nStatus:   healthy",
	"vertical tab":              "a\vb\fc",
	"line separator":            "a\u2028b\u2029c\u0085d",
	"delete":                    "a\x7f",
	"null":                      "a\x00b",
	"override":                  "a\u202eb\u202c",
	"isolate":                   "\u2067a\u2069",
	"mark of direction":         "\u200e\u200f\u061c",
	"zero width":                "gpu\u200b-1\u200c\u200d\u2060\ufeff",
	"soft hyphen":               "gpu\u00ad-1",
	"tag":                       "a\U000e0041",
	"filler":                    "a\u3164\u115f\uffa0b",
	"variation selector":        "a\ufe0f\U000e0100",
	"private use":               "\ue000\U000f0000",
	"no-break and other spaces": "a\u00a0b\u2003c\u3000d",
	"not UTF-8":                 "a\xff\xc0\xafb",
	"surrogate":                 "\xed\xa0\x80",
	"not assigned":              "\U000e0fff\uffff",
}

// harmless reports what in a line of output is neither visible nor a blank.
func harmless(line string) error {
	for _, r := range line {
		if r != ' ' && (!unicode.IsGraphic(r) || unicode.IsSpace(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)) {
			return fmt.Errorf("%U is in %q", r, line)
		}
	}
	return nil
}

func TestNoTextOfOthersSteersTheTerminal(t *testing.T) {
	for name, text := range hostile {
		for how, print := range map[string]func(*bytes.Buffer){
			"string":   func(out *bytes.Buffer) { cli.Fprintf(out, "Node:     %s\n", text) },
			"quoted":   func(out *bytes.Buffer) { cli.Fprintf(out, "%q %-20s %.3s\n", text, text, text) },
			"error":    func(out *bytes.Buffer) { cli.Fprintf(out, "%v\n", fmt.Errorf("read: %w", errors.New(text))) },
			"value":    func(out *bytes.Buffer) { cli.Fprintf(out, "%v %+v\n", []string{text}, struct{ A any }{text}) },
			"line":     func(out *bytes.Buffer) { cli.Fprintln(out, text) },
			"coloured": func(out *bytes.Buffer) { cli.Coloured(out, text, "31", false) },
			"table": func(out *bytes.Buffer) {
				if err := cli.Table(out, []cli.Line{{Cells: []string{text, "b"}}}, false); err != nil {
					t.Error(err)
				}
			},
		} {
			var out bytes.Buffer
			print(&out)
			line, isLine := strings.CutSuffix(out.String(), "\n")
			if !isLine {
				t.Errorf("%s as %s: no line feed at the end of %q", name, how, out.String())
			}
			if err := harmless(line); err != nil {
				t.Errorf("%s as %s: %v", name, how, err)
			}
		}
	}
}

func TestTextKeepsWhatIsRead(t *testing.T) {
	for _, text := range []string{"Reboot gpu 0000:4e:00: Xid 79", "60 °C, 3 µs, ±5 %", "Knoten für größere Läufe", "节点故障", "узел", "ノード", "é e\u0301"} {
		if got := cli.Text(text); got != text {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestAnErrorHasNoLineOfOthersAtTheMargin(t *testing.T) {
	var out bytes.Buffer
	cli.PrintError(&out, errors.Join(errors.New("node \x1b[2Ja"), errors.New("b\nStatus: healthy")))
	if diff := cmp.Diff("Error: node \ufffd[2Ja\n  b\n  Status: healthy\n", out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestATableIsAlignedAndColoured(t *testing.T) {
	var out bytes.Buffer
	err := cli.Table(&out, []cli.Line{{Cells: []string{"NODE", "CAUSE"}}, {Cells: []string{"a\tb", ""}, Colour: "31"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("NODE  CAUSE\n\x1b[31ma b   -\x1b[0m\n", out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestEncodeLosesNothingInJSONAndHarmsNobody(t *testing.T) {
	for name, text := range hostile {
		var out bytes.Buffer
		if err := cli.Encode(&out, "json", map[string]string{"text": text}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\n"), "\n") {
			if err := harmless(line); err != nil {
				t.Errorf("%s in json: %v", name, err)
			}
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["text"] != strings.ToValidUTF8(text, "\ufffd") && name != "not UTF-8" && name != "surrogate" {
			t.Errorf("%s in json: %q becomes %q, %v", name, text, back["text"], err)
		}
		out.Reset()
		if err := cli.Encode(&out, "yaml", map[string]string{"text": text}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\n"), "\n") {
			if err := harmless(line); err != nil {
				t.Errorf("%s in yaml: %v", name, err)
			}
		}
		if err := yaml.Unmarshal(out.Bytes(), &back); err != nil {
			t.Errorf("%s in yaml: %v", name, err)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		cli.Fprintf(&out, "%s", text)
		if err := harmless(out.String()); err != nil {
			t.Error(err)
		}
	})
}
