package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/reach"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

const devicePolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      isolate: device
      restartJobs: true
    memory:
      match: {condition: GPUMemoryError, repair: [Inspect, Replace]}
      isolate: device
      taint: {effect: NoExecute}
    port:
      match: {condition: HCAPortDown, repair: [Inspect]}
    observed:
      match: {condition: GPUOverheated, repair: [Inspect]}
      isolate: device
      mode: observe
    link:
      match: {condition: NVLinkDown, repair: [Inspect]}
      isolate: device
      for: 5m
    slow-node:
      match: {condition: SlowNode, repair: [Inspect]}
      taint: {effect: PreferNoSchedule}
`

// busOf is the PCI bus number of the n-th GPU in the tests.
func busOf(n int) string { return fmt.Sprintf("0000:%02x:00", 0x1a+n) }

// slice has GPUs of node n, by the numbers of their places on the bus, named by their order as drivers do.
func slice(gpus ...int) resourceapi.ResourceSlice {
	s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: ptr.To("n"), Pool: resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1},
	}}
	for i, n := range gpus {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(busOf(n) + ".0")}, "uuid": {StringValue: ptr.To(fmt.Sprintf("GPU-%d", n))},
		}})
	}
	return s
}

func newDeviceWorld(t *testing.T) *world {
	w := newWorld(t)
	w.policy = policyOf(t, devicePolicy)
	w.devices = &devices.Look{Slices: []resourceapi.ResourceSlice{slice(0, 1, 2, 3)}}
	return w
}

// written is the API server after the rules of the last decision were written.
func written(w *world) {
	if w.devices != nil && w.last.Devices != nil {
		w.devices.Rules = w.last.Devices.Want
	}
}

// settled has the rules written and the node decided again, as the controller does.
func settled(w *world) {
	written(w)
	w.decide()
}

// rulesOf are the rules that exist, in short.
func (w *world) rulesOf() string {
	var all []string
	if w.devices == nil {
		return ""
	}
	for _, r := range w.devices.Rules {
		s := r.Spec.DeviceSelector
		all = append(all, fmt.Sprintf("%s/%s/%s %s=%s:%s", *s.Driver, *s.Pool, *s.Device, r.Spec.Taint.Key, r.Spec.Taint.Value, r.Spec.Taint.Effect))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

const (
	eccTwo    = "ResetGPU gpu 0000:1b:00: Xid 95 x; gpu 0000:1c:00: Xid 95 x"
	eccThree  = "ResetGPU gpu 0000:1b:00: Xid 95 x; gpu 0000:1c:00: Xid 95 x; gpu 0000:1d:00: Xid 95 x"
	ruleOfGPU = "gpu.nvidia.com/n/gpu-%d pitcrew.dev/unhealthy=GPUXidError:NoSchedule"
)

func isolates(w *world) { play(w, gpu(ecc), decide, settled) }

func play(w *world, steps ...step) {
	w.t.Helper()
	for _, s := range steps {
		s(w)
	}
}

// gone is a driver that publishes nothing, partial one that has published a part.
func gone(w *world) { w.devices.Slices = nil }

func partial(w *world) {
	w.devices.Slices[0].Spec.Pool.Generation, w.devices.Slices[0].Spec.Pool.ResourceSliceCount = 2, 2
}

// anotherCard is one at the address of GPU 1.
func anotherCard(w *world) {
	w.devices.Slices[0].Spec.Devices[1].Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: ptr.To("GPU-9")}
}

func publishes(gpus ...int) step {
	return func(w *world) { w.devices.Slices = []resourceapi.ResourceSlice{slice(gpus...)} }
}

func TestIsolation(t *testing.T) {
	unknown := says("GPUXidError", "Unknown", "x")
	memory := func(message string) step { return says("GPUMemoryError", "True", message) }
	links := says("NVLinkDown", "True", "Inspect gpu 0000:1c:00: x; gpu 0000:1d:00: x")
	observed := says("GPUOverheated", "True", "Inspect gpu 0000:1b:00: hot")
	cases := []struct {
		name  string
		steps []step
		// status is the label, taints are those of the node, rules those of its devices.
		status, taints, rules string
		restarts              bool
		said                  string
	}{
		{name: "one GPU of a node", steps: []step{isolates}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "jobs wait for the rules", steps: []step{gpu(ecc), decide, decide}, status: "isolated", said: "DeviceIsolated"},
		{name: "the release", steps: []step{isolates, gpuFine, decide, lasts(11 * time.Minute), written}, status: "healthy", said: "DeviceIsolated DeviceReleased"},
		{name: "two GPUs", steps: []step{gpu(eccTwo), decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU+", "+ruleOfGPU, 1, 2), restarts: true, said: "DeviceIsolated"},
		{name: "a second GPU later", steps: []step{isolates, gpu(eccTwo), decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU+", "+ruleOfGPU, 1, 2), restarts: true, said: "DeviceIsolated DeviceIsolated"},
		{name: "more than maxDevices", steps: []step{gpu(eccThree), decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "NodeQuarantined"},
		{name: "more than maxDevices later", steps: []step{isolates, gpu(eccThree), decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "more than maxDevices with a fault that is not due", steps: []step{isolates, links, decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "more than maxDevices once it is due", steps: []step{isolates, links, decide, lasts(6 * time.Minute), written}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "more than maxDevices with a fault that a person has released", steps: []step{memory("Inspect gpu 0000:1c:00: x; gpu 0000:1d:00: x"), decide, settled, pardoned, decide, settled, gpu(ecc), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated DeviceIsolated"},
		{name: "an error of an application that recurs", steps: []step{memory("Inspect gpu 0000:1b:00: Xid 31 x, recurring with several applications"), decide, settled}},
		{name: "an error of an application beside a fault", steps: []step{gpu("ResetGPU gpu 0000:1b:00: Xid 95 x; gpu 0000:1c:00: Xid 31 x, recurring with several applications"), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "a GPU that could not be read beside a fault", steps: []step{gpu("ResetGPU gpu 0000:1b:00: Xid 95 x; gpu 0000:1c:00: not read: x; driver: not read: x"), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "a reboot is of the node", steps: []step{gpu("Reboot gpu 0000:1b:00: Xid 79 x"), decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "NodeQuarantined"},
		{name: "another subject", steps: []step{gpu("ResetGPU driver: hung; gpu 0000:1b:00: x"), decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "NodeQuarantined"},
		{name: "subjects that are left out", steps: []step{gpu(ecc + "; +2 more"), decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "NodeQuarantined"},
		{name: "a fault of the node beside it", steps: []step{isolates, says("HCAPortDown", "True", "Inspect hca mlx5_3 port 1: down"), decide, settled},
			status: "quarantined", taints: "pitcrew.dev/unhealthy=HCAPortDown:NoSchedule", restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "two rules, one taint", steps: []step{isolates, memory("Replace gpu 0000:1b:00: remap failed"), decide, settled},
			status: "isolated", rules: "gpu.nvidia.com/n/gpu-1 pitcrew.dev/unhealthy=GPUMemoryError:NoExecute", restarts: true, said: "DeviceIsolated DeviceIsolated"},
		{name: "a new name after a reboot", steps: []step{isolates, reboots, publishes(1, 2, 3), beats, decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 0), restarts: true, said: "DeviceIsolated"},
		{name: "a healthy card at the address of a dead one", steps: []step{isolates, reboots, gpuFine, anotherCard, decide, settled}, status: "isolated", said: "DeviceIsolated"},
		{name: "the dead card comes back after another one", steps: []step{isolates, gpuFine, anotherCard, decide, settled, unknown, publishes(0, 1, 2, 3), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "the dead card comes back, and its rule is deleted", steps: []step{isolates, gpuFine, anotherCard, decide, settled, unknown, publishes(0, 1, 2, 3), decide, settled, unruled, decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated TaintRestored"},
		{name: "the driver restarts before the rule of a second GPU is written", steps: []step{isolates, gpu(eccTwo), decide, unknown, publishes(0, 1), decide, decide, publishes(0, 1, 2, 3), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU+", "+ruleOfGPU, 1, 2), restarts: true, said: "DeviceIsolated DeviceIsolated"},
		{name: "another card at the address, and the fault stands", steps: []step{isolates, anotherCard, decide, settled}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "the driver restarts", steps: []step{isolates, gone, lasts(110 * time.Second), publishes(0, 1, 2, 3), decide}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "the driver restarts long after the fault", steps: []step{isolates, lasts(time.Hour), partial, decide, lasts(110 * time.Second)}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "the driver does not come back", steps: []step{isolates, gone, decide, lasts(130 * time.Second), written}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "a fault while the driver restarts", steps: []step{gone, gpu(ecc), decide, lasts(30 * time.Second), publishes(0, 1, 2, 3), decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "blocked:devices-unknown DeviceIsolated"},
		{name: "devices that are never found", steps: []step{gone, gpu(ecc), decide, lasts(130 * time.Second)}, status: "quarantined", taints: gpuTaint, restarts: true, said: "blocked:devices-unknown NodeQuarantined"},
		{name: "slices that cannot be read", steps: []step{func(w *world) { w.devices.SlicesErr = "forbidden" }, gpu(ecc), decide, lasts(130 * time.Second)},
			status: "quarantined", taints: gpuTaint, restarts: true, said: "blocked:devices-unknown NodeQuarantined"},
		{name: "rules that cannot be read for a moment", steps: []step{func(w *world) { w.devices.RulesErr = "forbidden" }, gpu(ecc), decide, func(w *world) { w.devices.RulesErr = "" }, decide, settled},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "blocked:devices-unknown DeviceIsolated"},
		{name: "rules that cannot be written", steps: []step{gpu(ecc), decide, lasts(130 * time.Second)}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "rules that are refused", steps: []step{gpu(ecc), decide, func(w *world) { w.devices.Refused = "forbidden" }, decide}, status: "quarantined", taints: gpuTaint, restarts: true, said: "DeviceIsolated QuarantineUpgraded"},
		{name: "an unknown condition upgrades nothing", steps: []step{isolates, unknown, gone, decide, lasts(time.Hour), written},
			status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "a rule that is deleted is written again once", steps: []step{isolates, unruled, decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated TaintRestored"},
		{name: "a rule that is deleted twice", steps: []step{isolates, unruled, decide, settled, unruled, decide, settled}, status: "suspect", said: "DeviceIsolated TaintRestored ReleaseByHand"},
		{name: "observe", steps: []step{observed, decide, settled}, status: "suspect", said: "blocked:observe-only"},
		{name: "observe, and the fault clears", steps: []step{observed, decide, settled, says("GPUOverheated", "False", ""), decide, written}, said: "blocked:observe-only"},
		{name: "a budget that is used up", steps: []step{others(1), gpu(ecc), decide, settled}, status: "suspect", said: "blocked:budget"},
		{name: "a node to be avoided needs a place", steps: []step{slow, decide, others(1), gpu(ecc), decide, settled}, status: "quarantined",
			taints: "pitcrew.dev/unhealthy=SlowNode:PreferNoSchedule", said: "NodeQuarantined blocked:budget"},
		{name: "a node to be avoided", steps: []step{slow, decide, gpu(ecc), decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "NodeQuarantined DeviceIsolated"},
		{name: "a maintenance leaves the rules", steps: []step{isolates, taints(maintenance), decide, written}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1),
			taints: "pitcrew.dev/maintenance=sweep:NoSchedule", said: "DeviceIsolated"},
		{name: "a restart of the remediator", steps: []step{isolates, func(w *world) { w.seen = seen.Seen{} }, decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated"},
		{name: "a crash before the rules are written", steps: []step{gpu(ecc), decide, func(w *world) { w.seen = seen.Seen{} }, decide, settled}, status: "isolated", rules: fmt.Sprintf(ruleOfGPU, 1), restarts: true, said: "DeviceIsolated TaintRestored"},
		{name: "a forged record", steps: []step{gpu(ecc), decide, func(w *world) { w.seen = seen.Seen{} }, gpuFine, decide, settled}, status: "isolated", said: "DeviceIsolated blocked:record-unconfirmed"},
		{name: "nothing was read", steps: []step{func(w *world) { w.devices = nil }, gpu(ecc), decide}, status: "suspect", said: "blocked:devices-unknown"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newDeviceWorld(t)
			play(w, c.steps...)
			if got := w.node.Labels[conditions.LabelStatus]; got != c.status {
				t.Errorf("status %q, want %q", got, c.status)
			}
			var taints []string
			for _, taint := range w.node.Spec.Taints {
				taints = append(taints, taint.ToString())
			}
			if got := strings.Join(taints, ", "); got != c.taints {
				t.Errorf("taints %q, want %q", got, c.taints)
			}
			if got := w.rulesOf(); got != c.rules {
				t.Errorf("rules %q, want %q", got, c.rules)
			}
			if w.last.RestartJobs != c.restarts {
				t.Errorf("restarts jobs: %v", w.last.RestartJobs)
			}
			if got := strings.Join(w.reasons, " "); got != c.said {
				t.Errorf("said %q, want %q", got, c.said)
			}
		})
	}
}

// Of the catalogue's codes, those that are errors of applications isolate no GPU, and faults of the hardware do.
func TestErrorsOfApplicationsIsolateNoGPU(t *testing.T) {
	isolated, spared := map[string]int{}, map[string]int{}
	for code := range 1000 {
		entry, isKnown := xid.Lookup(code)
		event, isEvent := xid.Parse(fmt.Sprintf("NVRM: Xid (PCI:0000:1b:00): %d, made up", code))
		if !isKnown || !isEvent {
			continue
		}
		var findings []conditions.Finding
		for _, f := range (xid.Case{Events: []xid.Event{event}, Now: time.Hour}).Judge() {
			findings = append(findings, conditions.Finding{Repair: f.Repair, Subject: f.Subject, Text: f.Text})
		}
		message := conditions.Summarize(findings)
		w := newDeviceWorld(t)
		w.policy = policyOf(t, strings.Replace(devicePolicy, "[ResetGPU, Reboot, Replace]", "[Inspect, ResetGPU, Replace]", 1))
		play(w, gpu(message.String()), decide, settled)
		isIsolated, isOfApplication := w.rulesOf() != "", entry.Action == "RESTART_APP" || entry.Action == "IGNORE"
		if want := message.Repair >= conditions.Inspect && message.Repair != conditions.Reboot && !isOfApplication; isIsolated != want {
			t.Errorf("Xid %d, %q: isolated %v, want %v", code, message, isIsolated, want)
		}
		if isIsolated {
			isolated[message.Repair.String()]++
		} else {
			spared[entry.Action]++
		}
	}
	if isolated["Inspect"] < 60 || isolated["ResetGPU"] < 14 || spared["RESTART_APP"] < 48 || spared["IGNORE"] < 20 {
		t.Errorf("isolated by class %v, not isolated by action %v", isolated, spared)
	}
}

// unruled is a person who has deleted the rules.
func unruled(w *world) { w.devices.Rules = nil }

func TestAManualQuarantineOfANodeWithAnIsolatedGPUTaintsTheNode(t *testing.T) {
	w := newDeviceWorld(t)
	isolates(w)
	n, err := QuarantineManually(w.node, Manual{}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if w.node = n; len(n.Spec.Taints) != 1 || w.record().IsIsolated() {
		t.Fatalf("taints %v, record %s", n.Spec.Taints, w.record())
	}
	if play(w, decide, written); w.rulesOf() != "" {
		t.Errorf("rules %s", w.rulesOf())
	}
}

func TestAReleaseByHandReleasesTheDevices(t *testing.T) {
	w := newDeviceWorld(t)
	isolates(w)
	n, err := ReleaseManually(w.node, Manual{}, nil, w.now)
	if err != nil {
		t.Fatal(err)
	}
	w.node = n
	if play(w, decide, settled); w.rulesOf() != "" || w.record().Phase != causes.Released {
		t.Errorf("rules %q, record %s", w.rulesOf(), w.record())
	}
}

func TestAnIsolationUsesUpThePlaceOfANode(t *testing.T) {
	w := newDeviceWorld(t)
	isolates(w)
	peer := peers.Of(w.policy, w.node)
	if !peer.OutOfService || peer.Why != limits.Quarantined || peer.Rule != "gpu" {
		t.Errorf("%+v", peer)
	}
}

func TestDevicesAreReadOnlyForRulesThatIsolateThem(t *testing.T) {
	w := newDeviceWorld(t)
	needs := func() bool { return reach.NeedsDevices(w.policy, w.node, w.record()) }
	if needs() {
		t.Error("read for a healthy node")
	}
	play(w, says("HCAPortDown", "True", "Inspect hca mlx5_3 port 1: down"))
	if needs() {
		t.Error("read for a rule that isolates nothing")
	}
	play(w, gpu(lost))
	if needs() {
		t.Error("read for a node that needs a reboot")
	}
	play(w, gpu(ecc))
	if !needs() {
		t.Error("not read")
	}
	w.node.Labels = map[string]string{conditions.LabelSkip: "true"}
	if needs() {
		t.Error("read for a node that is left alone")
	}
	w.node.Labels = nil
	w.decide()
	if needs() {
		t.Error("read for a node that is quarantined as a whole")
	}
}

// The driver publishes the new names some time after the boot.
func TestDevicesAreReadMoreOftenAfterABoot(t *testing.T) {
	w := newDeviceWorld(t)
	play(w, isolates, lasts(10*time.Minute))
	if got := w.last.RequeueAfter; got <= isolate.Recheck {
		t.Errorf("again after %s although nothing has changed", got)
	}
	if play(w, reboots, beats, decide); w.last.RequeueAfter > isolate.Recheck {
		t.Errorf("again after %s", w.last.RequeueAfter)
	}
}

func TestARecordedUUIDIsNeverReplaced(t *testing.T) {
	w := newDeviceWorld(t)
	play(w, isolates, gpuFine, func(w *world) {
		w.devices.Slices[0].Spec.Devices[1].Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: ptr.To("GPU-9")}
	}, decide, settled)
	if got := w.record().Isolation.GPUs[0].UUID; got != "GPU-1" {
		t.Errorf("UUID %s", got)
	}
}

// Where broken links are told from their consequences, a link is not kept to one GPU.
func TestALinkIsOfTheNode(t *testing.T) {
	for domains, want := range map[string]int{"": 0, "  domains: [{label: nvidia.com/gpu.clique}]\n": 1} {
		w := newDeviceWorld(t)
		w.policy = policyOf(t, strings.Replace(devicePolicy, "  rules:\n", domains+"  rules:\n", 1))
		play(w, gpu("ResetGPU gpu 0000:1b:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"), decide, settled)
		if got := w.node.Spec.Taints; len(got) != want {
			t.Errorf("with %q the taints are %v, the rules %q", domains, got, w.rulesOf())
		}
	}
}

// Another controller may put a taint with the key of the rule on the node. It proves nothing about the quarantine.
func TestATaintOfOthersIsNotThatOfAnIsolation(t *testing.T) {
	w := newDeviceWorld(t)
	w.policy = policyOf(t, strings.Replace(devicePolicy, "{effect: NoExecute}", "{key: example.com/gpu, effect: NoExecute}", 1))
	play(w, says("GPUMemoryError", "True", "Replace gpu 0000:1b:00: remap failed"), decide, settled)
	w.node.Spec.Taints = append(w.node.Spec.Taints, w.record().Taint.NodeTaint())
	if !w.record().IsIsolated() || w.record().IsTainted(w.policy, w.node) {
		t.Errorf("record %s", w.record())
	}
}
