package quarantine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// cordons has every rule cordon, but for the one with a soft taint.
func cordons(w *world) {
	w.t.Helper()
	w.policy = policyOf(w.t, strings.Replace(testPolicy, "  rules:\n", "  handOff: {cordon: true}\n  rules:\n", 1))
}

// cordonsNoMore drops the cordon from the policy.
func cordonsNoMore(w *world) { w.policy = policyOf(w.t, testPolicy) }

// setCordon changes spec.unschedulable as the API server does: the manager that sets the field has it, and nobody has a field that
// was removed.
func setCordon(n *corev1.Node, manager string, on bool) {
	if n.Spec.Unschedulable == on {
		return
	}
	n.Spec.Unschedulable = on
	managesCordon(n, manager)
}

func managesCordon(n *corev1.Node, manager string) {
	n.ManagedFields = slices.DeleteFunc(n.ManagedFields, node.ManagesCordon)
	if n.Spec.Unschedulable {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
	}
}

func cordonsAs(manager string) step { return func(w *world) { setCordon(w.node, manager, true) } }

func uncordons(w *world) { setCordon(w.node, "kubectl", false) }

// stores decides, and keeps the managed fields as the API server does after our write.
func stores(w *world) {
	before := w.node.Spec.Unschedulable
	w.decide()
	if w.node.Spec.Unschedulable != before {
		managesCordon(w.node, ControllerName)
	}
}

// loses drops the record.
func loses(w *world) { delete(w.node.Annotations, conditions.AnnotationQuarantine) }

// labelledUnschedulable has a label with the key of the field of a cordon, and its manager, as the API server keeps one.
func labelledUnschedulable(w *world) {
	labels("unschedulable", "false")(w)
	w.node.ManagedFields = append(w.node.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: "kubectl-label", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:unschedulable":{}}}}`),
	})
}

// heals waits until the GPU is released.
func heals(w *world) {
	gpuFine(w)
	stores(w)
	lasts(10 * time.Minute)(w)
}

