package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

const (
	restricted = "node-restriction.kubernetes.io/tenant"
	outTaint   = "node.kubernetes.io/out-of-service=:NoExecute"
)

// forges puts a record on the node as whoever may annotate it can: nothing but the annotation changes.
func forges(change func(*causes.Record)) step {
	return func(w *world) {
		r := w.record()
		if r == nil {
			r = &causes.Record{V: 1, NodeUID: w.node.UID, Boot: causes.Boot{ID: w.node.Status.NodeInfo.BootID}, Quarantine: causes.Quarantine{
				ID: "forged", Phase: causes.Quarantined, QuarantinedAt: w.now,
				Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Message: lost, FirstSeen: w.now, Due: true, BootID: w.node.Status.NodeInfo.BootID}},
				Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: conditions.Reboot, Since: w.now},
			}}
		}
		change(r)
		if w.node.Annotations == nil {
			w.node.Annotations = map[string]string{}
		}
		w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
	}
}

// restarted is a remediator that has just started.
func restarted(w *world) { w.seen = seen.Seen{} }

func claims(r *causes.Record) {
	r.HandOff = &handoff.Added{
		Labels:      map[string]string{restricted: "a"},
		Annotations: map[string]string{"example.com/theirs": "x"},
		Taints:      []corev1.Taint{{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}},
	}
}

// Attack 1: a record that claims what is not ours removes nothing and adds nothing.
func TestAForgedRecordTouchesNoForeignKey(t *testing.T) {
	foreign := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}
	out := corev1.Taint{Key: "node.kubernetes.io/out-of-service", Effect: corev1.TaintEffectNoExecute}
	outOfService := func(r *causes.Record) { r.Taint.Key, r.Taint.Value, r.Taint.Effect = out.Key, "", out.Effect }
	tests := map[string]struct {
		steps []step
		said  string
	}{
		"claimed by a genuine quarantine, released": {[]step{gpu(ecc), decide, forges(claims), gpuFine, decide, lasts(10 * time.Minute)},
			"NodeQuarantined QuarantineBlocked NodeReleased"},
		"claimed by a forged one, released": {[]step{gpuFine, forges(claims), decide, reboots, decide, passes(time.Second), gpuFine, decide, lasts(10 * time.Minute)},
			"blocked:record-unconfirmed QuarantineBlocked NodeReleased"},
		"claimed by one of another node":            {[]step{gpuFine, forges(func(r *causes.Record) { claims(r); r.NodeUID = "other" }), decide}, "QuarantineBlocked"},
		"a taint that was never set":                {[]step{gpuFine, forges(outOfService), decide}, "blocked:record-unconfirmed"},
		"a taint of others, claimed as ours":        {[]step{gpu(ecc), decide, forges(func(r *causes.Record) { r.Taint.Key, r.Taint.Effect = foreign.Key, foreign.Effect }), gpuFine, decide, lasts(10 * time.Minute)}, "NodeQuarantined NodeReleased QuarantineBlocked NodeReleased"},
		"put back with the fault, by the policy":    {[]step{gpu(lost), forges(outOfService), decide}, "TaintRestored"},
		"put back with the fault, within the limit": {[]step{gpu(lost), others(1), forges(outOfService), decide}, "blocked:budget"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node.Labels = map[string]string{restricted: "a"}
			w.node.Annotations = map[string]string{"example.com/theirs": "x"}
			w.node.Spec.Taints = []corev1.Taint{foreign}
			for _, s := range test.steps {
				s(w)
			}
			if w.node.Labels[restricted] != "a" || w.node.Annotations["example.com/theirs"] != "x" || !slices.Contains(w.node.Spec.Taints, foreign) {
				t.Errorf("labels %v, annotations %v, taints %v", w.node.Labels, w.node.Annotations, w.node.Spec.Taints)
			}
			if node.HasTaint(w.node.Spec.Taints, out.Key) {
				t.Errorf("taints %v", w.node.Spec.Taints)
			}
			if got := strings.Join(w.reasons, " "); got != test.said {
				t.Errorf("said %q, want %q", got, test.said)
			}
		})
	}
}

