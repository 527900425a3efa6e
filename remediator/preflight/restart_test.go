package preflight

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// newJobSet is a site with a JobSet of two replicated jobs of n/2 pods each, and two spare nodes.
func newJobSet(t *testing.T, namespace string, n int) site {
	t.Helper()
	s := prepare(t, namespace, n+2)
	s.must(s.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: %s, labels: {%s: "true"}}
spec:
  replicatedJobs:
  - {name: first, template: {spec: %[3]s}}
  - {name: second, template: {spec: %[3]s}}
`, namespace, conditions.LabelRestartOnNodeFault, s.job(n/2))))
	s.waitForPods(n)
	// The budget is a share of the nodes with a detector, of which nodes of other tests have some. Here all have one.
	now := metav1.Now().Format(time.RFC3339)
	healthy := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil,
		`{"status":{"conditions":[{"type":%q,"status":"False","reason":"x","message":"no fault","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
		conditions.GPUXidError, now, now))
	for _, pod := range s.pods {
		s.must(s.Client.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, healthy))
	}
	return s
}

// From the reports to a job that runs on other nodes. Two Jobs of a JobSet report as one run. One of its nodes is slow and
// one has failed its check. The shipped policy, in mode enforce, quarantines both, since the namespace is an admin's, and
// the JobSet restarts on the remaining nodes. Its second run is a run of its own.
func TestAJobRestartsWithoutItsSlowAndFailedNodes(t *testing.T) {
	const n, slow, failed, weak = 64, 20, 50, 60
	s := newJobSet(t, "restart", n)
	shipped, err := s.ShippedPolicy(time.Second)
	s.must(err)
	reports := s.reports("before", slow)
	reports[failed].GPU, reports[failed].Batches = report.Failed, nil
	for i := range reports {
		reports[i].Figures = map[string]float64{"gemm": 600}
	}
	reports[weak].Figures["gemm"] = 450
	bad := []string{s.pods[slow].Spec.NodeName, s.pods[failed].Spec.NodeName}
	old := map[types.UID]bool{}
	for _, pod := range s.pods {
		old[pod.UID] = true
	}
	s.run("-policy", shipped, "-leader-elect=false", "-preflight-trusted-namespaces", s.namespace)
	s.submit(reports)

	if c := s.waitForCondition(bad[0], conditions.SlowNode, corev1.ConditionTrue); !strings.HasPrefix(c.Message, "Inspect node: confirmed slow by run restart/before") {
		t.Errorf("message %q", c.Message)
	}
	s.waitForCondition(bad[1], conditions.PreflightFailed, corev1.ConditionTrue)
	s.waitForEvent(Verdict, "64 of 64 reported", bad[0], bad[1])
	if c := s.waitForCondition(s.pods[weak].Spec.NodeName, conditions.SlowNode, corev1.ConditionTrue); c.Message != "Inspect node: suspected slow by run restart/before, gemm 0.25 below the median of 64 nodes" {
		t.Errorf("message %q", c.Message)
	}
	for _, node := range bad {
		s.until(node+" is quarantined", func() error {
			if taints := s.node(node).Spec.Taints; !slices.ContainsFunc(taints, func(t corev1.Taint) bool {
				return t.Key == conditions.TaintUnhealthy && t.Effect == corev1.TaintEffectNoSchedule
			}) {
				return fmt.Errorf("taints %v", taints)
			}
			return nil
		})
	}
	s.until("the pods of the first run are deleted", func() error {
		var pods corev1.PodList
		if err := s.Client.List(s.Context(), &pods, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if old[pod.UID] {
				return fmt.Errorf("pod %s is there, %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	s.waitForPods(n)
	for _, pod := range s.pods {
		if slices.Contains(bad, pod.Spec.NodeName) {
			t.Errorf("pod %s is on node %s", pod.Name, pod.Spec.NodeName)
		}
	}
	s.submit(s.reports("after"))
	s.waitForEvent(Verdict, "run after: 64 of 64 reported")
	// The nodes took no part, so they are not cleared.
	s.waitForCondition(bad[0], conditions.SlowNode, corev1.ConditionTrue)
	s.waitForCondition(bad[1], conditions.PreflightFailed, corev1.ConditionTrue)
}

func TestAVerdictExpires(t *testing.T) {
	s := newSite(t, "expiry", 8)
	p := s.start()
	s.submit(s.reports("r", 3))
	slow := s.pods[3].Spec.NodeName
	s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionTrue)
	// From here on a verdict is valid for a time that a slow machine may exceed before the condition is seen.
	p.Stop(10 * time.Second)
	s.start("-preflight-verdict-ttl", "15s")
	if c := s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionFalse); c.Message != "the last verdict has expired" {
		t.Errorf("message %q", c.Message)
	}
}

func TestADryRunReportsAndChangesNothing(t *testing.T) {
	s := newSite(t, "dry", 8)
	s.start("-dry-run")
	s.submit(s.reports("r", 3))
	slow := s.node(s.pods[3].Spec.NodeName)
	s.waitForEvent(Verdict, "run r: 8 of 8 reported; slow: "+slow.Name)
	s.until("an Event about the node", func() error {
		var list eventsv1.EventList
		if err := s.Client.List(s.Context(), &list, client.InNamespace(corev1.NamespaceDefault)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == slow.UID && strings.HasPrefix(e.Note, "dry run: SlowNode is True: Inspect node: suspected slow by run dry/r")
		}) {
			return fmt.Errorf("%d Events", len(list.Items))
		}
		return nil
	})
	if c, found := condition(s.node(slow.Name), conditions.SlowNode); found {
		t.Errorf("condition %+v", c)
	}
	if got := s.verdicts("r"); len(got) > 0 {
		t.Errorf("annotations %q", got)
	}
}

// Half of the reports come while one remediator leads, and half while another does. The verdict is that of the whole run,
// and when the first one leads again it stays as it is.
func TestAnotherLeaderContinues(t *testing.T) {
	s := newSite(t, "leader", 8)
	holder := ""
	lead := func() *cluster.Process {
		p := s.start("-leader-elect")
		s.until("another one leads", func() error {
			var lease coordinationv1.Lease
			if err := s.Client.Get(s.Context(), client.ObjectKey{Namespace: "pitcrew", Name: "pitcrew-remediator"}, &lease); err != nil {
				return err
			}
			now := lease.Spec.HolderIdentity
			if now == nil || *now == "" || *now == holder {
				return fmt.Errorf("the lease %+v", lease.Spec)
			}
			holder = *now
			return nil
		})
		return p
	}
	reports := s.reports("r", 3)
	first := lead()
	s.submit(reports[:4])
	first.Stop(10 * time.Second)
	second := lead()
	s.submit(reports[4:])
	slow := s.pods[3].Spec.NodeName
	decided := s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionTrue)
	s.waitForEvent(Verdict, "run r: 8 of 8 reported; slow: "+slow)
	second.Stop(10 * time.Second)
	// The next one restores the condition that a node has lost, which shows that it has read the reports.
	s.removeCondition(slow, conditions.SlowNode)
	lead()
	if again := s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionTrue); again.Message != decided.Message || !again.LastHeartbeatTime.Equal(&decided.LastHeartbeatTime) {
		t.Errorf("with another leader %+v, before %+v", again, decided)
	}
}
