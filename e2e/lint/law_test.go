package lint

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var update = flag.Bool("update", false, "lower the figures of law.txt to the present ones, and remove the lines that are no longer needed")

// limits are the largest figures that need no line in law.txt. Columns are lines over 140 characters, a tab being one, counted per package;
// acts is a method that is named as a question and assigns through its receiver.
var limits = map[string]int{"files": 12, "lines": 1750, "methods": 25, "length": 60, "complexity": 20, "columns": 0, "acts": 0}

// lawful are the folders that the law holds for, without packages that serve tests.
var lawful = []string{"plugins", "internal", "remediator", "repair", "preflight", "kubectl-pitcrew"}

// exempt has one file per operator.
const exempt = "remediator/jobs/kinds"

const widest = 140

// subject is what a figure of the law is about: a package, a type or a function.
type subject struct{ kind, name string }

func (s subject) String() string { return s.kind + " " + s.name }

type entry struct {
	figure int
	why    string
}

// The allow-list may only shrink: a figure that has grown is an error, and so is one that has become smaller than its line says, so that it
// cannot grow again.
func TestLaw(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	figures, err := measure(root)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "law.txt")
	list, err := parseLaw(text)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text = lower(text, list, figures)
		if err := os.WriteFile("law.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if list, err = parseLaw(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, problem := range compare(list, figures) {
		t.Error(problem)
	}
}

// compare returns what is wrong between the list and the present figures.
func compare(list map[subject]entry, figures map[subject]int) (problems []string) {
	for s, figure := range figures {
		e, listed := list[s]
		switch {
		case figure <= limits[s.kind]:
		case !listed:
			problems = append(problems, fmt.Sprintf("%s: %d, over the limit of %d", s, figure, limits[s.kind]))
		case figure > e.figure:
			problems = append(problems, fmt.Sprintf("%s: %d, and law.txt allows %d: make it smaller", s, figure, e.figure))
		case figure < e.figure:
			problems = append(problems, fmt.Sprintf("%s: %d, less than the %d of law.txt: write %d there, or run the test with -update",
				s, figure, e.figure, figure))
		}
	}
	for s := range list {
		if figures[s] <= limits[s.kind] {
			problems = append(problems, fmt.Sprintf("%s: within the limit of %d: remove it from law.txt, or run the test with -update",
				s, limits[s.kind]))
		}
	}
	slices.Sort(problems)
	return problems
}

// parseLaw reads lines of a kind, a name, a figure, and why the line is there.
func parseLaw(text string) (map[subject]entry, error) {
	list := map[subject]entry{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("law.txt: %q is not a kind, a name, a figure and a reason", line)
		}
		s := subject{fields[0], fields[1]}
		figure, err := strconv.Atoi(fields[2])
		if _, known := limits[s.kind]; !known || err != nil {
			return nil, fmt.Errorf("law.txt: %q is not a kind of %q, a name, a figure and a reason", line, slices.Sorted(maps.Keys(limits)))
		}
		if _, twice := list[s]; twice {
			return nil, fmt.Errorf("law.txt: %s is there twice", s)
		}
		list[s] = entry{figure, strings.Join(fields[3:], " ")}
	}
	return list, nil
}

// lower returns text with lower figures, and without lines of what is within the law. It raises and adds none.
func lower(text string, list map[subject]entry, figures map[subject]int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") {
			out.WriteString(line)
			continue
		}
		s := subject{fields[0], fields[1]}
		if figures[s] <= limits[s.kind] {
			continue
		}
		out.WriteString(lawLine(s, entry{min(figures[s], list[s].figure), list[s].why}))
	}
	return out.String()
}

func lawLine(s subject, e entry) string {
	return fmt.Sprintf("%-10s %-60s %5d  %s\n", s.kind, s.name, e.figure, e.why)
}

// measure returns the figures of the packages under root that the law holds for.
func measure(root string) (map[subject]int, error) {
	figures := map[subject]int{}
	questions := map[string]map[string]*method{}
	for _, top := range lawful {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			if d.IsDir() {
				if d.Name() == "testdata" || rel == exempt || strings.HasSuffix(d.Name(), "test") && rel != top {
					return filepath.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
				return nil
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return measureFile(rel, src, figures, questions)
		})
		if err != nil {
			return nil, err
		}
	}
	for name, methods := range questions {
		for _, question := range acting(methods) {
			figures[subject{"acts", name + "." + question}] = 1
		}
	}
	return figures, nil
}

