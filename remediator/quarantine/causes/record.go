package causes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// Phase of a quarantine.
type Phase string

// The phases. A suspect node has a cause but no taint: the cause is not due yet, or something blocks the quarantine.
const (
	Suspect     Phase = "suspect"
	Quarantined Phase = "quarantined"
	Released    Phase = "released"
)

// isLater reports whether a phase is of a later version.
func (p Phase) isLater() bool { return p != "" && p != Suspect && p != Quarantined && p != Released }

// The values of [Quarantine.ReleasedBy].
const (
	ByPitcrew = "pitcrew"
	ByPerson  = "person"
)

// The bounds of a record, as its tags have them, see package record. A record is input, which whoever may annotate the Node can forge: one
// that exceeds a bound is unreadable. They leave room for a next version that keeps more than this one writes.
const (
	// MaxRecord is the most bytes of the annotation, twice what is written. All that is kept of a Node shares [node.MaxKept].
	MaxRecord = 64 << 10
	// MaxCauses is how many causes a quarantine has at most; there are as many conditions on a node that has everything.
	MaxCauses = 64
	// MaxClosed and MaxSent bound the closed quarantines and the notices; MaxText is the most bytes of a message, MaxName of anything else.
	MaxClosed, MaxSent, MaxText, MaxName = 4 * lastKept, 4 * handoff.MaxNotices, record.Text, record.Name
)

const (
	recordVersion = 1
	// lastKept is how many closed quarantines a record remembers besides the current one.
	lastKept = 5
	// maxHistory is the size in bytes beyond which it remembers fewer: what is kept of a node is bounded, and a node whose record does not
	// fit could not be judged.
	maxHistory = 24 << 10
)

// Record is the annotation [conditions.AnnotationQuarantine]: all that the remediator remembers about a node. Every
// timer is in it, so that a restart of the remediator changes nothing. Times are those of the remediator's clock.
type Record struct {
	V int `json:"v"`
	// NodeUID is the node the record is about; a node that was created again starts over.
	NodeUID types.UID `json:"nodeUID"`
	Boot    Boot      `json:"boot"`
	// Domain is that in which the node was last, see [policy.Domain]; the zero value is none.
	Domain limits.Domain `json:"domain,omitzero"`
	Quarantine
	// Repairs of the node's GPUs, the oldest first.
	Repairs []RepairRecord `json:"repairs,omitempty" max:"64"`
	// Notices are to be delivered to webhooks, the oldest first.
	Notices []handoff.Notice `json:"notices,omitempty" max:"64"`
	// LastNotified is the state that the last notice was about; empty while no webhook is configured.
	LastNotified string `json:"noticed,omitempty"`
	// Last holds closed quarantines, newest first.
	Last []Quarantine `json:"last,omitempty" max:"20"`
}

// Boot is the node's current boot.
type Boot struct {
	// ID is node.status.nodeInfo.bootID.
	ID string `json:"id"`
	// Seen is a time at which the node was in this boot, as early as is known: when the remediator first saw the boot
	// id or, for the boot in which the record began, when the node had last become Ready.
	Seen time.Time `json:"seen,omitzero"`
}

// Quarantine is one time out of service, from the moment a fault is first seen to the release.
type Quarantine struct {
	ID     string  `json:"id"`
	Phase  Phase   `json:"phase"`
	Causes []Cause `json:"causes" max:"64"`
	// QuarantinedAt is when the node was tainted first; zero for a suspect.
	QuarantinedAt time.Time `json:"quarantinedAt,omitzero"`
	// Taint is nil for a suspect.
	Taint *Taint `json:"taint,omitempty"`
	// Isolation is set while the quarantine is one of single GPUs, so that Taint is on their devices and not on the node. nil: the
	// quarantine is of the node.
	Isolation *Isolation `json:"isolation,omitempty"`
	// DevicesUnknownSince is since when the devices of a GPU with a fault could not be found without interruption; zero: they can.
	DevicesUnknownSince time.Time `json:"devicesUnknownSince,omitzero"`
	// HandOff is what was added to the node beside the taint; nil: nothing.
	HandOff    *handoff.Added `json:"handOff,omitempty"`
	ReleasedAt time.Time      `json:"releasedAt,omitzero"`
	// ReleasedBy is [ByPitcrew] or [ByPerson]; empty before the release.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// ReleaseUser and ReleaseReason are who released the node with `kubectl pitcrew release`, and why; empty: not known.
	ReleaseUser   string `json:"releaseUser,omitempty"`
	ReleaseReason string `json:"releaseReason,omitempty" max:"text"`
	// ManualReleaseOnly is set when the fault came and went too often: only a person releases the node.
	ManualReleaseOnly bool `json:"sticky,omitempty"`
	// ManualReleaseActive is set while a manual release keeps the node in service although causes have not cleared.
	ManualReleaseActive bool `json:"holds,omitempty"`
	// Uncordoned is set when others have undone the cordon of the quarantine, or have made it theirs. The quarantine does not
	// cordon the node again.
	Uncordoned bool `json:"uncordoned,omitempty"`
}

