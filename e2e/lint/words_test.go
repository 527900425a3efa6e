package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// says is how a comment begins that has what its subject says; it has what the subject reports, or returns, or is.
var says = regexp.MustCompile(`^// \[?[A-Za-z.]+\]? says `)

// banned are words of comments, Events and logs that are not plain English of Kubernetes, and what is written instead.
var banned = map[*regexp.Regexp]string{
	regexp.MustCompile(`\btells? whether\b|\b(is|are) told\b`):                          "reports whether, receives",
	regexp.MustCompile(`\b(make|makes|made|making) way\b`):                              "yields to",
	regexp.MustCompile(`\b[Nn]obody\b`):                                                 "no one",
	regexp.MustCompile(`\bfor ever\b`):                                                  "permanently",
	regexp.MustCompile(`\bbelieved?s?\b`):                                               "accepts, counts",
	regexp.MustCompile(`\bis a lemon\b`):                                                "repair.lemon reached: ... did not fix the node",
	regexp.MustCompile(`\bjobs? that stands? still\b`):                                  "stalled job",
	regexp.MustCompile(`\b(node|kubelet|detector|job)s? (is|are|fell|falls?) silent\b`): "no heartbeat, no progress",
	regexp.MustCompile(`\bconditions? says?\b`):                                         "reports",
	regexp.MustCompile(`\bCould not\b|\bCannot\b`):                                      "Failed to ...; what is done",
}

// renamed are identifiers of the remediator and of the plugin for kubectl, each of which hid what it did.
var renamed = []string{
	"begun", "absent", "lacks", "makeRoom", "makeWay", "undo", "NextLook", "lookAgain", "isInService", "isNotOver", "madeWay", "sumUp",
}

// The words of design notes wear out where nothing holds them.
func TestPlainWords(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, dir := range lawful {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for _, problem := range wordsOf(file, dir == "remediator" || dir == "kubectl-pitcrew") {
				t.Errorf("%s:%d: %s", name, fset.Position(problem.at).Line, problem.text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 300 {
		t.Errorf("read %d files only", files)
	}
}

// A text is found wherever it stands, and its plain twin nowhere.
func TestPlainWordsAreTold(t *testing.T) {
	for source, want := range map[string]int{
		"// f says why.\nfunc f() {}":                   1,
		"// f returns why.\nfunc f() {}":                0,
		"func f() {\n\t// nobody waits\n}":              1,
		"func f() string { return \"makes way: x\" }":   1,
		"type t struct {\n\tA int `json:\"nobody\"`\n}": 0,
		"func f() { begun := 1; _ = begun }":            2,
		"// f tells whether it is.\nfunc f() {}":        1,
		"import _ \"example.com/nobody\"":               0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n\n"+source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := wordsOf(file, true); len(got) != want {
			t.Errorf("%s: %v, want %d", source, got, want)
		}
	}
}

type problem struct {
	at   token.Pos
	text string
}

// wordsOf returns which words of a file are banned.
func wordsOf(file *ast.File, identifiers bool) (problems []problem) {
	check := func(at token.Pos, text string) {
		for pattern, instead := range banned {
			if word := pattern.FindString(text); word != "" {
				problems = append(problems, problem{at, fmt.Sprintf("%q: %s", word, instead)})
			}
		}
	}
	for _, group := range file.Comments {
		if begins := says.FindString(group.List[0].Text); begins != "" {
			problems = append(problems, problem{group.Pos(), fmt.Sprintf("%q: a comment begins with the name and what it reports, returns or is", begins)})
		}
		check(group.Pos(), group.Text())
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil // has the words of formats
		case *ast.BasicLit:
			check(n.Pos(), n.Value)
		case *ast.Ident:
			if identifiers && slices.Contains(renamed, n.Name) {
				problems = append(problems, problem{n.Pos(), fmt.Sprintf("%s: name what it does", n.Name)})
			}
		}
		return true
	})
	return problems
}
