// Package upgrade_test replaces the remediator of an earlier commit by this one and back, on a real API server in the middle of a fault.
package upgrade_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// earlier is the commit whose records remediator/testdata keeps, too. A clone without its history has to fetch it.
const earlier = "19f658c"

const patience = 3 * time.Minute

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

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{APIOnly: true}) }

// world is a cluster with remediators of two versions, one at a time.
type world struct {
	*testing.T
	*cluster.Cluster
	tree, kubeconfig, policy string
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, Cluster: clustertest.Get(t)}
	w.tree = filepath.Join(w.Root, "bin", "earlier-"+earlier)
	if err := w.buildEarlier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), w.Root, "./remediator"); err != nil {
		t.Fatal(err)
	}
	w.policy = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(w.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// buildEarlier builds the remediator of the earlier commit from the history of this clone, once.
func (w *world) buildEarlier(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(w.tree, "bin", "remediator")); err == nil {
		return nil
	}
	if err := os.MkdirAll(w.tree, 0o755); err != nil {
		return err
	}
	archive := exec.CommandContext(ctx, "git", "-C", w.Root, "archive", earlier)
	text, err := archive.Output()
	if err != nil {
		return fmt.Errorf("git archive %s: %w; a shallow clone needs: git fetch --unshallow", earlier, err)
	}
	unpack := exec.CommandContext(ctx, "tar", "x", "-C", w.tree)
	unpack.Stdin = bytes.NewReader(text)
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, out)
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", "bin/remediator", "./remediator")
	build.Dir, build.Env = w.tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the remediator of %s: %w\n%s", earlier, err, out)
	}
	return nil
}

// runs has the remediator of a tree lead, with its own roles, until the returned function ends it as a kubelet does.
func (w *world) runs(tree string) (end func()) {
	w.Helper()
	for _, file := range []string{"rbac.yaml", "admission-self.yaml"} {
		text, err := os.ReadFile(filepath.Join(tree, "manifests", "remediator", file))
		if err != nil {
			w.Fatal(err)
		}
		if err := w.Apply(w.Context(), text); err != nil {
			w.Fatal(err)
		}
	}
	if w.kubeconfig == "" {
		var err error
		if w.kubeconfig, err = w.RemediatorKubeconfig(w.Context(), "upgrade", nil); err != nil {
			w.Fatal(err)
		}
	}
	var log bytes.Buffer
	p := exec.CommandContext(context.WithoutCancel(w.Context()), filepath.Join(tree, "bin", "remediator"),
		"-kubeconfig", w.kubeconfig, "-policy", w.policy, "-metrics-bind-address=0", "-health-probe-bind-address=0", "-lease-duration=15s")
	p.Stderr = &log
	if err := p.Start(); err != nil {
		w.Fatal(err)
	}
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		_ = p.Process.Signal(os.Interrupt) // it runs; Wait says how it ended
		if err := p.Wait(); err != nil {
			w.Errorf("the remediator of %s ended: %v", tree, err)
		}
		if w.Failed() {
			w.Logf("the remediator of %s:\n%s", tree, log.String())
		}
	}
	w.Cleanup(end)
	return end
}

func (w *world) Context() context.Context { return w.T.Context() }

// reports has a node report a condition; one that does not exist is made.
func (w *world) reports(name string, kind corev1.NodeConditionType, status corev1.ConditionStatus, message string) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := client.IgnoreAlreadyExists(w.Client.Create(w.Context(), n)); err != nil {
		w.Fatal(err)
	}
	now := metav1.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{
		"type":%q,"status":%q,"reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[4]q}]}}`,
		kind, status, message, now)
	if err := w.Client.Status().Patch(w.Context(), n, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		w.Fatal(err)
	}
}

