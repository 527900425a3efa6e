package restart

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestMayForceDelete(t *testing.T) {
	ready := func(status corev1.ConditionStatus, ago time.Duration) *corev1.Node {
		node := readyNode("bad")
		node.Labels[conditions.LabelStatus] = "quarantined"
		node.Status.Conditions[0].Status, node.Status.Conditions[0].LastTransitionTime = status, metav1.NewTime(noon.Add(-ago))
		return &node
	}
	gone := Force{"its Node was deleted", true}
	lost, bad := Force{Why: "its node has not answered since 2026-11-20T11:00:00Z"}, Force{Why: "its node is quarantined"}
	fenced, off := Force{"its node is not Ready and has taint node.kubernetes.io/out-of-service", true},
		Force{"the cloud provider reports its node as shut down, by taint node.cloudprovider.kubernetes.io/shutdown", true}
	no := Force{}
	tainted := func(node *corev1.Node, key string) *corev1.Node {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		return node
	}
	const outOfService, shutdown = "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown"
	unreported := tainted(ready(corev1.ConditionUnknown, 0), outOfService)
	unreported.Status.Conditions = nil
	released := ready(corev1.ConditionTrue, time.Hour)
	released.Labels[conditions.LabelStatus] = "healthy"
	repairing := ready(corev1.ConditionTrue, time.Hour)
	repairing.Labels[conditions.LabelStatus] = "repairing"
	well, unknown, younger := ready(corev1.ConditionTrue, time.Hour), ready(corev1.ConditionUnknown, time.Hour), ready(corev1.ConditionUnknown, time.Minute)
	tests := map[string]struct {
		force   policy.ForceDelete
		node    *corev1.Node
		deleted time.Duration // ago; its grace period of 30s included
		graceless,
		elsewhere bool
		want Force
	}{
		"never, a quarantined node":                 {policy.ForceNever, well, time.Hour, false, false, no},
		"never, a deleted node":                     {policy.ForceNever, nil, time.Hour, false, false, gone},
		"nothing said, a deleted node":              {"", nil, time.Hour, false, false, gone},
		"nothing said, a node that does not answer": {"", unknown, time.Hour, false, false, no},
		"never, a node that does not answer":        {policy.ForceNever, unknown, time.Hour, false, false, no},
		"never, a deleted node, in its time":        {policy.ForceNever, nil, 29 * time.Second, false, false, no},
		"never, a deleted node, its time has ended": {policy.ForceNever, nil, 30 * time.Second, false, false, gone},
		"quarantined, a deleted node, in its time":  {policy.ForceQuarantined, nil, time.Second, false, false, no},
		"a deleted node, forced before":             {policy.ForceNever, nil, time.Hour, true, false, no},
		"never, it is out of service":               {policy.ForceNever, tainted(ready(corev1.ConditionUnknown, 0), outOfService), 0, false, false, no},
		"out of service, deletion just requested":   {policy.ForceNever, tainted(ready(corev1.ConditionUnknown, 0), outOfService), time.Second, false, false, fenced},
		"out of service, not Ready":                 {policy.ForceNever, tainted(ready(corev1.ConditionFalse, 0), outOfService), time.Second, false, false, fenced},
		"out of service, and Ready":                 {policy.ForceNever, tainted(ready(corev1.ConditionTrue, 0), outOfService), time.Hour, false, false, no},
		"out of service, and never Ready":           {policy.ForceNever, unreported, time.Hour, false, false, no},
		"out of service, forced before":             {policy.ForceNever, tainted(ready(corev1.ConditionUnknown, 0), outOfService), time.Hour, true, false, no},
		"shut down":                                 {policy.ForceNever, tainted(ready(corev1.ConditionUnknown, 0), shutdown), time.Second, false, false, off},
		"shut down, and Ready again":                {policy.ForceNever, tainted(ready(corev1.ConditionTrue, 0), shutdown), time.Hour, false, false, no},
		"tainted by Kubernetes alone":               {policy.ForceNever, tainted(ready(corev1.ConditionUnknown, time.Hour), "node.kubernetes.io/unreachable"), time.Hour, false, false, no},
		"unreachable, deletion just requested":      {policy.ForceUnreachable, unknown, time.Second, false, false, no},
		"unreachable, the node is gone":             {policy.ForceUnreachable, nil, time.Hour, false, false, gone},
		"unreachable, the node is":                  {policy.ForceUnreachable, unknown, time.Hour, false, false, lost},
		"unreachable, the node is for a minute":     {policy.ForceUnreachable, younger, time.Hour, false, false, no},
		"unreachable, the node is Ready":            {policy.ForceUnreachable, well, time.Hour, false, false, no},
		"unreachable, the node is not Ready":        {policy.ForceUnreachable, ready(corev1.ConditionFalse, time.Hour), time.Hour, false, false, no},
		"quarantined, the node is Ready":            {policy.ForceQuarantined, well, time.Hour, false, false, bad},
		"quarantined, the node is being repaired":   {policy.ForceQuarantined, repairing, time.Hour, false, false, bad},
		"quarantined, a Ready node elsewhere":       {policy.ForceQuarantined, well, time.Hour, false, true, no},
		"quarantined, an unreachable one elsewhere": {policy.ForceQuarantined, unknown, time.Hour, false, true, lost},
		"quarantined, says only the record":         {policy.ForceQuarantined, released, time.Hour, false, false, no},
		"the pod still has time":                    {policy.ForceQuarantined, unknown, 4 * time.Minute, false, false, no},
		"the pod's time has just ended":             {policy.ForceQuarantined, well, 5*time.Minute + 30*time.Second, false, false, bad},
		"in its grace period and a bit":             {policy.ForceQuarantined, well, 5*time.Minute + 29*time.Second, false, false, no},
		"it was never deleted":                      {policy.ForceQuarantined, unknown, 0, false, false, no},
		"only a finalizer holds it":                 {policy.ForceQuarantined, unknown, time.Hour, true, false, no},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOn("x", "bad")
			pod.DeletionGracePeriodSeconds = ptr.To[int64](30)
			if test.graceless {
				pod.DeletionGracePeriodSeconds = ptr.To[int64](0)
			}
			if test.deleted != 0 {
				pod.DeletionTimestamp = &metav1.Time{Time: noon.Add(30*time.Second - test.deleted)}
			}
			cur := Restart{Quarantines: []Cause{{Node: "bad"}, {Node: "bad", Taint: quarantine.Taint}}}
			if test.elsewhere {
				cur.Quarantines = cur.Quarantines[:1]
			}
			l := policy.Restart{ForceDelete: test.force, ForceDeleteAfter: 5 * time.Minute}
			if got := MayForceDelete(l, &pod, test.node, cur, noon); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
