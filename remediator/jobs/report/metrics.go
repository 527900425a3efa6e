package report

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Metrics are what the restarts of jobs count.
type Metrics struct {
	Restarts       *prometheus.CounterVec
	Blocked        *prometheus.CounterVec
	ForceDeleted   prometheus.Counter
	RestartSeconds prometheus.Histogram
	LostSeconds    prometheus.Histogram
	// LostRanks is what all ranks lose, in seconds: see [cause].
	LostRanks *prometheus.CounterVec
	Held      *prometheus.GaugeVec
}

func newMetrics() Metrics {
	m := Metrics{
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
		LostRanks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_job_rank_seconds_lost_total",
			Help: "Seconds times ranks (pods) of restarts by their first cause: redone is the age of the ranks when they were stopped, the most " +
				"that can be lost; stopped is from the stop until all ranks ran again.",
		}, []string{"cause", "part"}),
		Held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pitcrew_job_restart_held",
			Help: "1 while a stop takes too long or waits for a node that is not Ready; names a pod that has not ended and its node.",
		}, []string{"kind", "namespace", "job", "pod", "node"}),
	}
	for _, c := range causesOfLoss() { // a counter that starts at one shows no increase
		m.LostRanks.WithLabelValues(c, partRedone)
		m.LostRanks.WithLabelValues(c, partStopped)
	}
	return m
}

// The parts of what a restart costs.
const (
	partRedone  = "redone"
	partStopped = "stopped"
)

// causesOfLoss are the values of the label cause: the conditions of Pitcrew, and what else restarts jobs.
func causesOfLoss() []string {
	all := []string{string(restart.PodFailed), string(restart.JobStalled), "other"}
	for _, c := range slices.Concat(conditions.All, conditions.Verdicts) {
		all = append(all, c.Type)
	}
	return all
}

// lost counts seconds of all ranks of a restart.
func (m Metrics) lost(cur restart.Restart, part string, lasted time.Duration) {
	m.LostRanks.WithLabelValues(cause(cur), part).Add(max(0, lasted.Seconds()) * float64(max(0, cur.Ranks)))
}

// cause returns the first cause of a restart. The value of a taint is text of a record, and a policy may choose it: one that is no
// condition of ours is "other".
func cause(cur restart.Restart) string {
	if len(cur.Quarantines) == 0 {
		return "other"
	}
	switch c := cur.Quarantines[0]; {
	case slices.Contains(causesOfLoss(), c.Taint.Value):
		return c.Taint.Value
	case c.Taint.Key != "":
		return "other"
	case c.Node != "":
		return string(restart.PodFailed)
	}
	return string(restart.JobStalled)
}

// All returns what a registry takes; nodes has the cache of the nodes.
func (r *Reporter) All(nodes client.Reader) []prometheus.Collector {
	m := r.Metrics
	return []prometheus.Collector{
		m.Restarts, m.Blocked, m.ForceDeleted, m.RestartSeconds, m.LostSeconds, m.LostRanks, m.Held, collector{r.Waiting, nodes},
	}
}
