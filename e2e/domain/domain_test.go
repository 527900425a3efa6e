// Package domain_test has racks of a real control plane fail, beside the real remediator: 111 racks of 18 nodes, each an NVLink domain.
package domain_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Most nodes have no kubelet, and no lease: the test plays the node controller, which has nothing to do for an hour.
func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{NodeGrace: time.Hour}) }

const (
	clique       = "nvidia.com/gpu.clique"
	racks        = 111
	nodesPerRack = 18
	// jobs have this many ranks each. The first rack has room for them, and so has the second.
	ranks    = 9
	jobs     = 2
	patience = 3 * time.Minute
	// policy is the shipped one with shorter times.
	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, maxPercent: 10}
  breaker: {maxNodes: 10, window: 10m, coolDown: 30m, pace: 5m}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [nvidia.com/gpu.clique]}
  domains: [{label: nvidia.com/gpu.clique, incidents: {}}]
  restart: {checkCapacity: true, forceDelete: unreachable, forceDeleteAfter: 1s}
  rules:
    gpu-xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}, for: 3s, clearAfter: 1s, restartJobs: true}
    gpu-memory: {match: {condition: GPUMemoryError, repair: [ResetGPU, Reboot, Replace]}, for: 3s, clearAfter: 1s, restartJobs: true}
    hca-port: {match: {condition: HCAPortDown, repair: [Inspect]}, for: 3s, clearAfter: 1s, restartJobs: true}
    node-not-ready: {match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}, for: 3s, restartJobs: true}
