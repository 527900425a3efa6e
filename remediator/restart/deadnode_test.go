package restart

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// silentNode does not answer since ten minutes before noon.
func silentNode() *corev1.Node {
	node := readyNode("bad")
	node.Labels[conditions.LabelStatus] = "quarantined"
	node.Status.Conditions[0].Status, node.Status.Conditions[0].LastTransitionTime = corev1.ConditionUnknown, metav1.NewTime(noon.Add(-10*time.Minute))
	return &node
}

// deletedPod is on that node; its grace period ends then.
func deletedPod(name string, grace int64, ends time.Time) *corev1.Pod {
	pod := podOn(name, "bad")
	pod.UID = types.UID(name)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: ends}, ptr.To(grace)
	pod.Finalizers = []string{"example.com/keep"}
	return &pod
}

func TestAWaitForADeadNodeNamesEverythingThatEndsIt(t *testing.T) {
	const may = "pod x on node bad may still run, and the node has not answered since 2026-11-20T11:50:00Z. The wait ends when the node answers again, " +
		"its Node is deleted, it gets taint node.kubernetes.io/out-of-service (by you, once it is off) or node.cloudprovider.kubernetes.io/shutdown (by the cloud provider)"
	answers := silentNode()
	answers.Status.Conditions[0].Status = corev1.ConditionFalse
	quarantined := Restart{Quarantines: []Cause{{Node: "bad", Taint: quarantine.Taint}}}
	tests := map[string]struct {
		force policy.ForceDelete
		node  *corev1.Node
		cur   Restart
		grace int64
		ends  time.Time
		want  string
	}{
		"no forceDelete":                        {"", silentNode(), quarantined, 30, noon, may + "; forceDelete of the policy does not delete it"},
		"never":                                 {policy.ForceNever, silentNode(), quarantined, 30, noon, may + "; forceDelete of the policy does not delete it"},
		"unreachable, the pod is the later":     {policy.ForceUnreachable, silentNode(), quarantined, 30, noon, may + "; forceDelete of the policy deletes it at 2026-11-20T12:05:00Z"},
		"unreachable, the node is the later":    {policy.ForceUnreachable, silentNode(), quarantined, 30, noon.Add(-time.Hour), may + "; forceDelete of the policy deletes it at 2026-11-20T11:55:00Z"},
		"quarantined":                           {policy.ForceQuarantined, silentNode(), quarantined, 30, noon.Add(-time.Hour), may + "; forceDelete of the policy deletes it at 2026-11-20T11:05:00Z"},
		"quarantined for another node":          {policy.ForceQuarantined, silentNode(), Restart{}, 30, noon, may + "; forceDelete of the policy deletes it at 2026-11-20T12:05:00Z"},
		"the kubelet answers":                   {policy.ForceNever, answers, quarantined, 30, noon, ""},
		"only a finalizer is left":              {policy.ForceUnreachable, silentNode(), quarantined, 0, noon, "pod x on node bad was deleted by force, but its finalizers (example.com/keep) keep the object"},
		"only a finalizer is left, no node":     {policy.ForceUnreachable, nil, quarantined, 0, noon, "pod x on node bad was deleted by force, but its finalizers (example.com/keep) keep the object"},
		"a deleted node whose pod is not yet":   {policy.ForceUnreachable, nil, quarantined, 30, noon, ""},
		"only a finalizer is left, and answers": {policy.ForceUnreachable, answers, quarantined, 0, noon, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			limits := policy.Restart{ForceDelete: test.force, ForceDeleteAfter: 5 * time.Minute}
			// Before any of it is due.
			u := NewUnconfirmed(limits, deletedPod("x", test.grace, test.ends), test.node, test.cur, noon.Add(-2*time.Hour))
			if u.Waiting != test.want {
				t.Errorf("got  %q, want %q", u.Waiting, test.want)
			}
			if len(u.Waiting) > maxText {
				t.Errorf("%d bytes do not fit into a record", len(u.Waiting))
			}
		})
	}
}

