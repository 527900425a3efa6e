// Package switchtest compares what actions do with the table of docs/security-switches.md that says what a switch stops.
package switchtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// The switches, as the table names them.
const (
	Observe     = "`mode: observe`"
	RuleObserve = "`mode: observe` of the rule"
	RuleGone    = "the rule is gone"
	Approve     = "`repair.mode: approve`"
	Off         = "`repair.mode: \"off\"`"
	Pause       = "a pause"
	Breaker     = "the breaker is open"
	Limit       = "a limit is reached"
	Skip        = "`pitcrew.dev/skip`"
	Others      = "others work on the node"
	// Leads does the same to each action, see [CheckRow].
	Leads = "another replica leads"
)

// switches are those that do not do the same to each action, in the order of the table.
var switches = []string{Observe, RuleObserve, RuleGone, Approve, Off, Pause, Breaker, Limit, Skip, Others}

// What a switch does to an action that would begin, and to one that is under way.
const (
	Begins  = "begins"   // it begins all the same
	Waits   = "waits"    // it begins once the switch is off
	LeftOut = "left out" // the node returns without it
	GoesOn  = "goes on"  // it is not touched
	Ends    = "ends"     // it is taken back
)

// Effect is what a switch does to an action. UnderWay is empty for an action that is one request.
type Effect struct{ Next, UnderWay string }

func (e Effect) String() string {
	if e.UnderWay == "" {
		return e.Next
	}
	return e.Next + ", " + e.UnderWay
}

// Check compares a column of the table, whose head is the action, with what the code does.
func Check(t *testing.T, action string, does func(t *testing.T, by string) Effect) {
	t.Helper()
	table := read(t)
	for _, by := range switches {
		t.Run(by, func(t *testing.T) {
			want, found := table[by][action]
			if !found {
				t.Fatalf("docs/security-switches.md does not say what %q does to %q", by, action)
			}
			if got := does(t, by).String(); got != want {
				t.Errorf("%s: %q does %q, and docs/security-switches.md says %q", action, by, got, want)
			}
		})
	}
}

// CheckRow compares a row of the table with what a switch does to each action. An action that is one request is never under way.
func CheckRow(t *testing.T, by string, does Effect) {
	t.Helper()
	table := read(t)
	if len(table[by]) == 0 {
		t.Fatalf("docs/security-switches.md does not say what %q does", by)
	}
	for action, got := range table[by] {
		want := does
		if !slices.ContainsFunc(switches, func(other string) bool { return strings.Contains(table[other][action], ",") }) {
			want.UnderWay = ""
		}
		if got != want.String() {
			t.Errorf("%s: %q does %q, and docs/security-switches.md says %q", action, by, want, got)
		}
	}
}

// read reads the table: the effects by switch and by action.
func read(t *testing.T) map[string]map[string]string {
	t.Helper()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "security-switches.md"))
	if err != nil {
		t.Fatal(err)
	}
	var head []string
	table := map[string]map[string]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == "switch":
			head = cells
		case head == nil || strings.HasPrefix(line, "|---"):
		case !strings.HasPrefix(line, "|"):
			return table
		case len(cells) != len(head):
			t.Fatalf("docs/security-switches.md: %d cells, want %d: %s", len(cells), len(head), line)
		default:
			table[cells[0]] = map[string]string{}
			for i, cell := range cells[1:] {
				table[cells[0]][head[i+1]] = cell
			}
		}
	}
	return table
}
