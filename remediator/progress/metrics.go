package progress

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// followerMetrics are what following jobs counts.
type followerMetrics struct {
	jobs   *prometheus.GaugeVec
	stalls *prometheus.CounterVec
	reads  *prometheus.CounterVec
	bytes  prometheus.Counter
}

func newMetrics() followerMetrics {
	return followerMetrics{
		jobs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pitcrew_followed_jobs",
			Help: "Jobs whose progress is followed, by state: starting, running, paused, not-running, unknown, stalled.",
		}, []string{"state"}),
		stalls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_job_stalls_total",
			Help: "Jobs that made no progress for longer than they may while all of their ranks ran.",
		}, []string{"kind"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_progress_log_reads_total",
			Help: "Reads of the logs of jobs that are followed, by result: read, failed, skipped (the node has not answered lately).",
		}, []string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pitcrew_progress_log_bytes_total",
			Help: "Bytes of logs that were read to follow jobs.",
		}),
	}
}

func (m followerMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.jobs, m.stalls, m.reads, m.bytes}
}

// leave no longer counts a job in a state; the empty one: it was not counted.
func (m followerMetrics) leave(state stall.State) {
	if state != "" {
		m.jobs.WithLabelValues(string(state)).Dec()
	}
}