// Cause is one condition for which the node is quarantined, or suspect.
type Cause struct {
	Condition corev1.NodeConditionType `json:"condition"`
	// Rule is the rule that matched the worst class.
	Rule string `json:"rule"`
	// Repair is the worst class seen in the boot BootID; Replace is kept across boots.
	Repair conditions.Repair `json:"repair"`
	// Message is the condition's, of when the class was first seen.
	Message string `json:"message" max:"text"`
	// Covered are the messages of a condition of ours whose faults a manual release covers: that of the release, and those of the
	// releases before it that still held, the newest first. It is empty in the record of a version that did not keep them.
	Covered []string `json:"covered,omitempty" max:",text"`
	// User is who quarantined the node manually; empty: not known, or a condition did.
	User string `json:"user,omitempty"`
	// FirstSeen is when the fault was first seen; until it is due, when its condition last became a problem if that is later.
	FirstSeen time.Time `json:"firstSeen"`
	// Due is set once the fault has lasted for as long as its rule's `for`. A cause that clears sooner is forgotten.
	Due bool `json:"due,omitempty"`
	// BootID is the boot in which the fault was last seen.
	BootID string `json:"bootID"`
	// FlapTimes are the times at which the fault cleared before it quarantined the node, as far as its rule's flaps count
	// them. A suspect's cause that is healthy is kept for them alone.
	FlapTimes []time.Time `json:"dips,omitempty" max:"64"`
	// RepairRecorded is set once the repair that the class needs was done and is among the record's Repairs.
	RepairRecorded bool `json:"mended,omitempty"`
	// Link is the role of the fault in a broken link of the node's domain.
	Link Link `json:"link,omitzero"`
	// HealthySince is since when the condition has been healthy and fresh, by the later of what the remediator saw and what the
	// condition reports; zero: it is not.
	HealthySince time.Time `json:"healthySince,omitzero"`
}

// Taint is the taint of a quarantine and the decision behind it.
type Taint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect"`
	// Rule and Repair are those of the problem that decided; Since is when the decision was made.
	Rule   string            `json:"rule"`
	Repair conditions.Repair `json:"repair"`
	Since  time.Time         `json:"since"`
	// Restored is set once the taint was removed during the quarantine and has been put back.
	Restored bool `json:"restored,omitempty"`
	// HeldFor is the node whose broken link has made the faults: the node is only kept from new jobs until that one is repaired. It is
	// empty if the node is quarantined for faults of its own.
	HeldFor string `json:"heldFor,omitempty"`
	// PreExisting is set when others had put an equal taint on the node before; it stays there after the release.
	PreExisting bool `json:"foreign,omitempty"`
}

// NodeTaint is the taint as it is in the spec of a Node.
func (t *Taint) NodeTaint() corev1.Taint {
	return corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
}

// String is the taint as kubectl writes it.
func (t *Taint) String() string {
	taint := t.NodeTaint()
	return taint.ToString()
}

// Matches reports whether it is this taint, whatever its value: key and effect identify a taint.
func (t *Taint) Matches(other corev1.Taint) bool {
	return t.Key == other.Key && t.Effect == other.Effect
}

func HasTaint(taints []corev1.Taint, t *Taint) bool { return slices.ContainsFunc(taints, t.Matches) }

// Labels are the values of [conditions.LabelStatus] and [conditions.LabelRepair] for a node that is maintained or not;
// empty means no label.
func (r *Record) Labels(maintained bool) (status, repair string) {
	switch {
	case r == nil:
		return "", ""
	case r.Closed(), r.hasOnlyFlapTimes():
		return conditions.StatusHealthy, ""
	case r.IsIsolated():
		return conditions.StatusIsolated, r.Worst().String()
	case r.Phase == Quarantined && maintained:
		return conditions.StatusRepairing, r.Worst().String()
	case r.Phase == Quarantined:
		return conditions.StatusQuarantined, r.Worst().String()
	}
	return conditions.StatusSuspect, r.Worst().String()
}

// HasCause reports whether the condition is a cause.
func (q *Quarantine) HasCause(t corev1.NodeConditionType) bool {
	return slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Condition == t })
}

// hasOnlyFlapTimes reports whether a suspicion is over and kept only because its flaps still count.
func (q *Quarantine) hasOnlyFlapTimes() bool {
	return q.Phase == Suspect && !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.HealthySince.IsZero() })
}

// Closed reports whether the current quarantine is history.
func (q *Quarantine) Closed() bool { return q.Phase == Released && !q.ManualReleaseActive }

