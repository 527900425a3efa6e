package restart

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// keptRestarts is how many closed restarts a record keeps.
const keptRestarts = 5

const (
	// MaxPods bounds the record: the annotations of an object hold at most 256 KiB together, a UID takes 39 bytes.
	MaxPods = 5000
	// maxRecord is the size in bytes from which on older closed restarts are forgotten, and then causes.
	maxRecord = 200 << 10
	// maxCauses bounds the causes of a restart.
	maxCauses = 64
	// maxReason is the longest reason of a cause in bytes; conditions of others may bear up to 32 KiB.
	maxReason = 256
)

// Phase is where a restart stands.
type Phase string

const (
	// Checkpointing: the job was asked to save its state until CheckpointBy; nothing has been stopped.
	Checkpointing Phase = "Saving"
	// Stopping: we have stopped the job; until every old pod is gone nothing is started.
	Stopping Phase = "Stopping"
	// Starting: the job was started again, by us or by its own controller; until all ranks run.
	Starting Phase = "Starting"
	// Done: closed, the job runs again or has completed.
	Done Phase = "Done"
	// Failed: closed, a person should look.
	Failed Phase = "Failed"
)

// Record is the JSON of the annotation pitcrew.dev/restart. All state of a restart is in it, so that a crash between
// any two writes resumes.
type Record struct {
	V int `json:"v"`
	// JobUID distinguishes the record from one that was copied with the job's manifest.
	JobUID  types.UID `json:"jobUID"`
	Current *Restart  `json:"current,omitempty"`
	// Last holds the closed restarts, newest first.
	Last []Restart `json:"last,omitempty"`
	// Total counts the restarts that stopped the job, Recent is when those of the last day began, the oldest first.
	Total  int         `json:"total,omitempty"`
	Recent []time.Time `json:"recent,omitempty"`
}

// phaseForm is the form of a phase, also of a later version.
var phaseForm = regexp.MustCompile("^[A-Z][A-Za-z]{0,63}$")

// Restart is one stop and start of a whole job.
type Restart struct {
	// ID is new with every stop. What is done outside of the job's own object bears it.
	ID          string    `json:"id"`
	Phase       Phase     `json:"phase"`
	LaterPhase  Phase     `json:"laterPhase,omitempty"` // see [Record.InKnownPhase]
	Quarantines []Cause   `json:"quarantines"`
	StartedAt   time.Time `json:"startedAt"`
	PhaseSince  time.Time `json:"phaseSince"`
	EndedAt     time.Time `json:"endedAt,omitzero"`
	// CheckpointBy is until when the job may save its state; only while Checkpointing.
	CheckpointBy time.Time `json:"checkpointBy,omitzero"`
	// RunningSince is when the oldest of the stopped pods was created: what was done since then and not saved is lost.
	RunningSince time.Time `json:"runningSince,omitzero"`
	// Streak is the number of this restart among those in a row, see [Record.streak]; 0: the job was never stopped.
	Streak int `json:"streak,omitempty"`
	// Moving is how many ranks have to find another node; only while the restart is under way and the policy checks capacity. Of a
	// record that was read it is no more than a claim.
	Moving int `json:"moving,omitempty"`
	// Pods are the UIDs of the pods that were active before the stop; only while Stopping.
	Pods []types.UID `json:"pods,omitempty"`
	// Ranks is how many pods were active before the stop.
	Ranks int `json:"ranks,omitempty"`
	// Retries is [Job.Retries] before the stop; Sent: what asks the job's controller to replace the pods was created, and Command is
	// its UID: another one of its name is not ours to use.
	Retries int64     `json:"retries,omitempty"`
	Sent    bool      `json:"sent,omitempty"`
	Command types.UID `json:"command,omitempty"`
	// Held is what a stop that takes too long waits for.
	Held string `json:"held,omitempty"`
	// Outcome is a sentence; only once closed.
	Outcome string `json:"outcome,omitempty"`
}

// Cause is one trigger that made the restart necessary.
type Cause struct {
	ID      string    `json:"id"`
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
	// Taint is that of the quarantine; a failed pod has none.
	Taint corev1.Taint `json:"taint,omitzero"`
}

// CauseOf is what a record keeps of a trigger.
func CauseOf(t Trigger) Cause {
	return Cause{ID: t.ID, Node: t.Node, NodeUID: t.NodeUID, Reason: cut(t.Reason, maxReason), Since: t.Since, Taint: t.Taint}
}

