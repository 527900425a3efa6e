package quarantine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// validates is a rule that asks for a validation, or no longer does.
func validates(rule string, does bool) step {
	return func(w *world) {
		for i := range w.policy.Rules {
			if w.policy.Rules[i].Name == rule {
				w.policy.Rules[i].Validate = does
			}
		}
	}
}

// visited is what the visits say about the quarantine that the node has then.
func visited(v Visits) step {
	return func(w *world) {
		w.visits = v
		if r := w.record(); r != nil && v.Quarantine == "" {
			w.visits.Quarantine = r.ID
		}
	}
}

var (
	passed = visited(Visits{Validated: true})
	asks   = visited(Visits{Release: &Manual{User: "ann", Reason: "checked\nby me"}})
	// granted is a request after which the validation has passed.
	granted = visited(Visits{Validated: true, Release: &Manual{User: "ann", Reason: "checked\nby me"}})
	// validating is the taint of the visit.
	validating = corev1.Taint{Key: conditions.TaintMaintenance, Value: conditions.MaintenanceValidation, Effect: corev1.TaintEffectNoSchedule}
)

func TestAQuarantineEndsOnlyAfterTheValidationThatItsRuleAsksFor(t *testing.T) {
	held := quarantined.but(func(o *outcome) { o.Repair, o.Said = "ResetGPU", "NodeQuarantined blocked:awaits-validation" })
	waits := held.but(func(o *outcome) { o.Said = "NodeQuarantined" })
	byPerson := outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined ReleaseByHand"}
	on := validates("gpu", true)
	quarantine := []step{on, gpu(ecc), decide}
	cleared := []step{on, gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}
	tests := map[string]struct {
		before []step
		steps  []step
		want   outcome
	}{
		"it has cleared and waits":                      {cleared, []step{lasts(24 * time.Hour)}, held},
		"and is released once validated":                {cleared, []step{passed, decide}, released.but(func(o *outcome) { o.Said = "NodeQuarantined blocked:awaits-validation NodeReleased" })},
		"validated sooner, it waits for clearAfter":     {quarantine, []step{gpuFine, decide, passed, decide, lasts(10*time.Minute - time.Second), decide}, waits},
		"and no longer":                                 {quarantine, []step{gpuFine, decide, passed, decide, lasts(10 * time.Minute)}, released},
		"validated with the fault it stays":             {quarantine, []step{passed, decide, lasts(time.Hour)}, waits},
		"validated in the boot with the fault it stays": {[]step{on, gpu(lost), decide, gpuFine, decide}, []step{passed, decide, lasts(time.Hour)}, quarantined},
		"the validation of another quarantine":          {cleared, []step{visited(Visits{Quarantine: "other", Validated: true, Release: &Manual{}}), decide}, held},
		"nobody asks for one":                           {cleared, []step{validates("gpu", false), decide}, released.but(func(o *outcome) { o.Said = "NodeQuarantined blocked:awaits-validation NodeReleased" })},
		"somebody asks for one now":                     {[]step{gpu(ecc), decide, gpuFine, decide, lasts(9 * time.Minute)}, []step{on, lasts(time.Hour)}, held},
		"a rule that only observes asks for nothing":    {quarantine, []step{switchedOff, gpuFine, decide, lasts(10 * time.Minute)}, released},
		"nor does one whose fault was not due":          {[]step{validates("disk", true), gpu(ecc), says("DiskFailing", "True", "x"), decide}, []step{says("DiskFailing", "False", ""), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"a renamed rule does":                           {quarantine, []step{renamed, decide, gpuFine, decide, lasts(10 * time.Minute)}, held.but(func(o *outcome) { o.Said = "NodeQuarantined QuarantineUpgraded blocked:awaits-validation" })},
		"a rule that is gone: as ever":                  {quarantine, []step{func(w *world) { w.policy.Rules = nil }, gpuFine, decide, passed, decide}, held.but(func(o *outcome) { o.Restart, o.Said = false, "NodeQuarantined blocked:rule-gone" })},
		"one of two rules is enough":                    {[]step{validates("fan", true), gpu(ecc), says("FanFailing", "True", "x"), decide}, []step{gpuFine, says("FanFailing", "False", ""), decide, lasts(time.Hour)}, held},
		"a manual quarantine needs none and gets none":  {[]step{on, gpuFine, ordered}, []step{granted, decide, lasts(time.Hour)}, outcome{Phase: causes.Quarantined, Taints: "pitcrew.dev/unhealthy=ByHand:NoSchedule", Status: "quarantined", Repair: "Inspect"}},
		"during a pause nothing is released": {cleared, []step{pauses("x"), passed, decide}, held.but(func(o *outcome) {
			o.Restart, o.Said = false, "NodeQuarantined blocked:awaits-validation blocked:paused"
		})},
		"a release without it, with kubectl":                 {cleared, []step{pardoned, decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined blocked:awaits-validation"}},
		"the taint was removed while none ran that knows it": {cleared, []step{untaints, restarted, decide}, outcome{Phase: causes.Released, By: causes.ByPitcrew, Status: "healthy", Said: "NodeQuarantined blocked:awaits-validation NodeReleased"}},
		"but not before it has cleared":                      {[]step{on, gpu(ecc), decide, gpuFine, decide}, []step{untaints, restarted, decide}, outcome{Phase: causes.Quarantined, Status: "quarantined", Repair: "ResetGPU", Said: "NodeQuarantined blocked:record-unconfirmed"}},
		"a restart alone changes nothing":                    {cleared, []step{restarted, decide}, held},
		"a release without it, by the taint":                 {cleared, []step{untaints, decide, untaints, decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined blocked:awaits-validation TaintRestored ReleaseByHand"}},

		// What a person asks for.
		"asked for, it waits, and that is said":     {quarantine, []step{gpuFine, decide, asks, decide}, held},
		"validated, it is released at once":         {quarantine, []step{gpuFine, decide, granted, decide}, byPerson},
		"and the same fault does not quarantine it": {quarantine, []step{gpuFine, decide, granted, decide, gpu(ecc), decide}, byPerson},
		"until that has cleared":                    {quarantine, []step{gpuFine, decide, granted, decide, lasts(10 * time.Minute)}, byPerson.but(func(o *outcome) { o.Status, o.Repair = "healthy", "" })},
		"a fault that stands holds it":              {quarantine, []step{granted, decide}, held},
		"and so does one of another condition":      {quarantine, []step{gpuFine, says("DiskFailing", "True", "x"), decide, granted, decide}, held.but(func(o *outcome) { o.Repair = "Replace" })},
		"a rule that is gone beside it holds it, and is named": {[]step{on, gpu(ecc), says("FanFailing", "True", "x"), decide, gpuFine, says("FanFailing", "False", ""), decide}, []step{func(w *world) {
			w.policy.Rules = slices.DeleteFunc(w.policy.Rules, func(r policy.Rule) bool { return r.Name == "fan" })
		}, asks, decide}, held.but(func(o *outcome) { o.Said = "NodeQuarantined blocked:rule-gone" })},
		"and a stale condition": {quarantine, []step{passes(12 * time.Minute), granted, decide}, held},
		"during the visit nothing is released": {quarantine, []step{gpuFine, decide, taints(validating), granted, decide}, waits.but(func(o *outcome) {
			o.Taints += " pitcrew.dev/maintenance=validation:NoSchedule"
			o.Status, o.Restart = "validating", false
		})},
		"a part that was replaced":                         {[]step{on, gpu(replace), decide, gpuFine, decide}, []step{granted, decide}, byPerson.but(func(o *outcome) { o.Repair = "Replace" })},
		"a fault that came and went too often":             {[]step{on, gpu(ecc), decide, gpuFine, func(w *world) { sticky(w) }, decide}, []step{granted, decide}, byPerson},
		"a manual quarantine beside the fault":             {[]step{on, gpu(ecc), decide, ordered, gpuFine, decide}, []step{granted, decide}, byPerson},
		"a request is for one quarantine":                  {[]step{on, gpu(ecc), decide, gpuFine, decide, granted, decide, lasts(11 * time.Minute)}, []step{gpu(ecc), decide, gpuFine, decide, lasts(time.Hour)}, held.but(func(o *outcome) { o.Said = "NodeQuarantined ReleaseByHand NodeQuarantined blocked:awaits-validation" })},
		"without a rule that asks, the causes have to go":  {[]step{gpu(replace), decide, gpuFine, decide}, []step{granted, decide, lasts(time.Hour)}, waits.but(func(o *outcome) { o.Repair = "Replace" })},
		"a request about a quarantine that has no record":  {nil, []step{on, granted, gpuFine, decide}, untouched},
		"a request that a pause holds is granted later on": {quarantine, []step{gpuFine, decide, pauses("x"), granted, decide, pauses(""), decide}, byPerson.but(func(o *outcome) { o.Said = "NodeQuarantined blocked:paused ReleaseByHand" })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range slices.Concat(test.before, test.steps) {
				s(w)
			}
			got := w.outcome()
			got.Requeue = 0
			if test.want.Phase == causes.Quarantined {
				got.Restart = test.want.Restart // that is not the question here
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func sticky(w *world) {
	r := w.record()
	r.ManualReleaseOnly = true
	w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
}

func TestWhoAskedForAReleaseIsNamed(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{validates("gpu", true), gpu(ecc), decide, gpuFine, decide, asks, decide} {
		s(w)
	}
	if b := w.last.Blocked; b.Rule != "gpu" || !strings.HasPrefix(b.Message, "ann asked to release the node; it waits for its validation (rule gpu has validate: true); ") {
		t.Errorf("%+v", b)
	}
	passed(w)
	w.policy.Webhooks = nil
	lasts(10*time.Minute - time.Second)(w)
	if r := w.record(); r.Phase != causes.Quarantined {
		t.Errorf("released without a request: %s", r)
	}
	granted(w)
	decide(w)
	r := w.record()
	if r.ReleaseUser != "ann" || r.ReleaseReason != "checked by me" || r.ReleasedBy != causes.ByPerson || !r.ReleasedAt.Equal(w.now) {
		t.Errorf("%s", r)
	}
	if e := w.last.Events; len(e) != 1 || e[0].Type != corev1.EventTypeNormal || e[0].Message != "passed its validation and was released by ann: checked by me" {
		t.Errorf("%+v", e)
	}
}

func TestWhatAValidationWaitsForIsSaid(t *testing.T) {
	for want, steps := range map[string][]step{
		"GPUXidError has cleared; the node waits for its validation under load (rule gpu has validate: true); `kubectl pitcrew release --without-validation` releases it without":            {gpuFine, decide, lasts(10 * time.Minute)},
		"the node has passed its validation, and unknown user asked to release it then, but GPUXidError has not cleared; `kubectl pitcrew release --without-validation` releases it without": {visited(Visits{Validated: true, Release: &Manual{}}), decide},
	} {
		w := newWorld(t)
		for _, s := range append([]step{validates("gpu", true), gpu(ecc), decide}, steps...) {
			s(w)
		}
		if b := w.last.Blocked; b == nil || b.Message != want {
			t.Errorf("%+v, want %s", b, want)
		}
	}
}

// A visit has its taint on the node for some minutes, several times within a quarantine.
func TestAVisitComesAndGoes(t *testing.T) {
	kind := func(value string) step {
		return taints(corev1.Taint{Key: conditions.TaintMaintenance, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
	gone := taintRemoved(conditions.TaintMaintenance)
	tests := map[string]struct {
		steps []step
		want  outcome
	}{
		"a sweep of a healthy node leaves no trace": {[]step{gpuFine, decide, kind("sweep"), decide, starves(time.Hour), gpuFine, gone, decide},
			untouched},
		"nor does a first check": {[]step{taints(corev1.Taint{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}), gpuFine, decide, kind("first-check"), decide, lasts(time.Hour), gone, decide},
			untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/unchecked:NoSchedule" })},
		"what a sweep finds counts when it ends": {[]step{gpuFine, decide, kind("sweep"), decide, gpu(lost), decide, gone, decide},
			quarantined},
		"and waits for as long as its rule says": {[]step{kind("sweep"), decide, says("DiskFailing", "True", "x"), decide, gone, decide, passes(59 * time.Second), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace"}},
		"a suspicion lasts over a sweep": {[]step{says("DiskFailing", "True", "x"), decide, kind("sweep"), decide, lasts(10 * time.Minute), gone, decide},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}},
		"no jobs are restarted during a repair": {[]step{gpu(lost), decide, kind("repair"), decide},
			quarantined.but(func(o *outcome) {
				o.Taints += " pitcrew.dev/maintenance=repair:NoSchedule"
				o.Status, o.Restart = "repairing", false
			})},
		"but before and after it": {[]step{gpu(lost), decide, kind("repair"), decide, gone, decide}, quarantined},
		"a taint that a repair has dropped is put back after it": {[]step{gpu(lost), decide, untaints, kind("repair"), decide, gone, decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined TaintRestored" })},
		"a reset, a validation, and the node is back": {[]step{validates("gpu", true), gpu(ecc), decide, kind("repair"), decide, lasts(5 * time.Minute), gpuFine, gone, decide, passes(time.Minute), beats, decide,
			taints(validating), decide, lasts(45 * time.Minute), gone, decide, passed, decide, lasts(10 * time.Minute)}, released},
		"a reboot, a validation, and the node is back": {[]step{validates("gpu", true), gpu(lost), decide, kind("repair"), decide, starves(2 * time.Minute), reboots, decide, passes(time.Minute), gone, decide, passes(time.Minute), gpuFine, decide,
			taints(validating), decide, lasts(45 * time.Minute), gone, decide, passed, decide, lasts(10 * time.Minute)}, released},
		"a fault under load brings a milder cause back as the worse": {[]step{validates("gpu", true), gpu(ecc), decide, gpuFine, decide, taints(validating), decide, gpu(lost), decide, gone, decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined QuarantineUpgraded" })},
		"a repair of an hour leaves no stale conditions": {[]step{gpu(lost), decide, kind("repair"), decide, starves(time.Hour), gone, beats, decide}, quarantined},
		"they are named if the detectors stay silent":    {[]step{gpu(lost), decide, kind("repair"), decide, starves(time.Hour), gone, decide}, quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined blocked:stale" })},
		"a manual release in a repair":                   {[]step{gpu(ecc), decide, kind("repair"), decide, pardoned, gone, decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := w.outcome()
			got.Requeue = 0
			if strings.Contains(test.want.Said, "stale") || test.want.Said == "NodeQuarantined TaintRestored" {
				got.Restart = test.want.Restart
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if test.want.Unmarked && w.node.Labels[conditions.LabelStatus] != "" {
				t.Errorf("labels %v", w.node.Labels)
			}
		})
	}
}

// A node under repair keeps its place under the budgets, a node that is swept has none.
func TestAVisitTakesNoPlaceUnderTheBudgets(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{gpuFine, decide, taints(maintenance), decide} {
		s(w)
	}
	if peer := peers.Of(w.policy, w.node); peer.OutOfService || len(peer.Starts) > 0 {
		t.Errorf("swept: %+v", peer)
	}
	w = newWorld(t)
	for _, s := range []step{gpu(lost), decide} {
		s(w)
	}
	before := peers.Of(w.policy, w.node)
	for _, s := range []step{taints(maintenance), decide, lasts(time.Hour), taintRemoved(conditions.TaintMaintenance), decide} {
		s(w)
		if diff := cmp.Diff(before.Starts, peers.Of(w.policy, w.node).Starts); diff != "" || !peers.Of(w.policy, w.node).OutOfService {
			t.Errorf("under repair: %s", diff)
		}
	}
}

func TestTheStatusOfANodeNamesTheVisit(t *testing.T) {
	for name, test := range map[string]struct {
		steps []step
		want  string
	}{
		"a validation":                     {[]step{gpu(ecc), decide, taints(validating), decide}, "validating"},
		"a repair":                         {[]step{gpu(ecc), decide, taints(corev1.Taint{Key: conditions.TaintMaintenance, Value: "repair", Effect: "NoSchedule"}), decide}, "repairing"},
		"after the validation":             {[]step{gpu(ecc), decide, taints(validating), decide, taintRemoved(conditions.TaintMaintenance), decide}, "quarantined"},
		"the value of another taint":       {[]step{gpu(ecc), decide, labels(node.LabelUpgradeState, "drain-required"), taints(corev1.Taint{Key: "example.com/a", Value: "validation", Effect: "NoSchedule"}), decide}, "repairing"},
		"no quarantine":                    {[]step{gpuFine, taints(validating), decide}, ""},
		"a record that overlays the cache": {[]step{gpu(ecc), decide, taints(validating), decide, func(w *world) { Overlay(w.node, w.record()) }}, "validating"},
	} {
		w := newWorld(t)
		for _, s := range test.steps {
			s(w)
		}
		if got := w.node.Labels[conditions.LabelStatus]; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestTheRecommendationOfTheAWSSuite(t *testing.T) {
	advised := func(do string) step {
		return func(w *world) { visited(Visits{Advice: do, AdvisedAt: w.now.In(time.FixedZone("", 3600))})(w) }
	}
	result := func(at, status, severity, do string) string {
		return `{"timestamp":"2026-11-20T` + at + `Z","node":"n","suite":"pitcrew","status":"` + status + `","severity":"` + severity + `","recommendation":"` + do + `"}`
	}
	theirs := `{"timestamp":"2026-01-01T03:00:00Z","node":"n","suite":"quarantine","status":"fail","severity":"ISOLATE","recommendation":"replace"}`
	out := []step{showsAWS, gpu(ecc), decide}
	for name, test := range map[string]struct {
		steps []step
		want  string
	}{
		"nothing is recommended":       {nil, ""},
		"replace":                      {[]step{advised("replace"), decide}, result("12:00:00", "fail", "ISOLATE", "replace")},
		"reboot":                       {[]step{advised("reboot"), decide}, result("12:00:00", "fail", "REBOOT", "reboot")},
		"return":                       {[]step{advised("return"), decide}, result("12:00:00", "pass", "", "return")},
		"the newest":                   {[]step{advised("reboot"), decide, passes(time.Minute), advised("return"), decide}, result("12:01:00", "pass", "", "return")},
		"what the suite does not know": {[]step{advised("pray"), decide}, ""},
		"it stays when it is over":     {[]step{advised("return"), decide, visited(Visits{}), gpuFine, decide, lasts(10 * time.Minute)}, result("12:00:00", "pass", "", "return")},
		"not wanted":                   {[]step{hidesAWS, advised("return"), decide}, ""},
		"no longer wanted":             {[]step{advised("return"), decide, hidesAWS, decide}, ""},
		"uninstalled":                  {[]step{advised("return"), decide, func(w *world) { w.node = Strip(w.node) }}, ""},
		"about another quarantine":     {[]step{visited(Visits{Quarantine: "x", Advice: "return", AdvisedAt: time.Unix(0, 0)}), decide}, ""},
		"theirs":                       {[]step{annotates(handoff.AWSQuarantineResult, theirs), advised("return"), decide, hidesAWS, decide}, theirs},
		"what nobody can read":         {[]step{annotates(handoff.AWSQuarantineResult, "{"), advised("return"), decide}, "{"},
		"during a visit it is as ever": {[]step{advised("reboot"), decide, taints(validating), advised("return"), decide}, result("12:00:00", "fail", "REBOOT", "reboot")},
	} {
		w := newWorld(t)
		for _, s := range slices.Concat(out, test.steps) {
			s(w)
		}
		if got := w.node.Annotations[handoff.AWSQuarantineResult]; got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
