package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReady(t *testing.T) {
	created := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		status corev1.ConditionStatus // empty: the node has no condition Ready
		reason string
		after  time.Duration // the last transition, after the creation of the node
		// want are the answers of IsReady, NotReady, NeverReady, and whether the times of NotReadySince and NoHeartbeatSince are known.
		ready, notReady, never, since, silent bool
	}{
		"no condition":                   {},
		"ready":                          {status: "True", after: time.Hour, ready: true},
		"not ready for an hour":          {status: "False", after: time.Hour, notReady: true, since: true},
		"never became ready":             {status: "False", after: time.Second, notReady: true, never: true, since: true},
		"its clock was wrong":            {status: "False", after: -24 * time.Hour, notReady: true},
		"silent":                         {status: "Unknown", reason: "NodeStatusUnknown", after: time.Hour, notReady: true, since: true, silent: true},
		"silent since it was created":    {status: "Unknown", reason: "NodeStatusNeverUpdated", after: time.Minute, notReady: true, never: true, since: true, silent: true},
		"silent soon after its creation": {status: "Unknown", reason: "NodeStatusUnknown", after: time.Second, notReady: true, since: true, silent: true},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: "Other", Status: "True"}}
		if test.status != "" {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeReady, Status: test.status, Reason: test.reason, LastTransitionTime: metav1.NewTime(created.Add(test.after)),
			})
		}
		c, notReady := NotReady(n)
		never := notReady && NeverReady(n, c)
		since := notReady && !NotReadySince(n, c).IsZero()
		at, silent := NoHeartbeatSince(n)
		got := []bool{IsReady(n), notReady, never, since, silent}
		want := []bool{test.ready, test.notReady, test.never, test.since, test.silent}
		if d := cmp.Diff(want, got); d != "" || silent && !at.Equal(created.Add(test.after)) {
			t.Errorf("%s: (ready, not ready, never ready, since, silent): %s%s", name, d, at)
		}
	}
}

func TestTaintsOfOthers(t *testing.T) {
	for key, want := range map[string][2]bool{
		"ToBeDeletedByClusterAutoscaler": {true, true}, "karpenter.sh/disrupted": {true, true}, corev1.TaintNodeOutOfService: {true, false},
		TaintShutdown: {true, false}, "medik8s.io/remediation": {true, false}, "example.com/medik8s.io/": {}, corev1.TaintNodeUnschedulable: {},
	} {
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
		n := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}}
		if got := [2]bool{OfOtherRepairer(taint), DeletionTaint(n) == key}; got != want {
			t.Errorf("%s: (repairer, deletion) = %v, want %v", key, got, want)
		}
	}
}

func TestAccelerators(t *testing.T) {
	list := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "attachable-volumes-aws-ebs", "kubernetes.io/batch-cpu",
		"node.kubernetes.io/swap", "requests.nvidia.com/gpu", "nvidia.com/gpu", "huawei.com/Ascend910", "rdma/hca"} {
		list[name] = resource.MustParse("1")
	}
	list["nvidia.com/mig-1g.5gb"] = resource.MustParse("0")
	want := []corev1.ResourceName{"huawei.com/Ascend910", "nvidia.com/gpu", "rdma/hca"}
	if d := cmp.Diff(want, Accelerators(list)); d != "" {
		t.Error(d)
	}
}
