// Package dashboards_test checks what a dashboard says of itself. e2e/alerts runs its queries.
package dashboards_test

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"
)

// runbook is a link to a runbook; a name with a variable follows from the condition.
var runbook = regexp.MustCompile(`docs/runbooks/([A-Za-z]+)\.md`)

func TestEveryRunbookLinkHasATarget(t *testing.T) {
	text, err := os.ReadFile("pitcrew.json")
	if err != nil {
		t.Fatal(err)
	}
	links := runbook.FindAllStringSubmatch(string(text), -1)
	if len(links) < 10 {
		t.Errorf("only %d links to runbooks", len(links))
	}
	for _, m := range links {
		if _, err := os.Stat("../../docs/runbooks/" + m[1] + ".md"); err != nil {
			t.Error(err)
		}
	}
}

func TestNoPanelLiesOnAnother(t *testing.T) {
	text, err := os.ReadFile("pitcrew.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("%q lies on %q", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
	}
}
