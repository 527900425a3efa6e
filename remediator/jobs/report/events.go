// Package report reports the restarts of jobs by Events and metrics, each fact once.
package report

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	nodecauses "github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Reasons of the Events on jobs and nodes; they are part of the contract with users.
const (
	eventRestarting = "JobRestarting"
	eventRestarted  = "JobRestarted"
	eventBlocked    = "JobRestartBlocked"
	eventFailed     = "JobRestartFailed"
	eventNotOptedIn = "RestartNotOptedIn"
)

// maxNotOptedIn is how many jobs of one node get an Event because they have not opted in. Anybody may create jobs.
const maxNotOptedIn = 16

// MaxNodesNamed is on how many nodes one step of a restart is reported, and how many of them its job's Events name.
const MaxNodesNamed = 16

// maxNote is the longest note of an Event that the API server takes, in bytes.
const maxNote = 1024

// maxReported bounds the memory of what was reported. Of more, the oldest may be reported once more.
const maxReported = 10_000

// Reporter reports restarts by Events and metrics.
type Reporter struct {
	Recorder events.EventRecorder
	Metrics  Metrics
	// Causes confirms on which nodes a restart is reported.
	Causes  *causes.Confirmed
	Waiting *Waiting

	mu sync.Mutex
	// Reported holds the [report]s of jobs that are left alone. It is only in memory: a new leader reports once more.
	Reported *lru.Cache
	// notOptedIn is how many jobs got an Event eventNotOptedIn, by quarantine.
	notOptedIn *lru.Cache
}

// report is one reason to leave a job alone during one quarantine.
type report struct {
	quarantine string
	job        types.UID
	reason     string
}

// New returns a reporter of restarts that has no [Reporter.Causes] yet.
func New(recorder events.EventRecorder, c clock.PassiveClock) *Reporter {
	return &Reporter{
		Recorder: recorder, Metrics: newMetrics(), Waiting: newWaiting(c), Reported: lru.New(maxReported), notOptedIn: lru.New(maxReported),
	}
}

// emit emits an Event on the job and on the node, if the cause has one. The action keeps Events of one reason apart, which would otherwise
// be folded into a series that shows the first text only.
func (r *Reporter) emit(job client.Object, kind string, c restart.Cause, severity, reason, action, text string) {
	about, node := subjectOf(c)
	r.Recorder.Eventf(job, node, severity, reason, action, "%s: %s", about, text)
	if node != nil {
		r.Recorder.Eventf(node, job, severity, reason, action, "%s %s/%s: %s", kind, job.GetNamespace(), job.GetName(), text)
	}
}

// subjectOf is a cause as the Events on a job name it, and its node; nil: it has none.
func subjectOf(c restart.Cause) (about string, node runtime.Object) {
	if c.Kind() == restart.JobStalled {
		return c.Reason, nil
	}
	return fmt.Sprintf("node %s (%s)", c.Node, c.Reason), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Node, UID: c.NodeUID}}
}

// emitAll emits an Event on a job and on the nodes that caused its restart, as far as their own records have the causes. The record of
// a job may name any node, and many.
func (r *Reporter) emitAll(ctx context.Context, job restart.Job, of []restart.Cause, severity, reason, action, text string) {
	object := ObjectOf(job)
	named, unnamed := 0, 0
	for _, c := range of {
		// A cause that cannot be looked up is not named.
		if confirmed, err := r.Causes.Confirm(ctx, c); err != nil || !confirmed || named == MaxNodesNamed {
			unnamed++
			continue
		}
		named++
		r.emit(object, job.GVK.Kind, c, severity, reason, action, text)
	}
	switch {
	case named == 0:
		r.Recorder.Eventf(object, nil, severity, reason, action, "%s (no record of a node has a cause of this restart)", text)
	case unnamed > 0:
		r.Recorder.Eventf(object, nil, severity, reason, action+"More", "%s (and %d more causes)", text, unnamed)
	}
}

// Checkpoint reports that a job has time to save its state.
func (r *Reporter) Checkpoint(ctx context.Context, job restart.Job, cur restart.Restart) {
	r.Waiting.Restarted(job.GVK.Kind, job.Object.GetNamespace(), job.Object.GetName())
	r.emitAll(ctx, job, cur.Quarantines, corev1.EventTypeNormal, eventRestarting, "Checkpoint", fmt.Sprintf(
		"the job will be stopped at %s, or as soon as its annotation %s has that value",
		cur.CheckpointDeadline(), conditions.AnnotationCheckpointed))
}

