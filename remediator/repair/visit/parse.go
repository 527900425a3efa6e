package visit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

const (
	// maxRecord is the most bytes of the annotation, twice what is written. All that is kept of a Node shares [node.MaxKept].
	maxRecord = 32 << 10
	// maxCount bounds attempts and failures.
	maxCount = 10000
	// maxAhead is how far ahead a deadline may be: the longest action is a long check.
	maxAhead = 24 * time.Hour
)

// RecordOf reads the record in a Node's annotations; nil when the Node has none. One of a node of the same name that was there before
// counts as none.
func RecordOf(n *corev1.Node) (*Record, error) {
	text, ok := n.Annotations[conditions.AnnotationRepair]
	if !ok {
		return nil, nil
	}
	r, err := ParseRecord(text)
	if err != nil || r.NodeUID != n.UID {
		return nil, err
	}
	return r, nil
}

// ParseRecord reads the annotation. What no remediator writes is an error: no visit is made to the node then. Fields, kinds and phases of a
// later version are none, so that a visit that it has begun ends after a downgrade.
func ParseRecord(text string) (*Record, error) {
	if len(text) > maxRecord {
		return nil, fmt.Errorf("repair record of %d bytes is larger than any that the remediator writes", len(text))
	}
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("decode repair record: %w", err)
	}
	if r.V != Version {
		return nil, fmt.Errorf("repair record has version %d, not %d", r.V, Version)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("repair record: %w", err)
	}
	return &r, nil
}

// check returns what in a record no remediator writes.
func (r *Record) check() error {
	if err := record.Check(r); err != nil {
		return err //nolint:wrapcheck // it names the field
	}
	if v := r.Current; v != nil {
		if slices.Contains(closedPhases, v.Phase) {
			return fmt.Errorf("visit %q is %s and under way", v.ID, v.Phase)
		}
		if err := v.check(); err != nil {
			return err
		}
	}
	for i := range r.Last {
		v := &r.Last[i]
		if slices.Contains(openPhases, v.Phase) {
			return fmt.Errorf("visit %q is %s and among those that were closed", v.ID, v.Phase)
		}
		if err := v.check(); err != nil {
			return err
		}
	}
	return nil
}

// check returns what in a visit no remediator writes. Its id and its kind are in the names of Jobs, labels and taints.
func (v *Visit) check() error {
	switch {
	case v.ID == "" || len(validation.IsValidLabelValue(v.ID)) > 0:
		return fmt.Errorf("a visit has the id %.80q", v.ID)
	case len(v.Kind) > 32 || len(validation.IsDNS1123Label(string(v.Kind))) > 0:
		return fmt.Errorf("visit %.40q has kind %.40q", v.ID, v.Kind)
	case v.Phase == "", v.Phase.IsKnown() && (v.Phase == Ending) != (v.Then != ""),
		slices.Contains([]Phase{Working, Ending, Proving}, v.Then):
		return fmt.Errorf("visit %.40q is %.40q and then %.40q", v.ID, v.Phase, v.Then)
	case v.Attempt < 0, v.Attempt > maxCount, v.Failures < 0, v.Failures > maxCount,
		(v.Phase == Working || v.Phase == Ending) && v.Attempt == 0:
		return fmt.Errorf("visit %.40q is %.40s in attempt %d, with %d failures", v.ID, v.Phase, v.Attempt, v.Failures)
	}
	return nil
}

// ClampTimes takes each time that is further ahead than clocks differ for now: it is of a clock that was ahead, or forged, and a
// timer that runs from it would never end. A deadline is ahead by design, and lies within what the phase may take.
func (r *Record) ClampTimes(now time.Time) {
	type ahead struct{ deadline, retryAt time.Time }
	visits, kept := r.visits(), map[*Visit]ahead{}
	for _, v := range visits {
		kept[v] = ahead{v.Deadline, v.RetryAt}
	}
	record.Clamp(r, now)
	latest := now.Add(maxAhead)
	for _, v := range visits {
		v.Deadline, v.RetryAt = kept[v].deadline, kept[v].retryAt
		if v == r.Current && v.Deadline.After(latest) {
			v.Deadline = latest
		}
		if v == r.Current && v.RetryAt.After(latest) {
			v.RetryAt = latest
		}
	}
	maps.DeleteFunc(r.Swept, func(_ string, at time.Time) bool { return causes.FromFuture(at, now) })
}

func (r *Record) visits() []*Visit {
	var visits []*Visit
	if r.Current != nil {
		visits = append(visits, r.Current)
	}
	for i := range r.Last {
		visits = append(visits, &r.Last[i])
	}
	return visits
}

// Clone copies a record; nil becomes an empty record of the node.
func (r *Record) Clone(n *corev1.Node) *Record {
	if r == nil {
		return &Record{V: Version, NodeUID: n.UID}
	}
	return record.Clone(r)
}

// String returns the text of the annotation; empty for a record that remembers nothing. A record with a time that JSON cannot express
// becomes a text that [ParseRecord] refuses.
func (r *Record) String() string {
	if r == nil || r.isEmpty() {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		return strconv.Quote(err.Error())
	}
	return string(text)
}

func (r *Record) isEmpty() bool {
	return r.Current == nil && r.Request == nil && r.Stopped == "" && r.Checked == nil && r.Advice == nil &&
		len(r.Swept) == 0 && len(r.Repairs) == 0 && len(r.Last) == 0
}

// Fit drops history until the record is one that [ParseRecord] reads.
func (r *Record) Fit() {
	r.Last = r.Last[:min(len(r.Last), lastKept)]
	r.Repairs = r.Repairs[max(0, len(r.Repairs)-RepairsKept):]
	for len(r.Last) > 1 && len(r.String()) > maxRecord/2 {
		r.Last = r.Last[:len(r.Last)-1]
	}
}

// Put writes the record into the annotations of a node.
func (r *Record) Put(n *corev1.Node) {
	text := r.String()
	switch {
	case text == "":
		delete(n.Annotations, conditions.AnnotationRepair)
	case n.Annotations == nil:
		n.Annotations = map[string]string{conditions.AnnotationRepair: text}
	default:
		n.Annotations[conditions.AnnotationRepair] = text
	}
}
