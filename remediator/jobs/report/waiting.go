package report

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

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var notRestartedDesc = prometheus.NewDesc("pitcrew_job_not_restarted_timestamp_seconds",
	"Since when, in Unix time, an opted-in job is not restarted although its node is quarantined, one of its pods failed there, "+
		"or it is stalled (without a node), by the reason.",
	[]string{"kind", "namespace", "job", "node", "reason"}, nil)

const (
	// recheckOften is how long a node with jobs that are left alone is looked at often: they may end, or be fixed.
	recheckOften = 15 * time.Minute
	// RecheckSoon and RecheckLate are how soon it is looked at again during that time and after it.
	RecheckSoon, RecheckLate = time.Minute, 5 * time.Minute
	// ForgetAfter is how long a job is named that is not looked at any more, for example because the node is under maintenance. A job
	// of which a pod failed is looked at again only when a limit may have changed.
	ForgetAfter = 15 * time.Minute
)

// ReasonError: what was to be done about the job ended with an error, and is tried again.
const ReasonError = "Error"

// UnknownJob stands for the jobs on a node that cannot be found out.
var UnknownJob = Job{Reason: ReasonError}

// RecheckAfter returns how soon a node with jobs that are left alone is looked at again, after so long a quarantine. Each look lists the
// pods of the node.
func RecheckAfter(quarantined time.Duration) time.Duration {
	if quarantined < recheckOften {
		return RecheckSoon
	}
	return RecheckLate
}

// Waiting are the opted-in jobs that are not restarted although a node under them is quarantined, for a metric that names them. There
// are at most as many as pods on quarantined nodes.
type Waiting struct {
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
	jobs map[Job]int
	n    int
}

// Job is a job that is left alone, and the reason.
type Job struct{ Kind, Namespace, Name, Reason string }

func newWaiting(c clock.PassiveClock) *Waiting { return &Waiting{clock: c, looks: map[string]*look{}} }

// Begin begins a look at the jobs of a quarantine.
func (w *Waiting) Begin(t restart.Trigger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.looks[t.ID]
	if !known {
		l = &look{jobs: map[Job]int{}}
		w.looks[t.ID] = l
	}
	l.trigger, l.at = t, w.clock.Now()
	l.n++
}

// Add notes a job that is left alone.
func (w *Waiting) Add(quarantine string, job Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, known := w.looks[quarantine]
	if !known {
		return
	}
	for other := range l.jobs { // by another reason
		if other.Kind == job.Kind && other.Namespace == job.Namespace && other.Name == job.Name {
			delete(l.jobs, other)
		}
	}
	l.jobs[job] = l.n
}

// End forgets the jobs that the look has not met, unless it was incomplete, and reports whether any are left.
func (w *Waiting) End(quarantine string, complete bool) (left bool) {
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

// Restarted forgets a job whose restart has begun.
func (w *Waiting) Restarted(kind, namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.looks {
		for job := range l.jobs {
			if job.Kind == kind && job.Namespace == namespace && job.Name == name {
				delete(l.jobs, job)
			}
		}
	}
}

// Gone forgets a job that waited after a failure of a pod of it, and that is no longer in the namespace of the pod.
func (w *Waiting) Gone(namespace string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.looks {
		if strings.HasPrefix(id, FailuresOf(uid)) {
			maps.DeleteFunc(l.jobs, func(j Job, _ int) bool { return j.Namespace == namespace })
		}
	}
}

// JobOnNode is a job that waits because of one node.
type JobOnNode struct {
	Job
	Node string
}

// Current are the jobs that wait now, and since when. nodes has the cache of the nodes.
func (w *Waiting) Current(ctx context.Context, nodes client.Reader) map[JobOnNode]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, found := w.clock.Now(), map[JobOnNode]time.Time{}
	for id, l := range w.looks {
		isNode := l.trigger.Kind == restart.NodeQuarantined
		if now.Sub(l.at) > ForgetAfter {
			delete(w.looks, id)
			continue
		}
		if isNode && !isQuarantined(ctx, nodes, l.trigger) {
			continue
		}
		for job := range l.jobs {
			found[JobOnNode{job, l.trigger.Node}] = l.trigger.Since
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
	rec, err := causes.RecordOf(&node)
	return err == nil && rec != nil && node.UID == t.NodeUID && rec.ID == t.ID && rec.Phase == causes.Quarantined
}

// collector shows the jobs that wait.
type collector struct {
	*Waiting
	nodes client.Reader
}

// Describe sends nothing: which series exist follows from the cluster.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect names the jobs that wait. Only the leader looks at jobs.
func (c collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for job, since := range c.Current(ctx, c.nodes) {
		m, err := prometheus.NewConstMetric(notRestartedDesc, prometheus.GaugeValue, float64(since.UnixMilli())/1000,
			job.Kind, job.Namespace, job.Name, job.Node, job.Reason)
		if err != nil { // one job must not take the metrics of all others
			log.Log.Error(err, "Failed to count a job that is not restarted; counting the others",
				"kind", job.Kind, "namespace", job.Namespace, "job", job.Name)
			continue
		}
		out <- m
	}
}

// FailuresOf returns what the IDs of all failures of pods of a job begin with.
func FailuresOf(job types.UID) string { return string(job) + "-failure-" }
