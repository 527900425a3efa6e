package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// TestThePageOfStabilityNamesEveryKey compares the page with the keys of labels, annotations and taints in internal/conditions, both ways.
func TestThePageOfStabilityNamesEveryKey(t *testing.T) {
	page := read(t, "stability.md")
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/conditions/keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if sum, ok := n.(*ast.BinaryExpr); ok && named(sum.X) == "Domain" {
			keys["pitcrew.dev"+text(sum.Y)] = true
		}
		return true
	})
	if len(keys) < 25 {
		t.Errorf("found only %d keys", len(keys))
	}
	for key := range keys {
		short := strings.TrimPrefix(key, "pitcrew.dev/preflight")
		if !strings.Contains(page, "`"+key+"`") && (short == key || !strings.Contains(page, "`"+short+"`")) {
			t.Errorf("docs/stability.md does not say how stable %s is", key)
		}
	}
	others := map[string]bool{"pitcrew.dev/gpu": true, "pitcrew.dev/node-uid": true, "pitcrew.dev/v1alpha1": true} // of remediator/devices and the policy
	for _, key := range regexp.MustCompile(`pitcrew\.dev/[a-z0-9-]+`).FindAllString(page, -1) {
		if !keys[key] && !others[key] {
			t.Errorf("docs/stability.md names %s, which no longer exists", key)
		}
	}
}

func TestTheMetricsOfThePageOfStabilityExist(t *testing.T) {
	metrics, listed := regexp.MustCompile("`pitcrew_[a-z_]+`").FindAllString(read(t, "stability.md"), -1), read(t, "metrics.md")
	if len(metrics) < 10 {
		t.Errorf("found only %d metrics", len(metrics))
	}
	for _, metric := range metrics {
		if !strings.Contains(listed, metric) {
			t.Errorf("docs/stability.md promises %s, which docs/metrics.md does not list", metric)
		}
	}
}
