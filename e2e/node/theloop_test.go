package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// loopValues are what pages.Loop tell to change, where our images are, and shorter times. The remediator of the tests is not in a pod:
// a reboot of the only node would end it.
const loopValues = `
image: {tag: ` + tag + `, pullPolicy: Never}
npd: {heartbeatPeriod: 1s}
remediator: {nodeSelector: {e2e.pitcrew.dev/none: "true"}}
pools: [{name: gpu, preset: nvidia}]
policy:
  mode: enforce
  repair: {mode: auto, maxPerDay: 400} # of which one node may have a quarter, and these tests have one node
  rules:
    gpu-xid: {clearAfter: 1s}
    dcgm-diag: {clearAfter: 1s}
`

const (
	xid95 = "NVRM: Xid (PCI:" + theGPU + "): 95, pid=4242, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
	// diagReplace is that of a GPU that no reset mends: error 80 is a row that could not be remapped.
	diagReplace = "result 0 2 3 80 row remap failures\n"
	// policyFile is the name of the chart's policy in the folder of the run.
	policyFile = "shipped-policy.yaml"
	// present is the label by which the preset knows nodes with GPUs, and which GPU feature discovery sets.
	present = "nvidia.com/gpu.present"
)

// dcgmFiles are what NVIDIA's packages install, by the folders of the driver's root and of an image.
func dcgmFiles() map[string]string {
	libraries := "usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu/"
	const nvvs = "usr/libexec/datacenter-gpu-manager-4/nvvs"
	return map[string]string{
		"usr/lib64/libdcgm.so.4": libraries + "libdcgm.so.4", "usr/lib64/libdcgmmodulediag.so.4": libraries + "libdcgmmodulediag.so.4",
		nvvs: nvvs,
	}
}

// hide takes files from the driver's root until the end of the test.
func hide(t *testing.T, files ...string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(driverRoot, name)
		if err := os.Rename(path, path+".hidden"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Rename(path+".hidden", path); err != nil {
				t.Error(err)
			}
		})
	}
}

// What the check needs of NVIDIA's files, each in its place: without one, the Job of the chart's template says which, and judges nothing.
func TestACheckNamesThePieceOfDCGMThatIsMissing(t *testing.T) {
	r := startRepairCase(t, repairs("[]"), false)
	var template corev1.PodTemplate
	if err := r.m.Client.Get(t.Context(), client.ObjectKey{Namespace: conditions.RepairNamespace, Name: "check"}, &template); err != nil {
		t.Fatal(err)
	}
	pod := &template.Template.Spec
	pod.ServiceAccountName, pod.DeprecatedServiceAccount = "", "" // they are of another namespace
	const lib, nvvs = "usr/lib64/", "usr/libexec/datacenter-gpu-manager-4/nvvs"
	for i, test := range []struct{ what, hide, variable, want string }{
		{"nothing", "", "", `{"result":"healthy","message":"diagnostics of level 1: the last diag found no fault"`},
		{"library", lib + "libdcgm.so.4", "", "DCGM: no libdcgm.so.4 below /, /host/run/nvidia/driver, /host (see docs/dcgm.md)"},
		{"module", lib + "libdcgmmodulediag.so.4", "", "libdcgmmodulediag.so.4 does not load (see docs/dcgm.md)"},
		{"nvvs", nvvs, "", "DCGM: no program nvvs in /usr/libexec"},
		{"NVVS_BIN_PATH", "", "/none", "DCGM: no program nvvs: stat /none/nvvs: no such file or directory (see docs/dcgm.md)"},
		{"CUDA", lib + "libcuda.so.1", "", "nvvs: error while loading shared libraries: libcuda.so.1: "},
		{"NVML", lib + "libnvidia-ml.so.1", "", `no diag: NVML: libnvidia-ml.so.1 not found"`},
		{"nvidia-smi", "usr/bin/nvidia-smi", "", "libnvidia-ml.so.1 not found; there is no nvidia-smi below /host/run/nvidia/driver and /host"},
	} {
		t.Run(test.what, func(t *testing.T) {
			spec := pod.DeepCopy()
			if test.hide != "" {
				hide(t, test.hide)
			}
			if test.variable != "" {
				spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVVS_BIN_PATH", Value: test.variable}}
			}
			output, code := r.m.run(t, fmt.Sprint("missing-", i), *spec)
			if !strings.Contains(output, test.want) || (code == 0) != (test.what == "nothing") {
				t.Errorf("exit code %d, %s\nwant %s", code, output, test.want)
			}
			report := "/run/pitcrew/dcgm-report.json"
			if err := os.Remove(report); (err == nil) != (test.what == "nothing") {
				t.Errorf("the report: %v", err)
			}
		})
	}
}

