package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	repairvisit "github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// taken is a version of a node that a rule has quarantined, or not; rule "": there is no fault.
func taken(at uint64, node, rule string) version[*corev1.Node] {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}}}
	if rule != "" {
		taint := causes.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule, Rule: rule}
		n.Spec.Taints = []corev1.Taint{taint.NodeTaint()}
		n.Status.Conditions = []corev1.NodeCondition{{Type: conditions.GPUXidError, Status: corev1.ConditionTrue}}
		n.Annotations = map[string]string{conditions.AnnotationQuarantine: (&causes.Record{V: 1, NodeUID: n.UID, Quarantine: causes.Quarantine{
			ID: "q-" + node, Phase: causes.Quarantined, Taint: &taint, QuarantinedAt: time.Unix(1, 0),
			Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: rule, Repair: conditions.Reboot, Due: true, BootID: "boot-1"}},
		}}).String()}
	}
	return version[*corev1.Node]{object: n, at: at}
}

func lease(at uint64, holder string) version[*coordinationv1.Lease] {
	return version[*coordinationv1.Lease]{object: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)}}, at: at}
}

func TestABudgetIsExceededByALeaderAlone(t *testing.T) {
	for name, test := range map[string]struct {
		leases []version[*coordinationv1.Lease]
		joined bool
		byHand bool      // the last one
		order  time.Time // of the first one, by hand; the others are decided after a second
		want   int
	}{
		"beside an order before it":        {leases: []version[*coordinationv1.Lease]{lease(1, "a")}, order: time.Unix(0, 1), want: 1},
		"beside an order while it wrote":   {leases: []version[*coordinationv1.Lease]{lease(1, "a")}, order: time.Unix(2, 0), want: 0},
		"by the leader":                    {leases: []version[*coordinationv1.Lease]{lease(1, "a")}, want: 1},
		"by the leader, for a person":      {leases: []version[*coordinationv1.Lease]{lease(1, "a")}, byHand: true, want: 0},
		"by who leads no more":             {leases: []version[*coordinationv1.Lease]{lease(1, "a"), lease(15, "b")}, want: 0},
		"by the leader, at a time unknown": {leases: []version[*coordinationv1.Lease]{lease(1, "a")}, joined: true, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			var versions []version[*corev1.Node]
			for i := range maxNodes + 1 {
				rule := "gpu-xid"
				ordered := i == 0 && !test.order.IsZero()
				if test.byHand && i == maxNodes || ordered {
					rule = policy.ByHand
				}
				v := taken(uint64(10+2*i), fmt.Sprint("node-", i), rule)
				if ordered {
					record, err := causes.RecordOf(v.object)
					if err != nil {
						t.Fatal(err)
					}
					record.QuarantinedAt = test.order
					v.object.Annotations[conditions.AnnotationQuarantine] = record.String()
				}
				v.joined = test.joined
				versions = append(versions, v)
			}
			leaders := leadership{leases: test.leases, wrote: func(process, identity string) bool { return process == identity }, writers: func(string) []string { return []string{"a"} }}
			if found := checkBudget(statesOf(versions), leaders, places[0]); len(found) != test.want {
				t.Errorf("%v", found)
			}
		})
	}
}

func TestWhatMustNotBeIsFound(t *testing.T) {
	change := func(v version[*corev1.Node], at uint64, change func(*corev1.Node)) version[*corev1.Node] {
		v.object, v.at = v.object.DeepCopy(), at
		change(v.object)
		return v
	}
	well, bad := taken(1, "node", ""), taken(2, "node", "gpu-xid")
	for name, test := range map[string]struct {
		after version[*corev1.Node]
		want  string
	}{
		"a quarantine":               {bad, ""},
		"one without its fault":      {change(bad, 2, func(n *corev1.Node) { n.Status.Conditions = nil }), "without that fault"},
		"one by an observing rule":   {taken(2, "node", observedRule), "observes"},
		"a taint without a record":   {change(bad, 2, func(n *corev1.Node) { n.Annotations = nil }), "no record"},
		"a mark of others that goes": {change(well, 2, func(n *corev1.Node) { n.Labels = nil }), "lost label"},
	} {
		t.Run(name, func(t *testing.T) {
			before := change(well, 1, func(n *corev1.Node) { n.Labels = map[string]string{foreign + "m": "x"} })
			if !strings.Contains(test.want, "lost") {
				test.after.object.Labels = before.object.Labels
			}
			states := statesOf([]version[*corev1.Node]{before, test.after})
			found := append(checkCauses(states, nil), checkForeign(states, func(string) []string { return nil }, nil, nil, nil)...)
			if text := fmt.Sprint(found); (test.want == "") != (len(found) == 0) || !strings.Contains(text, test.want) {
				t.Errorf("%s", text)
			}
		})
	}
}

