package report

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Metrics are what the restarts of jobs count.
type Metrics struct {
	Restarts       *prometheus.CounterVec
	Blocked        *prometheus.CounterVec
	ForceDeleted   prometheus.Counter
	RestartSeconds prometheus.Histogram
	LostSeconds    prometheus.Histogram
	Held           *prometheus.GaugeVec
}

func newMetrics() Metrics {
	return Metrics{
		Restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_job_restarts_total",
			Help: "Closed restarts of jobs by result: Restarted, JobCompleted, JobFailed, Abandoned, Aborted, StartTimeout, Withdrawn.",
		}, []string{"kind", "result"}),
		Blocked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_job_restart_blocked_total",
			Help: "Restarts of jobs that were needed and not begun or not carried on, by the reason; once for each job, quarantine and reason.",
		}, []string{"kind", "reason"}),
		ForceDeleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pitcrew_job_pods_force_deleted_total",
			Help: "Pods of stopped jobs that the policy had deleted although nothing proved that their processes are gone.",
		}),
		RestartSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_job_restart_seconds",
			Help:    "Time from stopping a job until all of its ranks run again.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11), // 1 s to 17 min
		}),
		LostSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_job_lost_seconds",
			Help:    "Age of the ranks when they were stopped for a restart: what is lost, if nothing was saved meanwhile.",
			Buckets: prometheus.ExponentialBuckets(60, 4, 8), // 1 min to 11 days
		}),
		Held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pitcrew_job_restart_held",
			Help: "1 while a stop takes too long or waits for a node that is not Ready; names a pod that has not ended and its node.",
		}, []string{"kind", "namespace", "job", "pod", "node"}),
	}
}

// All returns what a registry takes; nodes has the cache of the nodes.
func (r *Reporter) All(nodes client.Reader) []prometheus.Collector {
	m := r.Metrics
	return []prometheus.Collector{m.Restarts, m.Blocked, m.ForceDeleted, m.RestartSeconds, m.LostSeconds, m.Held, collector{r.Waiting, nodes}}
}
