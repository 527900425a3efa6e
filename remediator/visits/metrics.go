package visits

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// controllerMetrics are what the controller counts itself. What the cache shows is counted by [collector].
type controllerMetrics struct {
	repairs, checks *prometheus.CounterVec
	took            prometheus.Histogram
}

func newMetrics() controllerMetrics {
	return controllerMetrics{
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_repairs_total",
			Help: "Repair actions that have ended, by the PodTemplate of the action and the result: " +
				"proven, not-proven, failed, refused or not-started.",
		}, []string{"action", "result"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_checks_total",
			Help: "Sweeps, validations and first checks that have ended, by kind and result: " +
				"healthy, problem, yielded, failed, refused or not-started.",
		}, []string{"kind", "result"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_repair_seconds",
			Help:    "Time from the start of a repair that has helped to its proof.",
			Buckets: prometheus.ExponentialBuckets(60, 2, 10),
		}),
	}
}

func (m controllerMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.repairs, m.checks, m.took}
}

func (m controllerMetrics) count(r repair.Result) {
	if r.Kind != visit.Repair {
		m.checks.WithLabelValues(string(r.Kind), r.Result).Inc()
		return
	}
	m.repairs.WithLabelValues(r.Action, r.Result).Inc()
	if r.Took > 0 {
		m.took.Observe(r.Took.Seconds())
	}
}

var (
	visitsDesc = prometheus.NewDesc("pitcrew_visits",
		"Nodes that are visited now, by the kind and the phase of the visit.", []string{"kind", "phase"}, nil)
	sinceDesc = prometheus.NewDesc("pitcrew_seconds_since_check", "Time since each node has passed a check, for nodes that have.", nil, nil)
)

// sinceBuckets are an hour, a day, a week, two and four weeks, and a quarter.
var sinceBuckets = []float64{3600, 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400}

// collector counts what the cache shows when it is asked, so that no series outlives its node.
type collector struct{ *Controller }

// Describe sends nothing: which series exist follows from the cluster.
func (collector) Describe(chan<- *prometheus.Desc) {}

// labelsOf returns the kind and the phase of a visit. Whoever forges records must not make up labels of metrics.
func labelsOf(v *visit.Visit) [2]string {
	if !v.Kind.IsKnown() || !v.Phase.IsKnown() {
		return [2]string{"other", "other"}
	}
	return [2]string{string(v.Kind), string(v.Phase)}
}

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
		out <- prometheus.NewInvalidMetric(visitsDesc, err)
		return
	}
	now := c.clock.Now()
	c.collectAttention(out, nodes.Items, now)
	c.failures.Collect(ctx, out)
	visits := map[[2]string]float64{}
	counts := map[float64]uint64{}
	total, sum := uint64(0), 0.0
	for i := range nodes.Items {
		if nodes.Items[i].Annotations[conditions.AnnotationRepair] == "" {
			continue
		}
		r, err := c.records.of(&nodes.Items[i])
		if err != nil || r == nil {
			continue
		}
		if v := r.Current; v != nil {
			visits[labelsOf(v)]++
		}
		if r.Checked == nil {
			continue
		}
		age := max(0, now.Sub(r.Checked.At).Seconds())
		total, sum = total+1, sum+age
		for _, bucket := range sinceBuckets {
			if age <= bucket {
				counts[bucket]++
			}
		}
	}
	for key, count := range visits {
		out <- prometheus.MustNewConstMetric(visitsDesc, prometheus.GaugeValue, count, key[:]...)
	}
	for _, bucket := range sinceBuckets {
		counts[bucket] += 0 // a bucket without nodes is there, too
	}
	out <- prometheus.MustNewConstHistogram(sinceDesc, total, sum, counts)
}