// Stopped reports a stop, and what is lost with it.
func (r *Reporter) Stopped(ctx context.Context, job restart.Job, cur restart.Restart, of []restart.Cause) {
	r.Waiting.Restarted(job.GVK.Kind, job.Object.GetNamespace(), job.Object.GetName())
	text := "restarting all ranks"
	if job.Gang != nil {
		text = fmt.Sprintf("replacing %d of its pods", len(cur.Pods))
	}
	if !cur.RunningSince.IsZero() {
		ran := cur.PhaseSince.Sub(cur.RunningSince)
		r.Metrics.LostSeconds.Observe(ran.Seconds())
		r.Metrics.lost(cur, partRedone, ran)
		text += fmt.Sprintf(" (had run %s)", ran.Round(time.Second))
	}
	r.emitAll(ctx, job, of, corev1.EventTypeNormal, eventRestarting, "Stop", text)
}

// ForceDeleted reports a pod that was deleted before its kubelet had confirmed its end.
func (r *Reporter) ForceDeleted(ctx context.Context, job restart.Job, cur restart.Restart, pod *corev1.Pod, force restart.Force) {
	text := fmt.Sprintf("force-deleted pod %s on node %s: ", pod.Name, pod.Spec.NodeName)
	if force.Proven {
		r.emitAll(ctx, job, cur.Quarantines, corev1.EventTypeNormal, eventRestarting, "NodeDead", text+force.Why+", so its processes are gone")
		return
	}
	r.Metrics.ForceDeleted.Inc()
	r.emitAll(ctx, job, cur.Quarantines, corev1.EventTypeWarning, eventRestarting, "ForceDelete", text+fmt.Sprintf(
		"its grace period ended at %s, and %s; its processes may still run there", pod.DeletionTimestamp.UTC().Format(time.RFC3339), force.Why))
}

// Closed reports a closed restart on the job and on all nodes that caused it.
func (r *Reporter) Closed(ctx context.Context, job restart.Job, cur restart.Restart, step restart.Step, now time.Time) {
	took := now.Sub(cur.StartedAt)
	if step.Blocked {
		r.Metrics.Blocked.WithLabelValues(job.GVK.Kind, step.Result).Inc()
	} else {
		r.Metrics.Restarts.WithLabelValues(job.GVK.Kind, step.Result).Inc()
	}
	if step.Result == restart.ResultRestarted {
		r.Metrics.RestartSeconds.Observe(took.Seconds())
		r.Metrics.lost(cur, partStopped, took)
	}
	reason, severity := eventRestarted, corev1.EventTypeNormal
	if step.Phase == restart.Failed {
		reason, severity = eventFailed, corev1.EventTypeWarning
	}
	text := fmt.Sprintf("%s, %s after the restart began", step.Outcome, took.Round(time.Millisecond))
	r.emitAll(ctx, job, cur.Quarantines, severity, reason, step.Result, text)
}

// RecordLost reports a job that was labelled as under restart without a record of one, or with one that cannot be read.
func (r *Reporter) RecordLost(job restart.Job, why error) {
	more := ""
	if why != nil {
		more = ": " + why.Error()
	}
	r.Metrics.Restarts.WithLabelValues(job.GVK.Kind, restart.ResultAbandoned).Inc()
	r.Recorder.Eventf(ObjectOf(job), nil, corev1.EventTypeWarning, eventFailed, restart.ResultAbandoned,
		"the record of the restart is missing or unreadable; the job is left as it is, stopped: %t%s", job.Suspended, more)
}

// HoldBegan reports a stop that takes too long or is refused.
func (r *Reporter) HoldBegan(ctx context.Context, job restart.Job, cur restart.Restart, why string) {
	r.Metrics.Blocked.WithLabelValues(job.GVK.Kind, "Held").Inc()
	r.emitAll(ctx, job, cur.Quarantines, corev1.EventTypeWarning, eventBlocked, "Hold", why+"; still waiting")
}

// Held shows a stop that waits for a pod in a metric, until [Reporter.notHeld].
func (r *Reporter) Held(job restart.Job, pod, node string) {
	r.NotHeld(latekinds.RequestOf(job.GVK, job.Object))
	r.Metrics.Held.WithLabelValues(job.GVK.Kind, job.Object.GetNamespace(), job.Object.GetName(), pod, node).Set(1)
}