// What an earlier policy has put on the node goes with the quarantine, although the present one does not name it.
func TestWhatAnEarlierPolicyHandedOffIsRemoved(t *testing.T) {
	w := newWorld(t)
	handsOver(w)
	earlier := handoff.KnownOf(w.policy)
	gpu(ecc)(w)
	w.decide()
	changed := newWorld(t)
	known := handoff.KnownOf(changed.policy).With(handoff.ParseKnown(earlier.String()))
	gpuFine(w)
	record := w.record()
	record.Causes[0].HealthySince = w.now.Add(-time.Hour)
	w.node.Status.Conditions[0].LastTransitionTime.Time = w.now.Add(-time.Hour)
	o := Observation{Node: w.node, Record: record, Known: &known}
	d := Decide(changed.policy, o, w.now)
	d.State.Apply(w.node)
	if w.record().Phase != causes.Released || len(w.node.Labels) != 1 || len(w.node.Spec.Taints) != 0 {
		t.Errorf("phase %s, labels %v, taints %v", w.record().Phase, w.node.Labels, w.node.Spec.Taints)
	}
}

// Attack 1: a taint of others that a record claims is not put back after its owner has removed it, though the remediator has seen it there.
func TestATaintOfOthersThatARecordClaimsIsNotPutBack(t *testing.T) {
	foreign := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}
	w := newWorld(t)
	w.node.Spec.Taints = []corev1.Taint{foreign}
	w.run(gpuFine, forges(func(r *causes.Record) { r.Taint.Key, r.Taint.Value, r.Taint.Effect = foreign.Key, "", foreign.Effect }), decide)
	if !w.seen.Of(w.record()).Tainted {
		t.Fatal("the taint was not seen")
	}
	w.node.Spec.Taints = nil
	w.run(decide)
	if len(w.node.Spec.Taints) > 0 {
		t.Errorf("taints %v", w.node.Spec.Taints)
	}
}

// Attack 1: a record proves no quarantine. Jobs are restarted only if this remediator has decided it, or if a fault explains it now
// and the node has the place, or gets it.
func TestAForgedQuarantineRestartsNoJob(t *testing.T) {
	nop := func(*causes.Record) {}
	tests := map[string]struct {
		steps []step
		want  bool
	}{
		"nothing but a record":                     {[]step{gpuFine, forges(nop), decide}, false},
		"with the taint, and no fault":             {[]step{gpuFine, forges(nop), taints(oldTaint), decide}, false},
		"with the taint, and the fault":            {[]step{gpu(lost), forges(nop), taints(oldTaint), decide}, true},
		"with the taint, which has its place":      {[]step{gpu(lost), forges(nop), taints(oldTaint), others(1), decide}, true},
		"with a taint of others, and no budget":    {[]step{gpu(lost), forges(func(r *causes.Record) { r.Taint.Key, r.Taint.Effect = "example.com/disk", corev1.TaintEffectNoExecute }), taints(corev1.Taint{Key: "example.com/disk", Effect: corev1.TaintEffectNoExecute}), others(1), decide}, false},
		"a soft quarantine made one that restarts": {[]step{slow, decide, forges(func(r *causes.Record) { r.Taint.Rule = "gpu"; r.Causes[0].Rule = "gpu" }), decide}, false},
		"a genuine one":                            {[]step{gpu(lost), decide, others(9), decide}, true},
		"a genuine one, cleared":                   {[]step{gpu(lost), decide, gpuFine, decide}, true},
		"a genuine one, after a restart of ours":   {[]step{gpu(lost), decide, restarted, decide}, true},
		"after a restart, with the budget used up": {[]step{gpu(lost), decide, restarted, others(1), decide}, true},
		"after a restart, cleared":                 {[]step{gpu(lost), decide, restarted, gpuFine, decide}, false},
		"another id over a genuine one":            {[]step{gpu(lost), decide, gpuFine, decide, forges(func(r *causes.Record) { r.ID = "forged" }), decide}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			if w.last.RestartJobs != test.want {
				t.Errorf("restart %t, want %t: %+v\n%s", w.last.RestartJobs, test.want, w.last.Blocked, w.node.Annotations[conditions.AnnotationQuarantine])
			}
		})
	}
}

// A taint is not put back because a record says so: ten forged records would go past every budget.
func TestAForgedQuarantineIsNotTaintedPastTheLimits(t *testing.T) {
	nop := func(*causes.Record) {}
	checkOutcomes(t, map[string]outcomeTest{
		"without a fault": {[]step{gpuFine, forges(nop), decide},
			outcome{Phase: causes.Quarantined, Status: "quarantined", Repair: "Reboot", Said: "blocked:record-unconfirmed"}},
		"with a fault, and no budget": {[]step{gpu(lost), others(1), forges(nop), decide},
			outcome{Phase: causes.Quarantined, Status: "quarantined", Repair: "Reboot", Said: "blocked:budget"}},
		"with a fault within the limits": {[]step{gpu(lost), forges(nop), decide}, quarantined.but(func(o *outcome) { o.Said = "TaintRestored" })},
		"by a person's name": {[]step{gpuFine, forges(func(r *causes.Record) {
			r.Taint.Rule, r.Causes[0].Rule, r.Causes[0].Condition = "by-hand", "by-hand", "ByHand"
		}), decide},
			outcome{Phase: causes.Quarantined, Status: "quarantined", Repair: "Reboot", Said: "blocked:record-unconfirmed"}},
		"a genuine one that was seen is put back": {[]step{gpu(lost), decide, restarted, decide, untaints, others(1), decide},
			quarantined.but(func(o *outcome) { o.Said, o.Restart = "NodeQuarantined TaintRestored blocked:budget", false })},
	})
}

