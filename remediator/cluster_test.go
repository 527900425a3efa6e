package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{JobSet: true, HandOff: true}) }

// patience is how long a test waits for what takes a second or two, 20 s for what waits for room under a budget.
const patience = 3 * time.Minute

const (
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	ecc  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
)

// team is a pool of nodes of one test.
type team struct {
	*testing.T
	*cluster.Cluster
	pool  string
	nodes []string
}

func newTeam(t *testing.T, pool string, n int, mutate func(*corev1.Node)) team {
	t.Helper()
	c := clustertest.Get(t)
	nodes, err := c.AddNodes(t.Context(), pool, n, mutate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := c.DeleteNodes(context.Background(), nodes...); err != nil {
			t.Error(err)
		}
	})
	return team{t, c, pool, nodes}
}

// policy writes a policy with one rule for the pool: its fields but for the match.
func (tm team) policy(maxNodes int, rule ...string) string {
	tm.Helper()
	path := filepath.Join(tm.TempDir(), "policy.yaml")
	text := fmt.Sprintf(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: %d}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot], nodeSelector: {%s: %s}}
      %s
`, maxNodes, cluster.LabelPool, tm.pool, strings.Join(rule, "\n      "))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tm.Fatal(err)
	}
	return path
}

// start runs the built remediator under its own service account until the test ends. The API server must not refuse any of its
// requests: its shipped role has to suffice.
func (tm team) start(policy string, args ...string) *cluster.Process {
	tm.Helper()
	p, err := tm.StartRemediator(tm.Context(), append([]string{"-policy", policy}, args...)...)
	if err != nil {
		tm.Fatal(err)
	}
	tm.Cleanup(func() {
		p.Stop(10 * time.Second)
		log := p.Log()
		// An API server that has just started refuses all users until it has read the roles.
		refused := strings.Contains(log, "is forbidden: User") && !strings.Contains(log, "connection refused")
		if refused || strings.Contains(log, "panic") || tm.Failed() {
			tm.Errorf("log of the remediator:\n%s", log)
		}
	})
	return p
}

// alone starts a remediator without a lease, so that the successor of a killed one acts immediately.
const alone = "-leader-elect=false"

// Context is the test's; it ends early when a component of the cluster dies.
func (tm team) Context() context.Context { return tm.T.Context() }

// report writes condition GPUXidError as the Node Problem Detector does.
func (tm team) report(name, status, message string) {
	tm.Helper()
	tm.reportAs(name, conditions.GPUXidError, status, message)
}

func (tm team) reportAs(name, condition, status, message string) {
	tm.Helper()
	err := tm.Report(tm.Context(), name, corev1.NodeConditionType(condition), corev1.ConditionStatus(status), message, time.Now())
	if err != nil {
		tm.Fatal(err)
	}
}

func (tm team) patchStatus(name, patch string) {
	tm.Helper()
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := tm.Client.Status().Patch(tm.Context(), target, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		tm.Fatal(err)
	}
}

// patch changes the node as `kubectl taint` does, without a resourceVersion.
func (tm team) patch(name, patch string) {
	tm.Helper()
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := tm.Client.Patch(tm.Context(), target, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		tm.Fatal(err)
	}
}

func (tm team) get(name string) *corev1.Node {
	tm.Helper()
	n := &corev1.Node{}
	if err := tm.Client.Get(tm.Context(), client.ObjectKey{Name: name}, n); err != nil {
		tm.Fatal(err)
	}
	return n
}

// until polls until check returns nil. After patience it fails the test with the last error.
func (tm team) until(what string, check func() error) {
	tm.Helper()
	clustertest.Until(tm, patience, what, check)
}

// becomes waits until the node is in a phase, and returns it.
func (tm team) becomes(name string, phase causes.Phase) (n *corev1.Node, r *causes.Record) {
	tm.Helper()
	tm.until(fmt.Sprintf("node %s becomes %s", name, phase), func() error {
		n = tm.get(name)
		text, ok := n.Annotations[conditions.AnnotationQuarantine]
		if !ok {
			return fmt.Errorf("no record; conditions %+v", n.Status.Conditions)
		}
		var err error
		if r, err = causes.ParseRecord(text); err != nil {
			return err
		}
		if r.Phase != phase {
			return fmt.Errorf("the record is %s", text)
		}
		return nil
	})
	return n, r
}

// events lists the Events about a node as "reason: message", an Event with a series once for each occurrence.
func (tm team) events(uid types.UID) []string {
	tm.Helper()
	var list eventsv1.EventList
	if err := tm.Client.List(tm.Context(), &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		tm.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		if e.Regarding.UID != uid || e.ReportingController != quarantine.ControllerName {
			continue
		}
		times := 1
		if e.Series != nil {
			times = int(e.Series.Count)
		}
		for range times {
			all = append(all, e.Reason+": "+e.Note)
		}
	}
	return all
}

// waitForEvent waits for an Event about a node, and fails the test if it occurred more than once.
func (tm team) waitForEvent(uid types.UID, text string) {
	tm.Helper()
	tm.until("an Event with "+text, func() error {
		switch n := tm.times(uid, text); n {
		case 0:
			return fmt.Errorf("Events %q", tm.events(uid))
		case 1:
			return nil
		default:
			tm.Fatalf("%d occurrences in %q", n, tm.events(uid))
			return nil
		}
	})
}

func (tm team) times(uid types.UID, text string) int {
	tm.Helper()
	n := 0
	for _, event := range tm.events(uid) {
		if strings.Contains(event, text) {
			n++
		}
	}
	return n
}

func taints(n *corev1.Node) string {
	var all []string
	for _, t := range n.Spec.Taints {
		all = append(all, t.ToString())
	}
	return strings.Join(all, " ")
}

// avoids is one more rule for the pool, which acts on [conditions.SlowNode] immediately.
func (tm team) avoids() string {
	return fmt.Sprintf("\n    soft:\n      match: {condition: SlowNode, repair: [Inspect], nodeSelector: {%s: %s}}\n      unknownAfter: never\n      taint: {effect: PreferNoSchedule}",
		cluster.LabelPool, tm.pool)
}

const ourTaint = "pitcrew.dev/unhealthy=GPUXidError:NoSchedule"

// untouched fails the test if the remediator has ever written to the node.
func (tm team) untouched(name string) {
	tm.Helper()
	n := tm.get(name)
	for _, m := range n.ManagedFields {
		if m.Manager == quarantine.ControllerName {
			tm.Errorf("node %s was written to: %s; taints %s", name, n.Annotations, taints(n))
		}
	}
}

var errStill = errors.New("not yet")