// A kubelet whose container runtime hangs reports that its node is not Ready. It answers, and it ends no pod.
func TestAWaitForAPodThatItsNotReadyNodeDoesNotEndIsNamed(t *testing.T) {
	const should = "pod x on node bad should have ended at 2026-11-20T12:00:00Z, but the node is not Ready: its kubelet answers and does not end the pod. " +
		"The wait ends when it does, its Node is deleted, it gets taint node.kubernetes.io/out-of-service (by you, once it is off) or " +
		"node.cloudprovider.kubernetes.io/shutdown (by the cloud provider); forceDelete of the policy "
	const not, at = "does not delete it", "deletes it at 2026-11-20T12:05:00Z"
	tests := map[string]struct {
		force    policy.ForceDelete
		status   corev1.ConditionStatus
		late     time.Duration
		grace    int64
		finished bool
		want     string
	}{
		"no forceDelete":                      {"", corev1.ConditionFalse, 10 * time.Second, 30, false, should + not},
		"unreachable is for a silent node":    {policy.ForceUnreachable, corev1.ConditionFalse, time.Hour, 30, false, should + not},
		"quarantined":                         {policy.ForceQuarantined, corev1.ConditionFalse, time.Minute, 30, false, should + at},
		"the kubelet may be at it":            {"", corev1.ConditionFalse, 9 * time.Second, 30, false, ""},
		"the node is Ready":                   {"", corev1.ConditionTrue, time.Hour, 30, false, ""},
		"the pod has ended":                   {"", corev1.ConditionFalse, time.Hour, 30, true, ""},
		"only a finalizer is left":            {"", corev1.ConditionFalse, time.Hour, 0, false, "pod x on node bad was deleted by force, but its finalizers (example.com/keep) keep the object"},
		"only a finalizer is left, and Ready": {"", corev1.ConditionTrue, time.Hour, 0, false, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node, pod := silentNode(), deletedPod("x", test.grace, noon)
			node.Status.Conditions[0].Status = test.status
			if test.finished {
				pod.Status.Phase = corev1.PodFailed
			}
			cur := Restart{Quarantines: []Cause{{Node: "bad", Taint: quarantine.Taint}}}
			u := NewUnconfirmed(policy.Restart{ForceDelete: test.force, ForceDeleteAfter: 5 * time.Minute}, pod, node, cur, noon.Add(test.late))
			if u.Waiting != test.want {
				t.Errorf("got  %q, want %q", u.Waiting, test.want)
			}
			if len(u.Waiting) > maxText {
				t.Errorf("%d bytes do not fit into a record", len(u.Waiting))
			}
		})
	}
}

