package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

const (
	// attacks is how many numbered attacks there are.
	attacks = 27
	// attackSuite has the tests that are named without a package.
	attackSuite = "e2e/attacks"
)

// threatPages have nothing but threats.
var threatPages = []string{"security-reports.md", "security-jobs.md", "security-nodes.md", "security-token.md"}

// threat is a row of the tables of these pages.
type threat struct {
	at      string // page:line
	numbers []int
	// tests are names with their packages: e2e/attacks.TestX.
	tests []string
}

var (
	testName   = regexp.MustCompile("^`((?:[a-z0-9/-]+\\.)?)(Test\\w+)`$")
	attackName = regexp.MustCompile(`^TestAttack(\d\d)[A-Z]\w*$`)
)

// Nothing on the pages about threats is only claimed: whatever they say about an attack has a test, and the suite plays nothing that
// they do not mention.
func TestEveryClaimAboutThreatsHasATest(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	var threats []threat
	for _, page := range threatPages {
		found, errs := parseThreats(page, read(t, page))
		for _, err := range errs {
			t.Error(err)
		}
		threats = append(threats, found...)
	}
	for _, err := range checkThreats(threats, func(folder string) []string { return testsIn(t, filepath.Join(root, folder)) }, attacks) {
		t.Error(err)
	}
}

