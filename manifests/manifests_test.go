// Package manifests_test checks that the shipped policies do what they are meant to do.
package manifests_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestDefaultPolicy(t *testing.T) {
	file, err := policy.Open("policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := file.Policy()
	tests := map[string]struct{ message, want string }{
		"reset":       {"ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error", "taint, restart"},
		"reboot":      {"Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus; gpu 0000:1b:00: Xid 13 graphics exception", "taint, restart"},
		"replace":     {"Replace gpu 0000:1b:00: remap failed", "taint, restart"},
		"inspect":     {"Inspect gpu 0000:1b:00: Xid 999 unknown", "alert"},
		"drain":       {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset", "taint"},
		"drain two":   {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset; gpu 0000:4e:00: Xid 154 recovery action Drain and Reset", "taint"},
		"drain, gap":  {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset (injected); kernel log: records were overwritten before they could be read", "taint"},
		"drain, more": {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset; gpu 0000:4e:00: Xid 95 uncontained ECC error", "taint, restart"},
		"more, drain": {"ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error; gpu 0000:4e:00: Xid 154 recovery action Drain and Reset", "taint, restart"},
		"drain, cut":  {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset; +3 more", "taint, restart"},
		"gpu reset":   {"ResetGPU gpu 0000:1b:00: Xid 154 recovery action GPU Reset", "taint, restart"},
		"restart app": {"RestartApp gpu 0000:1b:00: Xid 94 contained ECC error", "nothing"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := "nothing"
			if r, _, ok := p.Match(nil, corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: test.message}); ok {
				switch {
				case r.AlertOnly:
					got = "alert"
				case r.RestartJobs:
					got = "taint, restart"
				default:
					got = "taint"
				}
				if want := "pitcrew.dev/unhealthy=GPUXidError:NoSchedule"; !r.AlertOnly && r.Taint.ToString() != want {
					t.Errorf("taint %s, want %s", r.Taint.ToString(), want)
				}
			}
			if got != test.want {
				t.Errorf("%s: %s, want %s", test.message, got, test.want)
			}
		})
	}
}

// All shipped rules fit into one policy, and no rule acts before a user enables it.
func TestShippedRulesFitTogetherAndObserve(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range []string{"policy.yaml", "policy-third-party.yaml"} {
		file, err := policy.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range file.Policy().Rules {
			if seen[r.Name] {
				t.Errorf("%s: rule %s is there twice", path, r.Name)
			}
			seen[r.Name] = true
			if !r.AlertOnly && !r.Observe {
				t.Errorf("%s: rule %s acts on a fresh install", path, r.Name)
			}
		}
	}
}

func TestThirdPartyRules(t *testing.T) {
	file, err := policy.Open("policy-third-party.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		condition corev1.NodeCondition
		rule      string
	}{
		"EKS, lost":           {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "NvidiaXID79Error"}, "eks-accelerated-hardware-ready-lost"},
		"EKS, reset":          {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "NvidiaXID95Error"}, "eks-accelerated-hardware-ready-reset"},
		"EKS, anything else":  {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "NvidiaPageRetirement"}, "eks-accelerated-hardware-ready"},
		"EKS, DCGM":           {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "DCGMError"}, "eks-accelerated-hardware-ready-dcgm"},
		"EKS, NVLink counter": {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "DCGMHealthCode71"}, "eks-accelerated-hardware-ready-dcgm"},
		"EKS, IMEX":           {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "DCGMHealthCode122"}, "eks-accelerated-hardware-ready-dcgm"},
		"EKS, clock":          {corev1.NodeCondition{Type: "ClockUnsynchronized", Status: "True"}, "eks-clock-unsynchronized"},
		"EKS, kernel's clock": {corev1.NodeCondition{Type: "KernelReady", Status: "False", Reason: "ClockUnsynchronized"}, "eks-kernel-ready-clock"},
		"EKS, kernel":         {corev1.NodeCondition{Type: "KernelReady", Status: "False", Reason: "ForkFailedOutOfPIDs"}, "eks-kernel-ready"},
		"NVSentinel, IMEX":    {corev1.NodeCondition{Type: "GpuNvlinkWatch", Status: "True", Message: "ErrorCode:DCGM_FR_IMEX_UNHEALTHY IMEX is down;"}, "nvsentinel-gpu-nvlink-watch-imex"},
		"NVSentinel, IMEX and more": {corev1.NodeCondition{Type: "GpuNvlinkWatch", Status: "True",
			Message: "ErrorCode:DCGM_FR_IMEX_UNHEALTHY;ErrorCode:DCGM_FR_NVLINK_DOWN GPU:0;"}, "nvsentinel-gpu-nvlink-watch"},
		"NVSentinel, scripts":  {corev1.NodeCondition{Type: "FabricManagerDown", Status: "True"}, "nvsentinel-fabric-manager-down"},
		"NVSentinel, NVCRE":    {corev1.NodeCondition{Type: "NVCRECertFailed", Status: "True"}, "nvsentinel-nvcre-cert-failed"},
		"NVSentinel, flaps":    {corev1.NodeCondition{Type: "FabricManagerFlapping", Status: "True"}, "nvsentinel-fabric-manager-flapping"},
		"AMD, ECC":             {corev1.NodeCondition{Type: "AMDGPUUncorrectableECC", Status: "True"}, "amd-gpu-uncorrectable-ecc"},
		"AMD, heat":            {corev1.NodeCondition{Type: "AMDGPUHighTemperature", Status: "True"}, "amd-gpu-high-temperature"},
		"EKS, healthy":         {corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "True"}, ""},
		"ACK":                  {corev1.NodeCondition{Type: "NvidiaXID79Error", Status: "True"}, "ack-nvidia-xid79-error"},
		"ModelArts":            {corev1.NodeCondition{Type: "NT_NPU_CARD_LOSE", Status: "True"}, "modelarts-npu-card-lose"},
		"ModelArts, healthy":   {corev1.NodeCondition{Type: "NT_NPU_CARD_LOSE", Status: "False", Message: "ok"}, ""},
		"NVSentinel, fell off": {corev1.NodeCondition{Type: "SysLogsGPUFallenOff", Status: "True"}, "nvsentinel-sys-logs-gpufallen-off"},
	} {
		if r, _, _ := file.Policy().Match(nil, test.condition); r.Name != test.rule {
			t.Errorf("%s: rule %q, want %q", name, r.Name, test.rule)
		}
	}
	for _, name := range []string{"eks-accelerated-hardware-ready-dcgm", "nvsentinel-gpu-nvlink-watch-imex"} {
		for _, r := range file.Policy().Rules {
			if r.Name == name && !r.AlertOnly {
				t.Errorf("%s acts on a known false alarm", name)
			}
		}
	}
}

