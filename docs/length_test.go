package docs

import (
	"path/filepath"
	"strings"
	"testing"
)

// maxWords is how long a page may be that people read from its beginning.
const maxWords = 1200

// notRead are not read from their beginning: history, and what programs have printed.
func notRead(file string) bool {
	return filepath.Base(file) == "CHANGELOG.md" || strings.HasPrefix(file, "bench/") || strings.Contains(file, "/testdata/")
}

// isGenerated reports whether the head of a page says that a test writes it.
func isGenerated(page string) bool {
	head := strings.Join(strings.SplitN(page, "\n", 6)[:min(5, strings.Count(page, "\n")+1)], " ")
	return strings.Contains(head, "-update`")
}

func TestNoPageIsTooLong(t *testing.T) {
	root, files := pages(t)
	for _, file := range files {
		text := read(t, filepath.Join(root, file))
		if notRead(file) || isGenerated(text) {
			continue
		}
		if words := len(strings.Fields(text)); words > maxWords {
			t.Errorf("%s has %d words, the limit is %d: one page a task; split it, or say less", file, words, maxWords)
		}
	}
}
