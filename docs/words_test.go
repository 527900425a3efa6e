package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryReasonAndStatusIsExplained collects the words that users see in Events, in the metrics' label reason and in the column
// STATUS, from the sources, and searches the page of troubleshooting and the runbooks for each.
func TestEveryReasonAndStatusIsExplained(t *testing.T) {
	runbooks, err := filepath.Glob("runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := ""
	troubleshooting, err := filepath.Glob("troubleshooting*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(append(runbooks, troubleshooting...), "words.md") {
		pages += read(t, file)
	}
	for dir, want := range map[string]int{
		"../remediator/quarantine/causes": 20, "../remediator/restart": 10, "../remediator/jobs": 4, "../remediator/jobs/report": 4, "../remediator/jobs/kinds": 4,
		"../remediator/repair": 8, "../remediator/preflight": 3, "../kubectl-pitcrew/internal/status": 8,
	} {
		words := wordsOf(t, dir)
		if len(words) < want {
			t.Errorf("found only %d words in %s: %v", len(words), dir, words)
		}
		for _, word := range words {
			if !regexp.MustCompile("`[^`\n]*\\b" + regexp.QuoteMeta(word) + "\\b[^`\n]*`").MatchString(pages) {
				t.Errorf("`%s` of %s is explained neither in docs/words.md, nor in docs/troubleshooting*.md, nor in a runbook", word, dir)
			}
		}
	}
}

// glossaryRow is a word of the glossary.
var glossaryRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)

// A word that no other page uses needs no explanation, and a list that is not sorted is not searched.
func TestTheGlossaryExplainsWordsThatThePagesUse(t *testing.T) {
	root, files := pages(t)
	others := ""
	for _, file := range files {
		if file != "docs/glossary.md" {
			others += strings.ToLower(read(t, filepath.Join(root, file)))
		}
	}
	var words []string
	for _, row := range glossaryRow.FindAllStringSubmatch(read(t, "glossary.md"), -1)[1:] {
		word := strings.ToLower(row[1])
		words = append(words, word)
		if !strings.Contains(others, word) && !strings.Contains(others, strings.ReplaceAll(word, " ", "")) {
			t.Errorf("no page uses %q", word)
		}
		if sentence := row[2]; !strings.HasSuffix(sentence, ".") || strings.Count(sentence, ". ") > 0 {
			t.Errorf("%s: want one sentence: %s", row[1], sentence)
		}
	}
	if len(words) < 20 || !slices.IsSorted(words) {
		t.Errorf("want a sorted list: %q", words)
	}
}

// wordConst matches the names of the constants that are such words.
var wordConst = map[string]*regexp.Regexp{
	"causes":    regexp.MustCompile(`^BlockedBy`), // and the reasons of Events, each of which is the name of its constant
	"restart":   regexp.MustCompile(`^(Result|Capacity$)`),
	"report":    regexp.MustCompile(`^event`),
	"preflight": regexp.MustCompile(`^(Refused|Incomplete|Verdict)$`),
	"status":    regexp.MustCompile(`^(Un[a-z]+|Quarantined|Isolated|Repairing|Validating|Suspect|Released|Alert|Healthy)$`),
	"repair":    regexp.MustCompile(`^(Repair|Sweep|Node)[A-Z]`),
}

// wordsOf are the string constants of a package that [wordConst] selects, the reasons of its literals of type Blocked, and those that
// it passes to delayed.
func wordsOf(t *testing.T, dir string) (words []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	consts := wordConst[filepath.Base(dir)]
	add := func(e ast.Expr) {
		if word := text(e); word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, ident := range n.Names {
					if consts == nil || i >= len(n.Values) {
						continue
					}
					if consts.MatchString(ident.Name) || file.Name.Name == "causes" && text(n.Values[i]) == ident.Name {
						add(n.Values[i])
					}
				}
			case *ast.CompositeLit:
				if named(n.Type) == "Blocked" && len(n.Elts) > 0 {
					if kv, ok := n.Elts[0].(*ast.KeyValueExpr); ok {
						add(kv.Value)
					} else {
						add(n.Elts[0])
					}
				}
			case *ast.CallExpr:
				if named(n.Fun) == "delayed" {
					add(n.Args[2])
				}
			}
			return true
		})
	}
	return words
}

// named is the name of a type or a function, without its package.
func named(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// text is the value of a string literal; empty if it is none.
func text(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(l.Value)
	if err != nil {
		return ""
	}
	return value
}
