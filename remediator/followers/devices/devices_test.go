package devices

import (
	"context"
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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// storeThatFindsNothing has an API server that answers every request for rules with NotFound.
func storeThatFindsNothing() *Store {
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
	s := New(api, api, nil, false)
	s.version = "v1beta2"
	return s
}

func TestARuleThatIsDeletedBeforeItIsUpdatedIsNotRefused(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-uid"}}
	rule := func(effect corev1.TaintEffect) resourceapi.DeviceTaintRule {
		return devices.Node{Name: n.Name, UID: n.UID}.Rule("0000:1b:00", devices.Device{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}, corev1.Taint{Key: "k", Effect: effect})
	}
	want := &causes.DeviceRules{Want: []resourceapi.DeviceTaintRule{rule(corev1.TaintEffectNoExecute)}}
	for name, test := range map[string]struct {
		has     []resourceapi.DeviceTaintRule
		refused bool
	}{
		"an update": {[]resourceapi.DeviceTaintRule{rule(corev1.TaintEffectNoSchedule)}, false},
		"a create":  {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := storeThatFindsNothing()
			if after := s.Apply(t.Context(), n, &devices.Look{Rules: test.has}, want); after != devicesRetry {
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