// The loop with the chart's templates, default policy and a preset, what pages.Loop show, and the image of docs/dcgm.md: the kubelet
// runs the detectors, the checks, the reset and the reboot. Stand-ins are NVIDIA's files, where its packages have them, and the reboot.
func TestTheLoopAsShippedOnANode(t *testing.T) {
	m := theMachine(t)
	r := &repairCase{T: t, m: m, hardware: m.addHardware(t)}
	m.answer(t, "gpus 1\n")
	m.clock(t, "0")
	t.Cleanup(func() {
		m.answer(t, sickGPU)
		m.clock(t, "0.3")
	})
	r.diagnosis(t, diagPassed)
	image := m.withDCGM(t, slices.Collect(maps.Keys(dcgmFiles()))...)
	m.helm(t, pages.Values(t, m.Root, pages.Loop, image, loopValues), "--force-conflicts") // tests change the template check
	r.label(present + "=true")
	r.label("pool=gpu")                                 // for the sweep of the page
	if err := m.ForgetLimits(t.Context()); err != nil { // the repairs of the other tests would make the node a lemon
		t.Fatal(err)
	}
	r.shipped()
	for _, step := range []struct {
		name string
		run  func(*repairCase)
	}{
		{"a new node", (*repairCase).loopNewNode}, {"a reset under the GPU operator", (*repairCase).loopReset},
		{"a reboot", (*repairCase).loopReboot}, {"sweeps", (*repairCase).loopSweeps},
	} {
		t.Run(step.name, func(t *testing.T) {
			s := *r
			s.T = t
			s.reboots0, s.resets0 = s.counts()
			step.run(&s)
		})
	}
}

// withDCGM makes the image of docs/dcgm.md with some files of DCGM, has the node without them, and returns what the page shows.
func (m *host) withDCGM(t *testing.T, files ...string) (shown string) {
	t.Helper()
	shows := pages.Of(t, m.Root, "dcgm.md")
	name := regexp.MustCompile(`dcgm: {image: "([^"]*)"}`)
	i := slices.IndexFunc(shows, func(s pages.Shown) bool { return name.MatchString(s.Text) })
	if i < 0 {
		t.Fatal("docs/dcgm.md shows no values for the image with DCGM")
	}
	copies := map[string]string{}
	for _, from := range files {
		copies[dcgmFiles()[from]] = filepath.Join(driverRoot, from)
	}
	m.Derive(t, "npd-plugins", name.FindStringSubmatch(shows[i].Text)[1], copies)
	hide(t, files...)
	return shows[i].Text
}

// shipped runs the remediator with the arguments of its Deployment, which has no pods, and with the policy of the chart.
func (r *repairCase) shipped() {
	r.Helper()
	if _, err := r.m.Kubectl(r.Context(), "scale", "deployment", "pitcrew-remediator", "--namespace", namespace, "--replicas=0"); err != nil {
		r.Fatal(err)
	}
	var d appsv1.Deployment
	var policy corev1.ConfigMap
	if err := errors.Join(r.m.Client.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-remediator"}, &d),
		r.m.Client.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-policy"}, &policy)); err != nil {
		r.Fatal(err)
	}
	file := r.m.Write(r.T, policyFile, policy.Data["policy.yaml"])
	args := d.Spec.Template.Spec.Containers[0].Args
	for i := range args {
		args[i] = strings.Replace(args[i], "/etc/pitcrew/policy.yaml", file, 1)
	}
	p, err := r.m.RunRemediator(r.Context(), nil, args...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		p.Kill()
		if r.Failed() {
			r.Log(p.Log())
		}
	})
}