func measureFile(rel string, src []byte, figures map[subject]int, methods map[string]map[string]*method) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, rel, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := rel[:strings.LastIndexByte(rel, '/')]
	figures[subject{"files", pkg}]++
	for line := range strings.Lines(string(src)) {
		figures[subject{"lines", pkg}]++
		if utf8.RuneCountInString(strings.TrimRight(line, "\r\n")) > widest {
			figures[subject{"columns", pkg}]++
		}
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := pkg + "." + f.Name.Name
		if f.Recv != nil {
			owner := pkg + "." + receiverType(f)
			name = owner + "." + f.Name.Name
			figures[subject{"methods", owner}]++
			if methods[owner] == nil {
				methods[owner] = map[string]*method{}
			}
			methods[owner][f.Name.Name] = examine(f)
		}
		if f.Body == nil {
			continue
		}
		// Files of several platforms may have the same function, and a package has several init and _.
		length := subject{"length", name}
		figures[length] = max(figures[length], fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1)
		branches := subject{"complexity", name}
		figures[branches] = max(figures[branches], complexity(f))
	}
	return nil
}

// complexity returns 1 and one more for each branch, with those of the functions that f defines.
func complexity(f *ast.FuncDecl) int {
	n := 1
	ast.Inspect(f, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if node.List != nil {
				n++
			}
		case *ast.CommClause:
			if node.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if node.Op == token.LAND || node.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// receiverType returns the name of the type that f is a method of, without its parameters.
func receiverType(f *ast.FuncDecl) string {
	return root(f.Recv.List[0].Type).Name
}

// root returns the identifier at the left end of an expression: x of x.y[i].z.
func root(e ast.Expr) *ast.Ident {
	for {
		switch at := e.(type) {
		case *ast.Ident:
			return at
		case *ast.SelectorExpr:
			e = at.X
		case *ast.IndexExpr:
			e = at.X
		case *ast.IndexListExpr:
			e = at.X
		case *ast.StarExpr:
			e = at.X
		case *ast.ParenExpr:
			e = at.X
		default:
			return &ast.Ident{}
		}
	}
}

// method is what a method does with its receiver.
type method struct {
	// assigns reports whether it assigns through the receiver; calls are the methods of the receiver that it calls.
	assigns bool
	calls   []string
}

var question = regexp.MustCompile(`^(?i:is|has|may|waits)($|[A-Z])`)

// acting returns the methods that are named as questions and that assign through the receiver, themselves or in a method of the same type.
func acting(methods map[string]*method) (names []string) {
	for grown := true; grown; {
		grown = false
		for _, m := range methods {
			if !m.assigns && slices.ContainsFunc(m.calls, func(name string) bool { return methods[name] != nil && methods[name].assigns }) {
				m.assigns, grown = true, true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if methods[name].assigns && question.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

func examine(f *ast.FuncDecl) *method {
	m := &method{}
	if len(f.Recv.List[0].Names) == 0 || f.Body == nil {
		return m
	}
	receiver := f.Recv.List[0].Names[0].Name
	_, pointer := f.Recv.List[0].Type.(*ast.StarExpr)
	through := func(e ast.Expr) bool { return root(e).Name == receiver && isShared(e, pointer) }
	ast.Inspect(f.Body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.AssignStmt:
			m.assigns = m.assigns || slices.ContainsFunc(node.Lhs, through)
		case *ast.IncDecStmt:
			m.assigns = m.assigns || through(node.X)
		case *ast.CallExpr:
			if called, ok := node.Fun.(*ast.SelectorExpr); ok {
				if on, ok := called.X.(*ast.Ident); ok && on.Name == receiver {
					m.calls = append(m.calls, called.Sel.Name)
				}
			}
			if builtin, ok := node.Fun.(*ast.Ident); ok && (builtin.Name == "delete" || builtin.Name == "clear") {
				m.assigns = m.assigns || root(node.Args[0]).Name == receiver
			}
		}
		return true
	})
	return m
}

// isShared reports whether an assignment to e, whose root is the receiver, is seen by the caller: not one to the variable itself, and not
// one to a field of a receiver that is a copy.
func isShared(e ast.Expr, pointer bool) bool {
	for {
		switch at := e.(type) {
		case *ast.SelectorExpr:
			if pointer {
				return true
			}
			e = at.X
		case *ast.ParenExpr:
			e = at.X
		case *ast.IndexExpr, *ast.StarExpr:
			return true
		default:
			return false
		}
	}
}

func TestFiguresOfTheLaw(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("\t_ = 1\n", 59)
	write(t, filepath.Join(dir, "plugins/p/p.go"), `package p

type set[K comparable] struct {
	m map[K]int
	n int
}

func (s *set[K]) isSet(k K) bool   { s.n++; return s.m[k] > 0 }
func (s *set[K]) hasLess(k K) bool { return !s.isSet(k) }
func (s set[K]) mayPut(k K) bool   { s.m[k] = 1; return true }
func (s set[K]) waits() bool       { delete(s.m, *new(K)); return true }
func (s *set[K]) IsTold() bool     { go func() { s.n = 1 }(); return true }
func (s set[K]) isCopied() bool    { s.n = 1; s = set[K]{}; return s.n > 0 }
func (s *set[K]) hasNone() bool    { n := s.n; n++; s = nil; return n == 0 }
func (s *set[K]) issue() bool      { s.n = 1; return true }
func (s *set[K]) put(k K)          { s.m[k]++ }

func long() {
`+long+`}

func longer() {
	_ = 1
`+long+`}

func branches(c chan int, a, b bool) {
	if a && b || a {
	} else if b {
	}
	for range 2 {
	}
	for a {
		func() { if b { } }()
	}
	switch { case a: case b: default: }
	select { case <-c: default: }
}

// `+strings.Repeat("ä", 137)+`
// `+strings.Repeat("ä", 138)+`
`)
	write(t, filepath.Join(dir, "plugins/p/p_test.go"), "package p\n\nfunc (s *set[K]) isTested() { s.n = 1 }\n")
	for _, folder := range []string{"plugins/p/testdata", "plugins/ptest", exempt, "e2e/p"} {
		write(t, filepath.Join(dir, folder, "p.go"), "package p\n")
	}
	for _, folder := range []string{"remediator", "repair", "preflight", "kubectl-pitcrew"} {
		write(t, filepath.Join(dir, folder, "README.md"), "")
	}
	for i := range 13 {
		write(t, filepath.Join(dir, "internal/many", fmt.Sprintf("f%d.go", i)), "package many\n")
	}
	figures, err := measure(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"files plugins/p": 1, "files internal/many": 13, "lines internal/many": 13, "methods plugins/p.set": 9, "columns plugins/p": 1,
		"length plugins/p.long": 61, "length plugins/p.longer": 62, "complexity plugins/p.branches": 11,
		"acts plugins/p.set.IsTold": 1, "acts plugins/p.set.hasLess": 1, "acts plugins/p.set.isSet": 1, "acts plugins/p.set.mayPut": 1,
		"acts plugins/p.set.waits": 1,
	}
	for s, figure := range figures {
		expected, named := want[s.String()]
		if named && figure != expected || !named && (s.kind == "acts" || s.kind == "files") {
			t.Errorf("%s: %d, want %d", s, figure, expected)
		}
		delete(want, s.String())
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}

func TestListOfTheLawOnlyShrinks(t *testing.T) {
	const text = "# why\n\nfiles a 20 issue 1\nlines b 2000 it is a table\nmethods c.t 30 issue 2\ncomplexity gone.f 30 issue 1\n"
	list, err := parseLaw(text)
	if err != nil {
		t.Fatal(err)
	}
	figures := map[subject]int{
		{"files", "a"}: 20, {"lines", "b"}: 1900, {"methods", "c.t"}: 31, {"length", "d.f"}: 61, {"length", "d.g"}: 60, {"columns", "d"}: 1,
	}
	want := []string{
		"columns d: 1, over the limit of 0",
		"complexity gone.f: within the limit of 20: remove it from law.txt, or run the test with -update",
		"length d.f: 61, over the limit of 60",
		"lines b: 1900, less than the 2000 of law.txt: write 1900 there, or run the test with -update",
		"methods c.t: 31, and law.txt allows 30: make it smaller",
	}
	if got := compare(list, figures); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	lowered := lower(text, list, figures)
	list, err = parseLaw(lowered)
	if err != nil {
		t.Fatal(err)
	}
	if list[subject{"lines", "b"}] != (entry{1900, "it is a table"}) || !strings.HasPrefix(lowered, "# why\n\n") {
		t.Errorf("-update writes %q", lowered)
	}
	if got, want := compare(list, figures), []string{want[0], want[2], want[4]}; !slices.Equal(got, want) {
		t.Errorf("after -update: %q, want %q", got, want)
	}
	for _, broken := range []string{"files a 20", "files a many issue 1", "width a 20 issue 1", "files a 20 issue 1\nfiles a 21 issue 1"} {
		if _, err := parseLaw(broken); err == nil {
			t.Errorf("%q is read", broken)
		}
	}
}
