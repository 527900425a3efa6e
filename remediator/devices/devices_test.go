package devices

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

func TestAddresses(t *testing.T) {
	cases := []struct {
		message, want string
		ok            bool
	}{
		{"ResetGPU gpu 0000:1b:00: Xid 95 x", "0000:1b:00", true},
		{"ResetGPU gpu 00000000:1B:00.0: Xid 95 x", "0000:1b:00", true},
		{"ResetGPU gpu 0000:1c:00: x; gpu 0000:1b:00: y; gpu 0000:1c:00: z", "0000:1b:00 0000:1c:00", true},
		{"ResetGPU gpu 0000:1b:00: x; +1 more", "", false},
		{"ResetGPU gpu 0000:1b:00: x; hca mlx5_0: y", "", false},
		{"ResetGPU gpu GPU-1234: x", "", false},
		{"ResetGPU gpu 0000:1b:00 link 3: x", "", false},
		{"no grammar", "", false},
		{"ResetGPU gpu 0000:1b:00: Xid 95 x; gpu 0000:1c:00: Xid 31 x, recurring with several applications; gpu 0000:1d:00: not read: x; kernel log: not read: x", "0000:1b:00", true},
		{"ResetGPU gpu 0000:1b:00: Xid 45 x, caused by Xid 95; driver: Xid 43 x", "0000:1b:00", true},
		{"Inspect gpu 0000:1b:00: Xid 13 x, recurring with several applications", "", false},
		{"Inspect gpu 0000:1b:00: not read: x", "", false},
	}
	for _, c := range cases {
		got, ok := Addresses(c.message)
		if strings.Join(got, " ") != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v", c.message, got, ok)
		}
	}
}

func TestNamesHardware(t *testing.T) {
	for message, want := range map[string]bool{
		"Inspect gpu 0000:1b:00: Xid 13 x, recurring with several applications": false,
		"Inspect gpu 0000:1b:00: Xid 13 x (injected)":                           false,
		"Inspect gpu 0000:1b:00: Xid 157 x":                                     false,
		"Inspect gpu 0000:1b:00: Xid 157 x; gpu 0000:1c:00: not read: x":        false,
		"Inspect gpu 0000:1b:00: Xid 157 x; +1 more":                            true,
		"Inspect gpu 0000:1b:00: Xid 157 x; gpu 0000:1c:00: Xid 95 x":           true,
		"ResetGPU gpu 0000:1b:00: Xid 45 x, caused by Xid 95":                   true,
		"Inspect gpu 0000:1b:00: Xid 999 x":                                     true,
		"Inspect gpu 0000:1b:00: Xid 99999999999999999999 x":                    true,
		"Inspect gpu 0000:1b:00: SXid 13 x":                                     true,
		"Inspect gpu 0000:1b:00: hot, after Xid 13 x":                           true,
		"no grammar": true,
	} {
		if got := NamesHardware(message); got != want {
			t.Errorf("%s: %v", message, got)
		}
	}
}

// device is one at a PCI address with further attributes: name and value in turn.
func device(name, address string, attributes ...string) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	if address != "" {
		d.Attributes[attributePCI] = resourceapi.DeviceAttribute{StringValue: &address}
	}
	for pair := range slices.Chunk(attributes, 2) {
		d.Attributes[resourceapi.QualifiedName(pair[0])] = resourceapi.DeviceAttribute{StringValue: &pair[1]}
	}
	return d
}

func sliceOf(node, driver, pool string, generation, count int64, devices ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		NodeName: &node, Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count}, Devices: devices,
	}}
}