func TestCordon(t *testing.T) {
	const kubectl = "kubectl-cordon"
	const gpuReason, diskReason = "Pitcrew: GPUXidError (rule gpu)", "Pitcrew: DiskFailing (rule disk)"
	strip := func(w *world) { w.node = Strip(w.node) }
	anew := func(w *world) { w.node.UID = "uid-2" }
	tests := map[string]struct {
		steps  []step
		on     bool
		reason string
		// ours is what the record says, undone that others have undone it.
		ours, undone bool
	}{
		"without the option":                   {[]step{cordonsNoMore, gpu(ecc), stores}, false, "", false, false},
		"a quarantine cordons":                 {[]step{gpu(ecc), stores}, true, gpuReason, true, false},
		"and keeps it so":                      {[]step{gpu(ecc), stores, stores, lasts(time.Hour)}, true, gpuReason, true, false},
		"a suspicion does not":                 {[]step{says("DiskFailing", "True", "x"), stores}, false, "", false, false},
		"a limit holds it back with the taint": {[]step{others(1), gpu(ecc), stores}, false, "", false, false},
		"a soft taint does not":                {[]step{says("SlowNode", "True", inspect), stores}, false, "", false, false},
		"a quarantine by hand does not":        {[]step{ordered}, false, "", false, false},
		"the release takes it back":            {[]step{gpu(ecc), stores, heals}, false, "", true, false},
		"a person's release takes it back":     {[]step{gpu(ecc), stores, pardoned}, false, "", true, false},
		"so does one by removing the taint":    {[]step{gpu(ecc), stores, untaints, stores, untaints, stores}, false, "", true, false},
		"so does an uninstall":                 {[]step{gpu(ecc), stores, strip}, false, "", false, false},
		"a removed taint leaves it":            {[]step{gpu(ecc), stores, untaints, stores}, true, gpuReason, true, false},

		"what others had cordoned stays":              {[]step{cordonsAs(kubectl), gpu(ecc), stores}, true, "", false, false},
		"after the release, too":                      {[]step{cordonsAs(kubectl), gpu(ecc), stores, heals}, true, "", false, false},
		"after a person's release, too":               {[]step{cordonsAs(kubectl), gpu(ecc), stores, pardoned}, true, "", false, false},
		"after an uninstall, too":                     {[]step{cordonsAs(kubectl), gpu(ecc), stores, strip}, true, "", false, false},
		"what others had cordoned, they may undo":     {[]step{cordonsAs(kubectl), gpu(ecc), stores, uncordons, stores}, false, "", false, false},
		"a person's uncordon stands":                  {[]step{gpu(ecc), stores, uncordons, stores, lasts(time.Hour)}, false, "", false, true},
		"also when nobody saw it":                     {[]step{gpu(ecc), stores, uncordons, restarted, stores}, false, "", false, true},
		"also together with the taint":                {[]step{gpu(ecc), stores, untaints, uncordons, stores}, false, "", false, true},
		"also in maintenance":                         {[]step{gpu(ecc), stores, taints(maintenance), uncordons, stores}, false, "", false, true},
		"also when the fault needs more later":        {[]step{gpu(ecc), stores, uncordons, stores, says("DiskFailing", "True", "x"), stores, lasts(time.Minute)}, false, "", false, true},
		"also when it has just come to need more":     {[]step{gpu(ecc), says("DiskFailing", "True", "x"), stores, passes(time.Minute), beats, uncordons, stores}, false, "", false, true},
		"also during a pause":                         {[]step{gpu(ecc), stores, pauses("why"), uncordons, stores, pauses(""), stores}, false, "", false, true},
		"for this quarantine":                         {[]step{gpu(ecc), stores, uncordons, stores, heals, gpu(ecc), stores}, true, gpuReason, true, false},
		"cordoned again by a person, it is theirs":    {[]step{gpu(ecc), stores, uncordons, cordonsAs(kubectl), stores}, true, "", false, true},
		"theirs stays after the release":              {[]step{gpu(ecc), stores, uncordons, cordonsAs(kubectl), heals}, true, "", false, true},
		"theirs stays after a person's release":       {[]step{gpu(ecc), stores, uncordons, cordonsAs(kubectl), pardoned}, true, "", true, false},
		"cordoned again much later, it is theirs":     {[]step{gpu(ecc), stores, uncordons, stores, cordonsAs(kubectl), heals}, true, "", false, true},
		"an upgrade brings the reason of its rule":    {[]step{gpu(ecc), says("DiskFailing", "True", "x"), stores, lasts(time.Minute)}, true, diskReason, true, false},
		"and its release takes the cordon back":       {[]step{gpu(ecc), says("DiskFailing", "True", "x"), stores, lasts(time.Minute), pardoned}, false, "", true, false},
		"an upgrade without a cordon takes it back":   {[]step{gpu(ecc), says("DiskFailing", "True", "x"), stores, func(w *world) { w.policy.Rules[ruleOf(w, "disk")].HandOff = policy.HandOff{} }, lasts(time.Minute)}, false, "", false, false},
		"a policy without it changes nothing yet":     {[]step{gpu(ecc), stores, cordonsNoMore, stores, lasts(time.Hour)}, true, gpuReason, true, false},
		"a policy with it changes nothing yet":        {[]step{cordonsNoMore, gpu(ecc), stores, cordons, stores, lasts(time.Hour)}, false, "", false, false},
		"what others own with us stays":               {[]step{gpu(ecc), stores, alsoManages("argocd"), heals}, true, "", true, false},
		"with its reason until the release":           {[]step{gpu(ecc), stores, alsoManages("argocd"), stores}, true, gpuReason, true, false},
		"and is undone as any other":                  {[]step{gpu(ecc), stores, alsoManages("argocd"), uncordons, stores}, false, "", false, true},
		"what many managers have hidden is as said":   {[]step{gpu(ecc), stores, func(w *world) { managesCordon(w.node, "ancient-changes") }, heals}, false, "", true, false},
		"a node created anew is not cordoned":         {[]step{gpu(ecc), stores, anew, gpuFine, stores}, false, "", false, false},
		"unless others have cordoned it":              {[]step{gpu(ecc), stores, anew, gpuFine, uncordons, cordonsAs("velero"), stores}, true, "", false, false},
		"and cordoned if the new one is faulty":       {[]step{gpu(ecc), stores, anew, uncordons, untaints, gpu(ecc), stores}, true, gpuReason, true, false},
		"without its record it is taken back":         {[]step{gpu(ecc), stores, gpuFine, loses, stores}, false, "", false, false},
		"also without the taint":                      {[]step{gpu(ecc), stores, gpuFine, loses, untaints, stores}, false, "", false, false},
		"also when the node is suspect":               {[]step{gpu(ecc), stores, gpuFine, loses, says("DiskFailing", "True", "x"), stores}, false, "", false, false},
		"also by a person's release":                  {[]step{gpu(ecc), stores, gpuFine, loses, pardoned}, false, "", false, false},
		"also by an uninstall":                        {[]step{gpu(ecc), stores, gpuFine, loses, strip}, false, "", false, false},
		"and by the next quarantine":                  {[]step{gpu(ecc), stores, loses, stores, heals}, false, "", false, false},
		"a person's, without a record":                {[]step{gpu(ecc), stores, gpuFine, loses, uncordons, cordonsAs(kubectl), stores, strip}, true, gpuReason, false, false},
		"one that others own with us, too":            {[]step{gpu(ecc), stores, gpuFine, loses, alsoManages("argocd"), stores}, true, gpuReason, false, false},
		"one that no known policy has set":            {[]step{gpu(ecc), stores, gpuFine, loses, cordonsNoMore, stores}, true, gpuReason, false, false},
		"one of which it is not known whose it is":    {[]step{gpu(ecc), stores, gpuFine, loses, func(w *world) { managesCordon(w.node, "ancient-changes") }, stores}, true, gpuReason, false, false},
		"one without its reason":                      {[]step{gpu(ecc), stores, gpuFine, loses, annotates(policy.CordonReason, ""), stores}, true, "", false, false},
		"a label of the same name is no cordon":       {[]step{gpu(ecc), stores, labelledUnschedulable, heals}, false, "", true, false},
		"an upgrade keeps a claim it does not know":   {[]step{gpu(ecc), stores, cordonsNoMore, says("DiskFailing", "True", "x"), stores, lasts(time.Minute)}, true, gpuReason, true, false},
		"so that the next release takes it back":      {[]step{gpu(ecc), stores, cordonsNoMore, says("DiskFailing", "True", "x"), stores, lasts(time.Minute), cordons, pardoned}, false, "", true, false},
		"a forged claim, by a policy without it":      {[]step{cordonsNoMore, gpu(ecc), stores, func(w *world) { w.node.Spec.Unschedulable = true }, forges(func(r *causes.Record) { r.HandOff.Cordon = true }), heals}, true, "", true, false},
		"a forged claim about a person's cordon":      {[]step{cordonsAs(kubectl), gpu(ecc), stores, forges(func(r *causes.Record) { r.HandOff.Cordon = true }), heals}, true, "", false, true},
		"a forged quarantine of a cordoned node":      {[]step{cordonsAs(kubectl), gpu(ecc), stores, forges(func(r *causes.Record) { r.HandOff.Cordon = true }), pardoned}, true, "", true, false},
		"a reason that others have changed is theirs": {[]step{gpu(ecc), stores, annotates(policy.CordonReason, "theirs"), uncordons, stores}, false, "theirs", false, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			cordons(w)
			for _, s := range test.steps {
				s(w)
			}
			if got := w.node.Spec.Unschedulable; got != test.on {
				t.Errorf("cordoned: %v", got)
			}
			if got := w.node.Annotations[policy.CordonReason]; got != test.reason {
				t.Errorf("reason %q, want %q", got, test.reason)
			}
			var ours, undone bool
			if r := w.record(); r != nil {
				ours, undone = r.HandOff != nil && r.HandOff.Cordon, r.Uncordoned
				if _, claimed := annotationsOf(r)[policy.CordonReason]; claimed && undone {
					t.Error("the record says that the reason of the undone cordon is ours")
				}
			}
			if ours != test.ours || undone != test.undone {
				t.Errorf("the record says ours: %v, undone: %v", ours, undone)
			}
		})
	}
}

