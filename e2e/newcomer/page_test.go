package newcomer

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a block of a page: commands, a file to write, or what a command prints.
type block struct {
	// kind is "commands", "yaml" or "text".
	kind, text string
}

var fence = regexp.MustCompile("^```([a-z]*)$")

// section returns the blocks below a heading of a page, up to the next heading of the same level or above. They are indented by
// four spaces, which are commands, or fenced.
func section(t *testing.T, root, page, heading string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	found, kind, lines := false, "", []string(nil)
	end := func() {
		if kind != "" && found {
			blocks = append(blocks, block{kind, strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"})
		}
		kind, lines = "", nil
	}
	level := strings.Count(strings.Fields(heading)[0], "#")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		m := fence.FindStringSubmatch(line)
		fenced := kind == "yaml" || kind == "text"
		switch {
		case fenced && m != nil:
			end()
		case fenced:
			lines = append(lines, line)
		case m != nil:
			end()
			kind = m[1]
		case strings.HasPrefix(line, "    "):
			if kind == "" {
				kind = "commands"
			}
			lines = append(lines, strings.TrimPrefix(line, "    "))
		case kind == "commands" && line == "":
			lines = append(lines, "")
		default:
			end()
			if hashes := len(line) - len(strings.TrimLeft(line, "#")); hashes > 0 && line != heading && hashes <= level {
				found = false
			}
			found = found || line == heading
		}
	}
	end()
	if len(blocks) == 0 {
		t.Fatalf("%s has no blocks below %q", page, heading)
	}
	return blocks
}
