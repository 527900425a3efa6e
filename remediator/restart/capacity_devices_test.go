package restart

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/claims"
)

const driver = "gpu.example.com"

// deviceWorld is a cluster of nodes a, b and c whose devices a class serves, and a job whose rank-0 holds gpu-0 of node a.
type deviceWorld struct {
	q       Quarantine
	nodes   []corev1.Node
	slices  map[string][]resourceapi.ResourceSlice
	look    claims.Look
	ranks   []corev1.Pod
	others  int
	stopped bool // the time is over
}

func newDeviceWorld() *deviceWorld {
	w := &deviceWorld{q: Quarantine{Node: "a", Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule}}, slices: map[string][]resourceapi.ResourceSlice{}}
	for _, name := range []string{"a", "b", "c"} {
		w.nodes = append(w.nodes, host(name, func(n *corev1.Node) { delete(n.Status.Allocatable, "nvidia.com/gpu") }))
		w.publish(name, 2)
	}
	w.look.Classes = []resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}}, ExtendedResourceName: ptr.To("nvidia.com/gpu"),
	}}}
	w.template(nil)
	w.rank("rank-0", "a")
	w.allocate("a/gpu-0", w.fromTemplate(0))
	return w
}

// publish publishes so many devices of a node, gpu-0 and so on, of 80 GiB.
func (w *deviceWorld) publish(node string, n int) *resourceapi.ResourceSlice {
	s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprint("gpu-", i), Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	w.slices[node] = []resourceapi.ResourceSlice{s}
	return &w.slices[node][0]
}

// template is the template of the ranks' claims: one device, as changed.
func (w *deviceWorld) template(change func(*resourceapi.ExactDeviceRequest)) {
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if change != nil {
		change(request)
	}
	w.look.Templates = []resourceapi.ResourceClaimTemplate{{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: resourceapi.ResourceClaimTemplateSpec{
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}}},
	}}}
}

// rank adds a rank of the job without a claim.
func (w *deviceWorld) rank(name, node string) *corev1.Pod {
	w.ranks = append(w.ranks, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}})
	return &w.ranks[len(w.ranks)-1]
}

// fromTemplate gives a rank a claim of its own, which the template made.
func (w *deviceWorld) fromTemplate(rank int) *resourceapi.ResourceClaim {
	pod := &w.ranks[rank]
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To(pod.Name + "-gpu")}}
	return w.claim(pod.Name+"-gpu", pod.Name)
}

// named gives a rank a claim that it shares with others.
func (w *deviceWorld) named(rank int, name string) {
	w.ranks[rank].Status.ResourceClaimStatuses = nil
	w.ranks[rank].Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
}

// claim adds a claim that these pods use.
func (w *deviceWorld) claim(name string, users ...string) *resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: w.look.Templates[0].Spec.Spec}
	for _, u := range users {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: u, UID: types.UID(u)})
	}
	w.look.Claims = append(w.look.Claims, c)
	return &w.look.Claims[len(w.look.Claims)-1]
}

// allocate allocates a device of a node to a claim.
func (w *deviceWorld) allocate(device string, to *resourceapi.ResourceClaim) *resourceapi.DeviceRequestAllocationResult {
	node, name, _ := strings.Cut(device, "/")
	if to.Status.Allocation == nil {
		to.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
	results := &to.Status.Allocation.Devices.Results
	*results = append(*results, resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: node, Device: name})
	return &(*results)[len(*results)-1]
}

// busy has pods of others hold devices.
func (w *deviceWorld) busy(devices ...string) *resourceapi.DeviceRequestAllocationResult {
	c := w.claim(fmt.Sprint("other-", len(w.look.Claims)), "other")
	c.Namespace = "elsewhere"
	var last *resourceapi.DeviceRequestAllocationResult
	for _, d := range devices {
		last = w.allocate(d, c)
	}
	return last
}

// taint makes a rule for a device.
func (w *deviceWorld) taint(device string, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
	node, name, _ := strings.Cut(device, "/")
	w.look.Rules = append(w.look.Rules, resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: &node, Device: &name}, Taint: resourceapi.DeviceTaint{Key: "example.com/bad", Effect: effect},
	}})
	return &w.look.Rules[len(w.look.Rules)-1]
}

// isolate has the quarantine be that of one device.
func (w *deviceWorld) isolate(device string) {
	node, name, _ := strings.Cut(device, "/")
	w.q.Devices = []devices.Device{{Driver: driver, Pool: node, Name: name}}
	w.taint(device, resourceapi.DeviceTaintEffectNoSchedule)
}

