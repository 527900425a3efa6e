package jobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// keptRestarts is how many closed restarts a record keeps.
const keptRestarts = 5

const (
	// maxPods bounds the record: the annotations of an object hold at most 256 KiB together, a UID takes 39 bytes.
	maxPods = 5000
	// maxRecord is the size in bytes from which on older closed restarts are forgotten.
	maxRecord = 200 << 10
	// maxCauses bounds the requests that a record makes necessary: whoever may write the job may write it.
	maxCauses = 500
	// maxReason is the longest reason of a cause in bytes; conditions of others may bear up to 32 KiB.
	maxReason = 256
)

// phase is where a restart stands.
type phase string

const (
	// saving: the job was told to save its state until CheckpointBy; nothing has been stopped.
	saving phase = "Saving"
	// stopping: the job is stopped by us; until every old pod is gone nothing is started.
	stopping phase = "Stopping"
	// starting: the job is started by us, or by its own controller; until all ranks run.
	starting phase = "Starting"
	// done: closed, the job runs again or has completed.
	done phase = "Done"
	// failed: closed, a person should look.
	failed phase = "Failed"
)

// record is the JSON of the annotation pitcrew.dev/restart. All state of a restart is in it, so that a crash between
// any two writes resumes.
type record struct {
	V int `json:"v"`
	// JobUID tells the record from one that was copied with the job's manifest.
	JobUID  types.UID `json:"jobUID"`
	Current *restart  `json:"current,omitempty"`
	// Last holds the closed restarts, newest first.
	Last []restart `json:"last,omitempty"`
	// Total counts the restarts that stopped the job, Recent says when those of the last day began, the oldest first.
	Total  int         `json:"total,omitempty"`
	Recent []time.Time `json:"recent,omitempty"`
}

// restart is one stop and start of a whole job.
type restart struct {
	// ID is new with every stop. What is done outside of the job's own object bears it.
	ID          string    `json:"id"`
	Phase       phase     `json:"phase"`
	Quarantines []cause   `json:"quarantines"`
	StartedAt   time.Time `json:"startedAt"`
	PhaseSince  time.Time `json:"phaseSince"`
	EndedAt     time.Time `json:"endedAt,omitzero"`
	// CheckpointBy is until when the job may save its state; only while saving.
	CheckpointBy time.Time `json:"checkpointBy,omitzero"`
	// RunningSince is when the oldest of the stopped pods was created: what was done since then and not saved is lost.
	RunningSince time.Time `json:"runningSince,omitzero"`
	// Streak is the number of this restart among those in a row, see [record.streak]; 0: the job was never stopped.
	Streak int `json:"streak,omitempty"`
	// Moving is how many ranks have to find another node; only while the restart is under way and the room was looked for.
	Moving int `json:"moving,omitempty"`
	// Pods are the UIDs of the pods that were active before the stop; only while stopping.
	Pods []types.UID `json:"pods,omitempty"`
	// Ranks is how many pods were active before the stop.
	Ranks int `json:"ranks,omitempty"`
	// Retries is [view.retries] before the stop; Sent: the job's controller was told to replace the pods.
	Retries int64 `json:"retries,omitempty"`
	Sent    bool  `json:"sent,omitempty"`
	// Held says what a stop that takes too long waits for.
	Held string `json:"held,omitempty"`
	// Outcome is a sentence; only once closed.
	Outcome string `json:"outcome,omitempty"`
}

// cause is one quarantine that made the restart necessary.
type cause struct {
	ID      string    `json:"id"`
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
	// Taint is that of the quarantine; a failed pod has none.
	Taint corev1.Taint `json:"taint,omitzero"`
}

func causeOf(q Quarantine) cause {
	reason := q.Reason
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "..."
	}
	return cause{ID: q.ID, Node: q.Node, NodeUID: q.NodeUID, Reason: reason, Since: q.Since, Taint: q.Taint}
}

