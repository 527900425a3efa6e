package room

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/deviceapi"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const driver = "gpu.example.com"

// world is an API server with nodes a, b and c of one device each, and a rank on a, which is quarantined.
type world struct {
	nodes   []corev1.Node
	ranks   []corev1.Pod
	objects []client.Object
	// failing is the kind of list that the API server does not give.
	failing string
	asked   []string
}

func newWorld(claims bool) *world {
	w := &world{ranks: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "rank-0"}, Spec: corev1.PodSpec{NodeName: "a"}}}}
	if claims {
		w.ranks[0].Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
	}
	for _, name := range []string{"a", "b", "c"} {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		w.nodes = append(w.nodes, n)
		w.publish(name, name)
	}
	w.objects = append(w.objects, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}},
	}}, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}, Spec: resourceapi.ResourceClaimTemplateSpec{
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}})
	return w
}

// publish adds a slice with one device to a node.
func (w *world) publish(node, slice string) {
	w.objects = append(w.objects, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: slice}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: slice, Generation: 1, ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "gpu-0"}},
	}})
}

func (w *world) search(t *testing.T) *restart.Search {
	t.Helper()
	api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(w.objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorNodeName, func(o client.Object) []string {
			return []string{ptr.Deref(o.(*resourceapi.ResourceSlice).Spec.NodeName, "")}
		}).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			kind := strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1.")
			w.asked = append(w.asked, kind)
			if kind == w.failing {
				return errors.New("no such list")
			}
			return c.List(ctx, list, opts...)
		},
	})
	q := restart.Quarantine{Node: "a", Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule}}
	s, err := Search(t.Context(), api, q, w.ranks, w.nodes, 0, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestThereIsRoomWhereADeviceIsFree(t *testing.T) {
	if r := newWorld(true).search(t).Result(); !r.Passed {
		t.Errorf("%+v", r)
	}
}

// The kubelet of a node can publish as many slices as it likes. They must not keep jobs from other nodes.
func TestANodeWithTooManySlicesHasNoRoomAndStopsNoSearch(t *testing.T) {
	w := newWorld(true)
	for i := range deviceapi.MaxSlices {
		w.publish("b", fmt.Sprint("b-", i))
	}
	if r := w.search(t).Result(); !r.Passed {
		t.Errorf("%+v", r)
	}
	w.nodes = w.nodes[:2]
	if r := w.search(t).Result(); r.Passed || !strings.Contains(r.Text, "found room, with devices for their resource claims, for 0 on the 1 nodes") {
		t.Errorf("%+v", r)
	}
}

func TestWhatCannotBeReadIsUnknown(t *testing.T) {
	for _, kind := range []string{"DeviceClassList", "ResourceSliceList", "ResourceClaimList"} {
		w := newWorld(true)
		w.failing = kind
		if s := w.search(t); s.Unknown() == nil || s.Result().Passed || !strings.Contains(s.Unknown().Error(), "no such list") {
			t.Errorf("%s: %v, %+v", kind, s.Unknown(), s.Result())
		}
	}
}

func TestNothingIsReadAboutDevicesForRanksWithoutClaims(t *testing.T) {
	w := newWorld(false)
	if r := w.search(t).Result(); !r.Passed || strings.Join(w.asked, " ") != "PodList" {
		t.Errorf("%+v, asked %q", r, w.asked)
	}
}
