// Package runbooks holds the runbooks, so that `kubectl pitcrew explain` has them at hand when nothing else is.
package runbooks

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
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
		return "", fmt.Errorf("there is no page on %q, but on %s", name, strings.Join(names, ", "))
	}
	text, err := pages.ReadFile(names[i] + ".md")
	if err != nil {
		panic(err) // it was listed
	}
	return string(text), nil
}
