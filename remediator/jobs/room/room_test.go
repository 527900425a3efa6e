package room

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// With a few pods of 1.5 MB on one node a tenant held up the restart of all jobs whose search for room came to that node.
func TestANodeThatCannotBeJudgedHasNoRoomAndHoldsUpNoSearch(t *testing.T) {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("10")}
	node := func(name string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Allocatable: gpus, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
	}
	rank := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "rank"}, Spec: corev1.PodSpec{NodeName: "bad", Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
	}}}}
	large, broken := fmt.Errorf("pods: %w", slim.ErrTooLarge), errors.New("broken")
	for name, test := range map[string]struct {
		nodes  []corev1.Node
		answer map[string]error
		fails  bool
		found  bool
	}{
		"one node with room":               {[]corev1.Node{node("bad"), node("a")}, nil, false, true},
		"before a node that is too large":  {[]corev1.Node{node("bad"), node("a"), node("b")}, map[string]error{"b": large}, false, true},
		"behind a node that is too large":  {[]corev1.Node{node("bad"), node("a"), node("b")}, map[string]error{"a": large}, false, true},
		"a node that is too large, alone":  {[]corev1.Node{node("bad"), node("a")}, map[string]error{"a": large}, false, false},
		"an API server that does not list": {[]corev1.Node{node("bad"), node("a")}, map[string]error{"a": broken}, true, false},
	} {
		api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, opts ...client.ListOption) error {
				asked := (&client.ListOptions{}).ApplyOptions(opts).FieldSelector
				of, _ := asked.RequiresExactMatch("spec.nodeName")
				if ended := (fields.Set{"spec.nodeName": of, "status.phase": "Failed"}); asked.Matches(ended) {
					t.Errorf("asked for %s: pods that have ended may be any number", asked)
				}
				return test.answer[of]
			},
		}).Build()
		// The search begins at a place that follows from the time.
		search, err := Search(t.Context(), api, restart.Trigger{Kind: restart.NodeQuarantined, Node: "bad"}, []corev1.Pod{rank}, test.nodes, nil, time.Unix(0, 0))
		if (err != nil) != test.fails || err == nil && search.Result().Passed != test.found {
			t.Errorf("%s: %v, %+v", name, err, search)
		}
	}
}
