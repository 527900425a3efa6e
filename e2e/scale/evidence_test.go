package scale

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Where nodes are repaired, but no evidence is collected and no repair is shown, neither is asked for: the quarantines are of a class that others
// repair, for which evidence is collected if that is on.
func TestEvidenceAndMaintenanceCostNothingWhenOff(t *testing.T) {
	role, err := os.ReadFile(filepath.Join("..", "..", "manifests", "repair", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := clustertest.Get(t).Apply(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	const nodes, faults = 320, 8
	off := strings.Replace(policy, "  rules:", `  repair: {mode: "off"}`+"\n  rules:", 1)
	on := strings.Replace(policy, "  rules:", `  repair: {mode: "off", collect: {template: collect, handOff: true}}`+"\n  output: {maintenance: true}\n  rules:", 1)
	// Of the remediator's requests these are for evidence, or for the condition of a repair.
	concern := func(request string) bool {
		verb, uri, _ := strings.Cut(request, " ")
		return strings.Contains(uri, "/podtemplates/") || strings.Contains(uri, "/namespaces/"+conditions.RepairNamespace+"/jobs") && verb != "list" || strings.HasPrefix(uri, "/version") || strings.HasSuffix(uri, "/status")
	}
	for _, test := range []struct {
		name, policy string
		asks         bool
	}{{"off", off, false}, {"on", on, true}} {
		t.Run(test.name, func(t *testing.T) {
			before := 0
			if _, err := clustertest.Get(t).AuditLog(); err == nil {
				before = len(world{T: t, Cluster: clustertest.Get(t)}.requests())
			}
			w := startWith(t, test.policy, nodes, 10*nodes, "-repair-namespace", conditions.RepairNamespace)
			started := len(w.requests())
			w.quarantine(w.fleet.Names[:faults]...)
			if test.asks {
				clustertest.Until(t, patience, "the template of evidence is read", func() error {
					if all := w.requests()[before:]; !slices.ContainsFunc(all, concern) {
						return fmt.Errorf("requests %q", all)
					}
					return nil
				})
			}
			all := w.requests()
			if i := slices.IndexFunc(all[before:], concern); (i >= 0) != test.asks {
				t.Errorf("asked %v, want %v: %q", i >= 0, test.asks, all[before:][max(i, 0)])
			}
			t.Logf("%d nodes: memory (RSS) %s, %.2f requests for each of %d quarantines", nodes, w.memory(), float64(len(all)-started)/faults, faults)
		})
	}
}
