package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Phase of a quarantine.
type Phase string

// The phases. A suspect node has a cause but no taint: the cause is not due yet, or something blocks the quarantine.
const (
	Suspect     Phase = "suspect"
	Quarantined Phase = "quarantined"
	Released    Phase = "released"
)

// Who released a node.
const (
	ByPitcrew = "pitcrew"
	ByPerson  = "person"
)

const (
	recordVersion = 1
	// lastKept is how many closed quarantines a record remembers besides the current one.
	lastKept = 5
	// maxHistory is the size in bytes beyond which it remembers fewer: all annotations of a node share 256 KiB, and a record
	// that does not fit could not be written, nor the taint with it.
	maxHistory = 64 << 10
)

// Record is the annotation [conditions.AnnotationQuarantine]: all that the remediator remembers about a node. Every
// timer is in it, so that a restart of the remediator changes nothing. Times are those of the remediator's clock.
type Record struct {
	V int `json:"v"`
	// NodeUID is the node the record is about; a node that was created anew starts over.
	NodeUID types.UID `json:"nodeUID"`
	Boot    Boot      `json:"boot"`
	Quarantine
	// Repairs of the node's GPUs, the oldest first.
	Repairs []RepairDone `json:"repairs,omitempty"`
	// Notices are what webhooks are still to be told, the oldest first.
	Notices []Notice `json:"notices,omitempty"`
	// Noticed is the state that the last notice was about; empty while no webhook is configured.
	Noticed string `json:"noticed,omitempty"`
	// Last holds closed quarantines, newest first.
	Last []Quarantine `json:"last,omitempty"`
}

// Boot is the node's current boot.
type Boot struct {
	// ID is node.status.nodeInfo.bootID.
	ID string `json:"id"`
	// Seen is a time at which the node was in this boot, as early as is known: when the remediator first saw the boot
	// id or, for the boot in which the record began, when the node had last become Ready.
	Seen time.Time `json:"seen,omitzero"`
}

// Quarantine is one stay: from the first sight of a fault to the release.
type Quarantine struct {
	ID     string  `json:"id"`
	Phase  Phase   `json:"phase"`
	Causes []Cause `json:"causes"`
	// QuarantinedAt is when the node was tainted first; zero for a suspect.
	QuarantinedAt time.Time `json:"quarantinedAt,omitzero"`
	// Taint is nil for a suspect.
	Taint *Taint `json:"taint,omitempty"`
	// HandOff is what was put on the node beside the taint; nil: nothing.
	HandOff    *HandOff  `json:"handOff,omitempty"`
	ReleasedAt time.Time `json:"releasedAt,omitzero"`
	ReleasedBy string    `json:"releasedBy,omitempty"`
	// Sticky is set when the node came and went too often: only a person releases it.
	Sticky bool `json:"sticky,omitempty"`
	// Holds is set while a person's release stands against causes that have not cleared.
	Holds bool `json:"holds,omitempty"`
}

// Cause is one condition that speaks for the quarantine.
type Cause struct {
	Condition corev1.NodeConditionType `json:"condition"`
	// Rule is the rule that matched the worst class.
	Rule string `json:"rule"`
	// Repair is the worst class seen in the boot BootID; Replace is kept across boots.
	Repair conditions.Repair `json:"repair"`
	// Message is the condition's, of when the class was first seen.
	Message   string    `json:"message"`
	FirstSeen time.Time `json:"firstSeen"`
	// Due is set once the fault stood for as long as its rule's `for`. A cause that clears sooner is forgotten.
	Due bool `json:"due,omitempty"`
	// BootID is the boot in which the fault was last seen.
	BootID string `json:"bootID"`
	// Dips are the times at which the fault went before it quarantined the node, as far as its rule's flaps count them. A
	// suspect's cause that is healthy is remembered for them alone.
	Dips []time.Time `json:"dips,omitempty"`
	// Mended is set once the repair that the class wants was done and counted.
	Mended bool `json:"mended,omitempty"`
	// HealthySince is since when the condition has been healthy and fresh; zero: it is not.
	HealthySince time.Time `json:"healthySince,omitzero"`
}

