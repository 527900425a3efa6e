// Package runbooks holds the runbooks, so that `kubectl pitcrew explain` has them at hand when nothing else is.
package runbooks

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/suggest"
)

//go:embed *.md
var pages embed.FS

// Names lists the conditions and alerts that have a page.
func Names() []string {
	files, err := fs.Glob(pages, "*.md")
	if err != nil {
		panic(err) // a bad pattern
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(file, ".md")
	}
	return files
}

// Page is the page of a condition or alert, in Markdown. The case of the name does not matter.
func Page(name string) (string, error) {
	names := Names()
	i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
	if i < 0 {
		if like := Similar(name, names); len(like) > 0 {
			return "", fmt.Errorf("unknown topic %s. Did you mean %s?", name, strings.Join(like, ", "))
		}
		return "", fmt.Errorf("unknown topic %s. `kubectl pitcrew explain -h` lists the kinds of topics; docs/glossary.md explains words", name)
	}
	text, err := pages.ReadFile(names[i] + ".md")
	if err != nil {
		panic(err) // it was listed
	}
	return string(text), nil
}

// Similar are those of the names that contain the wanted one or differ from it in few letters.
func Similar(wanted string, names []string) []string {
	wanted = strings.ToLower(wanted)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		name = strings.ToLower(name)
		return !strings.Contains(name, wanted) && suggest.Distance(name, wanted) > len(name)/4
	})
}
