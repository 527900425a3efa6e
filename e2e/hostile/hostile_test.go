// Package hostile runs the built remediator under the memory limit of the chart, in a cluster in which all others have made what they may
// write as large as it gets.
package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{APIOnly: true}) }

const (
	patience = 3 * time.Minute
	// limit is that of the chart, in bytes.
	limit = 256 << 20
	nodes = 1000
	// reports are those of one tenant, as large as a report may be.
	reports, tenant = 2500, "mallory"
	// promptly is how soon the taint must be there, while the machine does much else. docs/benchmarks.md has how long it took.
	promptly = 20 * time.Second

	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 5}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}}
`
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
)

// All nodes but a few are hostile at once, and a tenant. The remediator is not killed for its memory, however the API server gives it what
// there is, and also when it starts anew; an honest node with a fault is tainted promptly meanwhile.
func TestHostileNodesDoNotKillTheRemediator(t *testing.T) {
	s := &scene{T: t, Cluster: clustertest.Get(t)}
	begun := time.Now()
	s.fill()
	t.Logf("filled in %s", time.Since(begun))
	for mode, streams := range map[string]string{"streamed": "true", "listed": "false"} {
		g := s.limited(mode)
		for start := range 2 {
			honest := fmt.Sprintf("honest-%s-%d", mode, start)
			s.must(s.Client.Create(t.Context(), ready(honest)))
			p := s.run(g, "KUBE_FEATURE_WatchListClient="+streams)
			s.decides(p)
			took := s.taints(p, honest)
			p.stop()
			t.Logf("%s, start %d: tainted after %s; %s", mode, start+1, took.Round(time.Millisecond), g.usage())
			if took > promptly {
				t.Errorf("%s, start %d: tainted after %s", mode, start+1, took)
			}
		}
	}
}

// scene is a cluster whose nodes are hostile.
type scene struct {
	*testing.T
	*cluster.Cluster
}

// Context is that of the test.
func (s *scene) Context() context.Context { return s.T.Context() }

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// fill makes the hostile nodes and what the tenant has.
func (s *scene) fill() {
	s.must(s.InstallRemediator(s.Context()))
	s.must(s.Client.Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}))
	roles, err := os.ReadFile(filepath.Join(s.Root, "manifests", "preflight", "namespace", "roles.yaml"))
	s.must(err)
	s.must(s.Apply(s.Context(), bytes.ReplaceAll(roles, []byte("metadata:\n"), []byte("metadata:\n  namespace: "+tenant+"\n"))))
	s.store(nodes, func(i int) client.Object {
		n := ready(fmt.Sprintf("hostile-%04d", i))
		n.UID, n.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		grow(n, i)
		n.Annotations[conditions.AnnotationQuarantine] = record(n.UID, i)
		return n
	})
	s.store(reports, func(i int) client.Object {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: tenant, Name: fmt.Sprint("report-", i), UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
				Labels:      map[string]string{conditions.LabelPreflight: "report", conditions.LabelPreflightRun: fmt.Sprint("run-", i%10)},
				Annotations: map[string]string{conditions.AnnotationPreflightPod: text(i, 12<<10)},
			},
			Data: map[string]string{reportconfigmap.Key: text(i, report.MaxBytes)},
		}
	})
}

// store stores so many objects, as they are after what their owners have done.
func (s *scene) store(n int, make func(i int) client.Object) {
	s.Helper()
	const atOnce = 16
	var some []client.Object
	for i := range n {
		if some = append(some, make(i)); len(some) == atOnce || i == n-1 {
			s.must(s.Store(s.Context(), some...))
			some = nil
		}
	}
}

// ready is an honest node.
func ready(name string) *corev1.Node {
	now := metav1.Now()
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}, Status: corev1.NodeStatus{
		NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-" + name},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}},
	}}
}

// grow makes a node large: most are as large as what is kept of one, the others larger, each in another way.
func grow(n *corev1.Node, i int) {
	condition := func(size int) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprint("Hostile", len(n.Status.Conditions))), Status: corev1.ConditionTrue, Message: text(i, size),
		})
	}
	labels := func(count int) {
		for k := range count {
			n.Labels[fmt.Sprintf("l%d-%d", i, k)] = text(i, 40)
		}
	}
	switch i % 8 {
	case 0:
		labels(4000)
	case 1:
		for k := range 1500 {
			n.Annotations[fmt.Sprintf("a%d-%d", i, k)] = text(i, 120)
		}
	case 2:
		condition(1_200_000)
	case 3:
		for k := range 2000 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("t%d-%d", i, k), Value: text(i, 60), Effect: corev1.TaintEffectPreferNoSchedule})
		}
	default: // 16 KiB of labels, as many of conditions, and the record: nearly what is kept
		labels(100)
		for range 20 {
			condition(600)
		}
	}
	for k := range 300 { // dropped
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry/%d/%d", i, k), text(i, 100)}})
	}
}

// record is a record that is as large as any that is read.
func record(of types.UID, i int) string {
	r := causes.Record{V: 1, NodeUID: of, Quarantine: causes.Quarantine{ID: "forged", Phase: causes.Released, Causes: []causes.Cause{}}}
	for len(r.String()) < causes.MaxRecord-5000 {
		cause := causes.Cause{Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Message: text(i, causes.MaxText), BootID: "b"}
		r.Last = append(r.Last, causes.Quarantine{ID: "forged", Phase: causes.Released, Causes: []causes.Cause{cause, cause}})
	}
	return r.String()
}

// text is a text of so many bytes that no other number has.
func text(i, bytes int) string { return strings.Repeat(fmt.Sprintf("x%07d", i), bytes/8+1)[:bytes] }

var tooLarge = regexp.MustCompile(`(?m)^pitcrew_node_blocked\{.*reason="too-large".*\} 1$`)

// decides waits until the remediator has decided about the hostile nodes.
func (s *scene) decides(p *process) {
	s.Helper()
	clustertest.Until(s.T, patience, "all is decided about", func() error {
		if err := p.err(); err != nil {
			s.Fatal(err)
		}
		text, err := p.scrape(s.Context())
		if n := len(tooLarge.FindAllString(text, -1)); n != nodes/2 {
			return fmt.Errorf("%d nodes are too large to judge: %w", n, err)
		}
		return nil
	})
}

// taints returns how long it takes until an honest node with a fault is tainted, while the hostile kubelets change their nodes.
func (s *scene) taints(p *process, honest string) time.Duration {
	s.Helper()
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	var kubelets errgroup.Group
	for k := range 4 {
		kubelets.Go(func() error {
			for i := k; ctx.Err() == nil; i += 4 {
				if err := s.shows(ctx, fmt.Sprintf("hostile-%04d", i%nodes), "Hostile", text(i, 2000)); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	begun := time.Now()
	s.must(s.shows(ctx, honest, conditions.GPUXidError, lost))
	clustertest.Until(s.T, patience, honest+" is tainted", func() error {
		if err := p.err(); err != nil {
			s.Fatal(err)
		}
		var n corev1.Node
		if err := s.Client.Get(ctx, client.ObjectKey{Name: honest}, &n); err != nil {
			return err
		}
		if !node.HasTaint(n.Spec.Taints, conditions.TaintUnhealthy) {
			return errors.New("no taint")
		}
		return nil
	})
	took := time.Since(begun)
	stop()
	s.must(kubelets.Wait())
	return took
}

// shows has a node report a condition.
func (s *scene) shows(ctx context.Context, name string, condition corev1.NodeConditionType, message string) error {
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: condition, Status: corev1.ConditionTrue, Reason: "Shown", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return err
	}
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	target.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return s.Client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch))
}
