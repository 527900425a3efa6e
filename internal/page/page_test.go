package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var colour = regexp.MustCompile(`#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b`)

// TestEveryPageHasTheColoursOfThePalette reads the HTML, the style sheets and the pictures that the repository holds.
func TestEveryPageHasTheColoursOfThePalette(t *testing.T) {
	palette := map[string]bool{}
	for _, c := range colour.FindAllString(Style, -1) {
		palette[c] = true
	}
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.html", "*.css", "*.svg").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range colour.FindAllString(string(text), -1) {
			if !palette[strings.ToLower(c)] {
				t.Errorf("%s has colour %s, which internal/page/style.css does not have", file, c)
			}
		}
	}
}
