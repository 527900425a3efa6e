package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	isolator "github.com/pitcrew-dev/pitcrew/remediator/followers/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// fat is a Node with what a real one has and we do not need.
func fat() *corev1.Node {
	n := slimNode()
	n.Annotations["nfd.node.kubernetes.io/feature-labels"] = strings.Repeat("long,", 1000)
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet"},
		{Manager: "kubectl", Time: n.ManagedFields[0].Time, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}},"f:spec":{"f:unschedulable":{}}}`)},
	}
	n.OwnerReferences = []metav1.OwnerReference{{Name: "machine"}}
	n.Spec.PodCIDR, n.Spec.ProviderID = "10.0.0.0/24", "cloud://1"
	n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	n.Status.NodeInfo.KernelVersion = "6.1"
	return n
}

func slimNode() *corev1.Node {
	now := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", ResourceVersion: "7", CreationTimestamp: now, DeletionTimestamp: &now,
			Labels:      map[string]string{"pool": "gpu"},
			Annotations: map[string]string{conditions.AnnotationQuarantine: "{}", "nfd.node.kubernetes.io/feature-labels": strings.Repeat("x", policy.MaxAnnotation+1)},
			// By whom and when the node was cordoned.
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)}},
		},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}}},
		Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: "GPUXidError", Status: "True", LastHeartbeatTime: now}},
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			NodeInfo:    corev1.NodeSystemInfo{BootID: "b"},
		},
	}
}

// released is a record of a node that a person has released although its fault stands.
func released() *causes.Record {
	at := time.Date(2026, 11, 20, 12, 1, 0, 345e6, time.UTC)
	return &causes.Record{
		V: 1, NodeUID: "u", Boot: causes.Boot{ID: "b", Seen: at},
		Quarantine: causes.Quarantine{
			ID: "0123456789ab", Phase: causes.Released, QuarantinedAt: at, ReleasedAt: at, ReleasedBy: causes.ByPerson, ManualReleaseActive: true,
			Causes: []causes.Cause{{
				Condition: "GPUXidError", Rule: "gpu-xid", Repair: conditions.Reboot, Message: lost, FirstSeen: at, Due: true, BootID: "b",
			}},
			Taint: &causes.Taint{
				Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: "NoSchedule", Rule: "gpu-xid", Repair: conditions.Reboot, Since: at,
			},
		},
	}
}

func TestSlimKeepsWhatIsNeeded(t *testing.T) {
	for name, n := range map[string]*corev1.Node{"a whole node": fat(), "a slim node": slimNode()} {
		got, err := Slim(n)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(slimNode(), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got == any(n) {
			t.Errorf("%s: the transform returned the object itself, which keeps all of it alive", name)
		}
	}
}

func TestSlimKeepsARecordWhole(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	for _, key := range []string{conditions.AnnotationQuarantine, conditions.AnnotationRepair, conditions.AnnotationGPUs, handoff.AWSResults, handoff.AWSQuarantineResult} {
		slim, err := Slim(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: long}}})
		if err != nil || slim.(*corev1.Node).Annotations[key] != long {
			t.Errorf("%s is cut: %v", key, err)
		}
	}
}

func TestSlimPassesTombstones(t *testing.T) {
	tombstone := cache.DeletedFinalStateUnknown{Key: "n"}
	if got, err := Slim(tombstone); got != any(tombstone) || err != nil {
		t.Errorf("Slim = %v, %v", got, err)
	}
}

func TestPatchOfASlimNodeTouchesNothingElse(t *testing.T) {
	before := slimNode()
	after := before.DeepCopy()
	state := quarantine.State{Record: released(), Changes: handoff.Of(after)}
	state.Changes.Taints = append(state.Changes.Taints, corev1.Taint{Key: "b", Effect: corev1.TaintEffectNoSchedule})
	state.Apply(after)
	patch, err := lockedPatch(before).Data(after)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"annotations":{"pitcrew.dev/quarantine":` + quote(t, released().String()) + `},` +
		`"labels":{"pitcrew.dev/repair":"Reboot","pitcrew.dev/status":"suspect"},"resourceVersion":"7"},` +
		`"spec":{"taints":[{"effect":"NoExecute","key":"a","timeAdded":"2026-11-20T12:00:00Z"},{"effect":"NoSchedule","key":"b"}]}}`
	if diff := cmp.Diff(want, string(patch)); diff != "" {
		t.Error(diff)
	}
}

func quote(t *testing.T, s string) string {
	t.Helper()
	quoted, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(quoted)
}

