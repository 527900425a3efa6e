package attacks

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// onDevices is the admission policy on what the remediator may write of DeviceTaintRules.
const onDevices = "pitcrew-remediator-device-rules"

// A stolen token of the remediator, with the role for devices, would evict every pod with a device of the cluster by one rule.
func TestAttack23AStolenTokenTaintsOneDeviceAtATime(t *testing.T) {
	t.Parallel()
	s := newScene(t, "attack23rules", 1, nil)
	role, err := os.ReadFile(filepath.Join(s.cluster.Root, "manifests", "remediator", "devices.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.Apply(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	cfg, err := s.cluster.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	token := s.client(cfg)
	rule := func(change func(*resourceapi.DeviceTaintRule)) *resourceapi.DeviceTaintRule {
		r := devices.Node{Name: s.nodes[0], UID: "u"}.Rule("0000:1b:00", devices.Device{Driver: "gpu.nvidia.com", Pool: s.nodes[0], Name: "gpu-0"},
			corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoExecute})
		if change != nil {
			change(&r)
		}
		return &r
	}
	everything := rule(func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{} })
	s.until("the policy is in force", func() error {
		if err := token.Create(t.Context(), everything.DeepCopy(), client.DryRunAll); !deniedBy(err, onDevices) {
			return err
		}
		return nil
	})
	for attack, change := range map[string]func(*resourceapi.DeviceTaintRule){
		"no selector": func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector = nil },
		"everything":  func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{} },
		"a driver": func(r *resourceapi.DeviceTaintRule) {
			r.Spec.DeviceSelector.Pool, r.Spec.DeviceSelector.Device = nil, nil
		},
		"a pool":             func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Device = nil },
		"a device name":      func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Pool = nil },
		"any driver":         func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Driver = nil },
		"a pool of no node":  func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Pool = ptr.To("network") },
		"no node":            func(r *resourceapi.DeviceTaintRule) { r.Annotations = nil },
		"an empty node":      func(r *resourceapi.DeviceTaintRule) { r.Annotations[conditions.AnnotationNode] = "" },
		"somebody's label":   func(r *resourceapi.DeviceTaintRule) { r.Labels[devices.LabelManagedBy] = "driver" },
		"no labels":          func(r *resourceapi.DeviceTaintRule) { r.Labels = nil },
		"a name of somebody": func(r *resourceapi.DeviceTaintRule) { r.Name = "of-the-driver" },
	} {
		s.denied(token.Create(t.Context(), rule(change), client.DryRunAll), onDevices, attack)
	}

	theirs := rule(func(r *resourceapi.DeviceTaintRule) { r.Name, r.Labels = "of-the-driver", nil })
	ours := rule(func(r *resourceapi.DeviceTaintRule) {
		r.Spec.DeviceSelector.Pool = ptr.To("rack-1/" + s.nodes[0] + "/gpus")
	})
	if err := s.admin.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := token.Create(t.Context(), ours); err != nil {
		t.Fatalf("the remediator's own rule: %v", err)
	}
	t.Cleanup(func() {
		for _, r := range []*resourceapi.DeviceTaintRule{theirs, ours} {
			if err := s.admin.Delete(context.WithoutCancel(t.Context()), r); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
	// update changes the rule as it is now: Kubernetes writes its status meanwhile.
	update := func(rule *resourceapi.DeviceTaintRule, change func(*resourceapi.DeviceTaintRule)) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(rule), rule); err != nil {
				return err
			}
			change(rule)
			return token.Update(t.Context(), rule)
		})
	}
	s.denied(update(theirs, func(r *resourceapi.DeviceTaintRule) {
		r.Labels = map[string]string{devices.LabelManagedBy: devices.ManagedBy}
	}), onDevices, "take a rule of somebody")
	s.denied(token.Delete(t.Context(), theirs.DeepCopy()), onDevices, "delete a rule of somebody")
	s.denied(update(ours, func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Device = nil }), onDevices, "widen an own rule")
	if err := update(ours, func(r *resourceapi.DeviceTaintRule) { r.Annotations[devices.AnnotationGPU] = "0000:1c:00" }); err != nil {
		t.Errorf("update of an own rule: %v", err)
	}
	if err := token.Delete(t.Context(), ours); err != nil {
		t.Errorf("deletion of an own rule: %v", err)
	}
}