func TestALabelledNodeIsLeftAloneButForOrders(t *testing.T) {
	released := taken(3, "node", policy.ByHand)
	released.object.Annotations[conditions.AnnotationQuarantine] = strings.Replace(released.object.Annotations[conditions.AnnotationQuarantine],
		`"phase":"quarantined"`, `"phase":"released","releasedBy":"person"`, 1)
	for name, test := range map[string]struct {
		versions []version[*corev1.Node]
		breaks   int
	}{
		"by a rule":             {[]version[*corev1.Node]{taken(1, "node", ""), taken(2, "node", "gpu-xid")}, 1},
		"by a person":           {[]version[*corev1.Node]{taken(1, "node", ""), taken(2, "node", policy.ByHand)}, 0},
		"released by a person":  {[]version[*corev1.Node]{taken(1, "node", ""), taken(2, "node", policy.ByHand), released}, 0},
		"the record is dropped": {[]version[*corev1.Node]{taken(1, "node", ""), taken(2, "node", policy.ByHand), taken(3, "node", "")}, 1},
		"an order turns to a rule": {
			[]version[*corev1.Node]{taken(1, "node", ""), taken(2, "node", policy.ByHand), taken(3, "node", "gpu-xid")}, 1,
		},
	} {
		for _, v := range test.versions {
			v.object.Labels = map[string]string{conditions.LabelSkip: "true"}
		}
		if found := checkForeign(statesOf(test.versions), func(string) []string { return []string{"a"} }, nil, nil, nil); len(found) != test.breaks {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// visited is a version of a node that a visit works on.
func visited(at uint64, node, visit string) version[*corev1.Node] {
	v := taken(at, node, validatedRule)
	v.object.Spec.Taints = append(v.object.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: string(repairvisit.Repair), Effect: corev1.TaintEffectNoSchedule})
	record := &repairvisit.Record{V: 1, NodeUID: v.object.UID, Current: &repairvisit.Visit{
		ID: visit, Kind: repairvisit.Repair, Phase: repairvisit.Working, Attempt: 1, Template: "reset-gpu", Quarantine: "q-" + node,
		StartedAt: time.Unix(1, 0), PhaseSince: time.Unix(1, 0),
	}}
	v.object.Annotations[conditions.AnnotationRepair] = record.String()
	return v
}

func untaint(v version[*corev1.Node]) version[*corev1.Node] {
	v.object.Spec.Taints = nil
	return v
}

// visitJob is the Job of a visit when it is created.
func visitJob(at uint64, node, visit string) jobVersion {
	name := fmt.Sprint("job-", at)
	return jobVersion{at: at, object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Labels: map[string]string{conditions.LabelVisit: visit}, Annotations: map[string]string{conditions.AnnotationNode: node},
	}}}
}