// Decisive is the cause that decided on the taint. The quarantine must have a taint.
func (q *Quarantine) Decisive() Cause {
	i := slices.IndexFunc(q.Causes, func(c Cause) bool { return c.Rule == q.Taint.Rule })
	return q.Causes[max(0, i)]
}

// RecordOf reads the record in a Node's annotations; nil when it has none.
func RecordOf(n *corev1.Node) (*Record, error) {
	text, ok := n.Annotations[conditions.AnnotationQuarantine]
	if !ok {
		return nil, nil
	}
	return ParseRecord(text)
}

// ParseRecord reads the annotation. What no remediator writes is an error: nothing is done about the node then. Fields of a
// later version are ignored, so that a downgrade can act, a phase is what its taint says, and a repair class is Inspect.
func ParseRecord(text string) (*Record, error) {
	if len(text) > MaxRecord {
		return nil, fmt.Errorf("quarantine record of %d bytes %w", len(text), errTooLarge)
	}
	var r Record
	if err := json.Unmarshal([]byte(conditions.KnownRepairs(text)), &r); err != nil {
		return nil, fmt.Errorf("decode quarantine record: %w", err)
	}
	if r.V != recordVersion {
		return nil, fmt.Errorf("quarantine record has version %d, not %d", r.V, recordVersion)
	}
	if err := record.Check(&r); err != nil {
		return nil, fmt.Errorf("quarantine record %w: %w", errTooLarge, err)
	}
	r.Last = slices.DeleteFunc(r.Last, func(q Quarantine) bool { return q.Phase.isLater() })
	if r.Phase.isLater() {
		r.Phase = map[bool]Phase{true: Quarantined, false: Suspect}[r.Taint != nil]
	}
	for _, q := range append([]Quarantine{r.Quarantine}, r.Last...) {
		if err := q.check(); err != nil {
			return nil, fmt.Errorf("quarantine %q: %w", q.ID, err)
		}
	}
	for _, q := range r.Last {
		if q.Phase != Released {
			return nil, fmt.Errorf("quarantine %q: is %s and among those that were closed", q.ID, q.Phase)
		}
	}
	return &r, nil
}

func (q *Quarantine) check() error {
	if q.ID == "" || len(q.Causes) == 0 {
		return errors.New("has no id or no causes")
	}
	if err := q.checkTaints(); err != nil {
		return err
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
	if q.ManualReleaseActive && q.Phase != Released {
		return fmt.Errorf("is %s and was released manually", q.Phase)
	}
	return nil
}

// checkTaints returns what the API server would refuse of the taints that may be put back.
func (q *Quarantine) checkTaints() error {
	var taints []corev1.Taint
	if q.HandOff != nil {
		taints = slices.Clone(q.HandOff.Taints)
	}
	if q.Taint != nil {
		taints = append(taints, q.Taint.NodeTaint())
	}
	for _, t := range taints {
		wrong := append(validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value)...)
		switch t.Effect {
		case corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute:
		default:
			wrong = append(wrong, "unknown effect")
		}
		if t.TimeAdded != nil {
			wrong = append(wrong, "has a time")
		}
		if len(wrong) > 0 {
			return fmt.Errorf("has taint %.80q: %s", t.ToString(), strings.Join(wrong, ", "))
		}
	}
	return nil
}

// Fit drops history, and then shortens messages, until the record is one that [ParseRecord] reads. The conditions' messages
// are of the node's choosing, and JSON may need six bytes for one of theirs.
func (r *Record) Fit() {
	if r == nil {
		return
	}
	for most := conditions.MaxMessage; len(r.String()) > MaxRecord/2 && most > 1; {
		switch {
		case len(r.Last) > 0:
			r.Last = r.Last[:len(r.Last)-1]
		case len(r.Notices) > 1:
			r.Notices = r.Notices[1:]
		default:
			most /= 2
			for i := range r.Causes {
				r.Causes[i].Message, r.Causes[i].Covered = Clip(r.Causes[i].Message, most), nil
			}
		}
	}
}

var errTooLarge = errors.New("is larger than any that the remediator writes")

// String is the text of the annotation. A record with a time that JSON cannot express becomes a text that [ParseRecord]
// refuses: then nothing is done about this node, and it is reported. Decide takes no such time into a record.
func (r *Record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return strconv.Quote(err.Error())
	}
	return string(text)
}

