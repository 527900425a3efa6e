package bundle

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/switchtest"
)

var (
	now  = time.Date(2026, 11, 28, 3, 30, 0, 0, time.UTC)
	host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
)

func parse(t *testing.T, repair string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  repair: {` + repair + `}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}}
    handed: {match: {condition: NVLinkDown, repair: [Reboot]}, handOff: {labels: {a.example/broken: "true"}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const actions = `actions: {Reboot: [{template: reboot}]}`

func TestForVisit(t *testing.T) {
	working := func(change func(*visit.Visit)) *visit.Visit {
		v := &visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Working, PhaseSince: now, Attempt: 1}
		change(v)
		return v
	}
	for name, test := range map[string]struct {
		repair string
		change func(*visit.Visit)
		after  time.Duration
		want   bool
	}{
		"the first action":          {"collect: {template: collect}, " + actions, func(*visit.Visit) {}, 0, true},
		"just before the timeout":   {"collect: {template: collect, timeout: 1m}, " + actions, func(*visit.Visit) {}, time.Minute - 1, true},
		"its time is over":          {"collect: {template: collect, timeout: 1m}, " + actions, func(*visit.Visit) {}, time.Minute, false},
		"off":                       {actions, func(*visit.Visit) {}, 0, false},
		"the second action":         {"collect: {template: collect}, " + actions, func(v *visit.Visit) { v.Attempt = 2 }, 0, false},
		"a validation":              {"collect: {template: collect}, " + actions, func(v *visit.Visit) { v.Kind = visit.Validation }, 0, false},
		"a sweep":                   {"collect: {template: collect}, " + actions, func(v *visit.Visit) { v.Kind = visit.Sweep }, 0, false},
		"a repair that has to wait": {"collect: {template: collect}, " + actions, func(v *visit.Visit) { v.Phase = visit.Emptying }, 0, false},
	} {
		if got := ForVisit(parse(t, test.repair), host, working(test.change), now.Add(test.after)); (got != "") != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := ForVisit(parse(t, "collect: {template: collect}"), host, nil, now); got != "" {
		t.Errorf("no visit: %q", got)
	}
}

func TestForHandOff(t *testing.T) {
	record := func(rule string, class conditions.Repair) *causes.Record {
		r := &causes.Record{NodeUID: "u"}
		r.ID, r.Phase, r.Taint = "q", causes.Quarantined, &causes.Taint{Since: now}
		r.Causes = []causes.Cause{{Rule: rule, Repair: class, Due: true}}
		return r
	}
	const on = "collect: {template: collect, handOff: true}, " + actions
	for name, test := range map[string]struct {
		repair string
		r      *causes.Record
		after  time.Duration
		want   bool
	}{
		"a class that nobody repairs":  {on, record("xid", conditions.Replace), 0, true},
		"a class without an action":    {on, record("xid", conditions.ResetGPU), 0, true},
		"a rule that hands off":        {on, record("handed", conditions.Reboot), 0, true},
		"repairs are off":              {on + ", mode: off", record("xid", conditions.Reboot), 0, true},
		"it is repaired here":          {on, record("xid", conditions.Reboot), 0, false},
		"not by the policy":            {"collect: {template: collect}, " + actions, record("xid", conditions.Replace), 0, false},
		"off":                          {actions, record("xid", conditions.Replace), 0, false},
		"an old quarantine":            {on, record("xid", conditions.Replace), freshFor + 1, false},
		"a quarantine of another node": {on, &causes.Record{NodeUID: "other"}, 0, false},
		"none":                         {on, nil, 0, false},
	} {
		if got := ForHandOff(parse(t, test.repair), host, test.r, "", now.Add(test.after)); (got != "") != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestWhatASwitchDoesToEvidenceAtAHandOff(t *testing.T) {
	const on = "mode: auto, collect: {template: collect, handOff: true}, " + actions
	q := &causes.Record{NodeUID: "u"}
	q.ID, q.Phase, q.Taint = "q", causes.Quarantined, &causes.Taint{Since: now}
	q.Causes = []causes.Cause{{Rule: "xid", Repair: conditions.Replace, Due: true}}
	switchtest.Check(t, "evidence at a hand-off", func(t *testing.T, by string) switchtest.Effect {
		p, n, paused := parse(t, on), host.DeepCopy(), ""
		n.Labels = map[string]string{}
		xid := slices.IndexFunc(p.Rules, func(r policy.Rule) bool { return r.Name == "xid" })
		switch by {
		case switchtest.Observe, switchtest.RuleObserve: // of the policy: all rules do
			p.Rules[xid].Observe = true
		case switchtest.RuleGone:
			p.Rules = slices.Delete(p.Rules, xid, xid+1)
		case switchtest.Approve:
			p = parse(t, strings.Replace(on, "auto", "approve", 1))
		case switchtest.Off:
			p = parse(t, strings.Replace(on, "auto", "off", 1))
		case switchtest.Pause:
			paused = "a person"
		case switchtest.Skip:
			n.Labels[conditions.LabelSkip] = "true"
		case switchtest.Others:
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Effect: corev1.TaintEffectNoSchedule}}
		}
		if ForHandOff(p, n, q, paused, now) == "" {
			return switchtest.Effect{Next: switchtest.Waits}
		}
		return switchtest.Effect{Next: switchtest.Begins}
	})
}

func TestNewJobAndItsEnd(t *testing.T) {
	template := &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew-repair", Name: "collect"},
		Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"collect", "-node=$(NODE)"}}}}},
	}
	job := NewJob(template, "n", "collect-1", 3*time.Minute, "-keep=5")
	args := job.Spec.Template.Spec.Containers[0].Args
	if len(args) != 3 || args[1] != "-node=n" || args[2] != "-keep=5" || *job.Spec.ActiveDeadlineSeconds != 150 || job.Labels[conditions.LabelVisit] != "" {
		t.Errorf("%q %+v", args, job)
	}
	if template.Template.Spec.Containers[0].Args[1] != "-node=$(NODE)" {
		t.Error("the template was changed")
	}
	if HasEnded(job) {
		t.Error("it has ended before it began")
	}
	for _, end := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget} {
		job.Status.Conditions = []batchv1.JobCondition{{Type: end, Status: corev1.ConditionTrue}}
		if !HasEnded(job) {
			t.Errorf("%s is no end", end)
		}
	}
}

