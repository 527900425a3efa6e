package nodes

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// storeThatFindsNothing has an API server that answers every request for rules with NotFound.
func storeThatFindsNothing() *deviceStore {
	missing := apierrors.NewNotFound(schema.GroupResource{Group: resourceapi.GroupName, Resource: "devicetaintrules"}, "")
	api := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return missing },
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return missing
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return missing
		},
	})
	s := newDeviceStore(api, api, nil, false)
	s.version = "v1beta2"
	return s
}

func TestARuleThatIsDeletedBeforeItIsUpdatedIsNotRefused(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-uid"}}
	rule := func(effect corev1.TaintEffect) resourceapi.DeviceTaintRule {
		return devices.Node{Name: n.Name, UID: n.UID}.Rule("0000:1b:00", devices.Device{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}, corev1.Taint{Key: "k", Effect: effect})
	}
	want := &quarantine.DeviceRules{Want: []resourceapi.DeviceTaintRule{rule(corev1.TaintEffectNoExecute)}}
	for name, test := range map[string]struct {
		has     []resourceapi.DeviceTaintRule
		refused bool
	}{
		"an update": {[]resourceapi.DeviceTaintRule{rule(corev1.TaintEffectNoSchedule)}, false},
		"a create":  {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := storeThatFindsNothing()
			if after := s.apply(t.Context(), n, &devices.Look{Rules: test.has}, want); after != devicesRetry {
				t.Errorf("again after %s", after)
			}
			if got := s.refused[n.Name]; (got != "") != test.refused {
				t.Errorf("refused: %q", got)
			}
		})
	}
}

func TestAVersionThatIsNoLongerServedIsForgotten(t *testing.T) {
	s := storeThatFindsNothing()
	if _, err := s.list(t.Context(), nil); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if s.version != "" {
		t.Errorf("%s is kept", s.version)
	}
}

// servesPages is an API server with n ResourceSlices of node n, which gives them out in pages.
func servesPages(t *testing.T, n int, asked *[]string) client.Reader {
	t.Helper()
	return interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			*asked = append(*asked, fmt.Sprintf("%s limit=%d from=%s", o.FieldSelector, o.Limit, o.Continue))
			from, _ := strconv.Atoi(o.Continue)
			page := list.(*resourceapi.ResourceSliceList)
			for i := from; i < n && (o.Limit == 0 || int64(i-from) < o.Limit); i++ {
				page.Items = append(page.Items, resourceapi.ResourceSlice{})
			}
			if next := from + len(page.Items); next < n {
				page.Continue = strconv.Itoa(next)
			}
			return nil
		},
	})
}

func TestResourceSlicesAreReadInPagesUpToABound(t *testing.T) {
	for n, pages := range map[int]int{0: 1, slicesPage: 1, slicesPage + 1: 2, maxSlices: maxSlices / slicesPage, maxSlices + 1: maxSlices/slicesPage + 1, 1000 * maxSlices: maxSlices/slicesPage + 1} {
		var asked []string
		s := newDeviceStore(nil, servesPages(t, n, &asked), nil, false)
		got, why := s.slices(t.Context(), "n")
		if isTooMany := n > maxSlices; isTooMany != (why != "") || !isTooMany && len(got) != n || isTooMany && got != nil {
			t.Errorf("%d slices: %d, %q", n, len(got), why)
		}
		if len(asked) != pages || asked[0] != "spec.nodeName=n limit=32 from=" || pages > 1 && asked[1] != "spec.nodeName=n limit=32 from=32" {
			t.Errorf("%d slices: asked %q", n, asked)
		}
	}
}