// covers tells whether the quarantine is one of the restart's causes.
func (r *restart) covers(quarantine string) bool {
	return slices.ContainsFunc(r.Quarantines, func(c cause) bool { return c.ID == quarantine })
}

// add makes a quarantine a cause of the restart; one too many is not named.
func (r *restart) add(c cause) {
	if !r.covers(c.ID) && len(r.Quarantines) < maxCauses {
		r.Quarantines = append(r.Quarantines, c)
	}
}

// readRecord reads a job's record. A job without one, or with that of another job, has an empty record.
func readRecord(object client.Object) (record, error) {
	fresh := record{V: 1, JobUID: object.GetUID()}
	text, found := object.GetAnnotations()[conditions.AnnotationRestart]
	if !found {
		return fresh, nil
	}
	var rec record
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		return record{}, fmt.Errorf("read annotation %s: %w", conditions.AnnotationRestart, err)
	}
	if rec.JobUID != object.GetUID() {
		return fresh, nil
	}
	if rec.V != 1 {
		return record{}, fmt.Errorf("read annotation %s: version %d is not known", conditions.AnnotationRestart, rec.V)
	}
	if cur := rec.Current; cur != nil {
		if cur.Phase != saving && cur.Phase != stopping && cur.Phase != starting {
			return record{}, fmt.Errorf("read annotation %s: phase %q is not known", conditions.AnnotationRestart, cur.Phase)
		}
		if n := len(cur.Quarantines); n > maxCauses {
			return record{}, fmt.Errorf("read annotation %s: %d causes, at most %d", conditions.AnnotationRestart, n, maxCauses)
		}
	}
	return rec, nil
}

// closed returns the record with its current restart moved to the closed ones.
func (rec record) closed(end phase, outcome string, now time.Time) record {
	ended := *rec.Current
	ended.Phase, ended.Outcome, ended.EndedAt, ended.Pods, ended.Moving = end, outcome, now, nil, 0
	rec.Current = nil
	rec.Last = append([]restart{ended}, rec.Last...)
	rec.Last = rec.Last[:min(len(rec.Last), keptRestarts)]
	return rec
}

// step names the stop or the start that the restart is at, for the toggle of another object.
func (r restart) step() string { return r.ID + " " + string(r.Phase) }

// patch is the JSON merge patch that writes the record, the label that finds it and, where the job itself has the
// toggle, the toggle as the phase wants it, in one go. The zero toggle is left alone. The resourceVersion makes the patch
// fail with a conflict when anybody wrote the job since it was read.
func (rec record) patch(object client.Object, t toggle) ([]byte, error) {
	text, err := json.Marshal(rec)
	for err == nil && len(text) > maxRecord && len(rec.Last) > 1 {
		rec.Last = rec.Last[:len(rec.Last)-1]
		text, err = json.Marshal(rec)
	}
	if err != nil {
		return nil, fmt.Errorf("write annotation %s: %w", conditions.AnnotationRestart, err)
	}
	annotations := map[string]any{conditions.AnnotationRestart: string(text)}
	var underWay any // null removes the label
	if rec.Current != nil {
		underWay = "true"
	} else {
		annotations[conditions.AnnotationAbortRestart] = nil // done
	}
	if rec.Current != nil && rec.Current.Phase == saving {
		annotations[conditions.AnnotationCheckpointBy] = checkpointBy(*rec.Current)
	} else {
		annotations[conditions.AnnotationCheckpointBy], annotations[conditions.AnnotationCheckpointed] = nil, nil
	}
	body := map[string]any{"metadata": map[string]any{
		"resourceVersion": object.GetResourceVersion(),
		"labels":          map[string]any{conditions.LabelRestarting: underWay},
		"annotations":     annotations,
	}}
	if t.exists() && t.on == nil {
		if err := t.set(body, rec.Current.Phase == stopping); err != nil {
			return nil, err
		}
	}
	return json.Marshal(body)
}
