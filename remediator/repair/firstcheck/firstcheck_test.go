package firstcheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const head = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  budget: {maxNodes: 1}
  firstCheck: {}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot]}}
    npu: {match: {condition: AscendNPUUnhealthy, repair: [Reboot]}}
    heat: {match: {condition: GPUOverheated, repair: [Inspect]}, alertOnly: true}
`

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func newNode(age time.Duration) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", CreationTimestamp: metav1.NewTime(noon.Add(-age)), Labels: map[string]string{"gpu": "h100"}}}
	n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

func parse(t *testing.T, pools string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(head + pools))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What a node is waited for is what its pools report and a rule acts on; without a pool the text says why it is everything.
func TestConditionsAreThoseOfThePool(t *testing.T) {
	n := newNode(time.Minute)
	for pools, want := range map[string]string{
		"": "[AscendNPUUnhealthy GPUXidError] no report of this boot yet of AscendNPUUnhealthy, GPUXidError; no pool of spec.pools has the node, so every condition that a rule names is waited for",
		"  pools: {a: {nodeSelector: {gpu: b200}, conditions: [GPUXidError]}}":                                                                              "[AscendNPUUnhealthy GPUXidError] no report of this boot yet of AscendNPUUnhealthy, GPUXidError; no pool of spec.pools has the node, so every condition that a rule names is waited for",
		"  pools: {a: {nodeSelector: {gpu: h100}, conditions: [GPUOverheated, GPUXidError]}}":                                                               "[GPUXidError] no report of this boot yet of GPUXidError",
		"  pools: {a: {matchExpressions: [{key: gpu, operator: NotIn, values: [b200]}], conditions: [GPUXidError]}, b: {conditions: [AscendNPUUnhealthy]}}": "[AscendNPUUnhealthy GPUXidError] no report of this boot yet of AscendNPUUnhealthy, GPUXidError",
	} {
		p := parse(t, pools)
		if got := fmt.Sprint(Conditions(p, n), " ", Text(p, n, Gaps(p, n, nil, noon))); got != want {
			t.Errorf("%s:\n got %s\nwant %s", pools, got, want)
		}
	}
}

func TestWaitsLong(t *testing.T) {
	p := parse(t, "  pools: {a: {conditions: [GPUXidError]}}")
	quarantined := &causes.Record{NodeUID: "n"}
	quarantined.Phase = causes.Quarantined
	for name, test := range map[string]struct {
		age      time.Duration
		change   func(*corev1.Node)
		q        *causes.Record
		underWay bool
		want     string
	}{
		"young":       {age: Late - time.Second},
		"late":        {age: Late, want: "15m0s GPUXidError"},
		"quarantined": {age: Late, q: quarantined},
		"under way":   {age: Late, underWay: true},
		"checked":     {age: Late, change: func(n *corev1.Node) { n.Spec.Taints = nil }},
		"skipped":     {age: Late, change: func(n *corev1.Node) { n.Labels[conditions.LabelSkip] = "true" }},
	} {
		n := newNode(test.age)
		if test.change != nil {
			test.change(n)
		}
		waited, gaps := WaitsLong(p, n, test.q, test.underWay, noon)
		got := ""
		if waited > 0 {
			got = waited.String()
		}
		for _, l := range gaps {
			got += " " + l.Condition + l.Why
		}
		if got = strings.TrimSpace(got); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