// A pod of another Job, of another node, or one that writes no name is not believed.
func TestTheBundleOfAVisit(t *testing.T) {
	pod := func(namespace, job, on, message string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{batchv1.JobNameLabel: job}}, Spec: corev1.PodSpec{NodeName: on},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Message: message}}}}},
		}
	}
	const name, repairs = "n-20261128T033000Z.tar.gz", "pitcrew-repair"
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	r := &visit.Record{Current: &visit.Visit{ID: "v1"}}
	job, message := jobName(n, "v1"), `{"result":"done","message":"m","bundle":"`+name+`"}`
	for what, test := range map[string]struct {
		pod  corev1.Pod
		r    *visit.Record
		want string
	}{
		"written":             {pod(repairs, job, "n", message), r, name},
		"another Job":         {pod(repairs, "collect-x", "n", message), r, ""},
		"a tenant's pod":      {pod("ml", job, "n", message), r, ""},
		"another node":        {pod(repairs, job, "m", message), r, ""},
		"a name with a path":  {pod(repairs, job, "n", strings.Replace(message, ":\"n-", ":\"../n-", 1)), r, ""},
		"no result":           {pod(repairs, job, "n", "killed"), r, ""},
		"no visit is made":    {pod(repairs, job, "n", message), &visit.Record{}, ""},
		"no record":           {pod(repairs, job, "n", message), nil, ""},
		"it has not ended":    {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: repairs, Labels: map[string]string{batchv1.JobNameLabel: job}}}, r, ""},
		"the visit's is last": {pod(repairs, job, "n", message), &visit.Record{Current: &visit.Visit{ID: "v2"}}, ""},
	} {
		if got := OfVisit([]corev1.Pod{test.pod}, n, test.r, repairs); got != test.want {
			t.Errorf("%s: %q, want %q", what, got, test.want)
		}
	}
}

// A program on a node writes the name.
func TestIsName(t *testing.T) {
	for text, want := range map[string]bool{
		"gpu-1.example-20261128T033000Z.tar.gz": true, "gpu-2-20261128T033000Z.tar.gz": false, "gpu-1.example-../x-20261128T033000Z.tar.gz": false,
		"gpu-1.example-20261128T033000Z.tar.gz\n": false, "": false, "gpu-1.example-notes.tar.gz": false,
	} {
		if got := IsName(text, "gpu-1.example"); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
