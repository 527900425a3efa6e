package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// The bounds of a record. It is input: a kubelet may annotate its own Node where no admission policy forbids it. They leave room for
// a next version that keeps more than this one writes.
const (
	// maxRecord is the most bytes of the annotation. All annotations of a Node share 256 KiB, of which the quarantine record may take 192.
	maxRecord = 48 << 10
	// maxVisits, maxActions and maxList bound the closed visits, the actions and any other list.
	maxVisits, maxActions, maxList = 4 * lastKept, 2 * repairsKept, 64
	// maxText is the most bytes of a sentence or an argument, maxName of anything else.
	maxText, maxName = 4 * conditions.MaxMessage, 512
	// maxCount bounds attempts and failures.
	maxCount = 10000
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

// ParseRecord reads the annotation. What no remediator writes is an error: no visit is made to the node then. Fields of a later
// version are ignored, so that a downgrade can act.
func ParseRecord(text string) (*Record, error) {
	if len(text) > maxRecord {
		return nil, fmt.Errorf("repair record of %d bytes is larger than any that the remediator writes", len(text))
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("decode repair record: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decode repair record: text after the record")
	}
	if r.V != recordVersion {
		return nil, fmt.Errorf("repair record has version %d, not %d", r.V, recordVersion)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("repair record: %w", err)
	}
	return &r, nil
}

// check returns what in a record no remediator writes.
func (r *Record) check() error {
	b := bounds{}
	b.name("nodeUID", string(r.NodeUID))
	if r.Current != nil {
		b.visit(r.Current)
		if r.Current.Phase.Closed() {
			b.fail("visit %q is %s and under way", r.Current.ID, r.Current.Phase)
		}
	}
	b.list("last", len(r.Last), maxVisits)
	for i := range r.Last {
		b.visit(&r.Last[i])
		if !r.Last[i].Phase.Closed() {
			b.fail("visit %q is %s and among those that were closed", r.Last[i].ID, r.Last[i].Phase)
		}
	}
	if q := r.Request; q != nil {
		if !slices.Contains([]string{RequestRepair, RequestStop, RequestCheck, RequestRelease}, q.Kind) {
			b.fail("request of kind %.40q", q.Kind)
		}
		b.name("request.quarantine", q.Quarantine)
		b.name("request.user", q.User)
		b.text("request.reason", q.Reason)
	}
	b.name("stopped", r.Stopped)
	if c := r.Checked; c != nil {
		b.name("checked.bootID", c.BootID)
		b.name("checked.template", c.Template)
		b.name("checked.quarantine", c.Quarantine)
		b.texts("checked.args", c.Args)
	}
	b.list("swept", len(r.Swept), maxList)
	for sweep := range r.Swept {
		b.name("swept", sweep)
	}
	b.list("repairs", len(r.Repairs), maxActions)
	for _, a := range r.Repairs {
		b.name("repairs.template", a.Template)
		b.name("repairs.quarantine", a.Quarantine)
		b.texts("repairs.skipped", a.Skipped)
	}
	if a := r.Advice; a != nil {
		b.name("advice.quarantine", a.Quarantine)
		b.name("advice.do", a.Do)
		b.text("advice.why", a.Why)
	}
	return b.err
}

// bounds keeps the first thing that is out of bounds.
type bounds struct{ err error }

func (b *bounds) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

func (b *bounds) within(field string, length, most int) {
	if length > most {
		b.fail("%s has %d bytes, more than %d", field, length, most)
	}
}

func (b *bounds) name(field, text string) { b.within(field, len(text), maxName) }

func (b *bounds) text(field, text string) { b.within(field, len(text), maxText) }

func (b *bounds) texts(field string, texts []string) {
	b.list(field, len(texts), maxList)
	for _, text := range texts {
		b.text(field, text)
	}
}

func (b *bounds) list(field string, length, most int) {
	if length > most {
		b.fail("%s has %d entries, more than %d", field, length, most)
	}
}

func (b *bounds) visit(v *Visit) {
	if wrong := validation.IsValidLabelValue(v.ID); v.ID == "" || len(wrong) > 0 {
		b.fail("a visit has the id %.80q", v.ID)
	}
	if !slices.Contains([]Kind{Sweep, Repair, Validation, FirstCheck}, v.Kind) {
		b.fail("visit %.40q has kind %.40q", v.ID, v.Kind)
	}
	if !slices.Contains([]Phase{Emptying, Working, Ending, Proving, Passed, Failed, Refused, Yielded}, v.Phase) {
		b.fail("visit %.40q has phase %.40q", v.ID, v.Phase)
	}
	if (v.Phase == Ending) != (v.Then != "") || v.Then != "" && v.Then != Emptying && !slices.Contains(closedPhases, v.Then) {
		b.fail("visit %.40q is %.40s and then %.40q", v.ID, v.Phase, v.Then)
	}
	if v.Attempt < 0 || v.Attempt > maxCount || v.Failures < 0 || v.Failures > maxCount || (v.Phase == Working || v.Phase == Ending) && v.Attempt == 0 {
		b.fail("visit %.40q is %s in attempt %d, with %d failures", v.ID, v.Phase, v.Attempt, v.Failures)
	}
	for _, name := range []string{v.ID, v.Sweep, v.Quarantine, v.ApprovedBy, v.Template, v.BootID, string(v.JobUID)} {
		b.name("a visit", name)
	}
	b.text("held", v.Held)
	b.text("outcome", v.Outcome)
	b.texts("args", v.Args)
	b.texts("verdict", v.Verdict)
	b.texts("skipped", v.Skipped)
}

// clampTimes takes each time that is further ahead than clocks differ for now: it is of a clock that was ahead, or forged, and a
// timer that runs from it would never end. A deadline is ahead by design, and lies within what the phase may take.
func (r *Record) clampTimes(now time.Time) {
	clamp := func(times ...*time.Time) {
		for _, at := range times {
			if quarantine.FromFuture(*at, now) {
				*at = now
			}
		}
	}
	visits := []*Visit{}
	if r.Current != nil {
		visits = append(visits, r.Current)
		for _, ahead := range []*time.Time{&r.Current.Deadline, &r.Current.RetryAt} {
			if latest := now.Add(maxAhead); ahead.After(latest) {
				*ahead = latest
			}
		}
	}
	for i := range r.Last {
		visits = append(visits, &r.Last[i])
	}
	for _, v := range visits {
		clamp(&v.StartedAt, &v.PhaseSince, &v.EndedAt, &v.ActionSince, &v.JobEndedAt)
	}
	for i := range r.Repairs {
		clamp(&r.Repairs[i].At)
	}
	if r.Request != nil {
		clamp(&r.Request.At)
	}
	if r.Checked != nil {
		clamp(&r.Checked.At)
	}
	maps.DeleteFunc(r.Swept, func(_ string, at time.Time) bool { return quarantine.FromFuture(at, now) })
	if r.Advice != nil {
		clamp(&r.Advice.At)
	}
}

// maxAhead is how far ahead a deadline may be: the longest action is a long check.
const maxAhead = 24 * time.Hour

// clone copies what [Next] changes; nil becomes an empty record of the node.
func (r *Record) clone(n *corev1.Node) *Record {
	if r == nil {
		return &Record{V: recordVersion, NodeUID: n.UID}
	}
	c := *r
	c.Current, c.Request, c.Checked, c.Advice = copied(r.Current), copied(r.Request), copied(r.Checked), copied(r.Advice)
	c.Repairs, c.Last, c.Swept = slices.Clone(r.Repairs), slices.Clone(r.Last), maps.Clone(r.Swept)
	return &c
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// String is the text of the annotation; empty for a record that remembers nothing. A record with a time that JSON cannot express
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
	return r.Current == nil && r.Request == nil && r.Stopped == "" && r.Checked == nil && r.Advice == nil && len(r.Swept) == 0 && len(r.Repairs) == 0 && len(r.Last) == 0
}

// fit drops history until the record is one that [ParseRecord] reads.
func (r *Record) fit() {
	r.Last = r.Last[:min(len(r.Last), lastKept)]
	r.Repairs = r.Repairs[max(0, len(r.Repairs)-repairsKept):]
	for len(r.Last) > 1 && len(r.String()) > maxRecord/2 {
		r.Last = r.Last[:len(r.Last)-1]
	}
}

// Closed reports whether a visit in the phase has ended.
func (p Phase) Closed() bool { return !slices.Contains([]Phase{Emptying, Working, Ending, Proving}, p) }

// closedPhases are those of visits that have ended.
var closedPhases = []Phase{Passed, Failed, Refused, Yielded}

// ValidatedFor reports whether the node has passed a validation for the quarantine in its present boot.
func (r *Record) ValidatedFor(quarantineID, bootID string) bool {
	return r != nil && r.Checked != nil && quarantineID != "" && bootID != "" && r.Checked.Quarantine == quarantineID && r.Checked.BootID == bootID
}
