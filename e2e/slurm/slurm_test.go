// Package slurm has tests of the hand-off to operators of Slurm: with slurm-operator itself on simulated nodes.
package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{HandOff: true}) }

// patience is for slurm-operator, which asks for its slurmrestd every 10 s and reads the Slurm nodes every 30 s.
const patience = 5 * time.Minute

const ecc = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"

const podCordon = "nodeset.slinky.slurm.net/pod-cordon"

// rig is a Slurm cluster of two nodes on a pool of the same size.
type rig struct {
	*testing.T
	*cluster.Cluster
	slurm *cluster.Slurmrestd
	pool  string
}

func newRig(t *testing.T, pool string) rig {
	t.Helper()
	c := clustertest.Get(t)
	if _, err := c.AddNodes(t.Context(), pool, 2, nil); err != nil {
		t.Fatal(err)
	}
	slurm, err := c.StartSlurmOperator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := logOf(c, "slurm-operator"); t.Failed() {
			t.Logf("the end of the log of slurm-operator, %v:\n%s", err, log[max(0, len(log)-10_000):])
		}
	})
	if err := c.AddNamespace(t.Context(), "slurm", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: slurm}
stringData: {slurm.key: secret, jwt.key: secret}
---
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata: {name: slurm, namespace: slurm}
spec:
  slurmKeyRef: {name: keys, key: slurm.key}
  jwtHs256KeyRef: {name: keys, key: jwt.key}
  slurmctld: {image: none}
  reconfigure: {image: none}
  logfile: {image: none}
---
apiVersion: slinky.slurm.net/v1beta1
kind: RestApi
metadata: {name: slurm, namespace: slurm}
spec:
  controllerRef: {name: slurm, namespace: slurm}
  slurmrestd: {image: none}
---
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata: {name: gpu, namespace: slurm}
spec:
  controllerRef: {name: slurm, namespace: slurm}
  replicas: 2
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%%}}
  slurmd: {image: none, resources: {limits: {nvidia.com/gpu: 8}}}
  logfile: {image: none}
  template:
    spec: {nodeSelector: {%s: %s}}