`
)

// rack names the nodes of a rack. The first two racks have kubelets.
func rack(i int) (names []string) {
	for k := range nodesPerRack {
		names = append(names, fmt.Sprintf("rack%d-%d", i, k))
	}
	return names
}

// world is the fleet with a remediator.
type world struct {
	*testing.T
	*cluster.Cluster
	kubelets *cluster.Kubelets // of the first rack
}

func (w world) Context() context.Context { return w.T.Context() }

// fine are the conditions of a healthy node, but Ready.
func fine() (list []corev1.NodeCondition) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, c := range []corev1.NodeConditionType{conditions.GPUXidError, conditions.GPUMemoryError, conditions.HCAPortDown} {
		list = append(list, corev1.NodeCondition{
			Type: c, Status: corev1.ConditionFalse, Reason: "Checked", Message: "no fault", LastHeartbeatTime: now, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
		})
	}
	return list
}

func start(t *testing.T) world {
	t.Helper()
	w := world{T: t, Cluster: clustertest.Get(t)}
	began := metav1.NewTime(time.Now().Add(-24 * time.Hour).Truncate(time.Second))
	var bare []client.Object
	for i := 2; i < racks; i++ {
		for _, name := range rack(i) {
			ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: began}
			bare = append(bare, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name: name, UID: uuid.NewUUID(), CreationTimestamp: began, Labels: map[string]string{clique: fmt.Sprintf("fabric.%d", i)},
					Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "300"}, // as its controller writes it in a cluster of this size
				},
				Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: string(uuid.NewUUID())}, Conditions: append(fine(), ready)},
			})
		}
	}
	if err := w.Store(w.Context(), bare...); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.kubelets, err = w.StartKubelets(w.Context(), "rack0"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := w.AddNodes(w.Context(), fmt.Sprintf("rack%d", i), nodesPerRack, func(n *corev1.Node) {
			n.Labels[clique], n.Labels["train"] = fmt.Sprintf("fabric.%d", i), "yes"
			n.Status.Conditions = fine()
			n.Spec.Unschedulable = i == 1
			if i == 0 {
				w.kubelets.Own(n)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// each does something to nodes, several at a time.
func (w world) each(names []string, do func(name string) error) {
	w.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for _, name := range names {
		group.Go(func() error { return do(name) })
	}
	if err := group.Wait(); err != nil {
		w.Fatal(err)
	}
}

// report writes conditions of a node, with one message for all, as its detector or the node controller does.
func (w world) report(name, status, message string, of ...corev1.NodeConditionType) error {
	var list []string
	now := time.Now().UTC().Format(time.RFC3339)
	for _, c := range of {
		list = append(list, fmt.Sprintf(`{"type":%q,"status":%q,"reason":"E2E","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[4]q}`, c, status, message, now))
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[`+strings.Join(list, ",")+`]}}`))
	return w.Client.Status().Patch(w.Context(), n, patch)
}

// nodes counts all nodes that are quarantined, and those of them that are among some. due is how many of these have a fault that is due and
// are not quarantined.
func (w world) nodes(some []string) (all, there, due int) {
	w.Helper()
	var nodes corev1.NodeList
	if err := w.Client.List(w.Context(), &nodes); err != nil {
		w.Fatal(err)
	}
	among := map[string]bool{}
	for _, name := range some {
		among[name] = true
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		tainted := false
		for _, t := range n.Spec.Taints {
			tainted = tainted || t.Key == conditions.TaintUnhealthy
		}
		record, err := causes.RecordOf(n)
		if err != nil {
			w.Fatal(err)
		}
		switch {
		case tainted:
			all++
			if among[n.Name] {
				there++
			}
		case record != nil && record.Phase == causes.Suspect && among[n.Name]:
			for _, c := range record.Causes {
				if c.Due {
					due++
					break
				}
			}
		}
	}
	return all, there, due
}

// mends has nodes report no fault any more, and waits until none is suspected.
func (w world) mends(names []string) {
	w.Helper()
	w.each(names, func(name string) error {
		return w.report(name, "False", "no fault", conditions.GPUXidError, conditions.GPUMemoryError, conditions.HCAPortDown)
	})
	clustertest.Until(w, patience, "no node is suspected", func() error {
		if all, _, due := w.nodes(names); all+due > 0 {
			return fmt.Errorf("%d are quarantined and %d suspected", all, due)
		}
		return nil
	})
}

// train makes jobs that fill the first rack.
func (w world) train() {
	w.Helper()
	if err := w.AddNamespace(w.Context(), "train", map[string]string{conditions.LabelRestartOnNodeFault: "true"}); err != nil {
		w.Fatal(err)
	}
	for i := range jobs {
		job := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: fmt.Sprintf("job-%d", i)},
			Spec: batchv1.JobSpec{
				Parallelism: ptr.To[int32](ranks), Completions: ptr.To[int32](ranks), BackoffLimit: ptr.To[int32](0), CompletionMode: ptr.To(batchv1.IndexedCompletion),
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{"train": "yes"}, TerminationGracePeriodSeconds: ptr.To[int64](1),
					Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
						Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
					}}},
				}},
			},
		}
		if err := w.Client.Create(w.Context(), job); err != nil {
			w.Fatal(err)
		}
	}
	w.untilRunning("rack0-")
	for _, name := range rack(1) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := w.Client.Patch(w.Context(), n, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`))); err != nil {
			w.Fatal(err)
		}
	}
}

// untilRunning waits until all ranks of all jobs run on nodes whose names have a prefix.
func (w world) untilRunning(on string) {
	w.Helper()
	clustertest.Until(w, patience, "all ranks run on "+on, func() error {
		var pods corev1.PodList
		if err := w.Client.List(w.Context(), &pods, client.InNamespace("train")); err != nil {
			return err
		}
		running := 0
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && strings.HasPrefix(p.Spec.NodeName, on) {
				running++
			}
		}
		if running != jobs*ranks || len(pods.Items) != jobs*ranks {
			return fmt.Errorf("%d of %d pods", running, len(pods.Items))
		}
		return nil
	})
}

