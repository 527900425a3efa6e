package xid

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg/textlog"
)

//go:embed testdata/corpus.tsv
var corpusTSV string

// corpusLine is a line of a plain text log and what must be understood of it; event is empty for none.
type corpusLine struct{ text, event, class string }

func corpus(t *testing.T) []corpusLine {
	t.Helper()
	var lines []corpusLine
	for row := range strings.Lines(corpusTSV) {
		row = strings.TrimSuffix(row, "\n")
		if strings.HasPrefix(row, "#") {
			continue
		}
		columns := strings.Split(row, "\t")
		switch {
		case len(columns) == 5:
			lines = append(lines, corpusLine{columns[0], strings.Join(columns[1:4], " "), columns[4]})
		case len(columns) == 2 && columns[1] == "none":
			lines = append(lines, corpusLine{text: columns[0]})
		default:
			t.Fatalf("row %q", row)
		}
	}
	return lines
}

// understood is what Parse makes of a line of a plain text log.
func understood(text string) (event, class string) {
	line := textlog.Parse(text)
	e, ok := Parse(kmsg.Unescape(line.Body))
	if !ok || line.User {
		return "", ""
	}
	class = "-"
	if faults := (Case{Events: []Event{e}, Now: time.Hour}).Judge(); len(faults) == 1 {
		class = faults[0].Repair.String()
	}
	return fmt.Sprintf("%s %s %d", e.Kind, e.Device, e.Code), class
}

func TestCorpus(t *testing.T) {
	for _, line := range corpus(t) {
		if event, class := understood(line.text); event != line.event || class != line.class {
			t.Errorf("%s\n got %q %q\nwant %q %q", line.text, event, class, line.event, line.class)
		}
	}
}

// TestRecall counts how much of the corpus other projects' expressions find: code and device for lines that are events,
// nothing for those that are none. bench/results/plugins.md has the figures; `go test -run Recall -v ./internal/xid` prints them.
func TestRecall(t *testing.T) {
	type finder struct {
		name string
		// find returns the code that is found, "" for none.
		find func(text string) (code string)
	}
	first := func(expressions ...string) func(string) string {
		var compiled []*regexp.Regexp
		for _, e := range expressions {
			compiled = append(compiled, regexp.MustCompile(e))
		}
		return func(text string) string {
			for _, re := range compiled {
				if m := re.FindStringSubmatch(text); m != nil {
					return m[1]
				}
			}
			return ""
		}
	}
	finders := []finder{
		{"ours", func(text string) string {
			event, _ := understood(text)
			return event[strings.LastIndex(event, " ")+1:]
		}},
		{"a code before a comma (konduktor)", first(`SXid.*?: (\d+),`, `NVRM: Xid.*?: (\d+),`)},
		{"grep Xid (dmesg | grep)", first(`Xid[^:]*:[^)]*\): (\d+)`)},
	}
	type score struct{ found, events, wrong, others int }
	for _, f := range finders {
		var s score
		for _, line := range corpus(t) {
			code := f.find(line.text)
			if line.event == "" {
				s.others++
				if code != "" {
					s.wrong++
				}
				continue
			}
			s.events++
			want := line.event[strings.LastIndex(line.event, " ")+1:]
			if code == want {
				s.found++
			}
		}
		t.Logf("%-36s %d of %d events, %d of %d other lines taken for one", f.name, s.found, s.events, s.wrong, s.others)
		if f.name == "ours" && (s.found != s.events || s.wrong != 0) {
			t.Errorf("%+v", s)
		}
	}
}