func TestAStopThatWaitsForDeadNodesOnlyIsReportedAtOnce(t *testing.T) {
	job := jobOf(trainer())
	job.Suspended, job.SuspendObserved = true, true
	rec := Record{Current: &Restart{Phase: Stopping, PhaseSince: noon, Quarantines: []Cause{{Node: "bad", Taint: quarantine.Taint}}}}
	left := func(names ...string) (pods []metav1.PartialObjectMetadata) {
		for _, name := range names {
			pods = append(pods, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), DeletionTimestamp: &metav1.Time{Time: noon}}})
		}
		return pods
	}
	waits := func(name string) Unconfirmed {
		return Unconfirmed{Pod: deletedPod(name, 30, noon), Waiting: "it waits"}
	}
	ended := Unconfirmed{Pod: deletedPod("b", 30, noon)}
	ended.Pod.Status.Phase = corev1.PodFailed
	forced := Unconfirmed{Pod: deletedPod("b", 30, noon), Force: Force{"its Node was deleted", true}}
	kept := left("b")
	kept[0].DeletionTimestamp = nil
	tests := map[string]struct {
		facts  Facts
		want   Action
		forces string
	}{
		"one pod on a dead node":          {Facts{Remaining: left("a"), Unconfirmed: []Unconfirmed{waits("a")}}, Hold, ""},
		"two":                             {Facts{Remaining: left("a", "b"), Unconfirmed: []Unconfirmed{waits("a"), waits("b")}}, Hold, ""},
		"another pod still ends":          {Facts{Remaining: left("a", "b"), Unconfirmed: []Unconfirmed{waits("a")}}, Wait, ""},
		"another pod's node answers":      {Facts{Remaining: left("a", "b"), Unconfirmed: []Unconfirmed{waits("a"), {Pod: deletedPod("b", 30, noon)}}}, Wait, ""},
		"another pod has ended":           {Facts{Remaining: left("a", "b"), Unconfirmed: []Unconfirmed{waits("a"), ended}}, Hold, ""},
		"the only pod has ended":          {Facts{Remaining: left("b"), Unconfirmed: []Unconfirmed{ended}}, Wait, ""},
		"another pod is proven dead":      {Facts{Remaining: left("a", "b"), Unconfirmed: []Unconfirmed{waits("a"), forced}}, Wait, "b"},
		"the only pod is proven dead":     {Facts{Remaining: left("b"), Unconfirmed: []Unconfirmed{forced}}, Wait, "b"},
		"none of its nodes was looked at": {Facts{Remaining: left("a")}, Wait, ""},
		"nothing is left":                 {Facts{}, Start, ""},
		"another pod is not deleted":      {Facts{Remaining: append(left("a"), kept...), Unconfirmed: []Unconfirmed{waits("a")}}, Hold, ""},
		"no pod is deleted":               {Facts{Remaining: kept}, Wait, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			step := Next(rec, job, test.facts, PhaseTimeouts{Stop: time.Hour, Start: time.Hour}, noon.Add(time.Second))
			var forces []string
			for _, u := range step.OutOfBand.ForceDelete {
				forces = append(forces, u.Pod.Name)
			}
			if got := strings.Join(forces, " "); step.Action != test.want || got != test.forces || step.OutOfBand.Needed() != (got != "") {
				t.Errorf("%s, deletes %q by force, want %s and %q", step.Action, got, test.want, test.forces)
			}
		})
	}
}

func TestAPodThatIsBeingDeletedIsActiveOnANodeThatIsNotReady(t *testing.T) {
	node := func(status corev1.ConditionStatus) *corev1.Node {
		n := silentNode()
		n.Status.Conditions[0].Status = status
		return n
	}
	unreported := silentNode()
	unreported.Status.Conditions = nil
	tests := map[string]struct {
		node              *corev1.Node
		deleted, finished bool
		want              bool
	}{
		"it runs on a Ready node":              {node(corev1.ConditionTrue), false, false, true},
		"it runs on a node that is gone":       {nil, false, false, true},
		"deleted, the node is Ready":           {node(corev1.ConditionTrue), true, false, false},
		"deleted, the node is Unknown":         {node(corev1.ConditionUnknown), true, false, true},
		"deleted, the node is not Ready":       {node(corev1.ConditionFalse), true, false, true},
		"deleted, the node has never reported": {unreported, true, false, false},
		"deleted, the node is gone":            {nil, true, false, false},
		"it has ended, the node is Unknown":    {node(corev1.ConditionUnknown), true, true, false},
		"it has ended on a Ready node":         {node(corev1.ConditionTrue), false, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := deletedPod("x", 30, noon)
			if !test.deleted {
				pod.DeletionTimestamp = nil
			}
			if test.finished {
				pod.Status.Phase = corev1.PodFailed
			}
			if got := ActiveOn(pod, test.node); got != test.want {
				t.Errorf("active: %t, want %t", got, test.want)
			}
		})
	}
}

// readyNode is a Ready node.
func readyNode(name string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// podOn is a pod on a node.
func podOn(name, node string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
}
