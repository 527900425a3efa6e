package asshipped_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// shorter is what the loop's page tells to change, and times that a test can wait for. The quarantines of the other tests began in the same
// ten minutes, and would open the breaker.
const shorter = `
createNamespace: true
pools: [{name: gpu, preset: nvidia}]
policy:
  mode: enforce
  budget: {maxNodes: 8, maxPercent: 50}
  breaker: {maxNodes: 40}
  repair: {mode: auto}
  rules:
    gpu-xid: {clearAfter: 3s}
    dcgm-diag: {clearAfter: 3s}
`

// machine is a node of the preset's pool. What runs on it is played: the detectors of the rendered pool, the programs of Jobs, and the
// machine itself.
type machine struct {
	*site
	node       string
	conditions map[string]corev1.NodeCondition
}

func newMachine(s *site, name string, mutate func(*corev1.Node)) *machine {
	s.Helper()
	m := &machine{site: s, conditions: map[string]corev1.NodeCondition{}}
	var pool corev1.ConfigMap
	if err := s.Client.Get(s.T.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-npd-gpu"}, &pool); err != nil {
		s.Fatal(err)
	}
	for monitor := range pool.Data {
		m.report(strings.TrimSuffix(monitor, ".json"), corev1.ConditionFalse, "no fault")
	}
	names, err := s.AddNodes(s.T.Context(), name, 1, func(n *corev1.Node) {
		n.Labels["nvidia.com/gpu.present"], n.Labels["pool"] = "true", "gpu"
		if mutate != nil {
			mutate(n)
		}
	})
	if err != nil {
		s.Fatal(err)
	}
	m.node = names[0]
	m.beat()
	return m
}

func (m *machine) report(name string, status corev1.ConditionStatus, message string) {
	m.conditions[name] = corev1.NodeCondition{
		Type: corev1.NodeConditionType(name), Status: status, Reason: "Checked", Message: message, LastTransitionTime: metav1.Now(),
	}
}

// beat writes all conditions, as the Node Problem Detector does at each heartbeat.
func (m *machine) beat() {
	m.Helper()
	var list []corev1.NodeCondition
	for _, c := range m.conditions {
		c.LastHeartbeatTime = metav1.Now()
		list = append(list, c)
	}
	m.patchStatus(map[string]any{"conditions": list})
}

func (m *machine) patchStatus(status map[string]any) {
	m.Helper()
	data, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		m.Fatal(err)
	}
	patch := client.RawPatch(types.StrategicMergePatchType, data)
	if err := m.Client.Status().Patch(m.T.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.node}}, patch); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) beating(what string, check func() error) {
	m.Helper()
	m.until(what, func() error {
		m.beat()
		return check()
	})
}

// job waits for the Job of a template on the node, plays its program, and returns its arguments.
func (m *machine) job(template, want, result string, code int32, during func()) {
	m.Helper()
	var pod corev1.Pod
	m.beating("the Job of "+template+" runs", func() error {
		var jobs batchv1.JobList
		inRepair := client.InNamespace(conditions.RepairNamespace)
		if err := m.Client.List(m.T.Context(), &jobs, inRepair, client.MatchingLabels{conditions.LabelTemplate: template}); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := m.Client.List(m.T.Context(), &pods, inRepair); err != nil {
			return err
		}
		for _, pod = range pods.Items {
			ours := func(j batchv1.Job) bool { return metav1.IsControlledBy(&pod, &j) }
			if pod.Spec.NodeName == m.node && pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(jobs.Items, ours) {
				return nil
			}
		}
		return fmt.Errorf("%d Jobs, %d pods; the node has %v", len(jobs.Items), len(pods.Items), m.site.node(m.node).Annotations)
	})
	if args := strings.Join(pod.Spec.Containers[0].Args, " "); args != want {
		m.Errorf("%s runs with %q, want %q", template, args, want)
	}
	if during != nil {
		during()
	}
	before := pod.DeepCopy()
	pod.Status.Phase = map[bool]corev1.PodPhase{true: corev1.PodSucceeded, false: corev1.PodFailed}[code == 0]
	now := metav1.Now()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: result, StartedAt: now, FinishedAt: now, ContainerID: "x://1"},
	}}}
	if err := m.Client.Status().Patch(m.T.Context(), &pod, client.MergeFrom(before)); err != nil {
		m.Fatal(err)
	}
}

// inService waits until the node has no taint and is healthy.
func (m *machine) inService() {
	m.Helper()
	m.beating(m.node+" is in service", func() error {
		n := m.site.node(m.node)
		status := n.Labels[conditions.LabelStatus] // empty: it never was quarantined
		if len(n.Spec.Taints) > 0 || status != "" && status != conditions.StatusHealthy {
			return fmt.Errorf("taints %v, status %q, %s", n.Spec.Taints, n.Labels[conditions.LabelStatus], n.Annotations[conditions.AnnotationRepair])
		}
		return nil
	})
}

