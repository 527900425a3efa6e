package nodes

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/soperator"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// statuses is a client that keeps what was to be written to the conditions of nodes.
type statuses struct {
	*laggard
	written []corev1.NodeCondition
}

func (c *statuses) Status() client.SubResourceWriter { return statusWriter{statuses: c} }

type statusWriter struct {
	client.SubResourceWriter
	*statuses
}

func (w statusWriter) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	var body struct{ Status corev1.NodeStatus }
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	w.written = append(w.written, body.Status.Conditions...)
	return nil
}

// newSoperatorRig is a rig of one faulty node that shows a condition of ours, with the output on or off.
func newSoperatorRig(t *testing.T, output bool) (rig, *statuses) {
	t.Helper()
	r := newRig(t, "a")
	p, err := policy.Parse([]byte(testPolicy))
	if err != nil {
		t.Fatal(err)
	}
	p.Output.Soperator = output
	r.policy = policy.Fixed(p)
	status := &statuses{laggard: r.client}
	r.Controller.client = status
	r.soperator = soperator.New(status, liveReads{r.client}, r.clock)
	r.client.nodes[0].Status.Conditions = append(r.client.nodes[0].Status.Conditions, corev1.NodeCondition{
		Type: policy.SoperatorCondition, Status: corev1.ConditionTrue, Reason: handoff.Suspected, LastTransitionTime: metav1.NewTime(r.clock.Now().Add(-time.Hour)),
	})
	return r, status
}

// writeConditions writes what is to be written to the conditions for soperator.
func (r rig) writeConditions(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it ends when nothing is left to do
	if err := r.soperator.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// undecided are nodes about which nothing is decided.
var undecided = map[string]func(*corev1.Node){
	"skipped":       func(n *corev1.Node) { n.Labels = map[string]string{conditions.LabelSkip: "true"} },
	"broken record": func(n *corev1.Node) { n.Annotations = map[string]string{conditions.AnnotationQuarantine: "{"} },
}

// What soperator was told does not stay when the output is switched off, also on nodes about which nothing is decided.
func TestSwitchingOffSoperatorClearsEveryNode(t *testing.T) {
	tests := map[string]func(*corev1.Node){"decided": func(*corev1.Node) {}}
	for name, change := range undecided {
		tests[name] = change
	}
	for name, change := range tests {
		r, status := newSoperatorRig(t, false)
		change(&r.client.nodes[0])
		r.reconcile(t, "a")
		r.writeConditions(t)
		if len(status.written) != 1 || status.written[0].Status != corev1.ConditionFalse || status.written[0].Reason != handoff.Cleared {
			t.Errorf("%s: written %v", name, status.written)
		}
	}
}

// While the output is on, a node about which nothing is decided keeps its condition.
func TestSoperatorKeepsWhatItWasToldOfUndecidedNodes(t *testing.T) {
	for name, change := range undecided {
		r, status := newSoperatorRig(t, true)
		change(&r.client.nodes[0])
		r.reconcile(t, "a")
		r.writeConditions(t)
		if len(status.written) > 0 {
			t.Errorf("%s: written %v", name, status.written)
		}
	}
}
