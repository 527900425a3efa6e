package jobs

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var notRestartedDesc = prometheus.NewDesc("pitcrew_job_not_restarted_timestamp_seconds",
	"Since when, in Unix time, an opted-in job is not restarted although its node is quarantined, one of its pods failed there, or it stands still (without a node), by the reason.",
	[]string{"kind", "namespace", "job", "node", "reason"}, nil)

const (
	// lookOften is how long a node with jobs that are left alone is looked at often: they may end, or be mended.
	lookOften = 15 * time.Minute
	// lookSoon and lookLate are how soon it is looked at again during that time and after it.
	lookSoon, lookLate = time.Minute, 5 * time.Minute
	// forgetAfter is how long a job is named that is not looked at any more, for example because the node is under maintenance. A job
	// of which a pod failed is looked at again only when a limit may have changed.
	forgetAfter = 15 * time.Minute
)

// reasonError: what was to be done about the job ended with an error, and is tried again.
const reasonError = "Error"

// unknownJob stands for the jobs on a node that cannot be found out.
var unknownJob = waitingJob{reason: reasonError}

// lookAgain is how soon a node with jobs that are left alone is looked at again, after so long a quarantine. Each look lists the pods of
// the node.
func lookAgain(quarantined time.Duration) time.Duration {
	if quarantined < lookOften {
		return lookSoon
	}
	return lookLate
}

// waiting are the opted-in jobs that are not restarted although a node under them is quarantined, for a metric that names them. There
// are at most as many as pods on quarantined nodes.
type waiting struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// by quarantine.
	looks map[string]*look
}

// look is one look at the jobs of a trigger.
type look struct {
	trigger restart.Trigger
	at      time.Time
	// jobs are those that are left alone, by the number of the look that has seen them last.
	jobs map[waitingJob]int
	n    int
}

type waitingJob struct{ kind, namespace, name, reason string }

func newWaiting(c clock.PassiveClock) *waiting { return &waiting{clock: c, looks: map[string]*look{}} }

// begin begins a look at the jobs of a quarantine.
func (w *waiting) begin(t restart.Trigger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.looks[t.ID]
	if !known {
		l = &look{jobs: map[waitingJob]int{}}
		w.looks[t.ID] = l
	}
	l.trigger, l.at = t, w.clock.Now()
	l.n++
}

// add notes a job that is left alone.
func (w *waiting) add(quarantine string, job waitingJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.looks[quarantine]
	if !known {
		return
	}
	for other := range l.jobs { // by another reason
		if other.kind == job.kind && other.namespace == job.namespace && other.name == job.name {
			delete(l.jobs, other)
		}
	}
	l.jobs[job] = l.n
}

// end forgets the jobs that the look has not met, unless it was incomplete, and tells whether any are left.
func (w *waiting) end(quarantine string, complete bool) (left bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.looks[quarantine]
	if !known {
		return false
	}
	for job, seen := range l.jobs {
		if complete && seen != l.n {
			delete(l.jobs, job)
		}
	}
	if len(l.jobs) == 0 {
		delete(w.looks, quarantine)
		return false
	}
	return true
}

// restarted forgets a job whose restart has begun.
func (w *waiting) restarted(kind, namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.looks {
		for job := range l.jobs {
			if job.kind == kind && job.namespace == namespace && job.name == name {
				delete(l.jobs, job)
			}
		}
	}
}

// gone forgets a job that waited after a failure of a pod of it, and that is no longer in the namespace of the pod.
func (w *waiting) gone(namespace string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.looks {
		if strings.HasPrefix(id, failuresOf(uid)) {
			maps.DeleteFunc(l.jobs, func(j waitingJob, _ int) bool { return j.namespace == namespace })
		}
	}
}

// jobOnNode is a job that waits because of one node.
type jobOnNode struct {
	waitingJob
	node string
}

// current are the jobs that wait now, and since when. nodes has the cache of the nodes.
func (w *waiting) current(ctx context.Context, nodes client.Reader) map[jobOnNode]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, found := w.clock.Now(), map[jobOnNode]time.Time{}
	for id, l := range w.looks {
		isNode := l.trigger.Kind == restart.NodeQuarantined
		if now.Sub(l.at) > forgetAfter {
			delete(w.looks, id)
			continue
		}
		if isNode && !isQuarantined(ctx, nodes, l.trigger) {
			continue
		}
		for job := range l.jobs {
			found[jobOnNode{job, l.trigger.Node}] = l.trigger.Since
		}
	}
	return found
}

// isQuarantined reports whether the node's own record has the quarantine, and it stands.
func isQuarantined(ctx context.Context, nodes client.Reader, t restart.Trigger) bool {
	var node corev1.Node
	if err := nodes.Get(ctx, client.ObjectKey{Name: t.Node}, &node); err != nil {
		return false
	}
	rec, err := quarantine.RecordOf(&node)
	return err == nil && rec != nil && node.UID == t.NodeUID && rec.ID == t.ID && rec.Phase == quarantine.Quarantined
}

// waitingCollector shows the jobs that wait.
type waitingCollector struct {
	*waiting
	nodes client.Reader
}

// Describe sends nothing: which series exist follows from the cluster.
func (waitingCollector) Describe(chan<- *prometheus.Desc) {}

// Collect names the jobs that wait. Only the leader looks at jobs.
func (c waitingCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for job, since := range c.current(ctx, c.nodes) {
		m, err := prometheus.NewConstMetric(notRestartedDesc, prometheus.GaugeValue, float64(since.UnixMilli())/1000,
			job.kind, job.namespace, job.name, job.node, job.reason)
		if err != nil { // one job must not take the metrics of all others
			log.Log.Error(err, "A job that is not restarted has no series", "kind", job.kind, "namespace", job.namespace, "job", job.name)
			continue
		}
		out <- m
	}
}
