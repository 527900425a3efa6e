package request

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const text = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 9}
  repair:
    mode: approve
    actions: {Reboot: [{template: reboot}]}
    validate: {template: check}
  sweeps:
    weekly: {every: 168h, nodeSelector: {pool: gpu}, template: check}
  firstCheck: {}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}, validate: true}
`

func parse(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inService and faulty are nodes of the sweep; the second is quarantined.
func inService() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"pool": "gpu"}},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "b1"}}}
}

func faulty() *corev1.Node {
	n := inService()
	record := &causes.Record{V: 1, NodeUID: n.UID, Boot: causes.Boot{ID: "b1", Seen: now}, Quarantine: causes.Quarantine{
		ID: "q1", Phase: causes.Quarantined, QuarantinedAt: now,
		Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Message: "x", FirstSeen: now, Due: true, BootID: "b1"}},
		Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: conditions.Reboot, Since: now},
	}}
	n.Annotations = map[string]string{conditions.AnnotationQuarantine: record.String()}
	n.Spec.Taints = []corev1.Taint{record.Taint.NodeTaint()}
	return n
}

func visited(n *corev1.Node, r *visit.Record) *corev1.Node {
	r.V, r.NodeUID = 1, n.UID
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, conditions.AnnotationRepair, r.String())
	return n
}

func TestWhatIsOrderedAboutANode(t *testing.T) {
	visits := Scope{Policy: parse(t, text), Visits: true}
	off := Scope{Policy: parse(t, strings.Replace(text, "mode: approve", "mode: off", 1)), Visits: true}
	none := Scope{Policy: visits.Policy}
	sweep := &visit.Record{Current: &visit.Visit{ID: "v", Kind: visit.Sweep, Sweep: "weekly", Phase: visit.Working, Attempt: 1, Template: "check", BootID: "b1", StartedAt: now, PhaseSince: now}}
	checked := &visit.Record{Checked: &visit.Checked{At: now, BootID: "b1", Quarantine: "q1"}}
	cpu := inService()
	cpu.Labels["pool"] = "cpu"
	fresh := cpu.DeepCopy()
	fresh.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	broken := faulty()
	broken.Annotations[conditions.AnnotationRepair] = "{"
	unreadable := faulty()
	unreadable.Annotations[conditions.AnnotationQuarantine] = "{"
	for name, test := range map[string]struct {
		scope Scope
		node  *corev1.Node
		kind  Kind
		about string
		// want is the Event, or the start of the refusal.
		want, event string
	}{
		"quarantine":                            {visits, inService(), Quarantine, "", "quarantined manually", causes.NodeQuarantined},
		"quarantine without a policy":           {Scope{}, inService(), Quarantine, "", "quarantined manually", causes.NodeQuarantined},
		"release":                               {Scope{}, faulty(), Release, "q1", "released manually", causes.ReleaseByHand},
		"release, checked first":                {visits, faulty(), Release, "q1", "release requested", ReleaseRequested},
		"release at once":                       {visits, faulty(), ReleaseNow, "q1", "released manually", causes.ReleaseByHand},
		"release after the check":               {visits, visited(faulty(), checked), Release, "q1", "released manually", causes.ReleaseByHand},
		"release where nothing is checked":      {none, faulty(), Release, "q1", "released manually", causes.ReleaseByHand},
		"release another quarantine":            {visits, faulty(), Release, "q0", "node a: the quarantine has ended or another", ""},
		"release at once another":               {visits, faulty(), ReleaseNow, "q0", "node a: the quarantine has ended or another", ""},
		"release a node in service":             {visits, inService(), Release, "", "node a is not quarantined", ""},
		"release over an unreadable visit":      {visits, broken, Release, "q1", "node a: decode repair record", ""},
		"release over an unreadable quarantine": {visits, unreadable, ReleaseNow, "", "node a: decode quarantine record", ""},
		"repair":                                {visits, faulty(), Repair, "q1", "repair requested", RepairRequested},
		"repair without a known policy":         {Scope{}, faulty(), Repair, "q1", "repair requested", RepairRequested},
		"repair a node in service":              {visits, inService(), Repair, "", "node a is not quarantined", ""},
		"repair where nothing is":               {none, faulty(), Repair, "q1", "node a is not visited: the remediator repairs and checks no nodes", ""},
		"repair where the policy does not":      {off, faulty(), Repair, "q1", "node a is not repaired: the policy repairs no nodes", ""},
		"repair another quarantine":             {visits, faulty(), Repair, "q0", "node a: the quarantine has ended or another", ""},
		"repair twice": {visits, visited(faulty(), &visit.Record{Request: &visit.Request{Kind: visit.RequestRepair, Quarantine: "q1", At: now, User: "ann"}}), Repair, "q1",
			"node a: ann has asked for this already, at 2026-11-20T12:00:00Z", ""},
		"stop what may begin":     {visits, faulty(), Stop, "q1", "stop requested", RepairStopRequested},
		"stop a sweep":            {visits, visited(inService(), sweep), Stop, "", "stop requested", RepairStopRequested},
		"stop nothing":            {visits, inService(), Stop, "", "node a is not quarantined, and nothing is done to it: there is nothing to stop", ""},
		"check":                   {visits, inService(), Check, "", "check requested", CheckRequested},
		"check a new node":        {visits, fresh, Check, "", "check requested", CheckRequested},
		"check a node of none":    {visits, cpu, Check, "", "node a cannot be checked: no sweep of the policy is for it", ""},
		"check a quarantined one": {visits, faulty(), Check, "q1", "node a is quarantined: `kubectl pitcrew repair`", ""},
		"check a visited one":     {visits, visited(inService(), sweep), Check, "", "node a is being visited already (sweep)", ""},
		"check where nothing is":  {none, inService(), Check, "", "node a is not visited", ""},
		"dance":                   {visits, inService(), "dance", "", "a request of kind \"dance\" is of a later version", ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := test.node.DeepCopy()
			r := &Request{ID: "r", Kind: test.kind, About: test.about, At: now, User: "eve", Reason: "mine"}
			o, err := Carry(test.scope, test.node, r, now)
			after := Answered(test.node, *r, o, err, now)
			answered, readErr := Of(after)
			if readErr != nil || answered.Waits() || answered.Answer.Done != (test.event != "") || !strings.HasPrefix(answered.Answer.Text, test.want) {
				t.Fatalf("answered %+v, %v", answered.Answer, readErr)
			}
			if o.Event != test.event && err == nil {
				t.Errorf("Event %s", o.Event)
			}
			delete(after.Annotations, conditions.AnnotationRequest)
			if changed := quarantine.Differ(before, after); changed != (test.event != "") {
				t.Errorf("changed: %v", changed)
			}
			if quarantine.Differ(before, test.node) {
				t.Error("the node itself was changed")
			}
		})
	}
}

func TestAnUninstallLeavesNoRequest(t *testing.T) {
	n := faulty()
	(&Request{ID: "r", Kind: Release}).Put(n)
	if n = quarantine.Strip(n); n.Annotations[conditions.AnnotationRequest] != "" {
		t.Errorf("%v", n.Annotations)
	}
}

// What a tenant or a later version may have written is an error, not an order.
func TestARequestIsInput(t *testing.T) {
	for value, want := range map[string]string{
		`{"id":"r","kind":"stop"}`: "",
		``:                         "unexpected end of JSON",
		`{"kind":"stop"}`:          "no id",
		`{"id":"` + strings.Repeat("x", 65) + `"}`:                 "id has 65 bytes",
		`{"id":"r","reason":"` + strings.Repeat("x", 13000) + `"}`: "more than any request has",
	} {
		n := inService()
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, conditions.AnnotationRequest, value)
		r, err := Of(n)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && !r.Waits() {
			t.Errorf("%.60q: %+v, %v, want %q", value, r, err, want)
		}
	}
	if r, err := Of(inService()); r != nil || err != nil || r.Waits() {
		t.Errorf("%+v, %v", r, err)
	}
	n := inService()
	long := Request{ID: "r", User: strings.Repeat("u", 999), Reason: strings.Repeat("\x00", 9999)}
	if after := Answered(n, long, Outcome{}, errors.New(strings.Repeat("\x00", 9999)), now); len(after.Annotations[conditions.AnnotationRequest]) > 0 {
		if r, err := Of(after); err != nil || r.Answer == nil {
			t.Errorf("what is written is not read: %v", err)
		}
	}
}