func TestVisitsKeepTheirLimits(t *testing.T) {
	leader := func(string) []string { return []string{"a"} }
	leaders := leadership{leases: []version[*coordinationv1.Lease]{lease(1, "a")}, wrote: func(process, identity string) bool { return process == identity }, writers: leader, jobWriters: leader}
	pod := func(bound, gone uint64) (all []version[*corev1.Pod]) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "a"}}
		return []version[*corev1.Pod]{{object: p, at: bound}, {object: p, at: gone, gone: true}}
	}
	for name, test := range map[string]struct {
		nodes []version[*corev1.Node]
		jobs  []jobVersion
		pods  []version[*corev1.Pod]
		want  string
	}{
		"one after the other":              {nodes: []version[*corev1.Node]{visited(10, "a", "1"), taken(11, "a", ""), visited(12, "b", "2")}},
		"too many at the same time":        {nodes: []version[*corev1.Node]{visited(10, "a", "1"), visited(11, "b", "2")}, want: "2 nodes are visited"},
		"somebody has removed the taints":  {nodes: []version[*corev1.Node]{visited(10, "a", "1"), untaint(visited(11, "a", "1")), visited(12, "a", "1"), visited(13, "b", "2")}},
		"a Job on an empty node":           {nodes: []version[*corev1.Node]{visited(10, "a", "1")}, jobs: []jobVersion{visitJob(20, "a", "1")}, pods: pod(2, 9)},
		"a Job beside a pod":               {nodes: []version[*corev1.Node]{visited(10, "a", "1")}, jobs: []jobVersion{visitJob(20, "a", "1")}, pods: pod(2, 30), want: "while pod pod has GPUs"},
		"a pod that comes after the taint": {nodes: []version[*corev1.Node]{visited(10, "a", "1")}, jobs: []jobVersion{visitJob(20, "a", "1")}, pods: pod(11, 30)},
		"a Job of no visit":                {nodes: []version[*corev1.Node]{visited(10, "a", "1")}, jobs: []jobVersion{visitJob(20, "a", "2")}, want: "which the record does not name"},
		"an action that is repeated": {nodes: []version[*corev1.Node]{visited(10, "a", "1")}, jobs: []jobVersion{visitJob(20, "a", "1"), visitJob(30, "a", "1")},
			want: "done again"},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := checkVisits(statesOf(test.nodes), leaders, test.jobs, test.pods)
			if text := fmt.Sprint(found); (test.want == "") != (len(found) == 0) || !strings.Contains(text, test.want) {
				t.Errorf("%s", text)
			}
		})
	}
}

func TestTheBreakerHoldsBackWhatComesTooSoon(t *testing.T) {
	leaders := leadership{leases: []version[*coordinationv1.Lease]{lease(1, "a")}, wrote: func(process, identity string) bool { return process == identity }, writers: func(string) []string { return []string{"a"} }}
	b := &policy.Breaker{MaxNodes: 2, Window: time.Minute, Pace: 10 * time.Second}
	for name, test := range map[string]struct {
		after time.Duration // the third quarantine after the second
		want  int
	}{
		"too soon":         {5 * time.Second, 1},
		"after the pace":   {10 * time.Second, 0},
		"after the window": {2 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var versions []version[*corev1.Node]
			for i, at := range []time.Duration{0, time.Second, time.Second + test.after} {
				v := taken(uint64(10+i), fmt.Sprint("node-", i), "gpu-xid")
				record, err := causes.RecordOf(v.object)
				if err != nil {
					t.Fatal(err)
				}
				record.QuarantinedAt = time.Unix(1000, 0).Add(at)
				v.object.Annotations[conditions.AnnotationQuarantine] = record.String()
				versions = append(versions, v)
			}
			if found := checkBreaker(statesOf(versions), leaders, b); len(found) != test.want {
				t.Errorf("%v", found)
			}
		})
	}
}

func TestAManualReleaseHoldsUntilTheFaultHasCleared(t *testing.T) {
	const fault = "Reboot Xid 79"
	for name, test := range map[string]struct {
		cleared, booted, atOnce bool
		want                    int
	}{
		"it stands":           {want: 1},
		"in the same write":   {atOnce: true, want: 1},
		"it has cleared":      {cleared: true},
		"the node has booted": {booted: true},
	} {
		t.Run(name, func(t *testing.T) {
			var versions []version[*corev1.Node]
			add := func(change func(*corev1.Node, *causes.Record)) {
				v := taken(uint64(10+len(versions)), "node", "gpu-xid")
				v.object.Status.Conditions[0].Message = fault
				record, err := causes.RecordOf(v.object)
				if err != nil {
					t.Fatal(err)
				}
				record.Causes[0].Message = fault
				change(v.object, record)
				v.object.Annotations[conditions.AnnotationQuarantine] = record.String()
				versions = append(versions, v)
			}
			released := func(_ *corev1.Node, r *causes.Record) {
				r.Phase, r.ReleasedBy = causes.Released, causes.ByPerson
			}
			add(func(*corev1.Node, *causes.Record) {})
			if !test.atOnce {
				add(released)
			}
			if test.cleared {
				add(func(n *corev1.Node, r *causes.Record) {
					released(n, r)
					n.Status.Conditions[0].Status = corev1.ConditionFalse
				})
			}
			add(func(n *corev1.Node, r *causes.Record) {
				if test.atOnce {
					last := r.Quarantine
					last.Phase, last.ReleasedBy = causes.Released, causes.ByPerson
					r.ID, r.Last = "again", []causes.Quarantine{last}
				}
				if test.booted {
					n.Status.NodeInfo.BootID = "boot-2"
				}
			})
			if found := checkManualReleases(statesOf(versions)); len(found) != test.want {
				t.Errorf("%v", found)
			}
		})
	}
}