func (m *machine) pitcrew(args ...string) {
	m.Helper()
	cmd := exec.CommandContext(m.T.Context(), filepath.Join(m.Root, "bin", "kubectl-pitcrew"), append([]string{"--kubeconfig", m.Kubeconfig}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.Fatalf("kubectl pitcrew %q: %v\n%s", args, err, out)
	}
}

const healthy, faulty = `{"result":"healthy","message":"DCGM has found no fault"}`, `{"result":"problem","message":"DCGM has found a fault"}`

// The loop with the chart's templates, roles and admission policies, the preset's pool, the default policy, and what pages.Loop show.
func TestTheLoopAsShipped(t *testing.T) {
	c := install(t, func(root string) string { return pages.Values(t, root, pages.Loop, shorter) }, nil,
		authorizationv1.ResourceAttributes{Verb: "create", Group: "batch", Resource: "jobs", Namespace: conditions.RepairNamespace})
	if err := components.BuildOurs(t.Context(), c.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{{"a new node", newNode}, {"a reset under the GPU operator", reset}, {"a reboot", reboot}, {"sweeps", sweeps},
		{"the page's commands", commands}, {"what is forgotten", forgotten}} {
		t.Run(step.name, func(t *testing.T) { step.run(t, c) })
	}
}

// newNode: a healthy node of a preset's pool comes into service after its first check.
func newNode(t *testing.T, c *cluster.Cluster) {
	m := newMachine(&site{T: t, Cluster: c}, "new", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	})
	m.job("check", "check -level=1", healthy, 0, nil)
	m.inService()
}

const exporterLabel = "nvidia.com/gpu.deploy.dcgm-exporter"

// reset: Xid 95 -> the operator's exporter leaves -> reset -> it is back -> validation -> released.
func reset(t *testing.T, c *cluster.Cluster) {
	s := &site{T: t, Cluster: c}
	if err := c.AddNamespace(t.Context(), "gpu-operator", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-dcgm-exporter, namespace: gpu-operator}
spec:
  selector: {matchLabels: {app: nvidia-dcgm-exporter}}
  template:
    metadata: {labels: {app: nvidia-dcgm-exporter}}
    spec:
      nodeSelector: {`+exporterLabel+`: "true"}
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers: [{name: exporter, image: dcgm-exporter}]
`)); err != nil {
		t.Fatal(err)
	}
	m := newMachine(s, "reset", func(n *corev1.Node) {
		maps.Copy(n.Labels, map[string]string{exporterLabel: "true", "nvidia.com/gpu.deploy.driver": "true"})
	})
	exporters := func(want int) error {
		var pods corev1.PodList
		if err := c.Client.List(t.Context(), &pods, client.InNamespace("gpu-operator")); err != nil || len(pods.Items) != want {
			return fmt.Errorf("%d exporters, want %d: %w", len(pods.Items), want, err)
		}
		return nil
	}
	m.beating("the exporter runs", func() error { return exporters(1) })
	m.report(conditions.GPUXidError, corev1.ConditionTrue, gpuLost)
	m.job("reset-gpu", "reset-gpu -gpu=0000:1b:00", `{"result":"done","message":"reset 0000:1b:00"}`, 0, func() {
		if err := exporters(0); err != nil {
			t.Error(err)
		}
		if value := s.node(m.node).Labels[exporterLabel]; value != "paused-for-pitcrew-repair" {
			t.Errorf("label %s=%s", exporterLabel, value)
		}
		m.report(conditions.GPUXidError, corev1.ConditionFalse, "no fault")
	})
	m.beating("the exporter is back", func() error { return exporters(1) })
	m.job("check", "check -level=3", healthy, 0, nil)
	m.inService()
}

// reboot: Xid 79 -> reboot -> a new boot id -> validation -> released.
func reboot(t *testing.T, c *cluster.Cluster) {
	m := newMachine(&site{T: t, Cluster: c}, "reboot", nil)
	boot := m.site.node(m.node).Status.NodeInfo.BootID
	m.report(conditions.GPUXidError, corev1.ConditionTrue, "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus")
	m.job("reboot", "reboot -boot-id="+boot, "", 137, func() {
		m.patchStatus(map[string]any{"nodeInfo": map[string]string{"bootID": "5f0c3ab1-0000-4000-8000-00000000beef"}})
		m.report(conditions.GPUXidError, corev1.ConditionFalse, "no fault")
	})
	m.job("check", "check -level=3", healthy, 0, nil)
	m.inService()
}

// sweeps: one passes, and one finds a fault, for which the node is quarantined.
func sweeps(t *testing.T, c *cluster.Cluster) {
	m := newMachine(&site{T: t, Cluster: c}, "sweep", nil)
	m.inService()
	m.pitcrew("check", m.node, "--yes")
	m.job("check", "check -level=2", healthy, 0, nil)
	m.inService()
	m.beating("the check is noted", func() error {
		if record := m.site.node(m.node).Annotations[conditions.AnnotationRepair]; !strings.Contains(record, `"phase":"Passed"`) {
			return fmt.Errorf("record %s", record)
		}
		return nil
	})
	m.pitcrew("check", m.node, "--yes")
	m.job("check", "check -level=2", faulty, 0, func() {
		m.report(conditions.DCGMDiagFailed, corev1.ConditionTrue, "Replace gpu 0000:1b:00: memory test failed")
	})
	m.beating("the node is quarantined", func() error {
		n := m.site.node(m.node)
		if n.Labels[conditions.LabelStatus] != conditions.StatusQuarantined {
			return fmt.Errorf("status %q, %s", n.Labels[conditions.LabelStatus], bytes.TrimSpace([]byte(n.Annotations[conditions.AnnotationRepair])))
		}
		return nil
	})
}