// Taint is the taint of a quarantine and the decision behind it.
type Taint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect"`
	// Rule and Repair decided; Since is when.
	Rule   string            `json:"rule"`
	Repair conditions.Repair `json:"repair"`
	Since  time.Time         `json:"since"`
	// Restored is set once the taint was lost and has been put back.
	Restored bool `json:"restored,omitempty"`
	// Foreign is set when an equal taint stood on the node before; it stays there after the release.
	Foreign bool `json:"foreign,omitempty"`
}

// On returns the taint as it stands on a Node.
func (t *Taint) On() corev1.Taint {
	return corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
}

// String is the taint as kubectl writes it.
func (t *Taint) String() string {
	on := t.On()
	return on.ToString()
}

// same tells whether it is this taint; key and effect identify one.
func (t *Taint) same(other corev1.Taint) bool { return t.Key == other.Key && t.Effect == other.Effect }

// Labels are the values of [conditions.LabelStatus] and [conditions.LabelRepair]; empty means no label.
func (r *Record) Labels() (status, repair string) {
	switch {
	case r == nil:
		return "", ""
	case r.closed():
		return "healthy", ""
	case r.Phase == Quarantined:
		return "quarantined", r.worst().String()
	case r.past():
		return "healthy", ""
	}
	return "suspect", r.worst().String()
}

// blames tells whether the condition is a cause.
func (q *Quarantine) blames(t corev1.NodeConditionType) bool {
	return slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Condition == t })
}

// past tells whether all that is left of a suspicion is the memory of dips.
func (q *Quarantine) past() bool {
	return q.Phase == Suspect && !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.HealthySince.IsZero() })
}

// closed tells whether the current quarantine is history.
func (q *Quarantine) closed() bool { return q.Phase == Released && !q.Holds }

// ParseRecord reads the annotation. Whatever this version would not write itself is an error: acting on half a record,
// or writing over it, would lose what a person or a newer remediator knew.
func ParseRecord(text string) (*Record, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("decode quarantine record: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decode quarantine record: text after the record")
	}
	if r.V != recordVersion {
		return nil, fmt.Errorf("quarantine record has version %d, not %d", r.V, recordVersion)
	}
	for _, q := range append([]Quarantine{r.Quarantine}, r.Last...) {
		if err := q.check(); err != nil {
			return nil, fmt.Errorf("quarantine %q: %w", q.ID, err)
		}
	}
	return &r, nil
}

func (q *Quarantine) check() error {
	if q.ID == "" || len(q.Causes) == 0 {
		return errors.New("has no id or no causes")
	}
	switch q.Phase {
	case Suspect:
		if q.Taint != nil {
			return errors.New("is suspect and has a taint")
		}
	case Quarantined, Released:
		if q.Taint == nil || !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Due }) {
			return fmt.Errorf("is %s and has no taint or no cause that was due", q.Phase)
		}
	default:
		return fmt.Errorf("has phase %q", q.Phase)
	}
	return nil
}

// String is the text of the annotation.
func (r *Record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // A Record holds nothing that JSON cannot express.
	}
	return string(text)
}

// clone copies what Decide changes.
func (r *Record) clone() *Record {
	c := *r
	c.Causes = slices.Clone(r.Causes)
	c.Last = slices.Clone(r.Last)
	c.Repairs = slices.Clone(r.Repairs)
	if r.Taint != nil {
		t := *r.Taint
		c.Taint = &t
	}
	return &c
}

// worst is the worst class of the causes.
func (q *Quarantine) worst() conditions.Repair {
	var worst conditions.Repair
	for _, c := range q.Causes {
		worst = max(worst, c.Repair)
	}
	return worst
}