// parseThreats reads a page about threats. In it, a statement about what happens stands in a table, with its tests.
func parseThreats(name, page string) (threats []threat, errs []error) {
	remaining, table := false, false
	for i, line := range strings.Split(page, "\n") {
		at := fmt.Sprintf("%s:%d", name, i+1)
		switch {
		case strings.HasPrefix(line, "## "):
			remaining, table = false, false
		case line == "| # | tries to | what happens | tests |", line == "| # | mistake | what happens | tests |":
			table = true
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			row, err := parseThreat(line, at)
			if !table {
				err = fmt.Errorf("%s: a row of another table: %s", at, line)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			threats = append(threats, row)
		case strings.HasPrefix(line, "Remaining risk: "):
			remaining = true
		case strings.HasPrefix(line, "- ") && !remaining:
			errs = append(errs, fmt.Errorf("%s: neither a row with tests nor a remaining risk: %s", at, line))
		}
	}
	if len(threats) == 0 {
		errs = append(errs, fmt.Errorf("%s has no table of threats", name))
	}
	return threats, errs
}

func parseThreat(line, at string) (threat, error) {
	row := threat{at: at}
	cells := strings.Split(strings.Trim(line, "|"), "|")
	if len(cells) != 4 {
		return row, fmt.Errorf("%s: %d cells, want a number, an attempt, what happens and the tests", at, len(cells))
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if cells[1] == "" || cells[2] == "" {
		return row, fmt.Errorf("%s: an empty cell", at)
	}
	if cells[0] != "" {
		for number := range strings.SplitSeq(cells[0], ", ") {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > attacks {
				return row, fmt.Errorf("%s: %q is no number of an attack", at, number)
			}
			row.numbers = append(row.numbers, n)
		}
	}
	if cells[3] == "" {
		return row, fmt.Errorf("%s: a claim without a test: %s", at, cells[2])
	}
	for name := range strings.SplitSeq(cells[3], ", ") {
		m := testName.FindStringSubmatch(name)
		if m == nil {
			return row, fmt.Errorf("%s: %s is not the name of a test", at, name)
		}
		folder := strings.TrimSuffix(m[1], ".")
		if folder == "" {
			folder = attackSuite
		}
		row.tests = append(row.tests, folder+"."+m[2])
	}
	return row, nil
}

// checkThreats compares rows with the tests that there are: testsIn lists those of a folder. There must be one of each attack.
func checkThreats(threats []threat, testsIn func(folder string) []string, attacks int) (errs []error) {
	exist := map[string][]string{attackSuite: testsIn(attackSuite)}
	named := map[string]bool{}
	shown := map[int]bool{}
	for _, row := range threats {
		played := map[int]bool{}
		for _, test := range row.tests {
			folder, name, _ := strings.Cut(test, ".")
			if _, ok := exist[folder]; !ok {
				exist[folder] = testsIn(folder)
			}
			if !slices.Contains(exist[folder], name) {
				errs = append(errs, fmt.Errorf("%s: there is no test %s in %s", row.at, name, folder))
			}
			named[test] = true
			m := attackName.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			n, err := strconv.Atoi(m[1])
			if err != nil || !slices.Contains(row.numbers, n) {
				errs = append(errs, fmt.Errorf("%s: %s is not about attack %d", row.at, name, row.numbers))
			}
			played[n], shown[n] = true, true
		}
		if len(row.numbers) == 1 { // a test of another package has no number in its name
			shown[row.numbers[0]] = true
		} else {
			for _, n := range row.numbers {
				if !played[n] {
					errs = append(errs, fmt.Errorf("%s: no test of attack %d", row.at, n))
				}
			}
		}
	}
	for _, name := range exist[attackSuite] {
		if strings.HasPrefix(name, "TestAttack") {
			if !attackName.MatchString(name) {
				errs = append(errs, fmt.Errorf("%s: TestAttack must be followed by two digits and what happens", name))
			}
			if !named[attackSuite+"."+name] {
				errs = append(errs, fmt.Errorf("no row of the pages about threats names %s", name))
			}
		}
	}
	for n := 1; n <= attacks; n++ {
		if !shown[n] {
			errs = append(errs, fmt.Errorf("no row has a test of attack %d", n))
		}
	}
	return errs
}

// testsIn lists the tests of a folder, whatever their build tags.
func testsIn(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

func TestClaimsWithoutTestsAreSeen(t *testing.T) {
	const head = "# Threats\n\nAn introduction.\n\n## An actor\n\n| # | tries to | what happens | tests |\n|---|---|---|---|\n"
	const good = "| 1 | a | b | `TestAttack01X`, `a/b.TestY` |\n"
	exist := func(folder string) []string {
		return map[string][]string{attackSuite: {"TestAttack01X", "TestAttack02Z", "TestOther"}, "a/b": {"TestY"}}[folder]
	}
	const second = "| 2 | a | b | `TestAttack02Z` |\n"
	for name, test := range map[string]struct{ page, want string }{
		"all is well":             {head + good + second + "\nRemaining risk: a lot,\n\n- namely this.\n", ""},
		"no test":                 {head + good + second + "| | a | b | |\n", "a claim without a test: b"},
		"no such test":            {head + good + second + "| | a | b | `a/b.TestZ` |\n", "there is no test TestZ in a/b"},
		"no such package":         {head + good + second + "| | a | b | `c.TestY` |\n", "there is no test TestY in c"},
		"words for a test":        {head + good + second + "| | a | b | trust us |\n", "is not the name of a test"},
		"an attack that is left":  {head + good, "no row of the pages about threats names TestAttack02Z"},
		"the other number's test": {head + good + second + "| 3 | a | b | `TestAttack01X` |\n", "is not about attack [3]"},
		"two numbers, one test":   {head + good + second + "| 1, 3 | a | b | `TestAttack01X` |\n", "no test of attack 3"},
		"a number too far":        {head + good + second + "| 28 | a | b | `TestOther` |\n", `"28" is no number of an attack`},
		"a claim in a list":       {head + good + second + "\n- nothing can happen\n", "neither a row with tests nor a remaining risk"},
		"a claim of another form": {head + good + second + "\n## B\n\n| a | b |\n|---|---|\n| c | d |\n", "a row of another table: | c | d |"},
		"nothing":                 {"# Threats\n", "page.md has no table of threats"},
		"a list after a risk":     {head + good + second + "\nRemaining risk: a lot.\n\n## Another\n\n- nothing can happen\n", "page.md:16: neither a row"},
	} {
		threats, errs := parseThreats("page.md", test.page)
		errs = append(errs, checkThreats(threats, exist, 2)...)
		if test.want == "" && len(errs) > 0 || test.want != "" && !strings.Contains(fmt.Sprint(errs), test.want) {
			t.Errorf("%s: %v, want %q", name, errs, test.want)
		}
	}
	threats, _ := parseThreats("page.md", head+good+second)
	if errs := checkThreats(threats, exist, 3); !strings.Contains(fmt.Sprint(errs), "no row has a test of attack 3") {
		t.Errorf("attack 3 is not missed: %v", errs)
	}
}
