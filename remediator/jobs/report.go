package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Reasons of the Events on jobs and nodes; they are part of the contract with users.
const (
	eventRestarting = "JobRestarting"
	eventRestarted  = "JobRestarted"
	eventBlocked    = "JobRestartBlocked"
	eventFailed     = "JobRestartFailed"
)

var (
	restarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pitcrew_job_restarts_total",
		Help: "Restarts of jobs by how they went: Restarted, JobCompleted, JobFailed, Abandoned, StartTimeout, Held, or why none was begun.",
	}, []string{"kind", "result"})
	restartSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "pitcrew_job_restart_seconds",
		Help:    "Time from stopping a job until all of its ranks run again.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 11), // 1 s to 17 min
	})
	lostSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "pitcrew_job_lost_seconds",
		Help:    "Age of the ranks when they were stopped for a restart: what is lost, if nothing was saved meanwhile.",
		Buckets: prometheus.ExponentialBuckets(60, 4, 8), // 1 min to 11 days
	})
	stuck = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pitcrew_job_restart_held",
		Help: "1 while a stop takes too long; names a pod that has not ended and its node.",
	}, []string{"kind", "namespace", "job", "pod", "node"})
)

func init() { metrics.Registry.MustRegister(restarts, restartSeconds, lostSeconds, stuck) }

func notStuck(req request) {
	stuck.DeletePartialMatch(prometheus.Labels{"kind": req.kind.Kind, "namespace": req.Namespace, "job": req.Name})
}

// tell emits an Event on the job and on the node. The action keeps Events of one reason apart, which would otherwise
// be folded into a series that shows the first text only.
func (r *Restarter) tell(job client.Object, kind string, c cause, warn bool, reason, action, text string) {
	severity := corev1.EventTypeNormal
	if warn {
		severity = corev1.EventTypeWarning
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Node, UID: c.NodeUID}}
	r.recorder.Eventf(job, node, severity, reason, action, "node %s (%s): %s", c.Node, c.Reason, text)
	r.recorder.Eventf(node, job, severity, reason, action, "%s %s/%s: %s", kind, job.GetNamespace(), job.GetName(), text)
}

// began reports a stop, and what is lost with it.
func (r *Restarter) began(v view, cur restart, causes []cause) {
	text := "all ranks are stopped and started again"
	if v.gang != nil {
		text = fmt.Sprintf("its pods are replaced: %d", len(cur.Pods))
	}
	if !cur.RunningSince.IsZero() {
		ran := cur.PhaseSince.Sub(cur.RunningSince)
		lostSeconds.Observe(ran.Seconds())
		text += fmt.Sprintf(", %s after they were created", ran.Round(time.Second))
	}
	for _, c := range causes {
		r.tell(v.object, v.gvk.Kind, c, false, eventRestarting, "Stop", text)
	}
}

// forced reports a pod that was deleted without the word of its kubelet.
func (r *Restarter) forced(v view, cur restart, pod *corev1.Pod, why string) {
	restarts.WithLabelValues(v.gvk.Kind, "ForceDeleted").Inc()
	for _, c := range cur.Quarantines {
		r.tell(v.object, v.gvk.Kind, c, true, eventRestarting, "ForceDelete", fmt.Sprintf(
			"pod %s on node %s was deleted by force, since it should have ended by %s and %s", pod.Name, pod.Spec.NodeName,
			pod.DeletionTimestamp.UTC().Format(time.RFC3339), why))
	}
}

// ended reports a closed restart on the job and on all nodes that caused it.
func (r *Restarter) ended(v view, cur restart, s step, now time.Time) {
	took := now.Sub(cur.StartedAt)
	restarts.WithLabelValues(v.gvk.Kind, s.result).Inc()
	if s.result == "Restarted" {
		restartSeconds.Observe(took.Seconds())
	}
	reason := eventRestarted
	if s.phase == failed {
		reason = eventFailed
	}
	for _, c := range cur.Quarantines {
		r.tell(v.object, v.gvk.Kind, c, s.phase == failed, reason, s.result,
			fmt.Sprintf("%s, %s after the stop began", s.outcome, took.Round(time.Millisecond)))
	}
}

// lost reports a job that was labelled as under restart without a record of one.
func (r *Restarter) lost(v view) {
	restarts.WithLabelValues(v.gvk.Kind, "Abandoned").Inc()
	r.recorder.Eventf(v.object, nil, corev1.EventTypeWarning, eventFailed, "Abandoned",
		"the record of the restart is missing or unreadable; the job is left as it is, stopped: %t", v.suspended)
}

// hold reports a stop that takes too long or is refused: by Event once, by metric as long as it lasts.
func (r *Restarter) hold(ctx context.Context, v view, rec record, left []metav1.PartialObjectMetadata, refused string) error {
	name, node, text := "", "", "its controller has not acted on "+v.toggle.path
	if len(left) > 0 {
		// Metadata does not say on which node the pod is.
		var found corev1.PodList
		name = left[0].Name
		if err := r.reader.List(ctx, &found, client.InNamespace(left[0].Namespace), client.MatchingFields{"metadata.name": name}); err != nil {
			return fmt.Errorf("list pod %s/%s: %w", left[0].Namespace, name, err)
		}
		for _, pod := range found.Items {
			node = pod.Spec.NodeName
		}
		text = fmt.Sprintf("pod %s on node %s has not ended", name, node)
		if more := len(left) - 1; more > 0 {
			text += fmt.Sprintf(", nor have %d more", more)
		}
	}
	why := fmt.Sprintf("stopping takes longer than %s: %s", r.StopTimeout, text)
	if refused != "" {
		text, why = refused, refused
	}
	notStuck(request{v.gvk, v.key()})
	stuck.WithLabelValues(v.gvk.Kind, v.object.GetNamespace(), v.object.GetName(), name, node).Set(1)
	if rec.Current.Held != "" {
		return nil
	}
	rec.Current.Held = text
	if err := r.write(ctx, v, rec); err != nil {
		return err
	}
	restarts.WithLabelValues(v.gvk.Kind, "Held").Inc()
	for _, c := range rec.Current.Quarantines {
		r.tell(v.object, v.gvk.Kind, c, true, eventBlocked, "Hold", why+"; it is waited for, not forced")
	}
	return nil
}

// told remembers what was said about the jobs on a node during one quarantine. It is only in memory: a new leader says
// it once more.
type told struct {
	quarantine string
	about      map[toldKey]bool
}

type toldKey struct {
	job    types.UID
	reason string
}

// blocked reports a job that is left alone, once for each cause and reason.
func (r *Restarter) blocked(c cause, job client.Object, kind string, why blocked) {
	key := toldKey{job.GetUID(), why.reason}
	r.mu.Lock()
	where := c.Node
	if c.Taint.Key == "" {
		where = string(job.GetUID())
	}
	t := r.told[where]
	if t.quarantine != c.ID {
		t = told{c.ID, map[toldKey]bool{}}
		r.told[where] = t
	}
	known := t.about[key]
	t.about[key] = true
	r.mu.Unlock()
	if known {
		return
	}
	restarts.WithLabelValues(kind, why.reason).Inc()
	r.tell(job, kind, c, true, eventBlocked, why.reason, "not restarted: "+why.text)
}

// strangerObject stands for the unknown owner in Events, without reading it.
func strangerObject(t root) client.Object {
	var object metav1.PartialObjectMetadata
	object.APIVersion, object.Kind = t.stranger.APIVersion, t.stranger.Kind
	object.Namespace, object.Name, object.UID = t.namespace, t.stranger.Name, t.stranger.UID
	return &object
}