func TestCard(t *testing.T) {
	const driver, at, other = "gpu.nvidia.com", "0000:1b:00.0", "0000:1c:00.0"
	gpu := device("gpu-1", at, "uuid", "GPU-1")
	cases := []struct {
		name    string
		slices  []resourceapi.ResourceSlice
		uuid    string
		devices string
		wants   string // a part of Wait or, after "refused:", of Refused
	}{
		{"a GPU", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, device("gpu-0", other), gpu)}, "", "gpu.nvidia.com/n/gpu-1", ""},
		{"the same card", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, gpu)}, "GPU-1", "gpu.nvidia.com/n/gpu-1", ""},
		{"no UUID is published", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, device("gpu-1", at))}, "GPU-1", "gpu.nvidia.com/n/gpu-1", ""},
		{"another card", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, gpu)}, "GPU-0", "", "refused:is now GPU-1"},
		{"its parts", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 2, device("mig-1", at, "gpu.nvidia.com/uuid", "MIG-1", "gpu.nvidia.com/parentUUID", "GPU-1")), sliceOf("n", driver, "n", 1, 2, gpu)},
			"GPU-1", "gpu.nvidia.com/n/gpu-1 gpu.nvidia.com/n/mig-1", ""},
		{"two cards at one address", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, gpu, device("gpu-2", at, "uuid", "GPU-2"))}, "", "", "refused:two GPUs"},
		{"another driver's pool", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, gpu), sliceOf("n", "vfio.example.com", "rack/n", 1, 1, device("vf", at))},
			"", "gpu.nvidia.com/n/gpu-1 vfio.example.com/rack/n/vf", ""},
		{"a pool of another node's name", []resourceapi.ResourceSlice{sliceOf("n", driver, "m", 1, 1, gpu)}, "", "", "refused:not named after the node"},
		{"a pool with a name that only begins as the node's", []resourceapi.ResourceSlice{sliceOf("n", driver, "n-1", 1, 1, gpu)}, "", "", "refused:not named after the node"},
		{"a slice of another node", []resourceapi.ResourceSlice{sliceOf("m", driver, "n", 1, 1, gpu)}, "", "", "no ResourceSlice"},
		{"no attribute", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, device("gpu-1", ""))}, "", "", "no ResourceSlice"},
		{"a part of the pool", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 2, gpu)}, "", "", "only a part"},
		{"an old generation", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 2, 1, device("gpu-0", at)), sliceOf("n", driver, "n", 1, 1, gpu)}, "", "gpu.nvidia.com/n/gpu-0", ""},
		{"a new generation", []resourceapi.ResourceSlice{sliceOf("n", driver, "n", 1, 1, gpu), sliceOf("n", driver, "n", 2, 1, device("gpu-0", other))}, "", "", "no ResourceSlice"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			card := (&Look{Slices: c.slices}).Card("n", "0000:1b:00", c.uuid)
			var names []string
			for _, d := range card.Devices {
				names = append(names, d.String())
			}
			if got := strings.Join(names, " "); got != c.devices {
				t.Errorf("devices %q", got)
			}
			why, refused := strings.CutPrefix(c.wants, "refused:")
			got := card.Wait
			if refused {
				got = card.Refused
			}
			if (why == "") != (card.Wait+card.Refused == "") || !strings.Contains(got, why) {
				t.Errorf("waits for %q, refused for %q", card.Wait, card.Refused)
			}
		})
	}
	if c := (*Look)(nil).Card("n", "0000:1b:00", ""); c.Wait == "" {
		t.Error("found without a look")
	}
	if c := (&Look{SlicesErr: "forbidden"}).Card("n", "0000:1b:00", ""); c.Wait != "forbidden" {
		t.Errorf("waits for %q", c.Wait)
	}
}

func TestARuleHasNoEmptySelector(t *testing.T) {
	n := Node{Name: "n", UID: "uid"}
	d := Device{"gpu.nvidia.com", "n", "gpu-1"}
	taint := corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoExecute}
	rule := n.Rule("0000:1b:00", d, taint)
	s := rule.Spec.DeviceSelector
	if s == nil || ptr.Deref(s.Driver, "") != d.Driver || ptr.Deref(s.Pool, "") != d.Pool || ptr.Deref(s.Device, "") != d.Name || Of(&rule) != d {
		t.Errorf("selector %+v", s)
	}
	if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNoExecute || NodeOf(&rule) != "n" || rule.Labels[LabelNodeUID] != "uid" {
		t.Errorf("%+v", rule)
	}
	if none := n.Rule("0000:1b:00", d, corev1.Taint{Key: "x"}); none.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone || none.Name != rule.Name || IsSame(&none, &rule) {
		t.Errorf("%+v", none)
	}
	other := (Node{Name: "n", UID: "another"}).Rule("0000:1b:00", d, taint)
	if other.Name == rule.Name {
		t.Error("the rules of two nodes have one name")
	}
	look := Look{Rules: []resourceapi.DeviceTaintRule{rule}}
	if changed := n.Rule("0000:1c:00", d, taint); !look.Has(&rule) || look.Has(&changed) || len(look.RulesOf("0000:1b:00")) != 1 || len(look.RulesOf("0000:1c:00")) != 0 {
		t.Error("a rule is taken for another")
	}
}
