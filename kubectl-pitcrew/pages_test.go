package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var (
	commandOnPage = regexp.MustCompile("kubectl pitcrew ([a-z]+)([^`\n#|]*)")
	flagOnPage    = regexp.MustCompile(`(?:^|[ \[(])--?([a-z][a-z-]*)`)
)

// Every command and flag of ours that a page names exists.
func TestEveryCommandOnThePagesExists(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range strings.Fields(string(files)) {
		if strings.HasPrefix(file, "docs/adr/") {
			continue // history
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range commandOnPage.FindAllStringSubmatch(string(text), -1) {
			checked++
			cmd, rest, err := newCommand().Find(strings.Fields(m[1] + m[2]))
			if err != nil || !cmd.HasParent() {
				t.Errorf("%s: `%s`: %v", file, m[0], err)
				continue
			}
			for _, flag := range flagOnPage.FindAllStringSubmatch(strings.Join(rest, " "), -1) {
				known := cmd.Flags().Lookup(flag[1]) != nil || cmd.InheritedFlags().Lookup(flag[1]) != nil
				if len(flag[1]) == 1 {
					known = cmd.Flags().ShorthandLookup(flag[1]) != nil || cmd.InheritedFlags().ShorthandLookup(flag[1]) != nil
				}
				if !known {
					t.Errorf("%s: `%s`: there is no flag %s", file, m[0], flag[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d commands on the pages", checked)
	}
}

// Whoever changes something learns from its help who does it: a remediator that has to run, or the command itself.
func TestEveryChangeSaysWhetherItNeedsARemediator(t *testing.T) {
	changes := 0
	for _, cmd := range newCommand().Commands() {
		if cmd.Flags().Lookup("yes") == nil {
			continue
		}
		changes++
		help := strings.Join(strings.Fields(cmd.Long+" "+cmd.LocalFlags().FlagUsages()), " ")
		carried := strings.Contains(help, "the remediator, which carries this out") || strings.Contains(help, "The remediator carries this out")
		if alone := strings.Contains(help, "while no remediator runs"); carried == alone {
			t.Errorf("%s: the help says of neither or of both that it does this:\n%s", cmd.Name(), help)
		}
	}
	if changes < 11 {
		t.Errorf("found %d commands that change something", changes)
	}
}