// NotHeld drops what [Reporter.Held] shows of a job.
func (r *Reporter) NotHeld(req latekinds.Request) {
	r.Metrics.Held.DeletePartialMatch(prometheus.Labels{"kind": req.Kind.Kind, "namespace": req.Namespace, "job": req.Name})
}

// OtherKind stands in metrics for the kind of an owner that is not known. Whoever may create pods chooses it.
const OtherKind = "other"

// ReasonForeignPod: what is on the node is no pod of the job, which therefore waits for nothing.
const ReasonForeignPod = "ForeignPod"

// Blocked reports a job that is left alone: by a metric as long as it lasts, by Event once for each quarantine and reason.
func (r *Reporter) Blocked(c restart.Cause, job client.Object, kind string, why restart.Blocked) {
	if why.Reason != ReasonForeignPod {
		r.Waiting.Add(c.ID, Job{kind, job.GetNamespace(), job.GetName(), why.Reason})
	}
	r.BlockedUnder(c, job, kind, kind, why)
}

// BlockedUnder reports a job that is left alone by Event and by a counter, once for each quarantine and reason. counted is its kind in the
// counter.
func (r *Reporter) BlockedUnder(c restart.Cause, job client.Object, kind, counted string, why restart.Blocked) {
	if !r.remember(report{c.ID, job.GetUID(), why.Reason}) {
		return
	}
	r.Metrics.Blocked.WithLabelValues(counted, why.Reason).Inc()
	r.emit(job, kind, c, corev1.EventTypeWarning, eventBlocked, why.Reason, "not restarted: "+why.Text)
}

// NotOptedIn tells a job that it is not restarted because it has not opted in, once for each quarantine. It is a warning if a
// label or an annotation looks as if it had.
func (r *Reporter) NotOptedIn(c restart.Cause, job client.Object, opt kinds.OptIn) {
	if !r.remember(report{c.ID, job.GetUID(), eventNotOptedIn}) || !r.countNotOptedIn(c.ID) {
		return
	}
	severity, action := corev1.EventTypeNormal, "NotOptedIn"
	text := "no label opts it in; label it " + conditions.LabelRestartOnNodeFault + "=true to have it restarted"
	if len(opt.Mistakes) > 0 {
		severity, action, text = corev1.EventTypeWarning, "Misspelt", strings.Join(opt.Mistakes, "; ")
	}
	about, node := subjectOf(c)
	note := nodecauses.Clip(fmt.Sprintf("%s: not restarted: %s", about, text), maxNote)
	r.Recorder.Eventf(job, node, severity, eventNotOptedIn, action, "%s", note)
}

// countNotOptedIn counts one more job of a quarantine, and reports whether that is not too many.
func (r *Reporter) countNotOptedIn(quarantine string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	if known, ok := r.notOptedIn.Get(quarantine); ok {
		n = known.(int) //nolint:forcetypeassert // nothing else is in it
	}
	r.notOptedIn.Add(quarantine, n+1)
	return n < maxNotOptedIn
}

// remember remembers a report, and reports whether it was not known.
func (r *Reporter) remember(what report) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.Reported.Get(what)
	r.Reported.Add(what, nil)
	return !known
}

// ObjectOf stands for a job in Events.
func ObjectOf(job restart.Job) client.Object {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Object.GetNamespace(), Name: job.Object.GetName(),
		UID: job.Object.GetUID(), ResourceVersion: job.Object.GetResourceVersion(),
	}}
	object.SetGroupVersionKind(job.GVK)
	return object
}

// maxUID is the longest UID of an object, in bytes.
const maxUID = 36

// ObjectOfOwner stands for an owner of a pod in Events, without reading it. The API server does not check what a pod says about its owner,
// and takes no Event about a name that is none; and of what was reported the UID is kept. Then the Event is about the pod.
func ObjectOfOwner(owner metav1.OwnerReference, pod *corev1.Pod) client.Object {
	isName := len(validation.IsDNS1123Subdomain(owner.Name)) == 0 && len(validation.IsDNS1123Label(strings.ToLower(owner.Kind))) == 0
	if !isName || len(owner.UID) > maxUID || len(owner.APIVersion) > validation.DNS1123SubdomainMaxLength {
		return pod
	}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: owner.Name, UID: owner.UID}}
	object.APIVersion, object.Kind = owner.APIVersion, owner.Kind
	return object
}
