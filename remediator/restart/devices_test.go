package restart

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

func TestWhichClaimsHoldAnIsolatedDevice(t *testing.T) {
	q := Trigger{
		Kind:    NodeQuarantined,
		Taint:   corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
		Devices: []devices.Device{{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}},
	}
	const exists, equal = resourceapi.DeviceTolerationOpExists, resourceapi.DeviceTolerationOpEqual
	cases := []struct {
		name   string
		change func(*resourceapi.DeviceRequestAllocationResult)
		want   bool
	}{
		{"the device", func(*resourceapi.DeviceRequestAllocationResult) {}, true},
		{"another device", func(r *resourceapi.DeviceRequestAllocationResult) { r.Device = "gpu-2" }, false},
		{"of another pool", func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "m" }, false},
		{"of another driver", func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "x" }, false},
		{"a monitor", func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) }, false},
		{"tolerates all", tolerates(resourceapi.DeviceToleration{Operator: exists}), false},
		{"tolerates the key", tolerates(resourceapi.DeviceToleration{Operator: exists, Key: q.Taint.Key}), false},
		{"tolerates the taint", tolerates(resourceapi.DeviceToleration{Operator: equal, Key: q.Taint.Key, Value: q.Taint.Value}), false},
		{"tolerates another key", tolerates(resourceapi.DeviceToleration{Operator: exists, Key: "x"}), true},
		{"tolerates another value", tolerates(resourceapi.DeviceToleration{Operator: equal, Key: q.Taint.Key, Value: "x"}), true},
		{"tolerates another effect", tolerates(resourceapi.DeviceToleration{Operator: exists, Effect: resourceapi.DeviceTaintEffectNoExecute}), true},
		{"tolerates it for a while", tolerates(resourceapi.DeviceToleration{Operator: exists, TolerationSeconds: ptr.To[int64](9)}), true},
	}
	for _, c := range cases {
		r := resourceapi.DeviceRequestAllocationResult{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-1"}
		c.change(&r)
		claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}},
		}}}
		if got := q.IsHeldBy(claim); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if q.IsHeldBy(&resourceapi.ResourceClaim{}) {
		t.Error("a claim without an allocation holds it")
	}
}

func tolerates(t resourceapi.DeviceToleration) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(r *resourceapi.DeviceRequestAllocationResult) { r.Tolerations = append(r.Tolerations, t) }
}

func TestAJobMayStartAgainOnANodeWithAnIsolatedDevice(t *testing.T) {
	q := Trigger{Kind: NodeQuarantined, Node: "n", Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule}}
	spec := corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "n"}}
	for where, on := range map[string]struct {
		job  Job
		pods []corev1.Pod
	}{
		"pod":      {pods: []corev1.Pod{{Spec: spec}}},
		"template": {job: Job{Templates: []Template{{Spec: spec}}}},
	} {
		q.Devices = nil
		if podsComeBack(q, on.job, on.pods).Reason == "" {
			t.Errorf("a job whose %s is pinned to a quarantined node could start again", where)
		}
		q.Devices = []devices.Device{{Name: "gpu-1"}}
		if why := podsComeBack(q, on.job, on.pods); why.Reason != "" {
			t.Errorf("%s: %s", where, why.Text)
		}
	}
}

// Devices got other names, so that the job holds the one with the fault once more.
func TestAJobIsRestartedAgainForADeviceWithAnotherName(t *testing.T) {
	cause := []Cause{{ID: "q1", Since: noon}}
	pods := []corev1.Pod{rank(corev1.PodSpec{}, noon)}
	for where, rec := range map[string]Record{
		"restarted": {Last: []Restart{{Quarantines: cause}}}, "starting again": {Current: &Restart{Phase: Starting, PhaseSince: noon, Quarantines: cause}},
	} {
		for what, c := range map[string]struct {
			devices []devices.Device
			since   time.Time
			want    Verdict
		}{
			"the same names": {[]devices.Device{{Name: "gpu-1"}}, noon, ReportBlocked},
			"other names":    {[]devices.Device{{Name: "gpu-7"}}, noon.Add(time.Second), StartRestart},
			"the node":       {nil, noon.Add(time.Second), ReportBlocked},
		} {
			q := quarantine
			q.Devices, q.Since = c.devices, c.since
			if got, list := Evaluate(q, jobOf(trainer()), rec, true, pods); got != c.want {
				t.Errorf("%s, %s: %s, %+v", where, what, got, list)
			}
		}
	}
}

func TestALaterNameOfADeviceIsNotedInTheRestart(t *testing.T) {
	r := Restart{}
	r.AddCause(Cause{ID: "q1", Since: noon})
	later := Trigger{Kind: NodeQuarantined, ID: "q1", Devices: []devices.Device{{Name: "gpu-7"}}, Since: noon.Add(time.Second)}
	if r.coversNames(later) {
		t.Error("it covers a name that came later")
	}
	if r.AddCause(CauseOf(later)); !r.coversNames(later) || len(r.Quarantines) != 1 {
		t.Errorf("causes %+v", r.Quarantines)
	}
}
