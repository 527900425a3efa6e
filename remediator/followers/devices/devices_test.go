package devices

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
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

// sweeping is a sweeper over an API server that has these objects. again are the nodes that it has decided.
func sweeping(t *testing.T, cached *corev1.Node, objects ...client.Object) (w *Sweeper, again *[]string) {
	t.Helper()
	again = &[]string{}
	api := fake.NewClientBuilder().WithObjects(objects...).Build()
	s := New(api, api, nil, false)
	s.version = "v1"
	return &Sweeper{
		Store: s, CanIsolate: func(context.Context) (bool, error) { return true, nil },
		Node:  func(context.Context, string) (*corev1.Node, error) { return cached, nil },
		Again: func(_ context.Context, node string) { *again = append(*again, node) },
	}, again
}

// rulesIn are the names of the rules that an API server has.
func rulesIn(t *testing.T, s *Store) (names []string) {
	t.Helper()
	rules, err := s.list(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		names = append(names, r.Name)
	}
	return names
}

func nodeOf(uid types.UID, annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid, Annotations: annotations}}
}

func ruleOf(uid types.UID) *resourceapi.DeviceTaintRule {
	device := devices.Device{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}
	r := devices.Node{Name: "n", UID: uid}.Rule("0000:1b:00", device, corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule})
	return &r
}

// The Node was created anew. A leader whose cache shows the one before, or none, deletes no rule of the present one.
func TestALateCacheDeletesNoRule(t *testing.T) {
	for name, cached := range map[string]*corev1.Node{"an earlier node": nodeOf("u-1", nil), "no node": nil, "the node": nodeOf("u-2", nil)} {
		w, again := sweeping(t, cached, ruleOf("u-2"), nodeOf("u-2", nil))
		if err := w.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names := rulesIn(t, w.Store); len(names) != 1 || !slices.Equal(*again, []string{"n"}) {
			t.Errorf("%s: rules %v, decided again %v", name, names, *again)
		}
	}
	w, again := sweeping(t, nil, ruleOf("u-1"), nodeOf("u-2", nil))
	if err := w.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := rulesIn(t, w.Store); len(names) > 0 || len(*again) > 0 {
		t.Errorf("rules of an earlier node: %v, decided again %v", names, *again)
	}
}

// After a downgrade the rules of a later version, which may have more keys and other names, are deleted: with the quarantine, and if
// nothing explains them.
func TestRulesOfALaterVersionEnd(t *testing.T) {
	for name, change := range map[string]func(r *resourceapi.DeviceTaintRule){
		"as they are":      func(*resourceapi.DeviceTaintRule) {},
		"another name":     func(r *resourceapi.DeviceTaintRule) { r.Name = "pitcrew-next-1" },
		"more labels":      func(r *resourceapi.DeviceTaintRule) { r.Labels["pitcrew.dev/next"] = "x" },
		"more annotations": func(r *resourceapi.DeviceTaintRule) { r.Annotations["pitcrew.dev/next"] = `{"a":1}` },
		"no GPU":           func(r *resourceapi.DeviceTaintRule) { delete(r.Annotations, devices.AnnotationGPU) },
		"another taint": func(r *resourceapi.DeviceTaintRule) {
			r.Spec.Taint.Key, r.Spec.Taint.Effect = "pitcrew.dev/next", "None"
		},
		"another effect":  func(r *resourceapi.DeviceTaintRule) { r.Spec.Taint.Effect = "PreferNoSchedule" },
		"of a whole pool": func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Device = nil },
		"another value":   func(r *resourceapi.DeviceTaintRule) { r.Spec.Taint.Value = "next" },
	} {
		later := ruleOf("u-1")
		change(later)
		n := nodeOf("u-1", nil)
		w, again := sweeping(t, n, later.DeepCopy(), n.DeepCopy())
		if err := w.sweep(t.Context()); err != nil || !slices.Equal(*again, []string{"n"}) {
			t.Errorf("%s: decided again %v, %v", name, *again, err)
		}
		look := w.Store.Look(t.Context(), &policy.Policy{}, n)
		if look == nil || look.RulesErr != "" || len(look.Rules) != 1 {
			t.Errorf("%s: %+v", name, look)
			continue
		}
		w.Store.Apply(t.Context(), n, look, &causes.DeviceRules{})
		if names := rulesIn(t, w.Store); len(names) > 0 {
			t.Errorf("%s: %v are left", name, names)
		}
		w, _ = sweeping(t, nil, later) // the node is gone
		if err := w.sweep(t.Context()); err != nil || len(rulesIn(t, w.Store)) > 0 {
			t.Errorf("%s: the rule of a node that is gone is left, %v", name, err)
		}
	}
}