// OpenNext makes a new suspicion about a node the current quarantine, and the one before it history. previous is the
// record until now, or nil; bootSeen is the Seen of the node's boot if there is none.
func OpenNext(previous *Record, n *corev1.Node, bootSeen, now time.Time) *Record {
	r := &Record{V: recordVersion, NodeUID: n.UID, Boot: Boot{ID: n.Status.NodeInfo.BootID, Seen: bootSeen}}
	if previous != nil {
		r.Boot, r.Repairs, r.Domain = previous.Boot, previous.Repairs, previous.Domain
		r.Notices, r.LastNotified = previous.Notices, previous.LastNotified
		closed := previous.Quarantine
		closed.HandOff, closed.Isolation = nil, nil // nothing of it is on the node any more
		r.Last = append([]Quarantine{closed}, previous.Last...)
		r.Last = r.Last[:min(len(r.Last), lastKept)]
		for len(r.Last) > 1 && len(r.String()) > maxHistory {
			r.Last = r.Last[:len(r.Last)-1]
		}
	}
	r.ID, r.Phase = newID(n, previous, now), Suspect
	return r
}

// newID names a quarantine. It differs from node to node and from the one before, because a job is restarted once for each.
func newID(n *corev1.Node, previous *Record, now time.Time) string {
	text := string(n.UID) + now.Format(time.RFC3339Nano)
	if previous != nil {
		text += previous.ID
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// WithoutCurrent is the record without its suspicion: what was closed before it is the current quarantine again. It is nil
// when nothing is left.
func (r *Record) WithoutCurrent() *Record {
	if len(r.Last) == 0 {
		return nil
	}
	r.Quarantine, r.Last = r.Last[0], r.Last[1:]
	return r
}

func (r *Record) Clone() *Record { return record.Clone(r) }

// ClampTimes takes each time to come for now.
func (r *Record) ClampTimes(now time.Time) { record.Clamp(r, now) }

// Worst is the worst class of the causes.
func (q *Quarantine) Worst() conditions.Repair {
	var worst conditions.Repair
	for _, c := range q.Causes {
		worst = max(worst, c.Repair)
	}
	return worst
}

// Isolation and IsolatedGPU are those of package isolate, as the record has them.
type (
	Isolation   = isolate.Isolation
	IsolatedGPU = isolate.GPU
)

// DeviceRules are the rules that a node must have, and no other ones of ours.
type DeviceRules struct{ Want []resourceapi.DeviceTaintRule }

// devices are those that the rules name.
func (r *DeviceRules) devices() []devices.Device {
	all := []devices.Device{} // none is not the whole node
	if r == nil {
		return all
	}
	for i := range r.Want {
		all = append(all, devices.Of(&r.Want[i]))
	}
	return all
}

// IsIsolated reports whether the quarantine is one of single GPUs.
func (q *Quarantine) IsIsolated() bool { return q.Phase == Quarantined && q.Isolation != nil }

// IsDue reports whether a problem is a cause of the record that acts now: neither a fault that has not lasted for its rule's `for`, nor
// one that a person has released, counts against what other faults may isolate.
func (a *Assessment) IsDue(r *Record, p Problem) bool {
	for i := range r.Causes {
		if c := &r.Causes[i]; c.Condition == p.Condition.Type {
			return !a.Now.Before(a.DueAt(r, c, p)) && !r.IsCovered(p)
		}
	}
	return false
}

// Explains reports whether the quarantine is why the node has a taint.
func (r *Record) Explains(t corev1.Taint) bool {
	return r != nil && r.Phase == Quarantined && !r.IsIsolated() && r.Taint.Matches(t)
}

// AddTo adds what the quarantine puts on a node, as far as it is not there.
func (q *Quarantine) AddTo(c *handoff.NodeChanges) {
	if !q.IsIsolated() && !HasTaint(c.Taints, q.Taint) {
		c.Taints = append(c.Taints, q.Taint.NodeTaint())
	}
	if h := q.HandOff; h != nil {
		c.AddHandOff(policy.HandOff{Labels: h.Labels, Annotations: h.Annotations, Taints: h.Taints, Cordon: &h.Cordon})
	}
}

// RemoveFrom removes what the quarantine has put on a node, as far as it is known, and returns what else the record claims
// and the node has. The taint goes whatever its value has become.
func (q *Quarantine) RemoveFrom(c *handoff.NodeChanges, known handoff.Known) (left []string) {
	if t := q.Taint; t != nil && !t.PreExisting && !q.IsIsolated() {
		if known.HasTaint(t.NodeTaint()) {
			c.Taints = slices.DeleteFunc(c.Taints, t.Matches)
		} else if HasTaint(c.Taints, t) {
			left = append(left, "taint "+t.String())
		}
	}
	ours, unknown := known.Split(q.HandOff)
	c.RemoveHandOff(ours)
	return append(left, unknown...)
}

// Schedule keeps the earliest time at which to decide again.
type Schedule struct {
	Now time.Time
	// After is how long after now; zero: never.
	After time.Duration
}

// RequeueAt asks to decide again at times to come, at the latest.
func (s *Schedule) RequeueAt(times ...time.Time) {
	for _, at := range times {
		if after := at.Sub(s.Now); after > 0 && (s.After == 0 || after < s.After) {
			s.After = after
		}
	}
}
