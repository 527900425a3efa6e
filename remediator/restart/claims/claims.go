// Package claims finds out whether devices are free for the resource claims of pods that have to move. It asks the allocator of the
// scheduler, with the features that are on by default in Kubernetes 1.37. It is pure: what the API server says comes in as a [Look].
//
// The slices of one node are known at a time, so a pool that has slices of several nodes seems incomplete, and none of its devices free.
package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// features are on by default in the scheduler. A cluster that has one off stores no object that uses it.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
	DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true,
}

// maxSelectors is how many compiled selectors are kept during a search.
const maxSelectors = 100

// Has reports whether a pod uses devices by resource claims, one that was made for its extended resources included.
func Has(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// Of are the names of a pod's claims, in its namespace.
func Of(pod *corev1.Pod) (names []string) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Look is what the API server says about devices and claims.
type Look struct {
	// Classes are all DeviceClasses.
	Classes []resourceapi.DeviceClass
	// Claims are all in the namespace of the pods, and the allocated ones of all others.
	Claims []resourceapi.ResourceClaim
	// Templates are those that the pods name.
	Templates []resourceapi.ResourceClaimTemplate
	// Slices are those of no single node.
	Slices []resourceapi.ResourceSlice
	// Rules are all DeviceTaintRules.
	Rules []resourceapi.DeviceTaintRule
}

// Devices are the devices of the cluster during one search.
type Devices struct {
	classes    classes
	byResource map[corev1.ResourceName]*resourceapi.DeviceClass
	claims     map[types.NamespacedName]*resourceapi.ResourceClaim
	templates  map[types.NamespacedName]*resourceapi.ResourceClaimSpec
	rules      []resourceapi.DeviceTaintRule
	shared     []*resourceapi.ResourceSlice
	taken      structured.AllocatedState
	selectors  *cel.Cache
}

// New begins a search. It changes the allocations of the claims of a look.
func New(look Look) *Devices {
	d := &Devices{
		classes: classes{}, byResource: map[corev1.ResourceName]*resourceapi.DeviceClass{},
		claims: map[types.NamespacedName]*resourceapi.ResourceClaim{}, templates: map[types.NamespacedName]*resourceapi.ResourceClaimSpec{},
		rules: look.Rules, selectors: cel.NewCache(maxSelectors, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity}),
	}
	for i := range look.Classes {
		class := &look.Classes[i]
		d.classes[class.Name] = class
		d.byResource[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = class
		if name := corev1.ResourceName(ptr.Deref(class.Spec.ExtendedResourceName, "")); isPreferred(class, d.byResource[name]) {
			d.byResource[name] = class
		}
	}
	for i := range look.Claims {
		claim := &look.Claims[i]
		d.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}
	for i := range look.Templates {
		t := &look.Templates[i]
		d.templates[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = &t.Spec.Spec
	}
	d.shared = d.withTaints(look.Slices)
	return d
}

// isPreferred reports whether the scheduler takes a class for an extended resource, rather than another one with the same.
func isPreferred(class, other *resourceapi.DeviceClass) bool {
	return other == nil || other.CreationTimestamp.Before(&class.CreationTimestamp) ||
		other.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < other.Name
}

// IsTainted reports whether a pod holds a device that a DeviceTaintRule would keep it from getting again.
func (d *Devices) IsTainted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(d.held(pod), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return !ptr.Deref(r.AdminAccess, false) && slices.ContainsFunc(d.rules, func(rule resourceapi.DeviceTaintRule) bool {
			return matches(&rule, r.Driver, r.Pool, r.Device) && prevents(rule.Spec.Taint, r.Tolerations)
		})
	})
}

func (d *Devices) held(pod *corev1.Pod) (held []resourceapi.DeviceRequestAllocationResult) {
	for _, name := range Of(pod) {
		if claim := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]; claim != nil && claim.Status.Allocation != nil {
			held = append(held, claim.Status.Allocation.Devices.Results...)
		}
	}
	return held
}

// Free gives up the claims that only these pods use, as their end does. Call it once, before [Devices.On].
func (d *Devices) Free(pods []corev1.Pod) {
	ending := sets.Set[types.UID]{}
	for i := range pods {
		ending.Insert(pods[i].UID)
	}
	for i := range pods {
		for _, name := range Of(&pods[i]) {
			claim := d.claims[types.NamespacedName{Namespace: pods[i].Namespace, Name: name}]
			if claim != nil && !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return !ending.Has(r.UID) }) {
				claim.Status.Allocation = nil
			}
		}
	}
	d.taken = structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range d.claims {
		if claim.Status.Allocation != nil {
			d.take(claim.Status.Allocation)
		}
	}
}

// take counts devices as allocated, as the scheduler does (foreachAllocatedDevice). Access of an administrator uses none.
func (d *Devices) take(a *resourceapi.AllocationResult) {
	for _, r := range a.Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		switch {
		case ptr.Deref(r.AdminAccess, false):
		case r.ShareID != nil:
			d.taken.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			d.taken.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		default:
			d.taken.AllocatedDevices.Insert(id)
		}
	}
}

// Node is a node, with the devices that its pods can get. A nil one has none, and no pod asks for any.
type Node struct {
	*Devices
	node   *corev1.Node
	slices []*resourceapi.ResourceSlice
	// failed are claims for which there were too few devices. The ranks of a job ask for the same, and there will not be more.
	failed []*resourceapi.ResourceClaim
}

