package maintenance

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// visited is a node with a visit, its taint, and perhaps the condition.
func visited(kind visit.Kind, taint string, c *corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: conditions.ReasonRepair}}
	if kind != "" {
		r := &visit.Record{V: 1, NodeUID: "u", Current: &visit.Visit{ID: "v", Kind: kind, Phase: visit.Working, Attempt: 1, StartedAt: now, PhaseSince: now}}
		r.Put(n)
	}
	if taint != "" {
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Value: taint, Effect: corev1.TaintEffectNoSchedule}}
	}
	if c != nil {
		n.Status.Conditions = append(n.Status.Conditions, *c)
	}
	return n
}

func condition(status corev1.ConditionStatus, reason string) *corev1.NodeCondition {
	return &corev1.NodeCondition{Type: corev1.NodeMaintenanceInProgress, Status: status, Reason: reason}
}

func TestChange(t *testing.T) {
	const sets, removes, nothing = "sets", "removes", ""
	ours, theirs := condition("True", conditions.ReasonRepair), condition("True", "Window")
	broken := visited("", "repair", ours)
	broken.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
	beside := visited(visit.Sweep, "sweep", nil)
	beside.Spec.Taints = append(beside.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: "repair", Effect: corev1.TaintEffectNoExecute})
	ended := visited("", "repair", ours)
	(&visit.Record{V: 1, NodeUID: "u", Last: []visit.Visit{{ID: "v", Kind: visit.Repair, Phase: visit.Passed}}}).Put(ended)
	for name, test := range map[string]struct {
		n    *corev1.Node
		on   bool
		want string
	}{
		"a repair":                            {visited(visit.Repair, "repair", nil), true, sets},
		"it is shown":                         {visited(visit.Repair, "repair", ours), true, nothing},
		"a kubelet denies it":                 {visited(visit.Repair, "repair", condition("False", conditions.ReasonRepair)), true, sets},
		"off":                                 {visited(visit.Repair, "repair", nil), false, nothing},
		"switched off during a repair":        {visited(visit.Repair, "repair", ours), false, nothing},
		"a repair waits for pods":             {visited(visit.Repair, "", nil), true, nothing},
		"the repair has ended":                {visited(visit.Repair, "", ours), true, removes},
		"switched off, and it has ended":      {visited(visit.Repair, "", ours), false, removes},
		"a validation":                        {visited(visit.Validation, "validation", nil), true, nothing},
		"a validation follows":                {visited(visit.Validation, "validation", ours), true, removes},
		"a sweep":                             {visited(visit.Sweep, "sweep", nil), true, nothing},
		"a taint of others":                   {visited("", "repair", nil), true, nothing},
		"a taint of others in place of ours":  {visited(visit.Sweep, "repair", nil), true, nothing},
		"a taint of others beside a sweep":    {beside, true, nothing},
		"no visit, and a kubelet says so":     {visited("", "", ours), true, removes},
		"the last repair's taint is back":     {ended, true, removes},
		"the record cannot be read":           {broken, true, nothing},
		"others maintain a repaired node":     {visited(visit.Repair, "repair", theirs), true, nothing},
		"others maintain the node":            {visited("", "", theirs), true, nothing},
		"others have ended their maintenance": {visited(visit.Repair, "repair", condition("False", "Window")), true, nothing},
	} {
		got := nothing
		switch c := change(test.n, test.on, now).(type) {
		case corev1.NodeCondition:
			got = sets
			if c.Type != "MaintenanceInProgress" || c.Status != "True" || c.Reason != conditions.ReasonRepair || c.Message == "" || !c.LastTransitionTime.Time.Equal(now) {
				t.Errorf("%s: %+v", name, c)
			}
		case map[string]string:
			got = removes
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// An API server that is too old gets no condition, one whose version is not known gets none yet, and ours is removed from each.
func TestTheConditionNeedsAServerThatKnowsIt(t *testing.T) {
	for server, want := range map[string]bool{"v1.37.0": true, "v1.38.1-gke.100": true, "v1.37.2+k3s1": true, "v1.36.4": false, "": false, "none": false} {
		for before, shows := range map[*corev1.Node]bool{
			visited(visit.Repair, "repair", nil): want, visited("", "", condition("True", conditions.ReasonRepair)): false,
		} {
			api := fake.NewClientBuilder().WithObjects(before).WithStatusSubresource(before).Build()
			f := New(api, api, func(context.Context) (string, error) {
				if server == "" {
					return "", errors.New("away")
				}
				return server, nil
			}, clocktesting.NewFakePassiveClock(now))
			f.Follow(before, true)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // it ends when nothing is left to do
			if err := f.Start(ctx); err != nil {
				t.Fatal(err)
			}
			var n corev1.Node
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(before), &n); err != nil {
				t.Fatal(err)
			}
			_, got := node.ConditionOf(&n, corev1.NodeMaintenanceInProgress)
			if _, kept := node.ConditionOf(&n, corev1.NodeReady); got != shows || !kept {
				t.Errorf("%q: conditions %v", server, n.Status.Conditions)
			}
		}
	}
}
