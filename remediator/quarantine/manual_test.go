package quarantine

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func byPerson(change func(*world) (*corev1.Node, error)) step {
	return func(w *world) {
		w.t.Helper()
		n, err := change(w)
		if err != nil {
			w.t.Fatal(err)
		}
		w.node = n
	}
}

var (
	ordered = byPerson(func(w *world) (*corev1.Node, error) {
		return QuarantineManually(w.node, Manual{Reason: "smells of smoke"}, w.now)
	})
	pardoned = byPerson(func(w *world) (*corev1.Node, error) { return ReleaseManually(w.node, Manual{}, nil, w.now) })
)

func TestAPersonsWord(t *testing.T) {
	const handTaint = "pitcrew.dev/unhealthy=ByHand:NoSchedule"
	hand := outcome{Phase: causes.Quarantined, Taints: handTaint, Status: "quarantined", Repair: "Inspect"}
	tests := map[string]struct {
		steps []step
		want  outcome
	}{
		"a quarantine by hand stays":                 {[]step{gpuFine, ordered, decide, reboots, lasts(48 * time.Hour)}, hand},
		"whatever the budget":                        {[]step{others(9), gpuFine, ordered, decide}, hand},
		"a suspect is quarantined at once":           {[]step{says("DiskFailing", "True", "x"), decide, ordered}, hand.but(func(o *outcome) { o.Repair = "Replace" })},
		"until a person ends it":                     {[]step{gpuFine, ordered, decide, pardoned, decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy"}},
		"a fault on top of it is dealt with":         {[]step{gpuFine, ordered, gpu(lost), decide}, quarantined.but(func(o *outcome) { o.Said = "QuarantineUpgraded" })},
		"by hand on top of a fault outlives it":      {[]step{gpu(ecc), decide, ordered, gpuFine, decide, lasts(time.Hour)}, quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"a release by hand holds while the fault":    {[]step{gpu(ecc), decide, pardoned, decide, lasts(time.Hour), gpu("Inspect gpu 0000:1b:00: Xid 999 unknown"), decide, gpu(ecc), decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined"}},
		"a worse one counts":                         {[]step{gpu(ecc), decide, pardoned, decide, lasts(time.Hour), gpu(lost), decide}, quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined NodeQuarantined" })},
		"it ends Replace":                            {[]step{gpu(replace), decide, pardoned, gpuFine, decide, lasts(11 * time.Minute)}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}},
		"and once the fault was gone it counts anew": {[]step{gpu(ecc), decide, pardoned, decide, gpuFine, decide, lasts(10 * time.Minute), gpu(lost), decide}, quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined NodeQuarantined" })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := w.outcome()
			got.Requeue = 0
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v\nrecord %s", got, test.want, w.node.Annotations[conditions.AnnotationQuarantine])
			}
		})
	}
}

func TestAPersonsOrderThatMakesNoSenseIsRefused(t *testing.T) {
	w := newWorld(t)
	if _, err := ReleaseManually(w.node, Manual{}, nil, w.now); err == nil {
		t.Error("released a node that is not quarantined")
	}
	ordered(w)
	if _, err := QuarantineManually(w.node, Manual{Reason: "again"}, w.now); err == nil {
		t.Error("quarantined by hand twice")
	}
	w.node.Annotations[conditions.AnnotationQuarantine] = "{"
	if _, err := ReleaseManually(w.node, Manual{}, nil, w.now); err == nil {
		t.Error("wrote over a record that does not parse")
	}
}

func TestStripLeavesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{labels("pitcrew.dev/skip", "false"), taints(theirs), says("DiskFailing", "True", "x"), decide, lasts(time.Minute), taints(maintenance)} {
		s(w)
	}
	n := Strip(w.node)
	// A node under repair stays so.
	if !slices.Equal(n.Spec.Taints, []corev1.Taint{theirs, maintenance}) || len(n.Annotations) != 0 || len(n.Labels) != 1 {
		t.Errorf("%+v %v %v", n.Spec.Taints, n.Annotations, n.Labels)
	}
}

// The command line knows no policy, and autoscalers read annotations in the domains of Kubernetes.
func TestTheCommandLineRemovesAnnotationsOfEveryDomain(t *testing.T) {
	const autoscaler, role = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "node-role.kubernetes.io/forged"
	tests := map[string]func(*world) (*corev1.Node, error){
		"release":   func(w *world) (*corev1.Node, error) { return ReleaseManually(w.node, Manual{}, nil, w.now) },
		"uninstall": func(w *world) (*corev1.Node, error) { return Strip(w.node), nil },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i := range w.policy.Rules {
				w.policy.Rules[i].HandOff = policy.HandOff{Annotations: map[string]string{autoscaler: "by policy"}}
			}
			gpu(ecc)(w)
			w.decide()
			if w.node.Annotations[autoscaler] != "by policy" {
				t.Fatalf("not handed off: %v", w.node.Annotations)
			}
			forges(func(r *causes.Record) { r.HandOff.Labels = map[string]string{role: "x"} })(w)
			labels(role, "x")(w)
			n, err := change(w)
			if err != nil {
				t.Fatal(err)
			}
			if value, ok := n.Annotations[autoscaler]; ok {
				t.Errorf("annotation %s=%s is left", autoscaler, value)
			}
			if n.Labels[role] != "x" {
				t.Error("a forged record removed a label of Kubernetes")
			}
			if left := Left(w.node, n); !slices.Equal(left, []string{"label " + role}) {
				t.Errorf("left %q", left)
			}
			if left := Left(w.node, w.node); left != nil {
				t.Errorf("still quarantined, left %q", left)
			}
		})
	}
}

func TestReleaseTakesAwayATaintWithoutARecord(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{gpu(ecc), decide, taints(theirs)} {
		s(w)
	}
	delete(w.node.Annotations, conditions.AnnotationQuarantine)
	n, err := ReleaseManually(w.node, Manual{}, nil, w.now)
	if err != nil || !slices.Equal(n.Spec.Taints, []corev1.Taint{theirs}) {
		t.Errorf("%v, %v", n, err)
	}
}
