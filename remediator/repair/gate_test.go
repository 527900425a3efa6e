package repair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

var gateNow = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// gated is a node in the middle of its quarantine: its fault cleared ten minutes ago, and a check has passed five minutes ago.
func gated() (*corev1.Node, *causes.Record, *visit.Record) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-1"},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: "boot-2"},
			Conditions: []corev1.NodeCondition{
				{Type: "GPUXidError", Status: "False", LastTransitionTime: metav1.NewTime(gateNow.Add(-10 * time.Minute)), LastHeartbeatTime: metav1.NewTime(gateNow)},
				{Type: "HCAPortDown", Status: "True", LastTransitionTime: metav1.NewTime(gateNow), LastHeartbeatTime: metav1.NewTime(gateNow)},
				{Type: "DiskFailing", Status: "True", LastTransitionTime: metav1.NewTime(gateNow), LastHeartbeatTime: metav1.NewTime(gateNow)},
			},
		},
	}
	q := &causes.Record{V: 1, NodeUID: "uid-1", Quarantine: causes.Quarantine{ID: "q1", Phase: causes.Quarantined, Causes: []causes.Cause{
		{Condition: "GPUXidError", Rule: "gpu", Due: true}, {Condition: "DiskFailing", Rule: "disk"},
	}}}
	r := &visit.Record{
		V: 1, NodeUID: "uid-1", Checked: &visit.Checked{At: gateNow.Add(-5 * time.Minute), BootID: "boot-2", Quarantine: "q1"},
		Request: &visit.Request{Kind: visit.RequestRelease, Quarantine: "q1", At: gateNow, User: "ann", Reason: "done"},
		Advice:  &visit.Advice{Quarantine: "q1", Do: visit.AdviseReturn, At: gateNow},
	}
	return n, q, r
}

func TestWhatTheVisitsSayAboutAQuarantine(t *testing.T) {
	all := quarantine.Visits{Quarantine: "q1", Validated: true, Release: &quarantine.Manual{User: "ann", Reason: "done"}, Advice: "return", AdvisedAt: gateNow}
	but := func(change func(*quarantine.Visits)) quarantine.Visits {
		v := all
		change(&v)
		return v
	}
	unvalidated := but(func(v *quarantine.Visits) { v.Validated = false })
	for name, test := range map[string]struct {
		change func(*corev1.Node, *causes.Record, *visit.Record)
		want   quarantine.Visits
	}{
		"everything":                    {func(*corev1.Node, *causes.Record, *visit.Record) {}, all},
		"no check":                      {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Checked = nil }, unvalidated},
		"a check of another quarantine": {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Checked.Quarantine = "q0" }, unvalidated},
		"a check of a sweep":            {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Checked.Quarantine = "" }, unvalidated},
		"a check in another boot":       {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) { n.Status.NodeInfo.BootID = "boot-3" }, unvalidated},
		"no boot is known": {func(n *corev1.Node, _ *causes.Record, r *visit.Record) {
			n.Status.NodeInfo.BootID, r.Checked.BootID = "", ""
		}, unvalidated},
		"a fault after the check": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(gateNow.Add(-5*time.Minute + time.Second))
		}, unvalidated},
		"one at the time of the check": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(gateNow.Add(-5 * time.Minute))
		}, all},
		"one by a clock that is ahead": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(gateNow.Add(time.Minute))
		}, unvalidated},
		"one by a clock that is wrong": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(gateNow.Add(time.Hour))
		}, all},
		"a check in the future":          {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Checked.At = gateNow.Add(time.Hour) }, unvalidated},
		"a new cause after the check":    {func(_ *corev1.Node, q *causes.Record, _ *visit.Record) { q.Causes[1].Due = true }, unvalidated},
		"no request":                     {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Request = nil }, but(func(v *quarantine.Visits) { v.Release = nil })},
		"another request":                {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Request.Kind = visit.RequestRepair }, but(func(v *quarantine.Visits) { v.Release = nil })},
		"a request for another time":     {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Request.Quarantine = "q0" }, but(func(v *quarantine.Visits) { v.Release = nil })},
		"no advice":                      {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Advice = nil }, but(func(v *quarantine.Visits) { v.Advice, v.AdvisedAt = "", time.Time{} })},
		"advice about another time":      {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Advice.Quarantine = "q0" }, but(func(v *quarantine.Visits) { v.Advice, v.AdvisedAt = "", time.Time{} })},
		"the record of another node":     {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.NodeUID = "uid-0" }, quarantine.Visits{}},
		"one of a version that is ahead": {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.V = 2 }, quarantine.Visits{}},
	} {
		n, q, r := gated()
		test.change(n, q, r)
		n.Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
		if diff := cmp.Diff(test.want, visit.Of(n, q, gateNow)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	n, q, r := gated()
	if got := visit.Of(n, q, gateNow); got != (quarantine.Visits{}) {
		t.Errorf("no record: %+v", got)
	}
	n.Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
	if got := visit.Of(n, nil, gateNow); got != (quarantine.Visits{}) || (*visit.Record)(nil).Validated(n, q, gateNow) || r.Validated(n, nil, gateNow) {
		t.Errorf("no quarantine: %+v", got)
	}
}

// Whatever is in the record of visits, an enforced rule with validate releases no node without a validation, and nothing in it ends a
// quarantine while a cause still reports its fault.
func TestAForgedRecordReleasesNothingThatItsCausesHold(t *testing.T) {
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 10}
  repair: {validate: {template: check}}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}, clearAfter: 1m, validate: true}
    disk: {match: {condition: DiskFailing, repair: [Inspect]}, clearAfter: 1m}
