// Package asshipped_test has nodes fail beside what ships: the chart rendered with a preset and its policy, the remediator with the
// chart's arguments, account, roles and admission policies, on a real control plane with JobSet. Only the hardware is played: the
// conditions that its detectors write, the kubelets, and the driver that publishes GPUs.
package asshipped_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) {
	clustertest.Main(m, cluster.Options{JobSet: true, NodeGrace: 15 * time.Second})
}

// patience is far more than anything here takes on an idle machine.
const patience = 4 * time.Minute

const (
	gpuLost  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	portDown = "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE"
)

func TestAsShipped(t *testing.T) {
	c := install(t, func(string) string { return values }, nil,
		authorizationv1.ResourceAttributes{Verb: "create", Group: resourceapi.GroupName, Resource: "devicetaintrules"})
	for name, test := range map[string]func(*testing.T, *cluster.Cluster){
		"fault": fault, "dead node": deadNode, "one GPU": oneGPU, "rack": rack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// fault: a job leaves a node with a fault, and the node returns when the fault is over.
func fault(t *testing.T, c *cluster.Cluster) {
	s := newSite(t, c, "fault", 2, nil)
	s.train(wholeNode)
	s.addNodes("fault-spare", 1, nil)
	bad := s.nodes[0]
	s.report(bad, corev1.ConditionTrue, gpuLost, conditions.GPUXidError)
	s.quarantined(bad)
	s.movedFrom(bad)
	s.report(bad, corev1.ConditionFalse, "no fault", conditions.GPUXidError)
	s.released(bad)
}

// deadNode: a job leaves a node that went silent once a person has said that it is off, and the node returns when its kubelet is back.
func deadNode(t *testing.T, c *cluster.Cluster) {
	kubelets, err := c.StartKubelets(t.Context(), "dead")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, c, "dead", 2, func(i int, n *corev1.Node) {
		if i == 0 {
			kubelets.Own(n)
		}
	})
	s.train(wholeNode)
	s.addNodes("dead-spare", 1, nil)
	dead := s.nodes[0]
	kubelets.Freeze()
	s.quarantined(dead)
	const off = corev1.TaintNodeOutOfService + "=nodeshutdown:NoExecute"
	s.kubectl("taint", "node", dead, off)
	s.movedFrom(dead)
	s.kubectl("taint", "node", dead, off+"-")
	kubelets.Thaw()
	s.released(dead)
}

// oneGPU: a job leaves a broken GPU while the node stays in service, and the GPU is back when the fault is over.
func oneGPU(t *testing.T, c *cluster.Cluster) {
	isolates(newSite(t, c, "gpu", 1, nil), conditions.GPUMemoryError, "the driver asks for a reset", nil)
}

// isolates has a GPU of the only node of a site fail; during is called while it is isolated.
func isolates(s *site, condition corev1.NodeConditionType, fault string, during func(node string)) {
	t := s.T
	node := s.nodes[0]
	s.publish(node, "0000:1b:00.0", "0000:1c:00.0")
	s.train(oneClaim)
	broken, other := "gpu-0", "gpu-1"
	address := map[string]string{"gpu-0": "0000:1b:00", "gpu-1": "0000:1c:00"}
	if held := s.devices(s.before); slices.Equal(held, []string{other}) {
		broken, other = other, broken
	} else if !slices.Equal(held, []string{broken}) {
		t.Fatalf("the job holds %q", held)
	}
	s.report(node, corev1.ConditionTrue, "ResetGPU gpu "+address[broken]+": "+fault, condition)
	s.movedFrom()
	now, err := s.running()
	if held := s.devices(now); err != nil || !slices.Equal(held, []string{other}) {
		t.Errorf("the job holds %q: %v", held, err)
	}
	if n := s.node(node); len(n.Spec.Taints) > 0 || n.Labels[conditions.LabelStatus] != conditions.StatusIsolated {
		t.Errorf("taints %v, status %q", n.Spec.Taints, n.Labels[conditions.LabelStatus])
	}
	rules := func() string {
		return s.kubectl("get", "devicetaintrules", "--selector=pitcrew.dev/node-uid="+string(s.node(node).UID),
			"--output=jsonpath={.items[*].spec.deviceSelector.device}")
	}
	if got := rules(); got != broken {
		t.Errorf("rules for %q, want %q", got, broken)
	}
	if during != nil {
		during(node)
	}
	s.report(node, corev1.ConditionFalse, "no fault", condition)
	s.released(node)
	s.until("its rule is gone", func() error {
		if got := rules(); got != "" {
			return fmt.Errorf("rules for %q", got)
		}
		return nil
	})
}

// rack: the nodes of a rack that fails as one are quarantined together, and its job runs on another rack.
func rack(t *testing.T, c *cluster.Cluster) {
	const nodes = 4
	s := newSite(t, c, "rack", nodes, func(_ int, n *corev1.Node) { n.Labels["nvidia.com/gpu.clique"] = "fabric.1" })
	s.train(wholeNode)
	s.addNodes("other-rack", nodes, func(_ int, n *corev1.Node) { n.Labels["nvidia.com/gpu.clique"] = "fabric.2" })
	first := slices.Clone(s.nodes[:nodes])
	for _, n := range first {
		s.report(n, corev1.ConditionTrue, gpuLost, conditions.GPUXidError)
		s.report(n, corev1.ConditionTrue, portDown, conditions.HCAPortDown)
	}
	for _, n := range first {
		s.quarantined(n)
	}
	s.movedFrom(first...)
	for _, n := range first {
		s.report(n, corev1.ConditionFalse, "no fault", conditions.GPUXidError, conditions.HCAPortDown)
	}
	for _, n := range first {
		s.released(n)
	}
}

// site is a namespace with a job, and the nodes that it may run on.
type site struct {
	*testing.T
	*cluster.Cluster
	name  string
	ranks int
	nodes []string
	// before are the pods that ran before the fault.
	before []corev1.Pod
}

func newSite(t *testing.T, c *cluster.Cluster, name string, ranks int, mutate func(int, *corev1.Node)) *site {
	t.Helper()
	s := &site{T: t, Cluster: c, name: name, ranks: ranks}
	if err := c.AddNamespace(t.Context(), name, map[string]string{conditions.LabelRestartOnNodeFault: "true"}); err != nil {
		t.Fatal(err)
	}
	s.addNodes(name, ranks, mutate)
	return s
}

// addNodes adds nodes on which the detectors of the preset find nothing.
func (s *site) addNodes(pool string, n int, mutate func(int, *corev1.Node)) {
	s.Helper()
	i := 0
	names, err := s.AddNodes(s.T.Context(), pool, n, func(node *corev1.Node) {
		node.Labels["train"], node.Labels["nvidia.com/gpu.present"] = s.name, "true"
		now := metav1.Now()
		for _, c := range []corev1.NodeConditionType{conditions.GPUXidError, conditions.GPUMemoryError, conditions.HCAPortDown} {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: c, Status: corev1.ConditionFalse, Reason: "Checked", Message: "no fault", LastHeartbeatTime: now, LastTransitionTime: now,
			})
		}
		if mutate != nil {
			mutate(i, node)
		}
		i++
	})
	if err != nil {
		s.Fatal(err)
	}
	s.nodes = append(s.nodes, names...)
}

