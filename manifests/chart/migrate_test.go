package chart_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// What konduktor and kcover look for in logs is a condition and an alert with the values that docs/migrate-kcover.md gives, and no taint.
func TestLogTextsOfKonduktorAndKcoverWithTheValuesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/migrate-kcover.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "## Log texts")
	_, after, _ = strings.Cut(after, "```yaml\n")
	values, _, _ := strings.Cut(after, "```")
	objects := mustRender(t, values)
	var monitor struct{ Rules []struct{ Args []string } }
	if err := json.Unmarshal([]byte(find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-npd-gpu").Data["WorkloadGPUError.json"]), &monitor); err != nil {
		t.Fatal(err)
	}
	decides, err := policy.Parse([]byte(policyText(t, objects)))
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./plugins/podlog"); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"RuntimeError: CUDA error: invalid device ordinal":                           "invalid device ordinal",
		"RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled":          "NCCL error",
		"torch.distributed.DistBackendError: ncclRemoteError: A call failed":         "NCCL error of a remote process",
		"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17)": "collective operation timed out",
	} {
		t.Run(want, func(t *testing.T) {
			dir := t.TempDir()
			log := filepath.Join(dir, "pods/team-b_train-0_1b4e28ba-2fa1-11d2-883f-0016d3cca427/main/0.log")
			if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) string {
				t.Helper()
				own := []string{"-pod-logs", filepath.Join(dir, "pods"), "-state-dir", filepath.Join(dir, "state"), "-hold", "0"}
				plugin := exec.CommandContext(t.Context(), filepath.Join(root, "bin/podlog"), append(append(args, own...), "-timeout", "20s")...)
				out, _ := plugin.Output() // the status tells
				return fmt.Sprintf("exit %d\n%s", plugin.ProcessState.ExitCode(), out)
			}
			args := monitor.Rules[0].Args
			if got := run(args...); !strings.HasPrefix(got, "exit 0\n") {
				t.Fatal(got)
			}
			line := time.Now().Format(time.RFC3339Nano) + " stderr F " + text + "\n"
			if err := os.WriteFile(log, []byte(line), 0o644); err != nil {
				t.Fatal(err)
			}
			message, found := strings.CutPrefix(run(args...), "exit 1\n")
			if !found || !strings.Contains(message, "Monitor pod team-b/train-0: "+want) {
				t.Fatalf("podlog %q: %s", args, message)
			}
			condition := corev1.NodeCondition{Type: "WorkloadGPUError", Status: corev1.ConditionTrue, Reason: "WorkloadGPUFault", Message: strings.TrimSpace(message)}
			if rule, class, ok := decides.Match(nil, condition); !ok || !rule.AlertOnly || class.String() != "Monitor" {
				t.Errorf("rule %s, alert only %t, class %s, %t", rule.Name, rule.AlertOnly, class, ok)
			}
		})
	}
}