`))
	if err != nil {
		t.Fatal(err)
	}
	ours := func(q *causes.Record) bool {
		return slices.ContainsFunc(q.Causes, func(c causes.Cause) bool { return c.Rule == "gpu" && c.Due })
	}
	released, requested, held := 0, 0, 0
	for seed := range uint64(60) {
		f := visitForger{rand.New(rand.NewPCG(seed, 17))}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-1", Annotations: map[string]string{}}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-0"}}}
		now, known := gateNow, seen.Seen{}
		for turn := range 300 {
			now = now.Add(time.Duration(f.IntN(40)) * time.Second)
			f.event(n, now, turn)
			before, err := causes.RecordOf(n)
			if err != nil {
				t.Fatal(err)
			}
			if f.IntN(2) == 0 {
				f.forge(n, before, now)
			}
			o := quarantine.Observation{Node: n, Record: before, Visits: visit.Of(n, before, now), Seen: known}
			d := quarantine.Decide(p, o, now)
			known = d.SeenAfter(o, now)
			was := n.DeepCopy()
			d.State.Apply(n)
			after, err := causes.RecordOf(n)
			if err != nil {
				t.Fatal(err)
			}
			if before == nil || before.Phase != causes.Quarantined {
				continue
			}
			if after.ID == before.ID && after.Phase == causes.Quarantined {
				held++
				continue
			}
			ended := after.Quarantine
			if ended.ID != before.ID {
				ended = after.Last[0]
			}
			record, _ := visit.RecordOf(was)
			switch said := fmt.Sprintf("seed %d, turn %d: %s\n%s\n%+v", seed, turn, before, was.Annotations[conditions.AnnotationRepair], was.Status.Conditions); {
			case ours(before) && !record.Validated(was, before, now):
				t.Fatalf("released without a validation: %s", said)
			case ended.ReleasedBy == causes.ByPerson && (record.Request == nil || record.Request.Kind != visit.RequestRelease || record.Request.Quarantine != before.ID || !ours(before)):
				t.Fatalf("released for nobody: %s", said)
			case node.Maintained(was, now):
				t.Fatalf("released during a visit: %s", said)
			}
			for _, c := range was.Status.Conditions {
				if c.Status != corev1.ConditionFalse && slices.ContainsFunc(before.Causes, func(cause causes.Cause) bool { return cause.Condition == c.Type && cause.Due }) {
					t.Fatalf("released with a fault, seed %d, turn %d: %s, %+v", seed, turn, before, c)
				}
			}
			if released++; ended.ReleasedBy == causes.ByPerson {
				requested++
			}
		}
	}
	if released < 60 || requested < 20 || held < 1000 {
		t.Errorf("%d releases, %d of them for a person, %d times held: the walks prove little", released, requested, held)
	}
}

type visitForger struct{ *rand.Rand }

func oneOf[T any](f visitForger, list ...T) T { return list[f.IntN(len(list))] }

// event is what becomes of the node itself.
func (f visitForger) event(n *corev1.Node, now time.Time, turn int) {
	set := func(condition corev1.NodeConditionType, status corev1.ConditionStatus, message string) {
		c := corev1.NodeCondition{Type: condition, Status: status, Message: message, LastTransitionTime: metav1.NewTime(now)}
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition })
		if i < 0 {
			n.Status.Conditions = append(n.Status.Conditions, c)
			return
		}
		if n.Status.Conditions[i].Status == status {
			c.LastTransitionTime = n.Status.Conditions[i].LastTransitionTime
		}
		n.Status.Conditions[i] = c
	}
	fine := func() {
		set("GPUXidError", corev1.ConditionFalse, "no fault")
		set("DiskFailing", corev1.ConditionFalse, "")
	}
	oneOf(f, fine, fine, fine, fine, func() {}, func() {},
		func() {
			set("GPUXidError", corev1.ConditionTrue, oneOf(f, "ResetGPU gpu 0000:1b:00: Xid 95 x", "Reboot gpu 0000:4e:00: Xid 79 x", "Replace gpu 0000:4e:00: x"))
		},
		func() { set("DiskFailing", corev1.ConditionTrue, "x") },
		func() { set("GPUXidError", corev1.ConditionUnknown, "") },
		func() { n.Status.NodeInfo.BootID = fmt.Sprintf("boot-%d", turn) },
		func() {
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
			if f.IntN(2) == 0 {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: oneOf(f, "validation", "repair"), Effect: corev1.TaintEffectNoSchedule})
			}
		})()
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(now)
	}
}

// forge replaces the record of visits.
func (f visitForger) forge(n *corev1.Node, q *causes.Record, now time.Time) {
	id := oneOf(f, "", "q0")
	if q != nil && f.IntN(4) > 0 {
		id = q.ID
	}
	at := func() time.Time {
		return oneOf(f, time.Time{}, now, now.Add(-time.Duration(f.IntN(600))*time.Second), now.Add(time.Minute), now.AddDate(1, 0, 0))
	}
	r := &visit.Record{V: 1, NodeUID: oneOf(f, n.UID, n.UID, n.UID, "other")}
	if f.IntN(4) > 0 {
		r.Checked = &visit.Checked{At: at(), BootID: oneOf(f, n.Status.NodeInfo.BootID, n.Status.NodeInfo.BootID, "x", ""), Quarantine: id}
	}
	if f.IntN(2) > 0 {
		r.Request = &visit.Request{Kind: oneOf(f, visit.RequestRelease, visit.RequestRelease, visit.RequestRepair, visit.RequestCheck), Quarantine: id, At: at(), User: "mallory"}
	}
	if f.IntN(2) > 0 {
		r.Advice = &visit.Advice{Quarantine: id, Do: visit.AdviseReturn, At: at()}
	}
	text := r.String()
	if text != "" && f.IntN(10) == 0 {
		text = text[:f.IntN(len(text))]
	}
	n.Annotations[conditions.AnnotationRepair] = text
}
