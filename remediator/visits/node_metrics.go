package visits

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/actions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// The first three name nodes, so that an alert can. Only a node that waits for a person has them.
var (
	failedDesc = prometheus.NewDesc("pitcrew_node_repair_failed_timestamp_seconds",
		"When, in Unix time, the repair or the validation of a quarantined node was given up, and what is advised: replace, reboot or nothing.",
		[]string{"node", "kind", "advice"}, nil)
	waitsDesc = prometheus.NewDesc("pitcrew_node_repair_waits",
		"1 while the repair or a check of a node waits for a person, by the reason: approval, or proof.",
		[]string{"node", "reason"}, nil)
	firstCheckDesc = prometheus.NewDesc("pitcrew_node_first_check_waits",
		"1 while a node waits for its first check for longer than 15 minutes, by each condition that it lacks, or check.",
		[]string{"node", "waits_for"}, nil)
	overdueDesc = prometheus.NewDesc("pitcrew_sweep_overdue_nodes",
		"Nodes that a sweep of the policy could check, and that it has not checked for longer than its `every`.", []string{"sweep"}, nil)
)

// collectAttention names the nodes that wait for a person, and counts those that sweeps are late for.
func (c collector) collectAttention(out chan<- prometheus.Metric, nodes []corev1.Node, now time.Time) {
	p := c.policy.Policy()
	overdue := make([]float64, len(p.Sweeps))
	for i := range nodes {
		n := &nodes[i]
		r, err := c.records.of(n)
		if len(p.Sweeps) > 0 {
			node := sweep.NodeOf(p, n, r, err, sweep.Idle{}, now)
			for i := range p.Sweeps {
				if node.Overdue(&p.Sweeps[i], now) {
					overdue[i]++
				}
			}
		}
		if err != nil {
			continue
		}
		q, err := causes.RecordOf(n)
		if err == nil {
			c.collectFirstCheck(out, n, q, r != nil && r.Current != nil, now)
		}
		if (r == nil || r.Current == nil) && !firstcheck.Waits(p, n) && c.reports.Get(n.Name) == repair.WaitsForProof {
			out <- prometheus.MustNewConstMetric(waitsDesc, prometheus.GaugeValue, 1, n.Name, repair.WaitsForProof)
		}
		if err != nil || q == nil || q.Phase != causes.Quarantined {
			continue
		}
		if v := actions.GivenUp(p, n, r, q); v != nil {
			at := float64(v.EndedAt.UnixMilli()) / 1000
			out <- prometheus.MustNewConstMetric(failedDesc, prometheus.GaugeValue, at, n.Name, string(v.Kind), adviceOf(r, q))
		}
		if repair.AwaitsApproval(p, n, r, q, now) {
			out <- prometheus.MustNewConstMetric(waitsDesc, prometheus.GaugeValue, 1, n.Name, "approval")
		}
	}
	for i, count := range overdue {
		out <- prometheus.MustNewConstMetric(overdueDesc, prometheus.GaugeValue, count, p.Sweeps[i].Name)
	}
}

// collectFirstCheck names what a new node lacks that has waited for long.
func (c collector) collectFirstCheck(out chan<- prometheus.Metric, n *corev1.Node, q *causes.Record, underWay bool, now time.Time) {
	waited, gaps := firstcheck.WaitsLong(c.policy.Policy(), n, q, underWay, now)
	if waited > 0 && len(gaps) == 0 {
		gaps = []firstcheck.Gap{{Condition: "check"}}
	}
	for _, l := range gaps {
		out <- prometheus.MustNewConstMetric(firstCheckDesc, prometheus.GaugeValue, 1, n.Name, l.Condition)
	}
}

// adviceOf is the advice for a quarantine. Whoever forges records must not make up labels of metrics.
func adviceOf(r *visit.Record, q *causes.Record) string {
	if r.Advice == nil || r.Advice.Quarantine != q.ID {
		return ""
	}
	switch do := r.Advice.Do; do {
	case visit.AdviseReplace, visit.AdviseReboot, visit.AdviseReturn:
		return do
	}
	return ""
}