func annotationsOf(r *causes.Record) map[string]string {
	if r.HandOff == nil {
		return nil
	}
	return r.HandOff.Annotations
}

// What is pending is put over a node as it was before the write.
func TestAPendingWriteHasTheCordon(t *testing.T) {
	w := newWorld(t)
	cordons(w)
	gpu(ecc)(w)
	before := w.node.DeepCopy()
	stores(w)
	pending := before.DeepCopy()
	Overlay(pending, w.record())
	if !pending.Spec.Unschedulable || pending.Annotations[policy.CordonReason] == "" {
		t.Errorf("cordoned %v, annotations %v", pending.Spec.Unschedulable, pending.Annotations)
	}
	quarantined := w.node.DeepCopy()
	heals(w)
	Overlay(quarantined, w.record())
	if quarantined.Spec.Unschedulable || quarantined.Annotations[policy.CordonReason] != "" {
		t.Errorf("after the release cordoned %v, annotations %v", quarantined.Spec.Unschedulable, quarantined.Annotations)
	}
}

func ruleOf(w *world, name string) int {
	return slices.IndexFunc(w.policy.Rules, func(r policy.Rule) bool { return r.Name == name })
}

// alsoManages has another manager set what is set already, as server-side apply does.
func alsoManages(manager string) step {
	return func(w *world) {
		w.node.ManagedFields = append(w.node.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
	}
}

// The release takes a cordon back although the policy has none any more: the remediator remembers what earlier policies set.
func TestACordonOfAnEarlierPolicyIsTakenBack(t *testing.T) {
	for name, remembered := range map[string]bool{"remembered": true, "not remembered": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			cordons(w)
			gpu(ecc)(w)
			stores(w)
			known := handoff.KnownOf(w.policy)
			cordonsNoMore(w)
			gpuFine(w)
			stores(w)
			passes(10 * time.Minute)(w)
			beats(w)
			o := w.observe()
			if remembered {
				known = handoff.ParseKnown(known.String())
				o.Known = &known
			}
			d := Decide(w.policy, o, w.now)
			after := w.node.DeepCopy()
			d.State.Apply(after)
			if d.State.Record.Phase != causes.Released || after.Spec.Unschedulable == remembered {
				t.Errorf("%s, cordoned: %v", d.State.Record.Phase, after.Spec.Unschedulable)
			}
			if text := fmt.Sprint(d.Events); strings.Contains(text, "the cordon") == remembered {
				t.Errorf("events %s", text)
			}
		})
	}
}

