package progress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// Reasons of the Events on jobs; they are part of the contract with users.
const (
	eventStalled = "JobStalled"
	eventUnknown = "JobProgressUnknown"
)

// saidContainer is the report that pods do not have the container that they name.
const saidContainer = eventUnknown + "Container"

const (
	// maxNote is the longest note of an Event that the API server takes, in bytes.
	maxNote = 1024
	// maxNamed is how many ranks an Event names, and of how many nodes the evidence has the conditions.
	maxNamed = 8
	// maxRanks is how many ranks the evidence has, maxConditions how many conditions of a node.
	maxRanks, maxConditions = 1024, 64
	// maxEvents is how many Events about a pod or a node are read, maxReason how much of a reason is kept, or of the type of a condition, in
	// bytes: a ConfigMap holds 1 MiB, and a kubelet writes any text.
	maxEvents, maxReason = 20, 128
	// evidencePerDay is how much evidence is kept of one job in 24 hours.
	evidencePerDay = 10
	// maxSaid bounds the memory of jobs that were told that they have no place.
	maxSaid = 10_000
)

// Evidence is what was known of a job when it had made no progress for longer than it may. It is the key stall.json of a ConfigMap beside
// the job, whose owner is the job.
type Evidence struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// QuietSince is since when no rank has made progress, by the remediator's clock. TakenAt is the time of this.
	QuietSince time.Time `json:"quietSince"`
	TakenAt    time.Time `json:"takenAt"`
	// Step is that of most ranks that print steps; none: no rank has printed one.
	Step *uint64 `json:"step,omitempty"`
	// Behind are the ranks at another step than most.
	Behind []int `json:"behind,omitempty"`
	// Ranks are those behind first, then the others.
	Ranks []stall.Rank `json:"ranks"`
	// Nodes are those of the ranks behind.
	Nodes []NodeEvidence `json:"nodes,omitempty"`
	// Events are the recent ones about the pods of the ranks behind, and about their nodes. EventsNotRead is why they are not all here.
	Events        []EventEvidence `json:"events,omitempty"`
	EventsNotRead string          `json:"eventsNotRead,omitempty"`
}

