package main

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// One link breaks, 18 nodes report it and have lost the label of their fabric: with a budget of one node and the guard against common
// causes, one node is quarantined for a repair and 17 are kept from new jobs. They return with it.
func TestOneBrokenLinkOfARack(t *testing.T) {
	const clique, size = "nvidia.com/gpu.clique", 18
	tm := newTeam(t, "rack", size, func(n *corev1.Node) { n.Labels[clique] = "fabric.1" })
	policy := tm.policy(1, "restartJobs: true", "clearAfter: 1s")
	tm.rewrite(policy, "  rules:", `  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [`+clique+`]}
  breaker: {maxNodes: 1, window: 10m, coolDown: 30m, pace: 5m}
  domains: [{label: `+clique+`}]
  rules:`)
	tm.start(policy, alone)
	for _, name := range tm.nodes { // all healthy, so that the domain of each is known
		tm.report(name, "False", "fine")
	}
	probe := tm.nodes[size-1]
	tm.patch(probe, `{"metadata":{"annotations":{"`+conditions.AnnotationQuarantine+`":"x"}}}`)
	tm.waitForEvent(tm.get(probe).UID, "cannot be read") // the remediator has seen the nodes
	tm.patch(probe, `{"metadata":{"annotations":{"`+conditions.AnnotationQuarantine+`":null}}}`)
	for _, name := range tm.nodes {
		tm.patch(name, `{"metadata":{"labels":{"`+clique+`":null}}}`)
	}
	const origin = 7
	for i, name := range tm.nodes {
		message := "ResetGPU gpu 0018:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 13"
		if i == origin {
			message = "ResetGPU gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"
		}
		tm.report(name, "True", message)
	}
	for i, name := range tm.nodes {
		n, r := tm.becomes(name, causes.Quarantined)
		want := "Inspect " + tm.nodes[origin]
		if i == origin {
			want = "ResetGPU "
		}
		if got := n.Labels[conditions.LabelRepair] + " " + r.Taint.HeldFor; got != want || taints(n) != ourTaint {
			t.Errorf("node %s is for %q, want %q; taints %q", name, got, want, taints(n))
		}
	}
	tm.report(tm.nodes[origin], "False", "fine")
	for i, name := range tm.nodes {
		tm.until(fmt.Sprintf("node %s is back", name), func() error {
			if got := taints(tm.get(name)); got != "" {
				return errors.New(got)
			}
			return nil
		})
		if i != origin {
			tm.waitForEvent(tm.get(name).UID, "the quarantine of node "+tm.nodes[origin])
		}
	}
}
