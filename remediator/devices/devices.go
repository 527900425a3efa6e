// Package devices finds the devices of dynamic resource allocation that are a GPU of a node, and makes the DeviceTaintRules that keep
// pods off them. It is pure: what the API server says comes in as a [Look].
//
// A node's driver publishes its devices in ResourceSlices. A kubelet may publish any for its own node, under any name of a pool, and
// rules name a device by driver, pool and name only. So only pools that are named after the node count: a rule can never hit a device
// of another node.
package devices

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// MaxRules is the most rules that a node may have. A GPU that is divided can have dozens of parts.
const MaxRules = 128

// Keys and values on a rule.
const (
	// LabelNodeUID is the UID of the node, by which its rules are found.
	LabelNodeUID = conditions.Domain + "/node-uid"
	// LabelManagedBy is [ManagedBy] on every rule of ours.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "pitcrew-remediator"
	// AnnotationGPU is the PCI address of the GPU.
	AnnotationGPU = conditions.Domain + "/gpu"
)

// The attributes of a device, without the domain of the driver (kubernetes, deviceattribute/attribute.go, and
// dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go).
const (
	attributePCI        = "resource.kubernetes.io/pciBusID"
	attributeUUID       = "uuid"
	attributeParentUUID = "parentUUID" // of a part of a GPU, such as a MIG device
)

// Device names a device as an allocation result and a rule do.
type Device struct{ Driver, Pool, Name string }

// String is the form in which Kubernetes shows a device.
func (d Device) String() string { return d.Driver + "/" + d.Pool + "/" + d.Name }

// Look is what the API server says about the devices of a node.
type Look struct {
	// Slices are the ResourceSlices of the node.
	Slices []resourceapi.ResourceSlice
	// Rules are ours for the node, whatever their taint.
	Rules []resourceapi.DeviceTaintRule
	// SlicesErr and RulesErr are why they could not be read; empty: they were.
	SlicesErr, RulesErr string
	// Refused is why the API server will not accept the rules; empty: it has not refused one.
	Refused string
}

// Card is a GPU of a node, as the slices show it.
type Card struct {
	// Devices are the GPU and its parts, by name.
	Devices []Device
	// UUID is that of the GPU; empty: the driver publishes none.
	UUID string
	// Wait is why this cannot be said just now, for example because the driver restarts; empty: it can.
	Wait string
	// Refused is why the GPU has no devices that a rule may name, and waiting would not help; empty: it has.
	Refused string
}

// Addresses are the PCI addresses of the GPUs of which a message of a condition names a fault of the hardware. It is false unless the
// message names every subject, and each that has such a fault is a GPU.
func Addresses(message string) ([]string, bool) {
	m, err := conditions.ParseMessage(message)
	if err != nil || m.More > 0 {
		return nil, false
	}
	var found []string
	for _, part := range m.Parts {
		if !isOfHardware(part) {
			continue
		}
		kind, name, _ := strings.Cut(part.Subject, " ")
		if kind != "gpu" || strings.Count(name, ":") != 2 || strings.ContainsAny(name, " /") {
			return nil, false
		}
		found = append(found, gpu.Address(name))
	}
	slices.Sort(found)
	return slices.Compact(found), len(found) > 0
}

// NamesHardware reports whether a message may name a fault of the hardware. Errors of applications may have a class that a rule lists: an
// Xid that recurs needs an inspection, and a site can change the classes. A job with a bug would take one GPU after the other then.
func NamesHardware(message string) bool {
	m, err := conditions.ParseMessage(message)
	return err != nil || m.More > 0 || slices.ContainsFunc(m.Parts, isOfHardware)
}

// isOfHardware reports whether a part of a message is neither an error of an application nor what could not be read.
func isOfHardware(p conditions.Part) bool {
	return !xid.IsOfApplication(p.Text) && !strings.HasPrefix(p.Text, conditions.NotRead)
}

// Card finds the GPU at a PCI address. uuid is that of the GPU which is meant; empty: it is not known. A nil look knows nothing.
func (l *Look) Card(node, address, uuid string) Card {
	switch {
	case l == nil:
		return Card{Wait: "the ResourceSlices of the node were not read yet"}
	case l.SlicesErr != "":
		return Card{Wait: l.SlicesErr}
	}
	var card Card
	for _, pool := range pools(node, l.Slices) {
		found := pool.devicesAt(address)
		if len(found) == 0 {
			continue
		}
		if !isOf(node, pool.name) {
			return Card{Refused: fmt.Sprintf("pool %q of driver %s, which has gpu %s, is not named after the node", pool.name, pool.driver, address)}
		}
		if pool.incomplete {
			return Card{Wait: fmt.Sprintf("the driver %s has published only a part of pool %s", pool.driver, pool.name)}
		}
		for _, d := range found {
			id := uuidOf(d)
			if id != "" && card.UUID != "" && id != card.UUID {
				return Card{Refused: fmt.Sprintf("the ResourceSlices have two GPUs at %s: %s and %s", address, card.UUID, id)}
			}
			card.UUID = cmp.Or(card.UUID, id)
			card.Devices = append(card.Devices, Device{pool.driver, pool.name, d.Name})
		}
	}
	switch {
	case len(card.Devices) == 0:
		return Card{Wait: fmt.Sprintf("no ResourceSlice of the node has a device with %s %s", attributePCI, address)}
	case uuid != "" && card.UUID != "" && uuid != card.UUID:
		return Card{Refused: fmt.Sprintf("gpu %s was %s and is now %s: the card that is meant is missing", address, uuid, card.UUID)}
	}
	slices.SortFunc(card.Devices, func(a, b Device) int { return cmp.Compare(a.String(), b.String()) })
	return card
}

