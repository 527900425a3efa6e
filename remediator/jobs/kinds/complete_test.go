package kinds

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	rbacFile     = "../../../manifests/remediator/rbac.yaml"
	docsFile     = "../../../docs/job-kinds.md"
	clusterTests = ".."
	operators    = "../operators"
)

// Whoever adds a kind learns here what is still missing, see CONTRIBUTING.md.
func TestEveryKindIsComplete(t *testing.T) {
	rules, headings, tested := clusterRules(t), docHeadings(t), testedKinds(t)
	for _, k := range BuiltIn() {
		apiVersion, kind := k.GVK.ToAPIVersionAndKind()
		t.Run(strings.ReplaceAll(apiVersion, "/", "_")+"_"+kind, func(t *testing.T) {
			for _, want := range append([]rbacv1.PolicyRule{rule(k.GVK.Group, k.Resource, "get", "list", "watch", "patch")}, k.ExtraRules...) {
				for _, verb := range want.Verbs {
					if !allowed(rules, want.APIGroups[0], want.Resources[0], verb) {
						t.Errorf("the remediator may not %s %s of API group %q: add a rule to ClusterRole pitcrew-remediator in manifests/remediator/rbac.yaml, then make generate",
							verb, want.Resources[0], want.APIGroups[0])
					}
				}
			}
			if !documented(headings, apiVersion, kind) {
				t.Errorf("docs/job-kinds.md has no section about %s: add a heading like \"### %ss (`%s`)\" and below it what stops and starts the job, what is refused and which traps there are",
					kind, kind, apiVersion)
			}
			if !tested[apiVersion+" "+kind] {
				t.Errorf("no test restarts a %s: add one with jobstest.Kind(%q, %q) to remediator/jobs/operators/kinds_test.go and jobs_test.go, or to remediator/jobs if Kubernetes itself runs its controller",
					kind, apiVersion, kind)
			}
		})
	}
}

func TestKindsThatAreIncompleteAreSeen(t *testing.T) {
	rules := []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"gangs"}, Verbs: []string{"get"}}}
	if !allowed(rules, "example.com", "gangs", "get") || allowed(rules, "example.com", "gangs", "patch") || allowed(rules, "", "gangs", "get") {
		t.Error("rules are not read well")
	}
	headings := []string{"### Gangs (`example.com/v1`)", "### MPIJob (`kubeflow.org/v2beta1`)"}
	if !documented(headings, "example.com/v1", "Gang") || documented(headings, "example.com/v2", "Gang") || documented(headings, "kubeflow.org/v2beta1", "Job") {
		t.Error("headings are not read well")
	}
}

func clusterRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	data, err := os.ReadFile(rbacFile)
	if err != nil {
		t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		document := make([]byte, len(data))
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			return rules
		}
		if err != nil {
			t.Fatal(err)
		}
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(document[:n], &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" && role.Name == "pitcrew-remediator" {
			rules = append(rules, role.Rules...)
		}
	}
}

func allowed(rules []rbacv1.PolicyRule, group, resource, verb string) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb) && len(r.ResourceNames) == 0
	})
}

func docHeadings(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "### ") {
			headings = append(headings, line)
		}
	}
	return headings
}

// documented reports whether a heading names the kind, singular or plural, and its apiVersion in backticks.
func documented(headings []string, apiVersion, kind string) bool {
	word := regexp.MustCompile(`\b` + kind + `s?\b`)
	return slices.ContainsFunc(headings, func(h string) bool {
		return word.MatchString(h) && strings.Contains(h, "`"+apiVersion+"`")
	})
}

// testedKinds finds the calls of jobstest.Kind in the tests that restart jobs.
func testedKinds(t *testing.T) map[string]bool {
	t.Helper()
	tested := map[string]bool{}
	for _, dir := range []string{clusterTests, operators} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", dir, err)
		}
		for _, name := range files {
			// What plays an operator proves nothing about it.
			if filepath.Base(name) == "play_test.go" || filepath.Base(name) == "watch_test.go" {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && isKindCall(call) {
					tested[literal(call.Args[0])+" "+literal(call.Args[1])] = true
				}
				return true
			})
		}
	}
	return tested
}

func isKindCall(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Kind" || len(call.Args) != 2 {
		return false
	}
	of, ok := f.X.(*ast.Ident)
	return ok && of.Name == "jobstest"
}

// literal is the value of a string literal; empty if it is none.
func literal(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok {
		return ""
	}
	value, err := strconv.Unquote(l.Value)
	if err != nil {
		return ""
	}
	return value
}
