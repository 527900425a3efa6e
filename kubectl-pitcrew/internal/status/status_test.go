package status

import (
	"strings"
	"testing"
	"time"
)

func TestAMessageCannotSteerTheTerminal(t *testing.T) {
	f := Fleet{Nodes: []Row{{Node: "n1", Status: Suspect, Cause: "\x1b[2Jgone\nn2  healthy"}, {Node: "n2", Status: Quarantined, Cause: "x"}}}
	var out strings.Builder
	if err := f.print(&out, false, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "\n") != 6 {
		t.Errorf("%q", out.String())
	}
}

func TestColourIsOnlyForPeople(t *testing.T) {
	f := Fleet{Nodes: []Row{{Node: "n1", Status: Quarantined}, {Node: "n2", Status: Healthy}}}
	for colour, want := range map[bool]int{true: 1, false: 0} {
		var out strings.Builder
		if err := f.print(&out, false, colour, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\x1b[31m"); got != want || !strings.Contains(out.String(), "quarantined") {
			t.Errorf("colour %t: %d coloured lines, want %d\n%s", colour, got, want, out.String())
		}
	}
}