// pool is the newest generation of a pool.
type pool struct {
	driver, name string
	generation   int64
	slices       []*resourceapi.ResourceSlice
	// incomplete is set while slices of the generation are missing, or an older generation is not removed yet.
	incomplete bool
}

// pools are those in the slices of a node.
func pools(node string, all []resourceapi.ResourceSlice) []*pool {
	var list []*pool
	for i := range all {
		s := &all[i].Spec
		if s.NodeName == nil || *s.NodeName != node {
			continue // the API server lets a kubelet publish for its own node only
		}
		at := slices.IndexFunc(list, func(p *pool) bool { return p.driver == s.Driver && p.name == s.Pool.Name })
		if at < 0 {
			at, list = len(list), append(list, &pool{driver: s.Driver, name: s.Pool.Name, generation: s.Pool.Generation})
		}
		p := list[at]
		if s.Pool.Generation > p.generation {
			p.generation, p.slices = s.Pool.Generation, nil
		}
		if s.Pool.Generation == p.generation {
			p.slices = append(p.slices, &all[i])
		}
	}
	for _, p := range list {
		p.incomplete = slices.ContainsFunc(p.slices, func(s *resourceapi.ResourceSlice) bool {
			return s.Spec.Pool.ResourceSliceCount != int64(len(p.slices))
		})
	}
	return list
}

// isOf reports whether a pool is named after the node: its name, or one part of a path.
func isOf(node, pool string) bool { return slices.Contains(strings.Split(pool, "/"), node) }

func (p *pool) devicesAt(address string) (found []*resourceapi.Device) {
	for _, s := range p.slices {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if id := d.Attributes[attributePCI].StringValue; id != nil && gpu.Address(*id) == address {
				found = append(found, d)
			}
		}
	}
	return found
}

// uuidOf is the UUID of the GPU that a device is, or is a part of.
func uuidOf(d *resourceapi.Device) (uuid string) {
	for name, value := range d.Attributes {
		_, short, qualified := strings.Cut(string(name), "/")
		if !qualified {
			short = string(name)
		}
		if value.StringValue == nil {
			continue
		}
		switch short {
		case attributeParentUUID:
			return *value.StringValue
		case attributeUUID:
			uuid = *value.StringValue
		}
	}
	return uuid
}

// Node is what the rules of a node need to know about it.
type Node struct {
	Name string
	UID  types.UID
}

// Rule keeps pods off a device of a node. The selector has always all three of its fields: one without would match devices of others.
// An effect other than NoSchedule and NoExecute becomes None, which only shows whom the rule would meet.
func (n Node) Rule(address string, d Device, taint corev1.Taint) resourceapi.DeviceTaintRule {
	effect := resourceapi.DeviceTaintEffectNone
	if taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute {
		effect = resourceapi.DeviceTaintEffect(taint.Effect)
	}
	// No part has a line break.
	sum := sha256.Sum256([]byte(strings.Join([]string{string(n.UID), d.Driver, d.Pool, d.Name}, "\n")))
	return resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "pitcrew-" + hex.EncodeToString(sum[:16]),
			Labels:      map[string]string{LabelNodeUID: string(n.UID), LabelManagedBy: ManagedBy},
			Annotations: map[string]string{conditions.AnnotationNode: n.Name, AnnotationGPU: address},
		},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &d.Driver, Pool: &d.Pool, Device: &d.Name},
			Taint:          resourceapi.DeviceTaint{Key: taint.Key, Value: taint.Value, Effect: effect},
		},
	}
}

// NodeOf is the name of the node that a rule is for.
func NodeOf(r *resourceapi.DeviceTaintRule) string { return r.Annotations[conditions.AnnotationNode] }

// Of is the device that a rule names. What it leaves out is empty, and matches every device.
func Of(r *resourceapi.DeviceTaintRule) Device {
	s := ptr.Deref(r.Spec.DeviceSelector, resourceapi.DeviceTaintSelector{})
	return Device{ptr.Deref(s.Driver, ""), ptr.Deref(s.Pool, ""), ptr.Deref(s.Device, "")}
}

// IsSame reports whether two rules do the same.
func IsSame(a, b *resourceapi.DeviceTaintRule) bool {
	return Of(a) == Of(b) && a.Spec.Taint.Key == b.Spec.Taint.Key && a.Spec.Taint.Value == b.Spec.Taint.Value &&
		a.Spec.Taint.Effect == b.Spec.Taint.Effect && a.Annotations[AnnotationGPU] == b.Annotations[AnnotationGPU]
}

// RulesOf are the rules of a look for the GPU at an address.
func (l *Look) RulesOf(address string) (found []resourceapi.DeviceTaintRule) {
	for i := range l.Rules {
		if l.Rules[i].Annotations[AnnotationGPU] == address {
			found = append(found, l.Rules[i])
		}
	}
	return found
}

// Has reports whether a look has a rule that does the same.
func (l *Look) Has(want *resourceapi.DeviceTaintRule) bool {
	return slices.ContainsFunc(l.Rules, func(r resourceapi.DeviceTaintRule) bool { return r.Name == want.Name && IsSame(&r, want) })
}