// EventEvidence is an Event without its message, which may be for others than those who read the evidence.
type EventEvidence struct {
	Kind   string `json:"kind"` // Pod or Node
	Name   string `json:"name"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
	// Count is how often it was emitted, Last when it was last.
	Count int32     `json:"count"`
	Last  time.Time `json:"last"`
}

// NodeEvidence is what a node reported of itself.
type NodeEvidence struct {
	Name       string      `json:"name"`
	Conditions []Condition `json:"conditions"`
}

// Condition is a NodeCondition without its message, which is for those who administer nodes.
type Condition struct {
	Type   string                 `json:"type"`
	Status corev1.ConditionStatus `json:"status"`
	Reason string                 `json:"reason"`
}

// report reports a stalled job, or of which nothing is known, once.
func (f *follower) report(ctx context.Context, req request, object *metav1.PartialObjectMetadata, known *followed, v stall.Verdict) error {
	switch v.State {
	case stall.Unknown:
		f.sayOnce(known, object, "NothingKnown", "whether the job makes progress cannot be told: "+v.Why)
	case stall.Stalled:
		if !known.said.Has(eventStalled) {
			f.reportStalled(ctx, req, object, known, v)
			return nil // other jobs may have stalled since then, too, which the next look knows
		}
		return f.restart(ctx, req, object, known, v)
	case stall.Running, stall.Starting, stall.Paused, stall.NotRunning:
		if !v.Reported {
			known.said.Delete(eventStalled)
		}
		known.said.Delete(saidShared)
		if v.State == stall.NotRunning { // what follows is said of other pods; that these have no such container is why they do not count
			known.said = known.said.Intersection(sets.New(saidContainer))
		}
	}
	return nil
}

// sayOnce reports why nothing can be told about a job, once for its pods and these annotations.
func (f *follower) sayOnce(known *followed, object *metav1.PartialObjectMetadata, action, text string) {
	if key := eventUnknown + action; !known.said.Has(key) {
		known.said.Insert(key)
		f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, eventUnknown, action, "%s", causes.Clip(text, maxNote))
	}
}

// reportStalled keeps the evidence, and then emits the Event. A new leader finds the evidence there, and says it once more.
func (f *follower) reportStalled(ctx context.Context, req request, object *metav1.PartialObjectMetadata, known *followed, v stall.Verdict) {
	now := f.Clock.Now()
	ranks := known.job.Ranks()
	evidence := Evidence{
		Kind: req.Kind.Kind, Namespace: req.Namespace, Name: req.Name, UID: known.uid, QuietSince: v.Since.UTC(), TakenAt: now.UTC(),
		Behind: v.Behind,
	}
	if v.HasStep {
		evidence.Step = &v.Step
	}
	behind := map[int]bool{}
	for _, i := range v.Behind {
		behind[i] = true
		evidence.Ranks = append(evidence.Ranks, ranks[i])
	}
	for i := range ranks {
		if !behind[i] {
			evidence.Ranks = append(evidence.Ranks, ranks[i])
		}
	}
	evidence.Ranks = evidence.Ranks[:min(len(ranks), maxRanks)]
	evidence.Nodes = f.nodesOf(ctx, ranks, v.Behind)
	where, err := f.keep(ctx, object, known, evidence)
	if err != nil {
		// Without a right to write it the Event is worth all the more.
		log.FromContext(ctx).Error(err, "The evidence of a stalled job is not kept", "job", req.NamespacedName)
		where = "the evidence could not be kept"
	}
	known.said.Insert(eventStalled)
	f.metrics.stalls.WithLabelValues(req.Kind.Kind).Inc()
	f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, eventStalled, "Observe", "%s",
		causes.Clip(stalledText(v, ranks, now)+"; "+where, maxNote))
}

// stalledText names the ranks that are behind, and their nodes.
func stalledText(v stall.Verdict, ranks []stall.Rank, now time.Time) string {
	var text strings.Builder
	fmt.Fprintf(&text, "all %d ranks run, and none has made progress for %s", len(ranks), now.Sub(v.Since).Round(time.Second))
	if v.HasStep {
		fmt.Fprintf(&text, "; most stand at step %d", v.Step)
	}
	switch {
	case !v.HasStep:
		text.WriteString("; no rank has printed the number of a step")
	case len(v.Behind) == 0:
		text.WriteString("; no rank is known to be behind the others")
	}
	for n, i := range v.Behind {
		if n == maxNamed {
			fmt.Fprintf(&text, ", and %d more", len(v.Behind)-n)
			break
		}
		fmt.Fprintf(&text, "%s rank %d at step %d (pod %s, node %s)", map[bool]string{true: ", but", false: ","}[n == 0], i, *ranks[i].Step,
			ranks[i].Pod, ranks[i].Node)
	}
	return text.String()
}

// nodesOf are the nodes of some ranks, as the cache has them. One that is gone has no conditions.
func (f *follower) nodesOf(ctx context.Context, ranks []stall.Rank, of []int) (all []NodeEvidence) {
	for _, i := range of[:min(len(of), maxNamed)] {
		found := NodeEvidence{Name: ranks[i].Node}
		var node corev1.Node
		if err := f.api.Get(ctx, client.ObjectKey{Name: found.Name}, &node); client.IgnoreNotFound(err) != nil {
			log.FromContext(ctx).Error(err, "The conditions of a node are not in the evidence", "node", found.Name)
		}
		for _, c := range node.Status.Conditions[:min(len(node.Status.Conditions), maxConditions)] {
			found.Conditions = append(found.Conditions, Condition{
				Type: causes.Clip(string(c.Type), maxReason), Status: corev1.ConditionStatus(causes.Clip(string(c.Status), maxReason)),
				Reason: causes.Clip(c.Reason, maxReason),
			})
		}
		all = append(all, found)
	}
	return all
}

// keep writes the evidence into a ConfigMap beside the job, whose name follows from the pods and the step, and returns where it is.
func (f *follower) keep(
	ctx context.Context, object *metav1.PartialObjectMetadata, known *followed, evidence Evidence,
) (where string, err error) {
	switch {
	case f.DryRun:
		return "no evidence is kept (-dry-run)", nil
	case !known.evidence.AllowN(evidence.TakenAt, 1):
		return fmt.Sprintf("no evidence is kept, because %d were in 24 hours", evidencePerDay), nil
	}
	evidence.Events, evidence.EventsNotRead = f.eventsOf(ctx, evidence)
	text, err := json.MarshalIndent(evidence, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the evidence: %w", err)
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", object.UID, known.job.Incarnation(), ptr.Deref(evidence.Step, 0)))
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.Namespace, Name: "pitcrew-stall-" + hex.EncodeToString(hash[:8]),
			Labels: map[string]string{"app.kubernetes.io/managed-by": quarantine.ControllerName},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: object.APIVersion, Kind: object.Kind, Name: object.Name, UID: object.UID,
			}},
		},
		Immutable: ptr.To(true),
		Data:      map[string]string{"stall.json": string(text)},
	}
	err = f.api.Create(ctx, stored, client.FieldOwner(quarantine.ControllerName))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create ConfigMap %s/%s: %w", stored.Namespace, stored.Name, err)
	}
	return "ConfigMap " + stored.Name + " has the evidence", nil
}

// eventsOf are the Events about the pods of the ranks behind and about their nodes, as the API server has them now; notRead is why some are
// not there.
func (f *follower) eventsOf(ctx context.Context, evidence Evidence) (all []EventEvidence, notRead string) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read := func(namespace, kind, name string) {
		var list corev1.EventList
		err := f.apiReader.List(ctx, &list, client.InNamespace(namespace), client.Limit(maxEvents),
			client.MatchingFields{"involvedObject.kind": kind, "involvedObject.name": name})
		if err != nil {
			notRead = fmt.Sprintf("%s %s: %s", kind, name, reasonOf(err, "events list"))
			return
		}
		for i := range list.Items {
			e := &list.Items[i]
			last, count := e.LastTimestamp.Time, e.Count
			if e.Series != nil {
				last, count = e.Series.LastObservedTime.Time, e.Series.Count
			}
			all = append(all, EventEvidence{kind, name, causes.Clip(e.Type, maxReason), causes.Clip(e.Reason, maxReason), max(count, 1),
				slices.MaxFunc([]time.Time{last, e.EventTime.Time}, time.Time.Compare)})
		}
	}
	nodes := sets.New[string]()
	for _, r := range evidence.Ranks[:min(len(evidence.Behind), maxNamed)] { // those behind are the first
		read(evidence.Namespace, "Pod", r.Pod)
		if !nodes.Has(r.Node) {
			nodes.Insert(r.Node)
			read(metav1.NamespaceDefault, "Node", r.Node)
		}
	}
	return all, notRead
}
