package cli

import (
	"strings"
	"testing"
)

func TestProblemsAreRedAndInWords(t *testing.T) {
	facts := []Finding{Good("pitcrew", "v1"), Problem("remediator", "look", "0 of 2\x1b[2J"), Warning("paused", "", "since"), NotKnown("policy", "forbidden")}
	var plain, coloured strings.Builder
	PrintFacts(&plain, facts, false)
	PrintFacts(&coloured, facts, true)
	if want := "PITCREW     v1\nREMEDIATOR  PROBLEM: 0 of 2�[2J; look\nPAUSED      since\nPOLICY      not known: forbidden\n"; plain.String() != want {
		t.Errorf("%q, want %q", plain.String(), want)
	}
	if !strings.Contains(coloured.String(), "\x1b[31mREMEDIATOR  PROBLEM") || strings.Count(coloured.String(), "\x1b[3") != 2 {
		t.Errorf("%q", coloured.String())
	}
}