// cordon takes nodes out of use.
func (w *deviceWorld) cordon(names ...string) {
	for i := range w.nodes {
		for _, name := range names {
			w.nodes[i].Spec.Unschedulable = w.nodes[i].Spec.Unschedulable || w.nodes[i].Name == name
		}
	}
}

// search searches, and returns the nodes that were searched.
func (w *deviceWorld) search(t *testing.T) (*Search, string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if w.stopped {
		cancel()
	}
	s := NewSearch(w.q, w.ranks, w.nodes, w.others, noon)
	if s.NeedsDevices() {
		s.UseDevices(w.look)
	}
	var searched []string
	for node := range s.Nodes() {
		searched = append(searched, node.Name)
		var there []corev1.Pod
		for _, p := range w.ranks {
			if p.Spec.NodeName == node.Name {
				there = append(there, p)
			}
		}
		s.Place(ctx, node, there, w.slices[node.Name])
	}
	return s, strings.Join(searched, " ")
}

// extended has a rank ask for so many devices by an extended resource.
func (w *deviceWorld) extended(rank int, n string) { w.extendedOf(rank, "nvidia.com/gpu", n) }

func (w *deviceWorld) extendedOf(rank int, name corev1.ResourceName, n string) {
	w.ranks[rank].Spec.ResourceClaims = nil
	w.ranks[rank].Status = corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: w.ranks[rank].Name + "-gpu"}}
	w.ranks[rank].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(n)}}}}
}

// otherClass adds a class with the same extended resource, of which there is no device.
func (w *deviceWorld) otherClass(created time.Time, name string) {
	w.look.Classes = append(w.look.Classes, resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "false"}}}, ExtendedResourceName: ptr.To("nvidia.com/gpu"),
	}})
}