`, cluster.LabelPool, pool)); err != nil {
		t.Fatal(err)
	}
	return rig{t, c, slurm, pool}
}

func (r rig) until(what string, check func() error) {
	r.Helper()
	clustertest.Until(r.T, patience, what, check)
}

// worker is the pod of slurmd on a node; its name is that of the Slurm node, too.
func (r rig) worker(node string) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.Client.List(r.T.Context(), &pods, client.InNamespace("slurm"), client.MatchingLabels{"app.kubernetes.io/component": "worker"}); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == node && p.DeletionTimestamp == nil })
	if i < 0 {
		return nil, fmt.Errorf("no slurmd on %s, of %d", node, len(pods.Items))
	}
	return &pods.Items[i], nil
}

// report sets the condition of a node as the node-problem-detector does.
func (r rig) report(node, status, message string) {
	r.Helper()
	if err := r.Report(r.T.Context(), node, conditions.GPUXidError, corev1.ConditionStatus(status), message, time.Now()); err != nil {
		r.Fatal(err)
	}
}

// A cordon of ours, with its reason, reaches Slurm through slurm-operator itself, and goes again with the quarantine.
func TestSlurmOperatorDrainsTheSlurmNodeOfAQuarantinedNode(t *testing.T) {
	r := newRig(t, "slurm")
	sick, well := "slurm-0", "slurm-1"
	names := map[string]string{}
	r.until("slurmd runs on both nodes", func() error {
		for _, node := range []string{sick, well} {
			pod, err := r.worker(node)
			if err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
			names[node] = pod.Spec.Hostname
		}
		return nil
	})
	for _, name := range names {
		r.slurm.AddNode(name)
	}
	r.until("slurm-operator knows the Slurm nodes", func() error {
		for _, name := range names {
			if n, err := r.slurm.Node(name); err != nil || n.Comment == "" {
				return fmt.Errorf("%+v, %w", n, errors.Join(err, errors.New("without a comment of slurm-operator")))
			}
		}
		return nil
	})

	policy := filepath.Join(t.TempDir(), "policy.yaml")
	text := fmt.Sprintf(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 2}
  handOff: {cordon: true}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU], nodeSelector: {%s: %s}}
      clearAfter: 1s
`, cluster.LabelPool, r.pool)
	if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	remediator, err := r.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(remediator.Log())
		}
	})

	slurmHas := func(node string, drained bool, reason string) error {
		n, err := r.slurm.Node(names[node])
		if err != nil {
			return err
		}
		if slices.Contains(n.State, "DRAIN") != drained || drained && n.Reason != reason {
			return fmt.Errorf("Slurm node %+v", n)
		}
		pod, err := r.worker(node)
		if err != nil {
			return err
		}
		if got := pod.Annotations[podCordon]; (got == "true") != drained {
			return fmt.Errorf("annotation %s of pod %s is %q", podCordon, pod.Name, got)
		}
		return nil
	}
	r.report(sick, "True", ecc)
	r.until("Slurm drains the node", func() error { return slurmHas(sick, true, "slurm-operator: Pitcrew: GPUXidError (rule gpu)") })
	if err := slurmHas(well, false, ""); err != nil {
		t.Error(err)
	}

	r.report(sick, "False", "fine")
	r.until("Slurm uses the node again", func() error { return slurmHas(sick, false, "") })

	// What an administrator has drained in Slurm stays so, whatever happens to the cordon.
	r.slurm.Update(names[well], func(n *cluster.SlurmNode) { n.State, n.Reason = append(n.State, "DRAIN"), "bad fan" })
	r.report(well, "True", ecc)
	r.until("the other node is cordoned", func() error { return r.isCordoned(well, true) })
	r.report(well, "False", "fine")
	r.until("the other node is uncordoned", func() error { return r.isCordoned(well, false) })
	// A later drain shows that slurm-operator has seen all of that.
	r.report(sick, "True", ecc)
	r.until("Slurm drains the node again", func() error { return slurmHas(sick, true, "slurm-operator: Pitcrew: GPUXidError (rule gpu)") })
	if n, err := r.slurm.Node(names[well]); err != nil || n.Reason != "bad fan" || !slices.Contains(n.State, "DRAIN") {
		t.Errorf("what an administrator has drained is %+v, %v", n, err)
	}

	// slurm-operator reads nothing but the cordon: a person who undoes it has Slurm use the quarantined node, although it keeps its taint.
	if _, err := r.Kubectl(t.Context(), "uncordon", sick); err != nil {
		t.Fatal(err)
	}
	r.until("Slurm uses the node although it is quarantined", func() error { return slurmHas(sick, false, "") })
	var n corev1.Node
	if err := r.Client.Get(t.Context(), client.ObjectKey{Name: sick}, &n); err != nil {
		t.Fatal(err)
	}
	record, err := causes.RecordOf(&n)
	if err != nil || record.Phase != causes.Quarantined || !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }) {
		t.Errorf("record %s, taints %v, %v", record, n.Spec.Taints, err)
	}
}

func (r rig) isCordoned(node string, want bool) error {
	var n corev1.Node
	if err := r.Client.Get(r.T.Context(), client.ObjectKey{Name: node}, &n); err != nil {
		return err
	}
	if n.Spec.Unschedulable != want {
		return fmt.Errorf("cordoned: %v", n.Spec.Unschedulable)
	}
	return nil
}

// docs/slurm.md says with which release this was tested.
func TestThePageNamesThePinnedRelease(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	module, err := components.SlurmOperator.ModuleDir(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(filepath.Base(module), "@v")
	page, err := os.ReadFile(filepath.Join(root, "docs", "slurm.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"**slurm-operator** (" + version + ")", "**Tested** with slurm-operator " + version + " itself"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/slurm.md does not have %q", want)
		}
	}
}

// logOf reads what a program of the cluster has written.
func logOf(c *cluster.Cluster, name string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(c.Dir, "*-"+name+".log"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no log: %w", name, err)
	}
	return os.ReadFile(files[0])
}