func (r *repairCase) label(label string) {
	r.Helper()
	if _, err := r.m.Kubectl(r.Context(), "label", "--overwrite", "node", machine.NodeName, label); err != nil {
		r.Fatal(err)
	}
}

// inService waits until the node has no taint.
func (r *repairCase) inService() {
	r.Helper()
	clustertest.Until(r, patience, "the node is in service", func() error {
		node := r.node()
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("taints %v, record %s, quarantine %s, Events %q, conditions %v", node.Spec.Taints,
				node.Annotations[conditions.AnnotationRepair], node.Annotations[conditions.AnnotationQuarantine], r.notes(), node.Status.Conditions)
		}
		return nil
	})
}

// loopNewNode: a node joins, and gets no pod before all its detectors have found nothing, and DCGM neither.
func (r *repairCase) loopNewNode() {
	r.m.PowerOff(r.T)
	if err := r.m.Client.Delete(r.Context(), r.node()); err != nil {
		r.Fatal(err)
	}
	pod := r.pod("first", 0)
	r.m.RegisterWithTaint = conditions.TaintUnchecked
	r.Cleanup(func() { r.m.RegisterWithTaint = "" })
	boot := r.m.PowerOn(r.T)
	r.m.UntilBoot(r.T, boot)
	r.label(present + "=true")
	r.label("pool=gpu")
	r.runs(pod)
	r.checked(visit.FirstCheck)
	r.unmarked()
	var pool corev1.ConfigMap
	if err := r.m.Client.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-npd-gpu"}, &pool); err != nil {
		r.Fatal(err)
	}
	if len(pool.Data) < 9 {
		r.Errorf("the preset has %d monitors", len(pool.Data))
	}
	for monitor := range pool.Data {
		r.m.until(r.T, strings.TrimSuffix(monitor, ".json"), corev1.ConditionFalse, "")
	}
	// That check has waited until the GPUs were idle for half a minute. The others need not.
	if _, err := r.m.Kubectl(r.Context(), "patch", "podtemplate", "check", "--namespace", conditions.RepairNamespace, "--type=json", "--patch",
		`[{"op": "replace", "path": "/template/spec/containers/0/args", "value": ["check", "--", "-idle-for=0s"]}]`); err != nil {
		r.Fatal(err)
	}
}

// operands are DaemonSets shaped like those of the GPU operator. All but the driver's have the device open.
const operands = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-OPERAND, namespace: gpu-operator}
spec:
  selector: {matchLabels: {app: OPERAND}}
  template:
    metadata: {labels: {app: OPERAND}}
    spec:
      nodeSelector: {nvidia.com/gpu.deploy.OPERAND: "true"}
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: operand
        image: ghcr.io/pitcrew-dev/preflight:` + tag + `
        imagePullPolicy: Never
        command: [/bin/sh, -c, "exec /bin/busybox sleep 3600 <FILE"]
        volumeMounts: [{name: device, mountPath: /dev/nvidia0}]
      volumes: [{name: device, hostPath: {path: /dev/null}}]
