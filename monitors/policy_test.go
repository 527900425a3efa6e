package monitors

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// TestShippedRuleOfAGPUFault takes the messages from the plugins' own tests: a changed text must not change the rule.
func TestShippedRuleOfAGPUFault(t *testing.T) {
	data, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := policy.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ condition, message, rule string }{
		{conditions.GPUMemoryError, "Replace gpu 0000:12:00: row remapping failed", "gpu-memory"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: the driver asks for a GPU reset", "gpu-memory"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: row remapping pending", "gpu-memory-pending"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: page retirement pending; gpu 0000:13:00: the driver asks to drain and reset", "gpu-memory-pending"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: row remapping pending; gpu 0000:13:00: not read: ECC errors: Unknown Error", "gpu-memory-pending"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: page retirement pending; gpu 0000:12:00: pages retired after double-bit errors", "gpu-memory-pending"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: row remapping pending; gpu 0000:12:00: InfoROM is corrupt", "gpu-memory-pending"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: row remapping pending; gpu 0000:13:00: requires a reset", "gpu-memory"},
		{conditions.GPUMemoryError, "ResetGPU gpu 0000:12:00: row remapping pending; +9 more", "gpu-memory"},
		{conditions.GPUMemoryError, "Reboot driver: a call into it has not returned for 5m0s and cannot be killed", "gpu-memory"},
		{conditions.GPUMemoryError, "Inspect gpu 0000:12:00: InfoROM is corrupt", "gpu-memory-inspect"},
		{conditions.GPUCountMismatch, "Reboot gpu 0000:17:00: gone from the PCI bus", "gpu-count"},
		{conditions.GPUCountMismatch, "Inspect driver: the NVIDIA driver is not loaded", "gpu-count-inspect"},
		{conditions.GPUCountMismatch, "Inspect gpu 0000:16:00: PCIe link is x8 of x16", "gpu-pcie-width"},
		{conditions.GPUCountMismatch, "Inspect gpu 0000:15:00: has no /dev/nvidia5; gpu 0000:16:00: PCIe link is x8 of x16", "gpu-count-inspect"},
		{conditions.GPUOverheated, "Reboot gpu 0000:13:00: at the temperature of its shutdown", "gpu-heat"},
		{conditions.GPUOverheated, "Inspect gpu 0000:13:00: slowed down by heat or power brake", "gpu-heat-inspect"},
		{conditions.NVLinkDown, "ResetGPU gpu 0000:14:00: inactive NVLink 17", "nvlink"},
		{conditions.NVLinkDown, "Inspect gpu 0000:14:00: not registered with its fabric", "nvlink-inspect"},
		{conditions.GPUStalled, "Inspect gpu 0000:14:00: busy for 15m0s without traffic", "gpu-stalled"},
		{conditions.GPUStalled, "Reboot driver: a call into it has not returned for 5m0s and cannot be killed", "gpu-stalled"},
		{conditions.DCGMDiagFailed, "Replace dcgm gpu 1: diag test pcie failed, SRAM errors over the vendor's threshold", "dcgm-diag"},
		{conditions.DCGMDiagFailed, "Inspect dcgm gpu 2: diag test eud failed", "dcgm-diag-inspect"},
	}
	for _, test := range tests {
		c := corev1.NodeCondition{Type: corev1.NodeConditionType(test.condition), Status: corev1.ConditionTrue, Message: test.message}
		if rule, _, ok := shipped.Match(nil, c); !ok || rule.Name != test.rule {
			t.Errorf("%s %q: rule %q, want %q", test.condition, test.message, rule.Name, test.rule)
		}
	}
}
