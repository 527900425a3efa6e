package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheIndexOfDecisionsIsComplete(t *testing.T) {
	index := read(t, "adr/README.md")
	files, err := filepath.Glob("adr/[0-9]*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		heading, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		number, title, _ := strings.Cut(heading, ". ")
		if row := "| [" + number + "](" + filepath.Base(file) + ") | " + title + " |\n"; !strings.Contains(index, row) {
			t.Errorf("adr/README.md has no row %s", row)
		}
	}
}
