package nodes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// These name nodes, so that an alert can. Only a node that needs attention has series, which bounds their number by that of
// the problems.
var (
	problemDesc = prometheus.NewDesc("pitcrew_node_problem_timestamp_seconds",
		"Since when, in Unix time, a condition that the policy names is a problem, with the repair that it needs, or is not known: Unknown, "+
			"or Stale when its heartbeat is too old or from the future.",
		[]string{"node", "condition", "repair", "status"}, nil)
	quarantineDesc = prometheus.NewDesc("pitcrew_node_quarantine_timestamp_seconds",
		"Since when, in Unix time, the node is quarantined, by the deciding rule of the policy and the repair that it needs. With the effect "+
			"PreferNoSchedule it stays in service.",
		[]string{"node", "rule", "repair", "effect"}, nil)
	blockedDesc = prometheus.NewDesc("pitcrew_node_blocked",
		"1 while a decision about the node is held back, by the rule and by what holds it back.",
		[]string{"node", "rule", "reason"}, nil)
	staleUpgradeDesc = prometheus.NewDesc("pitcrew_node_stale_upgrade_timestamp_seconds",
		"Since when, in Unix time, a driver upgrade of the GPU operator is in the same step on a node, once that is too long and the label "+
			"is ignored.",
		[]string{"node"}, nil)
	skippedDesc = prometheus.NewDesc("pitcrew_skipped_nodes", "Nodes that are left alone because of label "+conditions.LabelSkip+"=true.",
		nil, nil)
)

// stale is the status of a condition whose heartbeat is older than the unknownAfter of its rules, or from the future.
const stale = "Stale"

// reading is the state of a condition of a node, as metrics show it.
type reading struct {
	// repair is the class by the rule that matches; empty when none does.
	repair, status string
	since          time.Time
}

// readingOf is false for a condition that no rule names.
func (c collector) readingOf(p *policy.Policy, n *corev1.Node, condition corev1.NodeCondition) (reading, bool) {
	limit, named := p.UnknownAfter(condition.Type)
	if !named {
		return reading{}, false
	}
	r := reading{status: statusOf(condition), since: condition.LastTransitionTime.Time}
	if _, class, ok := p.Match(n.Labels, condition); ok {
		r.repair = class.String()
	}
	heartbeat, now := condition.LastHeartbeatTime.Time, c.clock.Now()
	switch {
	case r.repair == "" && causes.IsVerdict(condition.Type):
	case causes.FromFuture(heartbeat, now):
		r.status = stale
	case now.Sub(heartbeat) > limit:
		r.status, r.since = stale, heartbeat.Add(limit)
	}
	return r, true
}

// statusOf is the status of a condition as a label: Unknown, if Kubernetes has no such status. The API server keeps any text that a kubelet
// writes; each would be another series, and one that is no UTF-8 would end the program.
func statusOf(condition corev1.NodeCondition) string {
	switch condition.Status {
	case corev1.ConditionTrue, corev1.ConditionFalse:
		return string(condition.Status)
	default:
		return string(corev1.ConditionUnknown)
	}
}

// collectNodes names the nodes that need attention.
func (c collector) collectNodes(out chan<- prometheus.Metric, nodes []corev1.Node) {
	p, pending := c.policy.Policy(), c.pending.All()
	skipped := 0
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[conditions.LabelSkip] == "true" {
			skipped++
		}
		for _, condition := range n.Status.Conditions {
			r, named := c.readingOf(p, n, condition)
			// Whoever maintains a node knows that its detectors may not run.
			unknown := (r.status == stale || r.status == string(corev1.ConditionUnknown)) && !node.Maintained(n, c.clock.Now())
			if named && (r.repair != "" || unknown) {
				out <- prometheus.MustNewConstMetric(problemDesc, prometheus.GaugeValue, unix(r.since), n.Name, string(condition.Type), r.repair,
					r.status)
			}
		}
		if since, known := node.UpgradeSince(n); known && !node.Maintained(n, c.clock.Now()) {
			out <- prometheus.MustNewConstMetric(staleUpgradeDesc, prometheus.GaugeValue, unix(since), n.Name)
		}
		record, err := causes.RecordOf(n)
		if write, ok := pending[n.Name]; ok {
			record, err = write.Record, nil
		}
		if err == nil && record != nil && record.Phase == causes.Quarantined {
			out <- prometheus.MustNewConstMetric(quarantineDesc, prometheus.GaugeValue, unix(record.QuarantinedAt), n.Name,
				memory.KnownRule(p, record.Taint.Rule), record.Worst().String(), c.effectOn(record))
		}
	}
	out <- prometheus.MustNewConstMetric(skippedDesc, prometheus.GaugeValue, float64(skipped))
	for name, b := range c.report.BlockedNodes() {
		out <- prometheus.MustNewConstMetric(blockedDesc, prometheus.GaugeValue, 1, name, memory.KnownRule(p, b.Rule), b.Reason)
	}
}

// effectOn is the effect of the taint of a quarantine; empty if there is none, as in a dry run. Whoever forges records must not make up
// labels of metrics.
func (c collector) effectOn(r *causes.Record) string {
	if c.dryRun {
		return ""
	}
	switch effect := r.Taint.Effect; effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule:
		return string(effect)
	}
	return ""
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
