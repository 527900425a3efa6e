package upgrade_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// policy is valid in both versions. Two quarantines open the breaker; a cable is suspect for an hour.
const policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 9}
  breaker: {maxNodes: 2, window: 1h, coolDown: 30m, pace: 5m}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU]}, clearAfter: 1s}
    cable: {match: {condition: HCAPortDown, repair: [Inspect]}, for: 1h}
`

// breaker waits until the breaker is open, and returns since when.
func (w *world) breaker() string {
	w.Helper()
	var m corev1.ConfigMap
	clustertest.Until(w, patience, "the breaker is open", func() error {
		err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: conditions.BreakerConfigMap}, &m)
		if err == nil && m.Data["state"] == "" {
			err = fmt.Errorf("it is not: %v", m.Data)
		}
		return err
	})
	return m.Data["state"]
}

// Whoever upgrades in the middle of a fault, rolls back and upgrades again finds each node and the breaker as they were.
func TestUpgradeAndDowngradeInTheMiddleOfAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster.Options{APIOnly: true})
	file := filepath.Join(t.TempDir(), "policy.yaml")
	w.must(os.WriteFile(file, []byte(policy), 0o600))
	const xid, cable = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error", "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE"
	var first []record
	var open string
	var probes []record
	for i, tree := range []string{w.tree, w.Root, w.tree} {
		w.hasRoles(tree)
		end := w.runs(tree, "-policy="+file)
		if i == 0 {
			for _, name := range []string{"gpu-0", "gpu-1"} {
				w.reports(name, "GPUXidError", corev1.ConditionTrue, xid)
				w.quarantine(name, "quarantined")
			}
			w.reports("cable", "HCAPortDown", corev1.ConditionTrue, cable)
			w.reports("gpu-2", "GPUXidError", corev1.ConditionTrue, xid)
			open = w.breaker()
		}
		probe := fmt.Sprint("probe-", i) // its record proves that this version has read the others and decides
		w.reports(probe, "HCAPortDown", corev1.ConditionTrue, cable)
		probes = append(probes, w.quarantine(probe, "suspect"))
		now := []record{w.quarantine("gpu-0", "quarantined"), w.quarantine("gpu-1", "quarantined"), w.quarantine("cable", "suspect")}
		if i == 0 {
			first = now
		}
		for n, r := range now {
			w.differs(fmt.Sprintf("after %d changes of version, record %d", i, n), sameForAll(first[n]), sameForAll(r))
		}
		w.quarantine("gpu-2", "suspect") // the breaker is open for all versions
		w.differs(fmt.Sprintf("after %d changes of version, the breaker", i), open, w.breaker())
		if i == 2 { // what the earlier version releases stays released
			w.reports("gpu-1", "GPUXidError", corev1.ConditionFalse, "no fault")
			w.quarantine("gpu-1", "released")
		}
		end()
	}
	if names := lacks(probes[0], probes[1]); len(names) > 0 {
		t.Errorf("the record of a suspect node lacks %q, which %s reads", names, earlier)
	}
	w.hasRoles(w.Root)
	end := w.runs(w.Root, "-policy="+file)
	w.reports("gpu-0", "GPUXidError", corev1.ConditionFalse, "no fault")
	for i, name := range []string{"gpu-0", "gpu-1"} {
		if r := w.quarantine(name, "released"); r.at("id") != first[i].at("id") {
			t.Errorf("%s: %s was released, not %s", name, r.at("id"), first[i].at("id"))
		}
	}
	end()
}

// hasRoles gives the remediator's account the roles and limits of a tree.
func (w *world) hasRoles(tree string) {
	w.Helper()
	for _, file := range []string{"rbac.yaml", "admission-self.yaml"} {
		text, err := os.ReadFile(filepath.Join(tree, "manifests", "remediator", file))
		w.must(err)
		w.must(w.Apply(w.Context(), text))
	}
}

// sameForAll is what every version has to keep of a record: which quarantine it is, since when, and what has caused it.
func sameForAll(r record) map[string]string {
	same := map[string]string{"id": r.at("id"), "phase": r.at("phase"), "quarantined at": r.at("quarantinedAt"), "closed": r.at("last")}
	for _, name := range []string{"condition", "rule", "repair", "message", "firstSeen", "due"} {
		same["cause: "+name] = r.at("causes", name)
	}
	return same
}