`

// holders counts the processes that have the device open.
func holders(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if target, _ := os.Readlink(file); target == "/dev/nvidia0" { // it may have ended
			n++
		}
	}
	return n
}

// operated runs the operands until the end of the test. The function waits until that many hold the device.
func (r *repairCase) operated() (untilHeld func(want int)) {
	r.Helper()
	if err := r.m.AddNamespace(r.Context(), "gpu-operator", nil); err != nil {
		r.Fatal(err)
	}
	names := []string{"driver", "dcgm-exporter", "device-plugin"}
	var yaml []string
	for _, name := range names {
		file := "/dev/nvidia0"
		if name == "driver" {
			file = "/dev/null"
		}
		r.label("nvidia.com/gpu.deploy." + name + "=true")
		yaml = append(yaml, strings.NewReplacer("OPERAND", name, "FILE", file).Replace(operands))
	}
	if err := r.m.Apply(r.Context(), []byte(strings.Join(yaml, "\n---\n"))); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		for _, name := range names {
			ctx := context.WithoutCancel(r.Context())
			if _, err := r.m.Kubectl(ctx, "delete", "daemonset", "nvidia-"+name, "--namespace=gpu-operator"); err != nil {
				r.Error(err)
			}
		}
	})
	return func(want int) {
		r.Helper()
		clustertest.Until(r, patience, fmt.Sprintf("%d operands hold the device", want), func() error {
			if n := holders(r.T); n != want {
				return fmt.Errorf("%d hold it, labels %v", n, r.node().Labels)
			}
			return nil
		})
	}
}

// loopReset: Xid 95 -> the operands that hold the device leave -> reset -> they are back -> validation -> released.
func (r *repairCase) loopReset() {
	untilHeld := r.operated()
	untilHeld(2)
	gate := filepath.Join(driverRoot, "nvidia-smi.gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		r.Fatal(err)
	}
	open, err := os.OpenFile(gate, os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer open.Close()
	r.m.kernel(r.T, xid95)
	clustertest.Until(r, patience, "a call of nvidia-smi", func() error {
		if _, resets := r.counts(); resets == r.resets0 {
			return fmt.Errorf("none yet, record %s, Events %q", r.record(), r.notes())
		}
		return nil
	})
	if n := holders(r.T); n > 0 {
		r.Errorf("%d processes hold the device while it is reset", n)
	}
	labels := r.node().Labels
	for name, want := range map[string]string{
		"driver": "true", "dcgm-exporter": "paused-for-pitcrew-repair", "device-plugin": "paused-for-pitcrew-repair",
	} {
		if got := labels["nvidia.com/gpu.deploy."+name]; got != want {
			r.Errorf("label %s=%s", name, got)
		}
	}
	if err := os.Remove(gate); err != nil {
		r.Fatal(err)
	}
	if _, err := open.WriteString("go\n"); err != nil {
		r.Fatal(err)
	}
	r.reset(r.T, r.resets0)
	untilHeld(2)
	r.released()
	r.inService()
	r.actions(0, 1)
}

// loopReboot: Xid 79 -> the job goes on elsewhere -> reboot -> a new boot id -> validation -> released.
func (r *repairCase) loopReboot() {
	elsewhere := r.train()
	r.m.kernel(r.T, xid79)
	elsewhere()
	r.rebooted(r.T)
	r.released()
	r.inService()
	r.actions(1, 0)
}

// loopSweeps: one passes, and one finds a fault for which the node is quarantined until its GPU is another one.
func (r *repairCase) loopSweeps() {
	r.addGPUs()
	r.m.pitcrew(r.T, "check", machine.NodeName, "-y")
	r.checked(visit.Sweep)
	r.unmarked()
	r.diagnosis(r.T, diagReplace)
	r.m.pitcrew(r.T, "check", machine.NodeName, "-y")
	r.m.until(r.T, conditions.DCGMDiagFailed, corev1.ConditionTrue, "Replace dcgm gpu 0: ")
	clustertest.Until(r, patience, "the node is quarantined", func() error {
		q, err := causes.RecordOf(r.node())
		if err != nil || q == nil || q.Phase != causes.Quarantined {
			text, _ := json.Marshal(q) // for a message
			return fmt.Errorf("%s, %w", text, err)
		}
		return nil
	})
	r.visit(visit.Sweep, visit.Failed)
	r.waitsForAPerson()
	r.diagnosis(r.T, diagPassed)
	r.m.PowerOff(r.T)
	r.m.UntilBoot(r.T, r.m.PowerOn(r.T))
	r.m.until(r.T, conditions.DCGMDiagFailed, corev1.ConditionFalse, "")
	// Only a person knows that it is another GPU. No pod of the remediator has the policy here.
	r.m.pitcrew(r.T, "release", machine.NodeName, "-y", "-f", filepath.Join(r.m.Dir, policyFile))
	r.inService()
	r.actions(0, 0)
}
