package podreader

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAClaimThatCannotBeReadHoldsBackNoOtherPod(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-1"}},
	}}
	pod := func(name string, claims ...string) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: ptr.To(c)})
		}
		return p
	}
	pods := []corev1.Pod{pod("unknown", "unreadable"), pod("victim", "held"), pod("both", "unreadable", "held"), pod("other", "gone"), pod("none")}
	reads := 0
	api := fake.NewClientBuilder().WithObjects(claim).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			reads++
			if key.Name == "unreadable" {
				return apierrors.NewForbidden(schema.GroupResource{Group: resourceapi.GroupName, Resource: "resourceclaims"}, key.Name, nil)
			}
			return api.Get(ctx, key, o, opts...)
		},
	}).Build()
	r := Reader{API: api}
	q := restart.Trigger{Kind: restart.NodeQuarantined, Node: "n", Devices: []devices.Device{{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}}}
	var got []string
	for _, h := range r.Holders(t.Context(), q, pods) {
		if h.Unread != nil && !apierrors.IsForbidden(h.Unread) {
			t.Errorf("%s: %v", h.Name, h.Unread)
		}
		got = append(got, fmt.Sprintf("%s unread=%v", h.Name, h.Unread != nil))
	}
	if got := strings.Join(got, ", "); got != "unknown unread=true, victim unread=false, both unread=false" {
		t.Error(got)
	}
	if reads != 3 {
		t.Errorf("%d reads of 3 claims", reads)
	}
	q.Devices = []devices.Device{} // of which none is known now
	if none := r.Holders(t.Context(), q, pods[1:2]); len(none) != 0 {
		t.Errorf("of no device: %v", none)
	}
	reads, q.Devices = 0, nil
	if all := r.Holders(t.Context(), q, pods); len(all) != len(pods) || reads != 0 {
		t.Errorf("of the whole node: %v, %d reads", all, reads)
	}
}