// Closed quarantines claim nothing any more: admission lets a record that claims a cordon end it.
func TestAClosedQuarantineClaimsNoCordon(t *testing.T) {
	w := newWorld(t)
	cordons(w)
	w.run(gpu(ecc), stores, heals, says("DiskFailing", "True", "x"), stores)
	if r := w.record(); r.Phase != causes.Suspect || len(r.Last) != 1 || strings.Contains(r.String(), "cordon") {
		t.Errorf("record %s", r)
	}
}

// A cordon that others have set beside us was not undone.
func TestASharedCordonIsNotReportedAsUndone(t *testing.T) {
	for name, others := range map[string][]step{
		"shared":     {alsoManages("argocd")},
		"taken over": {uncordons, cordonsAs("kubectl-cordon")},
	} {
		w := newWorld(t)
		cordons(w)
		w.run(gpu(ecc), stores)
		w.run(others...)
		stores(w)
		if slices.Contains(w.reasons, causes.UncordonedByHand) {
			t.Errorf("%s: %s", name, w.reasons)
		}
	}
}

func TestAnUncordonIsReportedOnce(t *testing.T) {
	w := newWorld(t)
	cordons(w)
	for _, s := range []step{gpu(ecc), stores, uncordons, stores, stores, lasts(time.Hour)} {
		s(w)
	}
	if said := strings.Join(w.reasons, " "); said != causes.NodeQuarantined+" "+causes.UncordonedByHand { // nor was the taint put back: it has stayed
		t.Errorf("said %q", said)
	}
	w.run(gpu(lost), stores) // a worse fault hands the node over anew
	if r := w.record(); r.Taint.Repair != conditions.Reboot || !r.Uncordoned || w.node.Spec.Unschedulable || !causes.HasTaint(w.node.Spec.Taints, r.Taint) {
		t.Errorf("cordoned %v, taints %v, record %s", w.node.Spec.Unschedulable, w.node.Spec.Taints, r)
	}
}