func TestSearchOfDevices(t *testing.T) {
	onlyB := func(w *deviceWorld) { w.cordon("c") }
	full := func(w *deviceWorld) { w.busy("b/gpu-0", "b/gpu-1", "c/gpu-0", "c/gpu-1") }
	oneOnB := func(w *deviceWorld) { onlyB(w); w.busy("b/gpu-0") }
	tests := map[string]struct {
		change func(*deviceWorld)
		moving int
		left   int    // of the moving ranks
		text   string // of the result, if there is no room for all
	}{
		"a free device on another node":        {change: oneOnB, moving: 1},
		"none":                                 {change: full, moving: 1, left: 1, text: "1 of its ranks must move; found room, with devices for their resource claims, for 0 on the 2 nodes where they can be scheduled"},
		"none on a node that takes the rank":   {change: func(w *deviceWorld) { onlyB(w); w.busy("b/gpu-0", "b/gpu-1") }, moving: 1, left: 1, text: "on the 1 nodes"},
		"devices that are free, but not a pod": {change: func(w *deviceWorld) { w.cordon("b", "c") }, moving: 1, left: 1, text: "on the 0 nodes"},
		"a device, but no room for the pod": {change: func(w *deviceWorld) {
			for i := range w.nodes {
				w.nodes[i].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0")
			}
		}, moving: 1, left: 1, text: "for 0 on the 2 nodes"},

		// Taints.
		"a taint of the driver": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.slices["b"][0].Spec.Devices[1].Taints = []resourceapi.DeviceTaint{{Key: "example.com/bad", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}, moving: 1, left: 1, text: "for 0"},
		"a taint of a rule":       {change: func(w *deviceWorld) { oneOnB(w); w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNoExecute) }, moving: 1, left: 1, text: "for 0"},
		"a rule for other device": {change: func(w *deviceWorld) { oneOnB(w); w.taint("b/gpu-0", resourceapi.DeviceTaintEffectNoExecute) }, moving: 1},
		"a rule for other pool":   {change: func(w *deviceWorld) { oneOnB(w); w.taint("c/gpu-1", resourceapi.DeviceTaintEffectNoExecute) }, moving: 1},
		"a rule for other driver": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNoExecute).Spec.DeviceSelector.Driver = ptr.To("other.example.com")
		}, moving: 1},
		"a rule for all devices of the driver": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNoExecute).Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver)}
		}, moving: 1, left: 1, text: "for 0"},
		"a rule for no device": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNoExecute).Spec.DeviceSelector = nil
		}, moving: 1},
		"a rule that only observes": {change: func(w *deviceWorld) { oneOnB(w); w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNone) }, moving: 1},
		"a taint that the claim tolerates": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.taint("b/gpu-1", resourceapi.DeviceTaintEffectNoExecute)
			w.template(func(r *resourceapi.ExactDeviceRequest) {
				r.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/bad", Operator: resourceapi.DeviceTolerationOpExists}}
			})
		}, moving: 1},

		// What claims ask for.
		"a selector that matches": {change: func(w *deviceWorld) {
			w.selects(`device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))`)
		}, moving: 1},
		"a selector that matches no device": {change: func(w *deviceWorld) {
			w.selects(`device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("80Gi"))`)
		},
			moving: 1, left: 1, text: "for 0"},
		"a class that matches no device": {change: func(w *deviceWorld) {
			w.look.Classes[0].Spec.Selectors[0].CEL.Expression = `device.driver == "other.example.com"`
		}, moving: 1, left: 1, text: "for 0"},
		"more devices than any node has": {change: func(w *deviceWorld) { w.template(func(r *resourceapi.ExactDeviceRequest) { r.Count = 3 }) }, moving: 1, left: 1, text: "for 0"},
		"all devices of a node":          {change: func(w *deviceWorld) { w.template(all); w.busy("b/gpu-0") }, moving: 1},
		"all devices, and no node has all free": {change: func(w *deviceWorld) { w.template(all); w.busy("b/gpu-0"); w.busy("c/gpu-1") },
			moving: 1, left: 1, text: "for 0"},
		"devices of no single node": {change: func(w *deviceWorld) {
			full(w)
			s := w.publish("fabric", 1)
			s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
			w.look.Slices = []resourceapi.ResourceSlice{*s}
		}, moving: 1},
		"devices of no single node, with a taint": {change: func(w *deviceWorld) {
			full(w)
			s := w.publish("fabric", 1)
			s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
			w.look.Slices = []resourceapi.ResourceSlice{*s}
			w.taint("fabric/gpu-0", resourceapi.DeviceTaintEffectNoSchedule)
		}, moving: 1, left: 1, text: "for 0"},
		"a driver that has published only a part": {change: func(w *deviceWorld) {
			onlyB(w)
			w.slices["b"][0].Spec.Pool.ResourceSliceCount = 2
		}, moving: 1, left: 1, text: "for 0"},

		// What is allocated.
		"monitors take no device": {change: func(w *deviceWorld) {
			onlyB(w)
			w.busy("b/gpu-0").AdminAccess = ptr.To(true)
			w.busy("b/gpu-1").AdminAccess = ptr.To(true)
		}, moving: 1},
		"a monitor needs no free device": {change: func(w *deviceWorld) {
			full(w)
			w.template(func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = ptr.To(true) })
		}, moving: 1},
		"room on a device that is shared":    {change: func(w *deviceWorld) { w.shared("40Gi") }, moving: 1},
		"no room on a device that is shared": {change: func(w *deviceWorld) { w.shared("41Gi") }, moving: 1, left: 1, text: "for 0"},
		"two ranks and one device": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.rank("rank-1", "a")
			w.fromTemplate(1)
		}, moving: 2, left: 1, text: "2 of its ranks must move; found room, with devices for their resource claims, for 1 "},
		"of two ranks the one that asks for less": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.template(func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 })
			w.rank("rank-1", "a")
			w.extended(1, "1")
		}, moving: 2, left: 1, text: "for 1 "},
		"an invalid pool": {change: func(w *deviceWorld) {
			onlyB(w)
			w.slices["b"][0].Spec.Devices[1].Name = "gpu-0"
		}, moving: 1, left: 1, text: "for 0"},
		"two ranks and two devices":             {change: func(w *deviceWorld) { onlyB(w); w.rank("rank-1", "a"); w.fromTemplate(1) }, moving: 2},
		"the ranks of other jobs take them":     {change: func(w *deviceWorld) { oneOnB(w); w.others = 1 }, moving: 1, text: "the restarts of other jobs need room for 1 and found it for 0"},
		"the ranks of other jobs have them too": {change: func(w *deviceWorld) { onlyB(w); w.others = 1 }, moving: 1},
		"a rank that stays keeps its device": {change: func(w *deviceWorld) {
			onlyB(w)
			w.busy("b/gpu-0")
			w.rank("rank-1", "b")
			w.allocate("b/gpu-1", w.fromTemplate(1))
		}, moving: 1, left: 1, text: "for 0"},

		// Claims that ranks share.
		"one device for two ranks that share a claim": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.rank("rank-1", "a")
			w.share("a/gpu-1", "rank-0", "rank-1")
			w.named(1, "shared")
		}, moving: 2},
		"ranks that share a claim have to go to one node": {change: func(w *deviceWorld) {
			w.rank("rank-1", "a")
			w.share("a/gpu-1", "rank-0", "rank-1")
			w.named(1, "shared")
			w.nodes[1].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
			w.nodes[2].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
		}, moving: 2, left: 1, text: "for 1"},
		"a rank that names a claim twice": {change: func(w *deviceWorld) {
			oneOnB(w)
			w.share("a/gpu-1", "rank-0")
			w.ranks[0].Spec.ResourceClaims = append(w.ranks[0].Spec.ResourceClaims, corev1.PodResourceClaim{Name: "again", ResourceClaimName: ptr.To("shared")})
		}, moving: 1},
		"a shared claim stays where another pod uses it": {change: func(w *deviceWorld) { w.share("a/gpu-1", "rank-0", "other") }, moving: 1, left: 1, text: "for 0"},
		"a rank goes where a shared claim is":            {change: func(w *deviceWorld) { full(w); w.share("c/gpu-1", "rank-0", "other") }, moving: 1},

		// Extended resources.
		"an extended resource":                           {change: func(w *deviceWorld) { oneOnB(w); w.extended(0, "1") }, moving: 1},
		"an extended resource of which too few are free": {change: func(w *deviceWorld) { oneOnB(w); w.extended(0, "2") }, moving: 1, left: 1, text: "for 0"},
		"none of an extended resource":                   {change: func(w *deviceWorld) { full(w); w.extended(0, "0") }, moving: 1},
		"an extended resource of no class":               {change: func(w *deviceWorld) { w.extended(0, "1"); w.look.Classes[0].Spec.ExtendedResourceName = nil }, moving: 1, left: 1, text: "for 0"},
		"the extended resource that every class has":     {change: func(w *deviceWorld) { oneOnB(w); w.extendedOf(0, "deviceclass.resource.kubernetes.io/gpu", "1") }, moving: 1},
		"an extended resource of two classes, of which the newer one counts": {change: func(w *deviceWorld) {
			w.extended(0, "1")
			w.otherClass(noon, "a")
		}, moving: 1, left: 1, text: "for 0"},
		"the other way round": {change: func(w *deviceWorld) {
			w.extended(0, "1")
			w.otherClass(noon, "a")
			w.look.Classes[0].CreationTimestamp = metav1.NewTime(noon.Add(time.Second))
		}, moving: 1},
		"an extended resource of two equally old classes, the first name counts": {change: func(w *deviceWorld) {
			w.extended(0, "1")
			w.otherClass(time.Time{}, "a")
		}, moving: 1, left: 1, text: "for 0"},
		"the first name, the other way round": {change: func(w *deviceWorld) {
			w.extended(0, "1")
			w.otherClass(time.Time{}, "z")
		}, moving: 1},
		"an extended resource of a device plugin": {change: func(w *deviceWorld) {
			full(w)
			w.extended(0, "1")
			w.nodes[1].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
		}, moving: 1},
		"an extended resource that the device plugin has too few of": {change: func(w *deviceWorld) {
			onlyB(w)
			w.extended(0, "2")
			w.nodes[1].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
		}, moving: 1, left: 1, text: "for 0"},

		// One device of a node.
		"another device of the node": {change: func(w *deviceWorld) { full(w); w.isolate("a/gpu-0") }, moving: 1},
		"no other device":            {change: func(w *deviceWorld) { full(w); w.isolate("a/gpu-0"); w.busy("a/gpu-1") }, moving: 1, left: 1, text: "on the 3 nodes"},
		"its other devices are free once it has stopped": {change: func(w *deviceWorld) {
			full(w)
			w.publish("a", 3)
			w.isolate("a/gpu-0")
			w.allocate("a/gpu-1", &w.look.Claims[0])
			w.template(func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 })
		}, moving: 1},
		"its place on the node is free once it has stopped": {change: func(w *deviceWorld) {
			full(w)
			w.isolate("a/gpu-0")
			w.nodes[0].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
		}, moving: 1},
		"a rank beside it stays": {change: func(w *deviceWorld) {
			full(w)
			w.isolate("a/gpu-0")
			w.rank("rank-1", "a")
			w.allocate("a/gpu-1", w.fromTemplate(1))
		}, moving: 1, left: 1, text: "1 of its ranks"},
		"a monitor of it stays": {change: func(w *deviceWorld) {
			full(w)
			w.isolate("a/gpu-0")
			w.look.Claims[0].Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
		}},
		"a rank elsewhere whose device has a taint moves, too": {change: func(w *deviceWorld) {
			w.rank("rank-1", "b")
			w.allocate("b/gpu-0", w.fromTemplate(1))
			w.taint("b/gpu-0", resourceapi.DeviceTaintEffectNoSchedule)
		}, moving: 2},
		"a rank elsewhere whose device has a taint that evicts": {change: func(w *deviceWorld) {
			w.rank("rank-1", "b")
			w.allocate("b/gpu-0", w.fromTemplate(1))
			w.taint("b/gpu-0", resourceapi.DeviceTaintEffectNoExecute)
		}, moving: 2},
		"a rank elsewhere whose device has a taint that only observes": {change: func(w *deviceWorld) {
			w.rank("rank-1", "b")
			w.allocate("b/gpu-0", w.fromTemplate(1))
			w.taint("b/gpu-0", resourceapi.DeviceTaintEffectNone)
		}, moving: 1},
		"a rank elsewhere that tolerates the taint does not": {change: func(w *deviceWorld) {
			w.rank("rank-1", "b")
			w.allocate("b/gpu-0", w.fromTemplate(1)).Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
			w.taint("b/gpu-0", resourceapi.DeviceTaintEffectNoSchedule)
		}, moving: 1},

		// What cannot be told.
		"a template that is gone": {change: func(w *deviceWorld) { w.look.Templates = nil }, moving: 1, left: 1, text: "ResourceClaimTemplate /one does not exist"},
		"a claim that is gone":    {change: func(w *deviceWorld) { w.named(0, "gone") }, moving: 1, left: 1, text: "ResourceClaim /gone does not exist"},
		"a claim of one of two ranks that is gone": {change: func(w *deviceWorld) {
			w.rank("rank-1", "a")
			w.fromTemplate(1)
			w.named(0, "gone")
		}, moving: 2, left: 2, text: "ResourceClaim /gone does not exist"},
		"a claim that is being deleted": {change: func(w *deviceWorld) { w.share("a/gpu-1", "rank-0").DeletionTimestamp = ptr.To(metav1.NewTime(noon)) },
			moving: 1, left: 1, text: "or is being deleted"},
		"a class that is gone":             {change: func(w *deviceWorld) { w.look.Classes = nil }, moving: 1, left: 1, text: "DeviceClass gpu does not exist"},
		"a selector that fails":            {change: func(w *deviceWorld) { w.selects(`device.attributes["gpu.example.com"].model == "x"`) }, moving: 1, left: 1, text: "no such key: model"},
		"a selector that does not compile": {change: func(w *deviceWorld) { w.selects(`device.`) }, moving: 1, left: 1, text: "Syntax error"},
		"an allocation with a node selector that cannot be read": {change: func(w *deviceWorld) {
			w.share("a/gpu-1", "rank-0", "other").Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = "Near"
		}, moving: 1, left: 1, text: `Unsupported value: "Near"`},
		"no time left": {change: func(w *deviceWorld) { w.stopped = true }, moving: 1, left: 1, text: "context canceled"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newDeviceWorld()
			test.change(w)
			s, searched := w.search(t)
			result := s.Result()
			if s.Moving != test.moving || len(s.left) != test.left || result.Passed != (test.text == "") || !strings.Contains(result.Text, test.text) {
				t.Errorf("%d ranks move, %d are left, searched %q: %+v", s.Moving, len(s.left), searched, result)
			}
		})
	}
}