func TestAReleaseNeedsTheFaultGoneAndTheRepairMade(t *testing.T) {
	for name, test := range map[string]struct {
		message, boot, by string
		want              int
	}{
		"fine and booted":                   {boot: "boot-2"},
		"the fault stands":                  {message: "Reboot Xid 79", boot: "boot-2", want: 1},
		"only what a rule alerts of stands": {message: "Inspect Xid 62", boot: "boot-2"},
		"not booted":                        {boot: "boot-1", want: 1},
		"not booted, released by a person":  {boot: "boot-1", by: "ada"},
	} {
		t.Run(name, func(t *testing.T) {
			before := taken(1, "node", "gpu-xid")
			after := version[*corev1.Node]{object: before.object.DeepCopy(), at: 2}
			record, err := causes.RecordOf(before.object)
			if err != nil {
				t.Fatal(err)
			}
			record.Phase, record.ReleasedBy = causes.Released, cmp.Or(test.by, causes.ByPitcrew)
			after.object.Annotations[conditions.AnnotationQuarantine] = record.String()
			after.object.Status.NodeInfo.BootID = test.boot
			if after.object.Status.Conditions[0].Message = test.message; test.message == "" {
				after.object.Status.Conditions[0].Status = corev1.ConditionFalse
			}
			if found := checkReleases(statesOf([]version[*corev1.Node]{before, after}), never); len(found) != test.want {
				t.Errorf("%v", found)
			}
		})
	}
}

func never(time.Time) bool { return false }

func TestAReleaseNeedsAValidationUnlessThePolicyObserves(t *testing.T) {
	w := &world{policies: []written{
		{rules, time.Unix(0, 0)}, {observing, time.Unix(100, 0)}, {invalid, time.Unix(108, 0)}, {rules, time.Unix(130, 0)}, {invalid, time.Unix(131, 0)},
	}}
	for released, want := range map[int64]int{99: 1, 100: 0, 110: 0, 125: 0, 132: 0, 137: 1} {
		before := taken(1, "node", validatedRule)
		after := version[*corev1.Node]{object: before.object.DeepCopy(), at: 2}
		record, err := causes.RecordOf(before.object)
		if err != nil {
			t.Fatal(err)
		}
		record.Phase, record.ReleasedBy, record.ReleasedAt = causes.Released, causes.ByPitcrew, time.Unix(released, 0)
		after.object.Annotations[conditions.AnnotationQuarantine] = record.String()
		after.object.Status.NodeInfo.BootID = "boot-2"
		after.object.Status.Conditions = nil
		if found := checkReleases(statesOf([]version[*corev1.Node]{before, after}), w.mayHaveObserved); len(found) != want {
			t.Errorf("after %d s: %v", released, found)
		}
	}
}

func TestAStartBesideOldPodsIsFoundUnlessAPersonAborts(t *testing.T) {
	at := func(revision uint64, phase restart.Phase, annotations map[string]string) jobVersion {
		j := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: "job", Annotations: annotations}}
		if j.Annotations == nil {
			j.Annotations = map[string]string{}
		}
		text, err := json.Marshal(restart.Record{V: 1, JobUID: j.UID, Current: &restart.Restart{
			ID: "r", Phase: phase, StartedAt: time.Unix(1, 0), PhaseSince: time.Unix(1, 0), Pods: []types.UID{"old"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		j.Annotations[conditions.AnnotationRestart] = string(text)
		return jobVersion{object: j, at: revision}
	}
	pods := []version[*corev1.Pod]{{object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "old"}}, at: 1}}
	for name, test := range map[string]struct {
		annotations map[string]string
		whole       bool
		want        int
	}{
		"started beside it":                      {want: 1},
		"a person aborts":                        {annotations: map[string]string{conditions.AnnotationAbortRestart: ""}},
		"a person aborts, a job that is stopped": {annotations: map[string]string{conditions.AnnotationAbortRestart: ""}, whole: true, want: 1},
	} {
		jobs := []jobVersion{at(10, restart.Stopping, nil), at(20, restart.Starting, test.annotations)}
		found, starts := checkIncarnations(jobs, pods, nil, func(*metav1.PartialObjectMetadata) bool { return test.whole })
		if len(found) != test.want || starts != 1 {
			t.Errorf("%s: %d starts, %v", name, starts, found)
		}
	}
}
