package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const slowPolicy = testPolicy + `
    slow:
      match: {condition: SlowNode, repair: [Inspect]}
      unknownAfter: 168h
`

// series are the lines with which the leader names nodes.
func (r rig) series(t *testing.T) string {
	t.Helper()
	elected := make(chan struct{})
	close(elected)
	r.elected = elected
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{r.Controller})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	var named strings.Builder
	for line := range strings.Lines(text.String()) {
		if strings.Contains(line, `node="`) || strings.HasPrefix(line, "pitcrew_skipped_nodes") {
			named.WriteString(line)
		}
	}
	return named.String()
}

func TestOnlyNodesThatNeedAttentionAreNamed(t *testing.T) {
	old, fresh := -12*time.Minute, -time.Minute
	tests := map[string]struct {
		kind, status, message string
		heartbeat             time.Duration
		change                func(*corev1.Node)
		want                  string
	}{
		"healthy":    {kind: "GPUXidError", status: "False", heartbeat: fresh},
		"problem":    {kind: "GPUXidError", status: "True", message: ecc, heartbeat: fresh, want: `condition="GPUXidError",node="n",repair="ResetGPU",status="True"} 1.7951616e+09`},
		"no rule":    {kind: "GPUXidError", status: "True", message: "RestartApp gpu 0000:1b:00: Xid 94", heartbeat: fresh},
		"unknown":    {kind: "GPUXidError", status: "Unknown", heartbeat: fresh, want: `condition="GPUXidError",node="n",repair="",status="Unknown"} 1.7951616e+09`},
		"silent":     {kind: "GPUXidError", status: "False", heartbeat: old, want: `condition="GPUXidError",node="n",repair="",status="Stale"} 1.79517594e+09`},
		"ill, stale": {kind: "GPUXidError", status: "True", message: ecc, heartbeat: old, want: `condition="GPUXidError",node="n",repair="ResetGPU",status="Stale"} 1.79517594e+09`},
		"ahead":      {kind: "GPUXidError", status: "True", message: ecc, heartbeat: time.Hour, want: `condition="GPUXidError",node="n",repair="ResetGPU",status="Stale"} 1.7951616e+09`},
		// A kubelet writes any text, and a label that is no UTF-8 ends the program.
		"no status of Kubernetes": {kind: "GPUXidError", status: "True\xff", message: ecc, heartbeat: fresh, want: `condition="GPUXidError",node="n",repair="",status="Unknown"} 1.7951616e+09`},
		"foreign":                 {kind: "KernelDeadlock", status: "True", heartbeat: fresh},
		"verdict":                 {kind: "SlowNode", status: "False", heartbeat: -1000 * time.Hour},
		"old verdict": {kind: "SlowNode", status: "True", message: "Inspect node: confirmed slow", heartbeat: -169 * time.Hour,
			want: `condition="SlowNode",node="n",repair="Inspect",status="Stale"} 1.7951724e+09`},
		"maintained": {kind: "GPUXidError", status: "Unknown", heartbeat: old, change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance}}
		}},
		"maintained, ill": {kind: "GPUXidError", status: "True", message: ecc, heartbeat: fresh, change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance}}
		}, want: `condition="GPUXidError",node="n",repair="ResetGPU",status="True"} 1.7951616e+09`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Parse([]byte(slowPolicy))
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, "n")
			r.policy = policy.Fixed(p)
			r.client.nodes[0].Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeConditionType(test.kind), Status: corev1.ConditionStatus(test.status), Message: test.message,
				LastHeartbeatTime:  metav1.NewTime(r.clock.Now().Add(test.heartbeat)),
				LastTransitionTime: metav1.NewTime(r.clock.Now().Add(-4 * time.Hour)),
			}}
			if test.change != nil {
				test.change(&r.client.nodes[0])
			}
			want := "pitcrew_skipped_nodes 0\n"
			if test.want != "" {
				want = "pitcrew_node_problem_timestamp_seconds{" + test.want + "\n" + want
			}
			if diff := cmp.Diff(want, r.series(t)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestQuarantinesAndWhatIsHeldBackAreNamed(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	r.client.nodes[2].Labels = map[string]string{conditions.LabelSkip: "true"}
	r.client.nodes[2].Status.Conditions = nil
	for _, name := range []string{"a", "b", "c"} {
		r.reconcile(t, name)
	}
	const want = `pitcrew_node_blocked{node="b",reason="budget",rule="gpu"} 1
pitcrew_node_quarantine_timestamp_seconds{effect="NoSchedule",node="a",repair="ResetGPU",rule="gpu"} 1.795176e+09
pitcrew_skipped_nodes 1
`
	var got strings.Builder
	for line := range strings.Lines(r.series(t)) {
		if !strings.HasPrefix(line, "pitcrew_node_problem") {
			got.WriteString(line)
		}
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	r.forget("b")
	if left := r.series(t); strings.Contains(left, "pitcrew_node_blocked") {
		t.Errorf("a node that is gone is still held back:\n%s", left)
	}
}

func TestTheModeIsShown(t *testing.T) {
	for want, change := range map[string]func(*Controller, *policy.Policy){
		"enforce": func(*Controller, *policy.Policy) {},
		"observe": func(_ *Controller, p *policy.Policy) { p.Observe = true },
		"dry-run": func(c *Controller, _ *policy.Policy) { c.dryRun = true },
	} {
		r := newRig(t, "n")
		change(r.Controller, r.policy.Policy())
		if got := (collector{r.Controller}).mode(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The alert of a condition is a warning once a taint keeps new pods off the node.
func TestTheMetricOfAQuarantineHasTheEffectOfItsTaint(t *testing.T) {
	for name, test := range map[string]struct {
		effect corev1.TaintEffect
		dryRun bool
		want   string
	}{
		"no new pods": {corev1.TaintEffectNoSchedule, false, "NoSchedule"},
		"no pods":     {corev1.TaintEffectNoExecute, false, "NoExecute"},
		"avoided":     {corev1.TaintEffectPreferNoSchedule, false, "PreferNoSchedule"},
		"forged":      {"x", false, ""},
		"a dry run":   {corev1.TaintEffectNoSchedule, true, ""},
	} {
		c := collector{&Controller{dryRun: test.dryRun}}
		record := &causes.Record{Quarantine: causes.Quarantine{Taint: &causes.Taint{Effect: test.effect}}}
		if got := c.effectOn(record); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Every node has Ready: one that no check has ever watched adds nothing to the node-days of docs/reliability.md.
func TestNodesWithAConditionOfThePolicyAreWatched(t *testing.T) {
	node := func(types ...corev1.NodeConditionType) corev1.Node {
		n := corev1.Node{}
		for _, kind := range types {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse})
		}
		return n
	}
	p, err := policy.Parse([]byte(strings.Replace(slowPolicy, "  rules:", `  correlated: {maxPercent: 50, minNodes: 4, window: 2m}
  rules:
    dead:
      match: {condition: Ready, status: [Unknown], repair: [Inspect]}
      for: 2m`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	c := collector{&Controller{policy: policy.Fixed(p), clock: clocktesting.NewFakePassiveClock(time.Now())}}
	nodes := []corev1.Node{node(corev1.NodeReady, "GPUXidError", "SlowNode"), node("SlowNode", corev1.NodeReady), node(corev1.NodeReady), node("KernelDeadlock")}
	if _, watched := c.countConditions(nodes); watched != 2 {
		t.Errorf("%v nodes are watched", watched)
	}
}