func all(r *resourceapi.ExactDeviceRequest) {
	r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
}

// selects has the claims ask for devices that an expression selects.
func (w *deviceWorld) selects(expression string) {
	w.template(func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	})
}

// share has rank-0 use a claim that has a device and these users.
func (w *deviceWorld) share(device string, users ...string) *resourceapi.ResourceClaim {
	w.named(0, "shared")
	c := w.claim("shared", users...)
	w.allocate(device, c)
	return c
}

// shared leaves one device, of which others use a part, and has the rank ask for 40 GiB of it.
func (w *deviceWorld) shared(used string) {
	w.cordon("c")
	w.publish("b", 1).Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
	r := w.busy("b/gpu-0")
	r.ShareID, r.ConsumedCapacity = ptr.To(types.UID("share")), map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(used)}
	w.template(func(r *resourceapi.ExactDeviceRequest) {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("40Gi")}}
	})
}

// The other devices of the node are tried before other nodes, of which a large cluster has more than one search reads.
func TestTheNodeOfAnIsolatedDeviceIsSearchedFirst(t *testing.T) {
	w := newDeviceWorld()
	w.q.Node = "c"
	w.ranks[0].Spec.NodeName = "c"
	w.look.Claims = nil
	w.allocate("c/gpu-0", w.claim("rank-0-gpu", "rank-0"))
	w.isolate("c/gpu-0")
	if s, searched := w.search(t); searched != "c" || !s.found() {
		t.Errorf("searched %q: %+v", searched, s.Result())
	}
}