// Stands reports whether the quarantine still stands. node is the one of that name, nil if there is none: a node that was
// deleted does not come back well.
func (c Cause) Stands(node *corev1.Node) bool {
	return node == nil || node.UID != c.NodeUID || slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.MatchTaint(&c.Taint) })
}

// Covers reports whether the quarantine is one of the restart's causes.
func (r *Restart) Covers(quarantine string) bool { return r.cause(quarantine) >= 0 }

// coversNames is [Restart.Covers], but a quarantine of devices has a later time when they got other names: a job that was restarted may
// hold one of them again.
func (r *Restart) coversNames(t Trigger) bool {
	i := r.cause(t.ID)
	return i >= 0 && (t.Devices == nil || !r.Quarantines[i].Since.Before(t.Since))
}

// cause is the index of a quarantine among the causes of the restart; -1: it is none.
func (r *Restart) cause(quarantine string) int {
	return slices.IndexFunc(r.Quarantines, func(c Cause) bool { return c.ID == quarantine })
}

// AddCause makes a quarantine a cause of the restart, or brings the cause up to date; one too many is not named.
func (r *Restart) AddCause(c Cause) {
	if i := r.cause(c.ID); i >= 0 {
		r.Quarantines[i] = c
	} else if len(r.Quarantines) < maxCauses {
		r.Quarantines = append(r.Quarantines, c)
	}
}

// AddPods records pods that have to be gone before the job is started again.
func (r *Restart) AddPods(pods ...metav1.Object) {
	for _, pod := range pods {
		r.Pods = append(r.Pods, pod.GetUID())
	}
	slices.Sort(r.Pods)
	r.Pods = slices.Compact(r.Pods)
}

// Step names the stop or the start that the restart is at, for the suspend field of another object.
func (r Restart) Step() string { return r.ID + " " + string(r.Phase) }

// DeletedSince reports whether a pod's deletion was asked for in or after the second of the stop; the API server's times
// carry no fraction.
func (r Restart) DeletedSince(pod metav1.Object) bool {
	end := pod.GetDeletionTimestamp()
	if end == nil {
		return false
	}
	grace := time.Duration(ptr.Deref(pod.GetDeletionGracePeriodSeconds(), 0)) * time.Second
	return !end.Add(-grace).Before(r.PhaseSince.Truncate(time.Second))
}

// ReadRecord reads a job's record, bounded, see [Record.Clamp] for its times. A job without one, or with that of another job, has
// an empty record. Fields that this version does not know are ignored. An error means that the annotation is no record that this
// version knows, or is too large.
func ReadRecord(object metav1.Object) (Record, error) {
	fresh := Record{V: 1, JobUID: object.GetUID()}
	text, found := object.GetAnnotations()[conditions.AnnotationRestart]
	if !found {
		return fresh, nil
	}
	if len(text) > maxRead {
		return Record{}, fmt.Errorf("read annotation %s: %d bytes, at most %d", conditions.AnnotationRestart, len(text), maxRead)
	}
	var rec Record
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		return Record{}, fmt.Errorf("read annotation %s: %w", conditions.AnnotationRestart, err)
	}
	if rec.JobUID != object.GetUID() {
		return fresh, nil
	}
	if rec.V != 1 {
		return Record{}, fmt.Errorf("read annotation %s: version %d is not known", conditions.AnnotationRestart, rec.V)
	}
	if cur := rec.Current; cur != nil {
		if !phaseForm.MatchString(string(cur.Phase)+string(cur.LaterPhase)) || cur.Phase == Done || cur.Phase == Failed {
			return Record{}, fmt.Errorf("read annotation %s: phase %q is not known", conditions.AnnotationRestart, cur.Phase)
		}
		if cur.ID != "" && len(validation.IsDNS1123Label(cur.ID)) > 0 {
			return Record{}, fmt.Errorf("read annotation %s: id %.80q is no name", conditions.AnnotationRestart, cur.ID)
		}
	}
	rec.bound()
	return rec, nil
}

// InKnownPhase returns the record with a phase of a later version as one of this: a job that may be stopped is started once its old pods
// are gone, and of any other it is only seen whether it runs again.
func (rec Record) InKnownPhase(job Job) Record {
	if rec.Current == nil || slices.Contains([]Phase{Checkpointing, Stopping, Starting}, rec.Current.Phase) {
		return rec
	}
	cur := *rec.Current
	cur.LaterPhase, cur.Phase = cur.Phase, Starting
	if job.Suspended {
		cur.Phase = Stopping
	}
	rec.Current = &cur
	return rec
}

