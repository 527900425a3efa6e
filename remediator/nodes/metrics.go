package nodes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
)

var (
	conditionDesc = prometheus.NewDesc("pitcrew_node_condition",
		"Nodes by the status of each condition that the policy names; Stale when its heartbeat is older than the rule's unknownAfter.",
		[]string{"condition", "repair", "status"}, nil)
	watchedDesc = prometheus.NewDesc("pitcrew_watched_nodes",
		"Nodes with a condition that the policy names, other than Ready.", nil, nil)
	quarantinedDesc = prometheus.NewDesc("pitcrew_quarantined_nodes", "Nodes that are quarantined, by the deciding rule of the policy.",
		[]string{"rule"}, nil)
	modeDesc = prometheus.NewDesc("pitcrew_mode",
		"1 for the mode of the leader: enforce, observe (spec.mode of the policy) or dry-run (its flag).", []string{"mode"}, nil)
	pausedDesc = prometheus.NewDesc("pitcrew_paused",
		"1 while ConfigMap "+conditions.PauseConfigMap+" pauses quarantines, releases and restarts.", nil, nil)
)

// collector counts what the cache shows when it is asked, so that no series outlives its node.
type collector struct{ *Controller }

// Describe sends nothing: which series exist follows from the cluster.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect counts nodes, on the leader only, so that a sum over replicas is right.
func (c collector) Collect(out chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(conditionDesc, err)
		return
	}
	counts, watched := c.countConditions(nodes.Items)
	out <- prometheus.MustNewConstMetric(watchedDesc, prometheus.GaugeValue, watched)
	for key, count := range counts {
		out <- prometheus.MustNewConstMetric(conditionDesc, prometheus.GaugeValue, count, key[:]...)
	}
	c.collectNodes(out, nodes.Items)
	for _, r := range c.policy.Policy().Rules {
		quarantined, err := c.quarantinedBy(ctx, r.Name)
		if err != nil {
			out <- prometheus.NewInvalidMetric(quarantinedDesc, err)
			return
		}
		out <- prometheus.MustNewConstMetric(quarantinedDesc, prometheus.GaugeValue, float64(len(quarantined)), r.Name)
	}
	if c.policy.Known() {
		out <- prometheus.MustNewConstMetric(modeDesc, prometheus.GaugeValue, 1, c.mode())
	}
	reason, err := pause.Reason(ctx, c.client, c.namespace)
	if err != nil {
		out <- prometheus.NewInvalidMetric(pausedDesc, err)
		return
	}
	paused := 0.0
	if reason != "" {
		paused = 1
	}
	out <- prometheus.MustNewConstMetric(pausedDesc, prometheus.GaugeValue, paused)
}

// mode is what the controller does with its decisions.
func (c collector) mode() string {
	switch {
	case c.dryRun:
		return "dry-run"
	case c.policy.Policy().Observe:
		return "observe"
	}
	return "enforce"
}

// countConditions counts nodes by condition, class and status, and those with a condition that the policy names: Ready is on all nodes.
func (c collector) countConditions(nodes []corev1.Node) (counts map[[3]string]float64, watched float64) {
	p := c.policy.Policy()
	counts = map[[3]string]float64{}
	for i := range nodes {
		isWatched := false
		for _, condition := range nodes[i].Status.Conditions {
			r, named := c.readingOf(p, &nodes[i], condition)
			if !named {
				continue
			}
			counts[[3]string{string(condition.Type), r.repair, r.status}]++
			isWatched = isWatched || condition.Type != corev1.NodeReady
		}
		if isWatched {
			watched++
		}
	}
	return counts, watched
}

// quarantinedBy names the nodes that a rule has quarantined, from the cache and from the pending writes.
func (c collector) quarantinedBy(ctx context.Context, rule string) (map[string]bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.MatchingFields{indexQuarantined: rule}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list quarantined nodes: %w", err)
	}
	names := map[string]bool{}
	for i := range nodes.Items {
		names[nodes.Items[i].Name] = true
	}
	for name, write := range c.pending.All() {
		delete(names, name)
		if slices.Contains(indexRecord(write.Record), rule) {
			names[name] = true
		}
	}
	return names, nil
}
