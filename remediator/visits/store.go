package visits

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record/pending"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// write patches the node to what a step decides. The patch replaces the taint list as a whole, so it is only good for the version of the
// node that it was computed from. Events and metrics follow only once it has succeeded.
func (c *Controller) write(ctx context.Context, before *corev1.Node, s repair.Step) error {
	if c.dryRun {
		c.pending.Discard(before.Name)
		return nil
	}
	if err := c.failures.Note(ctx, before, s.Notes); err != nil {
		return err
	}
	after := before.DeepCopy()
	s.Apply(after)
	locked := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := c.client.Patch(ctx, after, locked, client.FieldOwner(quarantine.ControllerName))
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			c.pending.Refused(before.Name) // else it is not known whether the node has it, and it keeps its place
		}
		return fmt.Errorf("patch node %s: %w", before.Name, err)
	}
	if r, err := visit.RecordOf(before); err == nil {
		c.starts.dropUndone(after, r, s.Record)
	}
	c.problems.Forget(before.Name)
	for _, e := range s.Events {
		c.emit(after, e)
	}
	for _, r := range s.Results {
		c.metrics.count(r)
	}
	return nil
}

// writes are the records of visits that the cache does not show yet.
type writes = pending.Writes[*visit.Record, struct{}]

func newWrites() *writes {
	return pending.New[*visit.Record, struct{}](pending.Kind[*visit.Record]{
		Annotation: conditions.AnnotationRepair, Text: (*visit.Record).String,
		Overlay: func(n *corev1.Node, r *visit.Record) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[conditions.AnnotationRepair] = r.String()
		},
	}, false)
}

// createdJobs remember the last Job that was created for each node: one that is deleted at once is never seen, and must not be created
// again. Losing them matters only until the Job's UID is in the record, which is the next write.
type createdJobs struct {
	mu     sync.Mutex
	byNode map[string]createdJob
}

type createdJob struct {
	name string
	uid  types.UID
}

// set notes the Job of a node; nil: there is none. Of one that existed before the UID is not known, and it can be seen.
func (c *createdJobs) set(node string, job *batchv1.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if job == nil {
		delete(c.byNode, node)
		return
	}
	c.byNode[node] = createdJob{job.Name, job.UID}
}

// of returns the UID of the Job of that name; empty: this process has not created it.
func (c *createdJobs) of(node, name string) types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if job := c.byNode[node]; job.name == name {
		return job.uid
	}
	return ""
}

// orphans remember since when nodes have a taint that no visit explains. Losing them has it stay longer.
type orphans struct {
	mu     sync.Mutex
	byNode map[string]time.Time
}

// since notes whether a node has such a taint, and returns since when; zero: it has none.
func (o *orphans) since(node string, orphan bool, now time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !orphan {
		delete(o.byNode, node)
	} else if o.byNode[node].IsZero() {
		o.byNode[node] = now
	}
	return o.byNode[node]
}

// report reports once what a node waits for.
func (c *Controller) report(_ context.Context, n *corev1.Node, s repair.Step) {
	if s.NeedsLive {
		return
	}
	if r := s.Record; s.Waits == nil && (r == nil || r.Current == nil) {
		c.reports.Forget(n.Name)
	}
	if r := s.Record; c.dryRun && s.Waits == nil && r != nil && r.Current != nil && changes(s, n) {
		does := "begin"
		if before, err := visit.RecordOf(n); err == nil && before != nil && before.Current != nil {
			does = "go on with"
		}
		s.Waits = &repair.Waiting{Reason: "dry-run", Message: fmt.Sprintf("dry run, would %s a %s", does, r.Current.Kind)}
	}
	// Between two waits there may be a step or two: the same reason is not news then.
	if s.Waits != nil && c.reports.Note(n.Name, s.Waits.Reason) {
		c.emit(n, causes.Event{Type: corev1.EventTypeNormal, Reason: repair.RepairWaiting, Message: s.Waits.Message})
	}
}

// emit writes an Event on a node.
func (c *Controller) emit(n *corev1.Node, e causes.Event) {
	c.recorder.Eventf(n, nil, e.Type, e.Reason, action, "%s", causes.Clip(e.Message, maxNote))
}

const (
	// action is the action of all Events.
	action = "Repair"
	// maxNote is the longest note of an Event that the API server takes, in bytes.
	maxNote = 1024
)