// With returns the record with a new restart for a trigger, which has stopped nothing yet. moving is how many ranks
// have to find another node, if that is known.
func (rec Record) With(t Trigger, moving int, now time.Time) Record {
	rec.Current = &Restart{StartedAt: now, PhaseSince: now, Quarantines: []Cause{CauseOf(t)}, Moving: moving}
	return rec
}

// Started returns the record with its current restart in phase Starting.
func (rec Record) Started(now time.Time) Record {
	cur := *rec.Current
	cur.Phase, cur.PhaseSince, cur.Pods, cur.Held = Starting, now, nil, ""
	rec.Current = &cur
	return rec
}

// Closed returns the record with its current restart moved to the closed ones, as a step with [Close] decides.
func (rec Record) Closed(s Step, now time.Time) Record {
	closed := *rec.Current
	closed.Phase, closed.Outcome, closed.EndedAt, closed.Pods, closed.Moving = s.Phase, s.Outcome, now, nil, 0
	rec.Current = nil
	rec.Last = append([]Restart{closed}, rec.Last...)
	rec.Last = rec.Last[:min(len(rec.Last), keptRestarts)]
	return rec
}

// Incarnation is the time from which on the pods of the job are those that run now; zero: it was never stopped.
func (rec Record) Incarnation() time.Time {
	if rec.Current != nil && rec.Current.Phase != Checkpointing {
		return rec.Current.PhaseSince
	}
	if last := rec.LastStop(); last != nil {
		return last.PhaseSince
	}
	return time.Time{}
}

// Patch is the JSON merge patch that writes the record, the label that finds it and, where the job itself has the
// suspend field, that field as the phase needs it, all at once. The zero field is left alone. The resourceVersion makes
// the patch fail with a conflict when another writer changed the job since it was read. An error means that the field cannot be set.
func (rec Record) Patch(object metav1.Object, field SuspendField) ([]byte, error) {
	text, err := json.Marshal(rec)
	for err == nil && len(text) > maxRecord && len(rec.Last) > 1 {
		rec.Last = rec.Last[:len(rec.Last)-1]
		text, err = json.Marshal(rec)
	}
	if err == nil && len(text) > maxRecord && rec.Current != nil { // so many pods leave no room for many causes
		cur := *rec.Current
		cur.Quarantines, rec.Current, rec.Last = cur.Quarantines[:min(len(cur.Quarantines), 1)], &cur, nil
		text, err = json.Marshal(rec)
	}
	if err != nil {
		return nil, fmt.Errorf("write annotation %s: %w", conditions.AnnotationRestart, err)
	}
	annotations := map[string]any{conditions.AnnotationRestart: string(text)}
	var active any // null removes the label
	if rec.Current != nil {
		active = "true"
	} else {
		annotations[conditions.AnnotationAbortRestart] = nil // done
	}
	if rec.Current != nil && rec.Current.Phase == Checkpointing {
		annotations[conditions.AnnotationCheckpointBy] = rec.Current.CheckpointDeadline()
	} else {
		annotations[conditions.AnnotationCheckpointBy], annotations[conditions.AnnotationCheckpointed] = nil, nil
	}
	body := map[string]any{"metadata": map[string]any{
		"resourceVersion": object.GetResourceVersion(),
		"labels":          map[string]any{conditions.LabelRestarting: active},
		"annotations":     annotations,
	}}
	if field.Exists() && field.Elsewhere == nil {
		if err := field.Set(body, rec.Current.Phase == Stopping); err != nil {
			return nil, err
		}
	}
	return json.Marshal(body)
}

// PatchElsewhere is the merge patch of the suspend field of another object, and marks there that it was us.
func (r Restart) PatchElsewhere(field SuspendField) ([]byte, error) {
	body := map[string]any{"metadata": map[string]any{
		"resourceVersion": field.Elsewhere.GetResourceVersion(),
		"annotations":     map[string]any{conditions.AnnotationRestartStep: r.Step()},
	}}
	if err := field.Set(body, r.Phase == Stopping); err != nil {
		return nil, err
	}
	return json.Marshal(body)
}
