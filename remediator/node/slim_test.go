package node

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node/nodetest"
)

func TestAHeartbeatSharesWhatIsEqual(t *testing.T) {
	slimmer := NewSlimmer(2000, nil)
	slim := func(n *corev1.Node) *corev1.Node {
		t.Helper()
		object, err := slimmer.Slim(n.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		return object.(*corev1.Node)
	}
	n := nodetest.Realistic(1)
	first := slim(n)
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(n.Status.Conditions[i].LastHeartbeatTime.Add(time.Minute))
	}
	long := strings.Repeat("x", maxInternedText+1)
	n.Status.Conditions[1].Message = long
	second := slim(n)
	another := slim(nodetest.Realistic(2))
	for what, maps := range map[string][2]any{
		"labels": {first.Labels, second.Labels}, "annotations": {first.Annotations, second.Annotations},
		"resources": {first.Status.Allocatable, second.Status.Allocatable}, "resources of another node": {first.Status.Allocatable, another.Status.Allocatable},
	} {
		if reflect.ValueOf(maps[0]).Pointer() != reflect.ValueOf(maps[1]).Pointer() {
			t.Errorf("equal %s are kept twice", what)
		}
	}
	if diff := cmp.Diff(n.Status.Conditions, second.Status.Conditions); diff != "" {
		t.Errorf("conditions changed: %s", diff)
	}
	third := slim(n)
	if unsafe.StringData(third.Status.Conditions[1].Message) != unsafe.StringData(second.Status.Conditions[1].Message) {
		t.Error("an equal message is kept twice")
	}
	n.Labels["new"] = "label"
	if fourth := slim(n); fourth.Labels["new"] != "label" || third.Labels["new"] != "" {
		t.Errorf("label new is %q, and %q on the version before it", fourth.Labels["new"], third.Labels["new"])
	}
	const gpu = "nvidia.com/gpu"
	n.Annotations["csi.volume.kubernetes.io/nodeid"], n.Status.Allocatable[gpu] = "changed", resource.MustParse("7")
	fifth := slim(n)
	if diff := cmp.Diff(n.Annotations["csi.volume.kubernetes.io/nodeid"], fifth.Annotations["csi.volume.kubernetes.io/nodeid"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(n.Status.Allocatable, fifth.Status.Allocatable); diff != "" {
		t.Error(diff)
	}
	if amount := another.Status.Allocatable[gpu]; amount.Value() != 8 {
		t.Errorf("another node has %s GPUs", amount.String())
	}
	runtime.KeepAlive(first)
}

// Nearly all of a Node its kubelet may write, up to 1.5 MB. What there is no room for is dropped and named, the node is left alone, and our
// records, which come first, are still there for others.
func TestWhatIsKeptOfANodeIsBounded(t *testing.T) {
	const record = "pitcrew.dev/quarantine"
	text := strings.Repeat("x", 60)
	for what, grow := range map[string]func(*corev1.Node){
		"annotation other/whole": func(n *corev1.Node) { n.Annotations["other/whole"] = strings.Repeat("x", 200<<10) },
		"taints": func(n *corev1.Node) {
			n.Spec.Taints = make([]corev1.Taint, 3000)
		},
		"conditions": func(n *corev1.Node) {
			n.Status.Conditions[1].Message = strings.Repeat("x", 1<<20)
		},
		"managed fields": func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			entry := metav1.ManagedFieldsEntry{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)}
			n.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{entry}, 3000)
		},
		"labels": func(n *corev1.Node) {
			for i := range 5000 {
				n.Labels[fmt.Sprint(text, i)] = ""
			}
		},
		"annotations": func(n *corev1.Node) {
			for i := range 5000 {
				n.Annotations[fmt.Sprint(text, i)] = strings.Repeat("x", 200)
			}
		},
		"resources": func(n *corev1.Node) {
			for i := range 5000 {
				n.Status.Allocatable[corev1.ResourceName(fmt.Sprint(text, i))] = resource.MustParse("1")
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			slimmer := NewSlimmer(256, []string{record, "other/whole"})
			n := nodetest.Realistic(1)
			n.Annotations[record] = strings.Repeat("r", 60<<10)
			small, err := slimmer.Slim(n.DeepCopy())
			if err != nil || TooLarge(small.(*corev1.Node)) != "" || Excluded(small.(*corev1.Node)) {
				t.Fatalf("a usual node with a large record: %v, %q", err, TooLarge(small.(*corev1.Node)))
			}
			grow(n)
			once, err := slimmer.Slim(n.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			got := once.(*corev1.Node)
			if size := got.Size(); size > MaxKept {
				t.Errorf("%d bytes are kept", size)
			}
			if want := what + " has no room in the 96 KiB that are kept of a node"; TooLarge(got) != want || WhyExcluded(got) != want {
				t.Errorf("excluded %v, too large: %q, want %q", Excluded(got), TooLarge(got), want)
			}
			if got.Annotations[record] != n.Annotations[record] {
				t.Error("the record is lost")
			}
			twice, err := slimmer.Slim(got.DeepCopy()) // as a cache does with some
			if diff := cmp.Diff(once, twice); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
			again, err := slimmer.Slim(nodetest.Realistic(1))
			if err != nil || TooLarge(again.(*corev1.Node)) != "" {
				t.Errorf("a node that was too large is so for ever: %v, %q", err, TooLarge(again.(*corev1.Node)))
			}
		})
	}
}

// A kubelet may write any text as its boot. Were it kept, each decision would find another one than the record, in which JSON replaces bytes
// that are no UTF-8, and write the record once more.
func TestABootThatNoKernelHasIsNotKnown(t *testing.T) {
	for boot, want := range map[string]string{
		"b1946ac9-2a4c-4d1b-8f0e-000000000001": "b1946ac9-2a4c-4d1b-8f0e-000000000001",
		strings.Repeat("x", 64):                strings.Repeat("x", 64),
		strings.Repeat("x", 65):                "",
		strings.Repeat("x", 1<<20):             "",
		"b1946ac9\xff":                         "",
		"":                                     "",
	} {
		slimmer := NewSlimmer(256, nil)
		n := nodetest.Realistic(1)
		n.Status.NodeInfo.BootID = boot
		slim, err := slimmer.Slim(n)
		if got := slim.(*corev1.Node); err != nil || got.Status.NodeInfo.BootID != want || Excluded(got) {
			t.Errorf("%.40q is kept as %.40q, want %q; excluded: %v, %v", boot, got.Status.NodeInfo.BootID, want, Excluded(got), err)
		}
	}
}

// What many nodes have is kept once. What one node has must not be kept for it when it is gone.
func TestLongListsOfResourcesAreNotInterned(t *testing.T) {
	many := corev1.ResourceList{}
	for i := range maxInternedResources + 1 {
		many[corev1.ResourceName(fmt.Sprint("r", i))] = resource.MustParse("1")
	}
	before := len(resources.known)
	if got := internResources(many); len(got) != len(many) || len(resources.known) != before {
		t.Errorf("%d resources, %d lists were known and %d are", len(got), before, len(resources.known))
	}
}