// On is a node with its own slices.
func (d *Devices) On(node *corev1.Node, own []resourceapi.ResourceSlice) *Node {
	if d == nil {
		return nil
	}
	return &Node{Devices: d, node: node, slices: append(d.withTaints(own), d.shared...)}
}

// Extended removes from the requests of a pod the extended resources that the node has by claims only, and returns them.
func (n *Node) Extended(need corev1.ResourceList) corev1.ResourceList {
	if n == nil {
		return nil
	}
	extended := corev1.ResourceList{}
	for name, amount := range need {
		if n.byResource[name] != nil && n.node.Status.Allocatable.Name(name, amount.Format).IsZero() {
			extended[name] = amount
			delete(need, name)
		}
	}
	return extended
}

// Take takes the devices for the claims of a pod, and for its extended resources. It takes none unless there are enough. An error is why
// this cannot be told, for no node.
func (n *Node) Take(ctx context.Context, pod *corev1.Pod, extended corev1.ResourceList) (bool, error) {
	if n == nil {
		return true, nil
	}
	wanted, possible, err := n.wanted(pod, extended)
	if len(wanted) == 0 || !possible || err != nil {
		return possible, err
	}
	if equality.Semantic.DeepEqual(wanted, n.failed) {
		return false, nil
	}
	allocator, err := structured.NewAllocator(ctx, features, n.taken, n.classes, n.slices, n.selectors)
	if err != nil {
		return false, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	allocations, err := allocator.Allocate(ctx, n.node, wanted)
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return false, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	if len(allocations) < len(wanted) {
		n.failed = wanted
		return false, nil
	}
	for i := range allocations {
		wanted[i].Status.Allocation = &allocations[i]
		n.take(&allocations[i])
	}
	return true, nil
}

// wanted are the claims that have to be allocated for a pod. possible is false if a claim that is allocated keeps it from the node.
func (n *Node) wanted(pod *corev1.Pod, extended corev1.ResourceList) (wanted []*resourceapi.ResourceClaim, possible bool, err error) {
	for _, c := range pod.Spec.ResourceClaims {
		if name := ptr.Deref(c.ResourceClaimTemplateName, ""); name != "" {
			spec := n.templates[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
			if spec == nil {
				return nil, false, fmt.Errorf("ResourceClaimTemplate %s/%s does not exist", pod.Namespace, name)
			}
			wanted = append(wanted, &resourceapi.ResourceClaim{Spec: *spec})
			continue
		}
		name := ptr.Deref(c.ResourceClaimName, "")
		claim := n.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		switch {
		case claim == nil || claim.DeletionTimestamp != nil:
			return nil, false, fmt.Errorf("ResourceClaim %s/%s does not exist, or is being deleted", pod.Namespace, name)
		case claim.Status.Allocation == nil:
			if !slices.Contains(wanted, claim) {
				wanted = append(wanted, claim)
			}
		case claim.Status.Allocation.NodeSelector != nil:
			selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
			if err != nil {
				return nil, false, fmt.Errorf("ResourceClaim %s/%s: %w", pod.Namespace, name, err)
			}
			if !selector.Match(n.node) {
				return nil, false, nil
			}
		}
	}
	if len(extended) > 0 {
		wanted = append(wanted, n.claimFor(extended))
	}
	return wanted, true, nil
}

// claimFor is the claim that the scheduler makes for extended resources.
func (n *Node) claimFor(extended corev1.ResourceList) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{}
	for name, amount := range extended {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: string(name), Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: n.byResource[name].Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: amount.Value(),
		}})
	}
	slices.SortFunc(claim.Spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return claim
}

// withTaints are slices with the taints of the rules on their devices.
func (d *Devices) withTaints(all []resourceapi.ResourceSlice) (tainted []*resourceapi.ResourceSlice) {
	for _, s := range all {
		s.Spec.Devices = slices.Clone(s.Spec.Devices)
		for i := range s.Spec.Devices {
			device := &s.Spec.Devices[i]
			for j := range d.rules {
				if matches(&d.rules[j], s.Spec.Driver, s.Spec.Pool.Name, device.Name) {
					device.Taints = append(slices.Clip(device.Taints), d.rules[j].Spec.Taint)
				}
			}
		}
		tainted = append(tainted, &s)
	}
	return tainted
}

// matches reports whether a rule is for a device. What the selector leaves out matches every device, and no selector matches none.
func matches(rule *resourceapi.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && ptr.Deref(s.Driver, driver) == driver && ptr.Deref(s.Pool, pool) == pool && ptr.Deref(s.Device, device) == device
}

// prevents reports whether a taint keeps a device from being allocated.
func prevents(taint resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	return (taint.Effect == resourceapi.DeviceTaintEffectNoSchedule || taint.Effect == resourceapi.DeviceTaintEffectNoExecute) &&
		!slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) })
}

// classes are DeviceClasses by name, as the allocator asks for them.
type classes map[string]*resourceapi.DeviceClass

// Get returns a class.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("DeviceClass %s does not exist", name)
}

// List returns all classes.
func (c classes) List() (all []*resourceapi.DeviceClass, err error) {
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}
