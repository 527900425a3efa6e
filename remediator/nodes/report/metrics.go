package report

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what the controller of Nodes counts itself, beside what the cache shows.
type Metrics struct {
	Blocked              *prometheus.CounterVec
	Decision, Quarantine prometheus.Histogram
	PolicyValid, Breaker prometheus.Gauge
}

// NewMetrics returns metrics of a valid policy and a closed breaker.
func NewMetrics() Metrics {
	valid := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pitcrew_policy_valid",
		Help: "0 while the policy file is invalid; the last good policy is in force, and without one nothing is decided about nodes.",
	})
	valid.Set(1)
	return Metrics{
		PolicyValid: valid,
		Breaker:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "pitcrew_breaker_open", Help: "1 while the breaker is open or half-open."}),
		Blocked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_quarantine_blocked_total",
			Help: "Decisions about a node that were held back, by the rule and by what held them back.",
		}, []string{"rule", "reason"}),
		Decision: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_decision_latency_seconds",
			Help:    "Time from reading a node with a due fault to its written taint.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		Quarantine: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_quarantine_seconds",
			Help:    "Time from a node's first taint to its release.",
			Buckets: prometheus.ExponentialBuckets(60, 3, 10),
		}),
	}
}

// Collectors are to be registered.
func (m Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.Blocked, m.Decision, m.Quarantine, m.PolicyValid, m.Breaker}
}