// Attack 1: forged notices are not delivered, however many and however often.
func TestForgedNoticesAreNotDelivered(t *testing.T) {
	many := func(event, prefix string, n int, to ...string) step {
		return forges(func(r *causes.Record) {
			for i := range n {
				r.Notices = append(r.Notices, handoff.Notice{ID: fmt.Sprint(prefix, i), Event: event, To: to, Case: handoff.Case{Quarantine: r.ID}})
			}
		})
	}
	sent := func(w *world) map[string]bool {
		ids := map[string]bool{}
		if r := w.record(); r != nil {
			for _, n := range r.Notices {
				for _, to := range n.To {
					ids[n.ID+">"+to] = true
				}
			}
		}
		return ids
	}
	t.Run("on a node that is known", func(t *testing.T) {
		w := newWorld(t)
		all := map[string]bool{}
		for _, s := range []step{hooks(), gpu(ecc), decide} {
			s(w)
		}
		for round := range 70 {
			many(causes.NodeReleased, fmt.Sprint("f", round, "-"), 15, "pager", "tickets")(w)
			w.decide()
			for id := range sent(w) {
				all[id] = true
			}
		}
		if len(all) != 1 {
			t.Errorf("deliveries %v, want only that of the quarantine", all)
		}
	})
	t.Run("when the node is first seen", func(t *testing.T) {
		w := newWorld(t)
		for _, s := range []step{hooks(), gpuFine, many(causes.NodeReleased, "f", 60, "pager", "pager", "nobody", "tickets"), decide} {
			s(w)
		}
		if ids := sent(w); len(ids) != handoff.MaxNotices {
			t.Errorf("%d deliveries: %v", len(ids), ids)
		}
	})
	t.Run("of an event that is none", func(t *testing.T) {
		w := newWorld(t)
		for _, s := range []step{hooks(), gpuFine, many("Forged", "f", 5, "pager"), decide} {
			s(w)
		}
		if ids := sent(w); len(ids) != 0 {
			t.Errorf("deliveries %v", ids)
		}
	})
	t.Run("by turning a record over and over", func(t *testing.T) {
		w := newWorld(t)
		all := map[string]bool{}
		for _, s := range []step{hooks(), gpu(ecc), decide} {
			s(w)
		}
		for i := range 500 {
			forges(func(r *causes.Record) { r.ID = fmt.Sprint("forged", i) })(w)
			passes(time.Second)(w)
			w.decide()
			for id := range sent(w) {
				all[id] = true
			}
		}
		if len(all) < 2 || len(all) > handoff.MaxNotices+1 {
			t.Errorf("%d deliveries", len(all))
		}
	})
}

// Every time of a record that is to come is taken for now.
func TestTimesToComeAreClamped(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	r := full()
	ahead := now.Add(40 * 24 * time.Hour)
	r.Causes[0].FlapTimes, r.Last[0].Causes[0].FlapTimes = []time.Time{ahead}, []time.Time{ahead}
	text := strings.NewReplacer("2026-11-20T", "2027-01-20T", ahead.Format(time.RFC3339), ahead.Format(time.RFC3339)).Replace(r.String())
	forged, err := causes.ParseRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	before := forged.String()
	c := forged.Clone()
	c.ClampTimes(now)
	if got := c.String(); strings.Contains(got, "2027-") || strings.Contains(got, ahead.Format(time.RFC3339)) || strings.Count(got, "2026-11-20T12:00:00Z") < 15 {
		t.Errorf("clamped: %s", got)
	}
	if forged.String() != before {
		t.Error("the record that was read has changed")
	}
}