func TestRacks(t *testing.T) {
	began := time.Now()
	step := func(what string) { t.Logf("%s after %s", what, time.Since(began).Round(time.Second)) }
	w := start(t)
	step("nodes")
	w.train()
	step("jobs")
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	remediator, err := w.StartRemediator(t.Context(), "-policy", file, "-leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remediator.Stop(10 * time.Second)
		if log := remediator.Log(); t.Failed() {
			t.Logf("log of the remediator:\n%s", log[max(0, len(log)-20_000):])
		}
	})
	step("remediator")
	first := rack(0)
	t.Run("a bad driver is rolled out over a rack", func(t *testing.T) {
		w := w.in(t)
		w.each(first, func(name string) error {
			return w.report(name, "True", "ResetGPU gpu 0000:1b:00: the driver reports nonsense", conditions.GPUXidError, conditions.GPUMemoryError)
		})
		clustertest.Until(t, patience, "all nodes of the rack are held back", func() error {
			all, _, due := w.nodes(first)
			if all > 0 {
				t.Fatalf("%d nodes are out", all)
			}
			if due < nodesPerRack {
				return fmt.Errorf("%d of them", due)
			}
			return nil
		})
		w.mends(first)
	})
	t.Run("one job ends with Xid 45 on 77 nodes", func(t *testing.T) {
		w := w.in(t)
		var storm []string
		for i := range 11 {
			storm = append(storm, rack(20 + i)[:7]...)
		}
		w.each(storm, func(name string) error {
			return w.report(name, "True", "RestartApp gpu 0000:1b:00: Xid 45 preemptive cleanup after an earlier error", conditions.GPUXidError)
		})
		// A fault that comes later is decided later.
		canary := rack(50)[:1]
		w.each(canary, func(name string) error {
			return w.report(name, "True", "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus", conditions.GPUXidError)
		})
		clustertest.Until(t, patience, "the later fault is decided", func() error {
			if _, there, _ := w.nodes(canary); there == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		if all, _, due := w.nodes(storm); all != 1 || due > 0 {
			t.Errorf("%d nodes are out, %d held back", all, due)
		}
		w.each(canary, func(name string) error {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			return w.Client.Status().Patch(t.Context(), n, client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeInfo":{"bootID":"another boot"}}}`)))
		})
		w.mends(append(storm, canary...))
	})
	t.Run("a rack fails", func(t *testing.T) {
		w := w.in(t)
		began := time.Now()
		w.each(first, func(name string) error {
			if err := w.report(name, "True", "Inspect mlx5_0 port 1: link is down", conditions.HCAPortDown); err != nil {
				return err
			}
			return w.report(name, "True", "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus", conditions.GPUXidError)
		})
		w.kubelets.Kill()
		w.each(first, func(name string) error {
			return w.report(name, "Unknown", "Kubelet stopped posting node status.", corev1.NodeReady)
		})
		reported := time.Since(began)
		clustertest.Until(t, patience, "the whole rack is out", func() error {
			if _, there, _ := w.nodes(first); there < nodesPerRack {
				return fmt.Errorf("%d nodes", there)
			}
			return nil
		})
		out := time.Since(began)
		t.Logf("the rack was out %s after its first fault, %s after its last", out, out-reported)
		w.untilRunning("rack1-")
		w.restartedOnce()
		if all, _, _ := w.nodes(nil); all != nodesPerRack {
			t.Errorf("%d nodes are out", all)
		}
		// A single fault in another rack still has a place: the rack has one of three, and counts once for the breaker of ten.
		single := rack(60)[:2]
		w.each(single, func(name string) error {
			return w.report(name, "True", "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus", conditions.GPUXidError)
		})
		clustertest.Until(t, patience, "two more nodes are out", func() error {
			if _, there, _ := w.nodes(single); there < len(single) {
				return fmt.Errorf("%d nodes", there)
			}
			return nil
		})
	})
}

func (w world) in(t *testing.T) world {
	w.T = t
	return w
}

// restartedOnce waits until each job was restarted, and makes sure that all quarantines with ranks of it made that one restart: then
// none makes another.
func (w world) restartedOnce() {
	w.Helper()
	for i := range jobs {
		clustertest.Until(w, patience, "a job was restarted", func() error {
			var job batchv1.Job
			if err := w.Client.Get(w.Context(), client.ObjectKey{Namespace: "train", Name: fmt.Sprintf("job-%d", i)}, &job); err != nil {
				return err
			}
			record, err := restart.ReadRecord(&job)
			if err != nil {
				w.Fatal(err)
			}
			if record.Total > 1 || len(record.Last) > 1 {
				w.Fatalf("job %d is restarted more than once: %+v", i, record)
			}
			if record.Current != nil || len(record.Last) == 0 {
				return errors.New("it is not over")
			}
			if got := len(record.Last[0].Quarantines); got != ranks {
				w.Errorf("job %d was restarted for %d nodes, want %d: %+v", i, got, ranks, record.Last[0])
			}
			return nil
		})
	}
}
