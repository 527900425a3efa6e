package node

import (
	"reflect"
	"runtime"
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