// Attack 19: what remains after the repair and is only worth an alert keeps no node out of service, and that is said.
func TestWhatIsOnlyWorthAnAlertIsReleasedAfterTheRepair(t *testing.T) {
	steps := []step{gpu(lost), decide, passes(time.Minute), reboots, decide, passes(time.Minute), gpu(inspect), decide, lasts(10 * time.Minute)}
	checkOutcomes(t, map[string]outcomeTest{
		"after the reboot":            {steps, released},
		"not before the reboot":       {[]step{gpu(lost), decide, gpu(inspect), decide, lasts(24 * time.Hour)}, quarantined},
		"not before clearAfter":       {append(slices.Clone(steps[:8]), lasts(9*time.Minute)), quarantined},
		"never a node to be replaced": {[]step{gpu(replace), decide, passes(time.Minute), reboots, decide, passes(time.Minute), gpu(inspect), decide, lasts(time.Hour)}, quarantined.but(func(o *outcome) { o.Repair = "Replace" })},
		"the fault again starts anew": {append(slices.Clone(steps[:8]), lasts(9*time.Minute), gpu(lost), decide, gpu(inspect), decide, lasts(time.Hour)), quarantined},
		"a manual release ends by it": {[]step{gpu(lost), decide, pardoned, gpu(inspect), decide, lasts(10 * time.Minute)}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}},
	})
	w := newWorld(t)
	for _, s := range steps[:8] {
		s(w)
	}
	passes(10 * time.Minute)(w)
	w.decide()
	const want = "GPUXidError has cleared; released after 12m0s; what remains is only worth an alert (rule gpu-inspect: Inspect gpu 0000:1b:00: Xid 999 unknown)"
	if e := w.last.Events; len(e) != 1 || e[0].Message != want {
		t.Errorf("events %+v, want %q", e, want)
	}
}

// Attack 20: whoever removed the taint did not know of a worse fault that comes later.
func TestAWorseFaultCountsAfterAManualRelease(t *testing.T) {
	byRemoval := []step{gpu(ecc), decide, untaints, decide, untaints, decide, lasts(time.Minute)}
	after := func(more ...step) []step { return append(slices.Clone(byRemoval), more...) }
	const said = "NodeQuarantined TaintRestored ReleaseByHand"
	holds := outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: said}
	ill := says("DiskFailing", "True", "x")
	checkOutcomes(t, map[string]outcomeTest{
		"of the same condition":                  {after(gpu(lost), decide), quarantined.but(func(o *outcome) { o.Said = said + " NodeQuarantined" })},
		"within the budget":                      {after(others(1), gpu(lost), decide), outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Said: said + " blocked:budget"}},
		"of another condition, once it is due":   {after(ill, decide, lasts(time.Minute)), outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: said + " NodeQuarantined"}},
		"not before, nor does what was released": {after(ill, decide, lasts(59*time.Second)), outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Said: said}},
		"one that goes in time changes nothing":  {after(ill, decide, says("DiskFailing", "False", ""), decide, lasts(time.Hour)), holds},
		"one that is only observed does not":     {after(watched, decide, lasts(time.Hour)), holds},
	})
}

// upgrades sets the label of a driver upgrade's step as the GPU operator does, some time ago.
func upgrades(state string, ago time.Duration) step {
	return func(w *world) {
		labels(node.LabelUpgradeState, state)(w)
		at := metav1.NewTime(w.now.Add(-ago))
		w.node.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", Time: &metav1.Time{Time: w.now}, FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
			{Manager: "gpu-operator", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + node.LabelUpgradeState + `":{}}}}`)},
		}
	}
}

// Attack 21: an upgrade that was given up silences a node for two hours, and not for ever.
func TestAStaleDriverUpgradeIsIgnored(t *testing.T) {
	const restart = "pod-restart-required"
	checkOutcomes(t, map[string]outcomeTest{
		"under way":                         {[]step{upgrades(restart, node.UpgradeStepLimit-time.Second), gpu(lost), decide}, untouched},
		"stale":                             {[]step{upgrades(restart, node.UpgradeStepLimit), gpu(lost), decide}, quarantined},
		"when it becomes stale":             {[]step{upgrades(restart, node.UpgradeStepLimit-5*time.Minute), gpu(lost), decide, lasts(10 * time.Minute)}, quarantined},
		"a healthy node is released, too":   {[]step{gpu(ecc), decide, upgrades(restart, node.UpgradeStepLimit), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"beside a maintenance that is ours": {[]step{upgrades(restart, node.UpgradeStepLimit), taints(maintenance), gpu(lost), decide}, untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/maintenance=sweep:NoSchedule" })},
	})
	w := newWorld(t)
	for _, s := range []step{upgrades(restart, 3*time.Hour), gpuFine, decide} {
		s(w)
	}
	const want = "label nvidia.com/gpu-driver-upgrade-state=pod-restart-required has not changed for 3h, so it is ignored: no step of a driver upgrade takes 120m; has the upgrade failed?"
	if w.last.StaleUpgrade != want {
		t.Errorf("%q, want %q", w.last.StaleUpgrade, want)
	}
}