// Our own cordon takes no second place, is not taken for parked, and is gone from the limits with the release.
func TestOurOwnCordonCountsOnceUnderTheLimits(t *testing.T) {
	w := newWorld(t)
	cordons(w)
	gpu(ecc)(w)
	stores(w)
	w.node.Spec.Taints = append(w.node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: w.now}})
	passes(1000 * time.Hour)(w)
	if p := peers.Of(w.policy, w.node); !p.OutOfService || p.Why != limits.Quarantined || !p.ParkedSince.IsZero() {
		t.Errorf("quarantined: %+v", p)
	}
	beats(w)
	heals(w)
	if p := peers.Of(w.policy, w.node); p.OutOfService || w.record().Phase != causes.Released {
		t.Errorf("%s: %+v", w.record().Phase, p)
	}
}

// Whoever cordons and uncordons while quarantines come and go: what others have cordoned stays cordoned, what they have uncordoned is
// not cordoned again by the same quarantine, and a node in service is cordoned by others or not at all.
func TestCordonsOfOthersOnRandomWalks(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 15))
		w := newWorld(t)
		cordons(w)
		theirs := false // others have cordoned the node
		undone := ""    // the quarantine during which they have uncordoned it
		for range 60 {
			passes(time.Millisecond)(w) // the id of a quarantine is made of the time
			switch random.IntN(4) {
			case 0, 1:
				events := []step{gpu(ecc), gpu(lost), gpuFine, reboots, says("DiskFailing", "True", "x"), says("DiskFailing", "False", ""), untaints, restarted,
					passes(time.Minute), passes(11 * time.Minute), beats, pardonedIfQuarantined}
				before := w.node.Spec.Unschedulable
				events[random.IntN(len(events))](w)
				if w.node.Spec.Unschedulable != before {
					managesCordon(w.node, "kubectl-pitcrew")
				}
			case 2:
				if !w.node.Spec.Unschedulable {
					setCordon(w.node, "kubectl-cordon", true)
					theirs = true
				}
			case 3:
				if w.node.Spec.Unschedulable {
					uncordons(w)
					theirs = false
					if r := w.record(); r != nil && r.Phase == causes.Quarantined && r.HandOff != nil && r.HandOff.Cordon {
						undone = r.ID
					}
				}
			}
			stores(w)
			r := w.record()
			inService := r == nil || r.Phase != causes.Quarantined
			switch on := w.node.Spec.Unschedulable; {
			case theirs && !on:
				t.Fatalf("seed %d: the cordon of others is gone", seed)
			case !theirs && on && inService:
				t.Fatalf("seed %d: nobody's cordon on a node in service", seed)
			case !theirs && on && r.ID == undone:
				t.Fatalf("seed %d: cordoned again in the same quarantine", seed)
			}
		}
	}
}
