package node

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// These name nodes, so that an alert can. Only a node that somebody should look at has series, which bounds their number
// by that of the problems.
var (
	problemDesc = prometheus.NewDesc("pitcrew_node_problem_timestamp_seconds",
		"Since when, in Unix time, a condition that the policy names is a problem, with the repair that it wants, or says nothing: Unknown, or Stale when nobody confirms it.",
		[]string{"node", "condition", "repair", "status"}, nil)
	quarantineDesc = prometheus.NewDesc("pitcrew_node_quarantine_timestamp_seconds",
		"Since when, in Unix time, the node is quarantined, by the deciding rule of the policy and the repair that it wants.",
		[]string{"node", "rule", "repair"}, nil)
	blockedDesc = prometheus.NewDesc("pitcrew_node_blocked",
		"1 while a decision about the node is held back, by the rule and by what holds it back.",
		[]string{"node", "rule", "reason"}, nil)
	skippedDesc = prometheus.NewDesc("pitcrew_skipped_nodes", "Nodes that label "+conditions.LabelSkip+"=true keeps our hands off.", nil, nil)
)

// stale is the status of a condition that nobody has confirmed for longer than its rules believe it.
const stale = "Stale"

// reading is what a condition of a node says, as metrics show it.
type reading struct {
	// repair is the class that the matching rule goes by; empty when no rule sees a problem.
	repair, status string
	since          time.Time
}

// read is false for a condition that no rule names.
func (c collector) read(p *policy.Policy, n *corev1.Node, condition corev1.NodeCondition) (reading, bool) {
	limit, named := p.UnknownAfter(condition.Type)
	if !named {
		return reading{}, false
	}
	r := reading{status: string(condition.Status), since: condition.LastTransitionTime.Time}
	if _, class, ok := p.Match(n.Labels, condition); ok {
		r.repair = class.String()
	}
	confirmed := condition.LastHeartbeatTime.Time
	if c.now().Sub(confirmed) > limit && (r.repair != "" || !conditions.IsVerdict(string(condition.Type))) {
		r.status, r.since = stale, confirmed.Add(limit)
	}
	return r, true
}

// collectNodes names the nodes that somebody should look at.
func (c collector) collectNodes(out chan<- prometheus.Metric, nodes []corev1.Node) {
	p, writes := c.policy.Policy(), c.memory.all()
	skipped := 0
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[conditions.LabelSkip] == "true" {
			skipped++
		}
		for _, condition := range n.Status.Conditions {
			r, named := c.read(p, n, condition)
			// Whoever maintains a node knows that it is silent.
			silent := (r.status == stale || r.status == string(corev1.ConditionUnknown)) && !maintained(n)
			if named && (r.repair != "" || silent) {
				out <- prometheus.MustNewConstMetric(problemDesc, prometheus.GaugeValue, unix(r.since), n.Name, string(condition.Type), r.repair, r.status)
			}
		}
		record, err := RecordOf(n)
		if written, ok := writes[n.Name]; ok {
			record, err = written.record, nil
		}
		if err == nil && record != nil && record.Phase == Quarantined {
			out <- prometheus.MustNewConstMetric(quarantineDesc, prometheus.GaugeValue, unix(record.QuarantinedAt), n.Name, record.Taint.Rule, record.worst().String())
		}
	}
	out <- prometheus.MustNewConstMetric(skippedDesc, prometheus.GaugeValue, float64(skipped))
	for name, b := range c.memory.heldBack() {
		out <- prometheus.MustNewConstMetric(blockedDesc, prometheus.GaugeValue, 1, name, b.Rule, b.Reason)
	}
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// heldBack is what is held back now, by node.
func (m *memory) heldBack() map[string]Blocked {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes := map[string]Blocked{}
	for name, b := range m.said {
		if !strings.HasPrefix(name, frozen("")) {
			nodes[name] = b
		}
	}
	return nodes
}