// report writes conditions of a node as its detector does.
func (s *site) report(node string, status corev1.ConditionStatus, message string, of ...corev1.NodeConditionType) {
	s.Helper()
	var list []corev1.NodeCondition
	now := metav1.Now()
	for _, c := range of {
		list = append(list, corev1.NodeCondition{
			Type: c, Status: status, Reason: "Checked", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": list}})
	if err != nil {
		s.Fatal(err)
	}
	patch := client.RawPatch(types.StrategicMergePatchType, data)
	if err := s.Client.Status().Patch(s.T.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
		s.Fatal(err)
	}
}

func (s *site) kubectl(args ...string) string {
	s.Helper()
	out, err := s.Kubectl(s.T.Context(), args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

func (s *site) until(what string, check func() error) {
	s.Helper()
	clustertest.Until(s.T, patience, what, check)
}

func (s *site) node(name string) *corev1.Node {
	s.Helper()
	var n corev1.Node
	if err := s.Client.Get(s.T.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		s.Fatal(err)
	}
	return &n
}

func (s *site) quarantined(node string) {
	s.Helper()
	s.until(node+" is quarantined", func() error {
		n := s.node(node)
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
		if !tainted || n.Labels[conditions.LabelStatus] != conditions.StatusQuarantined {
			return fmt.Errorf("taints %v, labels %v", n.Spec.Taints, n.Labels)
		}
		return nil
	})
}

func (s *site) released(node string) {
	s.Helper()
	s.until(node+" is released", func() error {
		if n := s.node(node); len(n.Spec.Taints) > 0 || n.Labels[conditions.LabelStatus] != conditions.StatusHealthy {
			return fmt.Errorf("taints %v, status %q", n.Spec.Taints, n.Labels[conditions.LabelStatus])
		}
		return nil
	})
}

// movedFrom waits until the whole job runs in other pods than before the fault, and on none of the nodes.
func (s *site) movedFrom(nodes ...string) {
	s.Helper()
	s.until("the job runs elsewhere", func() error {
		pods, err := s.running()
		for _, p := range pods {
			if contains(s.before, p) || slices.Contains(nodes, p.Spec.NodeName) {
				return fmt.Errorf("pod %s on %s is there", p.Name, p.Spec.NodeName)
			}
		}
		return err
	})
}

// running are the pods of the job. It is an error if not all ranks run, and nothing else.
func (s *site) running() ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := s.Client.List(s.T.Context(), &list, client.InNamespace(s.name)); err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			return list.Items, fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
		}
	}
	if len(list.Items) != s.ranks {
		return list.Items, errors.New("not all ranks run")
	}
	return list.Items, nil
}

func contains(pods []corev1.Pod, p corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(other corev1.Pod) bool { return other.UID == p.UID })
}