// Who moves no rank with a claim needs to know nothing about devices.
func TestDevicesAreNeededOnlyForClaims(t *testing.T) {
	plain := holder("plain", "a", "1")
	w := newDeviceWorld()
	for name, test := range map[string]struct {
		node  string
		ranks []corev1.Pod
		want  bool
	}{
		"a rank with a claim":               {"a", w.ranks, true},
		"a rank without":                    {"a", []corev1.Pod{plain}, false},
		"one of each":                       {"a", []corev1.Pod{plain, w.ranks[0]}, true},
		"a rank with a claim that may stay": {"b", w.ranks, false},
	} {
		w.q.Node = test.node
		if got := NewSearch(w.q, test.ranks, w.nodes, 0, noon).NeedsDevices(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	w.q.Node = "b"
	w.isolate("b/gpu-0")
	if s := NewSearch(w.q, w.ranks, w.nodes, 0, noon); !s.NeedsDevices() {
		t.Error("an isolation needs none")
	}
}

func TestUnknownDevicesAreNoRoom(t *testing.T) {
	w := newDeviceWorld()
	s := NewSearch(w.q, w.ranks, w.nodes, 0, noon)
	s.DevicesUnknown(errors.New("may not be read"))
	for node := range s.Nodes() {
		t.Errorf("searches %s", node.Name)
	}
	if r := s.Result(); r.Passed || r.Reason != "Capacity" || r.RetryAfter != RetryCapacity || r.Text != "it is not known whether devices are free for the resource claims of its ranks: may not be read" {
		t.Errorf("result %+v", r)
	}
	// Without devices no rank seems to move.
	w.isolate("a/gpu-0")
	s = NewSearch(w.q, w.ranks, w.nodes, 0, noon)
	s.DevicesUnknown(errors.New("may not be read"))
	if s.Moving != 0 || s.Result().Passed {
		t.Errorf("%d ranks move: %+v", s.Moving, s.Result())
	}
}

// BenchmarkSearchOfDevices searches devices for 18 ranks of 8 GPUs among 200 nodes, each of which has 7 free.
func BenchmarkSearchOfDevices(b *testing.B) {
	for _, want := range []int64{1, 4, 8} {
		b.Run(fmt.Sprint(want), func(b *testing.B) {
			world := func() *deviceWorld {
				w := newDeviceWorld()
				w.look.Claims, w.ranks, w.nodes = nil, nil, w.nodes[:1]
				w.template(func(r *resourceapi.ExactDeviceRequest) { r.Count = want })
				for i := range 18 {
					w.rank(fmt.Sprint("rank-", i), "a")
					w.allocate("a/gpu-0", w.fromTemplate(i))
				}
				for i := range 200 {
					name := fmt.Sprint("node-", i)
					w.nodes = append(w.nodes, host(name, func(n *corev1.Node) { delete(n.Status.Allocatable, "nvidia.com/gpu") }))
					w.publish(name, 8)
					w.busy(name + "/gpu-3")
					if want < 8 {
						w.busy(name+"/gpu-0", name+"/gpu-1", name+"/gpu-2", name+"/gpu-4", name+"/gpu-5", name+"/gpu-6", name+"/gpu-7")
					}
				}
				return w
			}
			b.ReportAllocs()
			for b.Loop() {
				w := world()
				s := NewSearch(w.q, w.ranks, w.nodes, 0, noon)
				s.UseDevices(w.look)
				for node := range s.Nodes() {
					s.Place(b.Context(), node, nil, w.slices[node.Name])
				}
				if len(s.left) != 18 || s.Unknown() != nil {
					b.Fatal(s.Result())
				}
			}
		})
	}
}