// record waits until a node has a record of a phase, and returns it.
func (w *world) record(name string, phase causes.Phase) *causes.Record {
	w.Helper()
	var r *causes.Record
	clustertest.Until(w, patience, fmt.Sprintf("node %s is %s", name, phase), func() error {
		var n corev1.Node
		if err := w.Client.Get(w.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return err
		}
		var err error
		if r, err = causes.RecordOf(&n); err != nil {
			return err
		}
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
		if r == nil || r.Phase != phase || tainted != (phase == causes.Quarantined) {
			return fmt.Errorf("record %v, tainted: %t", r, tainted)
		}
		return nil
	})
	return r
}

// breaker waits until the breaker is open, and returns since when.
func (w *world) breaker() string {
	w.Helper()
	var m corev1.ConfigMap
	clustertest.Until(w, patience, "the breaker is open", func() error {
		err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: "pitcrew", Name: conditions.BreakerConfigMap}, &m)
		if err == nil && m.Data["state"] == "" {
			err = fmt.Errorf("it is not: %v", m.Data)
		}
		return err
	})
	return m.Data["state"]
}

// Whoever upgrades in the middle of a fault, rolls back and upgrades again finds each node and the breaker as they were.
func TestUpgradeAndDowngradeInTheMiddleOfAFault(t *testing.T) {
	w := newWorld(t)
	const xid, cable = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error", "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE"
	var first []*causes.Record
	var open string
	for i, tree := range []string{w.tree, w.Root, w.tree} {
		end := w.runs(tree)
		if i == 0 {
			for _, name := range []string{"gpu-0", "gpu-1"} {
				w.reports(name, "GPUXidError", corev1.ConditionTrue, xid)
				w.record(name, causes.Quarantined)
			}
			w.reports("cable", "HCAPortDown", corev1.ConditionTrue, cable)
			w.reports("gpu-2", "GPUXidError", corev1.ConditionTrue, xid)
			open = w.breaker()
		}
		probe := fmt.Sprint("probe-", i) // its record proves that this version has read the others and decides
		w.reports(probe, "HCAPortDown", corev1.ConditionTrue, cable)
		w.record(probe, causes.Suspect)
		now := []*causes.Record{w.record("gpu-0", causes.Quarantined), w.record("gpu-1", causes.Quarantined), w.record("cable", causes.Suspect)}
		if i == 0 {
			first = now
		}
		for n, r := range now {
			if diff := cmp.Diff(sameForAll(first[n]), sameForAll(r)); diff != "" {
				t.Errorf("after %d changes of version, record %d (- first, + now):\n%s", i, n, diff)
			}
		}
		w.record("gpu-2", causes.Suspect) // the breaker is open for all versions
		if diff := cmp.Diff(open, w.breaker()); diff != "" {
			t.Errorf("after %d changes of version, the breaker (- first, + now):\n%s", i, diff)
		}
		if i == 2 { // what the earlier version releases stays released
			w.reports("gpu-1", "GPUXidError", corev1.ConditionFalse, "no fault")
			w.record("gpu-1", causes.Released)
			end()
			break
		}
		end()
	}
	end := w.runs(w.Root)
	w.reports("gpu-0", "GPUXidError", corev1.ConditionFalse, "no fault")
	if r := w.record("gpu-0", causes.Released); r.ID != first[0].ID {
		t.Errorf("gpu-0: %s was released, not %s", r.ID, first[0].ID)
	}
	if r := w.record("gpu-1", causes.Released); r.ID != first[1].ID {
		t.Errorf("gpu-1: %s was released, not %s", r.ID, first[1].ID)
	}
	end()
}

// sameForAll is what every version has to keep of a record: which quarantine it is, since when, and what has caused it.
func sameForAll(r *causes.Record) map[string]string {
	same := map[string]string{
		"id": r.ID, "phase": string(r.Phase), "quarantined at": r.QuarantinedAt.UTC().String(), "closed": fmt.Sprint(len(r.Last)),
	}
	for _, c := range r.Causes {
		same[string(c.Condition)] = fmt.Sprint(c.Rule, c.Repair, c.Message, c.FirstSeen.UTC(), c.Due)
	}
	return same
}