func TestOnlyWhatCanChangeADecisionIsReconciled(t *testing.T) {
	later := metav1.NewTime(time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC))
	tests := map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"nothing": {func(*corev1.Node) {}, false},
		"a heartbeat": {func(n *corev1.Node) {
			n.ResourceVersion = "8"
			n.Status.Conditions[0].LastHeartbeatTime = later
		}, false},
		"a transition time": {func(n *corev1.Node) { n.Status.Conditions[0].LastTransitionTime = later }, false},
		"a status":          {func(n *corev1.Node) { n.Status.Conditions[0].Status = "False" }, true},
		"a reason":          {func(n *corev1.Node) { n.Status.Conditions[0].Reason = "x" }, true},
		"a message":         {func(n *corev1.Node) { n.Status.Conditions[0].Message = "x" }, true},
		"a new condition": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "x"})
		}, true},
		"a condition less":   {func(n *corev1.Node) { n.Status.Conditions = nil }, true},
		"a taint's value":    {func(n *corev1.Node) { n.Spec.Taints[0].Value = "x" }, true},
		"a taint's effect":   {func(n *corev1.Node) { n.Spec.Taints[0].Effect = "NoSchedule" }, true},
		"a taint less":       {func(n *corev1.Node) { n.Spec.Taints = nil }, true},
		"a taint's time":     {func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = &later }, false},
		"a cordon":           {func(n *corev1.Node) { n.Spec.Unschedulable = false }, true},
		"a label":            {func(n *corev1.Node) { n.Labels = map[string]string{"pool": "cpu"} }, true},
		"the record":         {func(n *corev1.Node) { n.Annotations = nil }, true},
		"that of the visits": {func(n *corev1.Node) { n.Annotations[conditions.AnnotationRepair] = "{}" }, true},
		"the boot id":        {func(n *corev1.Node) { n.Status.NodeInfo.BootID = "c" }, true},
		"the deletion":       {func(n *corev1.Node) { n.DeletionTimestamp = nil }, true},
		"another node's uid": {func(n *corev1.Node) { n.UID = "v" }, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			after := slimNode()
			test.change(after)
			if got := changed.Update(event.UpdateEvent{ObjectOld: slimNode(), ObjectNew: after}); got != test.want {
				t.Errorf("reconciled %v, want %v", got, test.want)
			}
		})
	}
}

func TestNodesAreFoundByTheRuleThatQuarantinedThem(t *testing.T) {
	quarantined, released := released(), released()
	quarantined.Phase, quarantined.ManualReleaseActive = causes.Quarantined, false
	for name, test := range map[string]struct {
		annotation string
		want       []string
	}{
		"none":                             {"", nil},
		"released":                         {released.String(), nil},
		"quarantined":                      {quarantined.String(), []string{"", "gpu-xid"}},
		"unreadable, so it proves nothing": {"{", nil},
	} {
		n := slimNode()
		n.Annotations = nil
		if test.annotation != "" {
			n.Annotations = map[string]string{conditions.AnnotationQuarantine: test.annotation}
		}
		if diff := cmp.Diff(test.want, indexNode(n)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestALongValueOfOthersIsNeverTakenForOurs(t *testing.T) {
	for _, value := range []string{"", "true", strings.Repeat("x", policy.MaxAnnotation)} {
		var m handoff.NodeChanges
		put := m.AddHandOff(policy.HandOff{Annotations: map[string]string{"a": value}})
		slim, err := Slim(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": strings.Repeat("x", policy.MaxAnnotation+1)}}})
		if err != nil {
			t.Fatal(err)
		}
		after := handoff.Of(slim.(*corev1.Node))
		if after.RemoveHandOff(put); len(after.Annotations) != 1 {
			t.Errorf("%q was handed off, and what somebody put in its place is gone", value)
		}
	}
}

// A kubelet can make its node as large as it likes. Nothing is decided about one of which the cache shows a part, it is said, and nothing is
// written: a patch would drop the taints that are not shown.
func TestANodeThatIsTooLargeIsLeftAlone(t *testing.T) {
	r := newRig(t, "a")
	n := r.client.nodes[0].DeepCopy()
	for i := range 3000 {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprint("t", i), Effect: corev1.TaintEffectPreferNoSchedule})
	}
	small := r.client.nodes[0]
	slim, err := Slim(n)
	if err != nil {
		t.Fatal(err)
	}
	r.client.nodes[0] = *slim.(*corev1.Node)
	r.reconcile(t, "a")
	if len(r.client.live) > 0 {
		t.Errorf("it is patched: %v", r.client.live)
	}
	select {
	case got := <-r.recorder.Events:
		const want = "Warning QuarantineBlocked too large to judge, so nothing is done about the node: taints has no room in the 96 KiB that are kept of a node"
		if got != want {
			t.Errorf("Event %q", got)
		}
	default:
		t.Error("no Event")
	}
	after := r.client.nodes[0].DeepCopy()
	after.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	if err := r.write(t.Context(), &r.client.nodes[0], after); err == nil {
		t.Error("a patch of it is sent")
	}
	r.client.nodes[0] = small
	if r.reconcile(t, "a"); r.client.live["a"] == nil {
		t.Error("its fault is not seen when it is small again")
	}
}

// Between a decision and its write the policy may be reloaded, and everything be paused without the cache showing it: the decision is not
// written. What it did not know has the node decided anew.
func TestNoDecisionThatStandsNoMoreIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, happens := range map[string]func(r rig) bool{
		"a pause that the cache does not show": func(rig) bool { return true },
		"a policy that observes": func(r rig) bool {
			write(strings.Replace(testPolicy, "mode: enforce", "mode: observe", 1))
			if _, err := r.policy.Reload(); err != nil {
				t.Error(err)
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			write(testPolicy)
			file, err := policy.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, "a", "b")
			r.policy = file
			r.client.pauses = func() (bool, error) { return happens(r), nil }
			if again := r.reconcile(t, "a").RequeueAfter; again != limits.RetryBlocked {
				t.Errorf("again after %s", again)
			}
			if len(r.client.patched) > 0 || len(r.restarts.quarantines) > 0 || len(r.reasons()) > 0 {
				t.Errorf("patched %v, restarted %v", r.client.patched, r.restarts.quarantines)
			}
			// It takes no place of the budget, which is one.
			write(testPolicy)
			if _, err := r.policy.Reload(); err != nil {
				t.Fatal(err)
			}
			r.client.pauses = nil
			r.clock.SetTime(r.clock.Now().Add(livePauseFor))
			r.reconcile(t, "b")
			if !slices.Equal(r.client.patched, []string{"b"}) || len(r.restarts.quarantines) != 1 {
				t.Errorf("patched %v, restarted %v", r.client.patched, r.restarts.quarantines)
			}
		})
	}
}