// monitorsOfNPD are the configurations that the Node Problem Detector ships, without those for Windows.
func monitorsOfNPD(t *testing.T) (conditions []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(npdModule(t), "config", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		// The configuration for disks is not valid JSON, so no Node Problem Detector can have read it.
		if base := filepath.Base(file); strings.HasPrefix(base, "windows-") || base == "disk-log-message-filelog.json" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var monitor struct{ Conditions []struct{ Type string } }
		if err := json.Unmarshal(data, &monitor); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range monitor.Conditions {
			conditions = append(conditions, c.Type)
		}
	}
	slices.Sort(conditions)
	return slices.Compact(conditions)
}

func npdModule(t *testing.T) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/node-problem-detector").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
}

// The rules for the Node Problem Detector's own conditions are for those that it has, and for all of them.
func TestRulesForStockNPDNameItsConditions(t *testing.T) {
	file, err := policy.Open("policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, r := range file.Policy().Rules {
		if strings.HasPrefix(r.Name, "npd-") {
			ours = append(ours, string(r.Condition))
		}
	}
	slices.Sort(ours)
	if diff := cmp.Diff(monitorsOfNPD(t), ours); diff != "" {
		t.Error(diff)
	}
}

// Detectors must keep running on a tainted node, or it could never be released. docs/handoff.md requires it of our DaemonSets and of
// the stock Node Problem Detector's.
func TestDetectorsTolerateEverything(t *testing.T) {
	stock := filepath.Join(npdModule(t), "deployment", "node-problem-detector.yaml")
	for _, path := range []string{stock, "install.yaml", filepath.Join("existing-npd", "installer.yaml")} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, document := range regexp.MustCompile(`(?m)^---.*$`).Split(string(data), -1) {
			var ds appsv1.DaemonSet
			if err := yaml.Unmarshal([]byte(document), &ds); err != nil || ds.Kind != "DaemonSet" {
				continue
			}
			found++
			for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
				if !slices.ContainsFunc(ds.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool {
					return t.Operator == corev1.TolerationOpExists && t.Key == "" && (t.Effect == effect || t.Effect == "")
				}) {
					t.Errorf("%s: DaemonSet %s does not tolerate every %s", path, ds.Name, effect)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s has no DaemonSet", path)
		}
	}
}
