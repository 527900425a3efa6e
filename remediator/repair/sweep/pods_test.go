package sweep

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestAPodThatNoSchedulerKnows(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	unscheduled := []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	tests := map[string]struct {
		age        time.Duration
		conditions []corev1.PodCondition
		want       bool
	}{
		"new":                       {unansweredTimeout - time.Second, nil, true},
		"no scheduler has seen it":  {unansweredTimeout, nil, false},
		"a scheduler found no node": {unansweredTimeout, unscheduled, true},
		"only another condition":    {unansweredTimeout, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}, false},
	}
	for name, tt := range tests {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-tt.age))}, Status: corev1.PodStatus{Conditions: tt.conditions}}
		if got := HasScheduler(pod, now); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCouldRunOn(t *testing.T) {
	gpus := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n), corev1.ResourceCPU: resource.MustParse("1")}
	}
	affinity := func(pool string) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}}}},
		}}}
	}
	taint := corev1.Taint{Key: "example.com/team", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	tests := map[string]struct {
		pod  func(*corev1.Pod)
		node func(*corev1.Node)
		want bool
	}{
		"fits":                  {want: true},
		"asks for too many":     {pod: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = gpus("9") }},
		"asks for another kind": {pod: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = requests("huawei.com/Ascend910") }},
		"asks for too much memory": {pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("2Ti")
		}},
		"asks for no accelerator": {pod: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = requests("cpu") }},
		"has a claim": {pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests, p.Spec.ResourceClaims = requests("cpu"), []corev1.PodResourceClaim{{Name: "gpu"}}
		}, want: true},
		"is scheduled":     {pod: func(p *corev1.Pod) { p.Spec.NodeName = "other" }},
		"is being deleted": {pod: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }},
		"has a gate": {pod: func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
		}},
		"selects the node":          {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} }, want: true},
		"selects another":           {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "b"} }},
		"requires the node":         {pod: func(p *corev1.Pod) { p.Spec.Affinity = affinity("a") }, want: true},
		"requires another":          {pod: func(p *corev1.Pod) { p.Spec.Affinity = affinity("b") }},
		"does not tolerate a taint": {node: func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }},
		"tolerates it": {node: func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }, pod: func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
		}, want: true},
		"the node is cordoned": {node: func(n *corev1.Node) { n.Spec.Unschedulable = true }},
		"the node is quarantined, too": {node: func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule})
		}},
		"the node does not answer": {node: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }},
		"the sweep has not begun":  {node: func(n *corev1.Node) { n.Spec.Taints = nil }, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"pool": "a"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: conditions.TaintMaintenance, Value: "sweep", Effect: corev1.TaintEffectNoSchedule}}},
				Status: corev1.NodeStatus{
					Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110")},
					Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				},
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: gpus("8")}}}}}
			if tt.pod != nil {
				tt.pod(pod)
			}
			if tt.node != nil {
				tt.node(node)
			}
			if got := CouldRunOn(pod, node); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}