// Rules for devices are written without a write of the node, too: after a crash between the two, or for new names of devices.
func TestNoRuleForDevicesOfADecisionThatStandsNoMoreIsWritten(t *testing.T) {
	r := newRig(t, "a")
	r.devices = isolator.New(r.client, r.client, nil, false)
	rule := devices.Node{Name: "a", UID: "a"}.Rule("0000:1b:00", devices.Device{Driver: "d", Pool: "a", Name: "gpu-1"}, corev1.Taint{
		Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoExecute,
	})
	want := &causes.DeviceRules{Want: []resourceapi.DeviceTaintRule{rule}}
	r.client.pauses = func() (bool, error) { return true, nil }
	for name, test := range map[string]struct {
		has  []resourceapi.DeviceTaintRule
		want *causes.DeviceRules
		err  error
	}{
		"a rule to write":  {nil, want, errOutdated},
		"a rule to delete": {want.Want, &causes.DeviceRules{}, errOutdated},
		"none":             {want.Want, want, nil},
		"not known":        {nil, nil, nil},
	} {
		by := basis{policy: r.policy.Policy(), devices: &devices.Look{Rules: test.has}}
		d := quarantine.Decision{Devices: test.want}
		if err := r.apply(t.Context(), by, &r.client.nodes[0], d, r.clock.Now()); !errors.Is(err, test.err) {
			t.Errorf("%s: %v, want %v", name, err, test.err)
		}
	}
}

// The API server is asked for the pause at most five times a second, however many nodes are written.
func TestABurstAsksOnceForThePause(t *testing.T) {
	r, asked := newRig(t, "a", "b", "c"), 0
	r.client.pauses = func() (bool, error) { asked++; return false, nil }
	for range 3 {
		if err := r.confirm(t.Context(), basis{policy: r.policy.Policy()}); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	r.clock.SetTime(r.clock.Now().Add(livePauseFor))
	r.client.pauses = func() (bool, error) { return true, nil }
	if err := r.confirm(t.Context(), basis{policy: r.policy.Policy()}); !errors.Is(err, errOutdated) {
		t.Errorf("a new answer: %v", err)
	}
	if err := r.confirm(t.Context(), basis{policy: r.policy.Policy(), paused: "drill"}); err != nil {
		t.Errorf("a decision that knows of the pause: %v", err)
	}
	r.clock.SetTime(r.clock.Now().Add(livePauseFor))
	r.client.pauses = func() (bool, error) { return false, errors.New("connection refused") }
	if err := r.confirm(t.Context(), basis{policy: r.policy.Policy()}); err == nil || errors.Is(err, errOutdated) {
		t.Errorf("no answer: %v", err)
	}
}
