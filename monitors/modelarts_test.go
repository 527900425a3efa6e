package monitors

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/node-problem-detector/pkg/custompluginmonitor"
	"k8s.io/node-problem-detector/pkg/types"
)

func TestModelArtsMonitors(t *testing.T) {
	files, err := filepath.Glob("modelarts/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			config := load(t, file)
			if len(config.Rules) != 1 || len(config.DefaultConditions) != 1 {
				t.Fatalf("%d rules and %d conditions, want one of each", len(config.Rules), len(config.DefaultConditions))
			}
			rule, condition := config.Rules[0], config.DefaultConditions[0]
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			if rule.Type != types.Perm || rule.Condition != name || condition.Type != name || condition.Message != "ok" ||
				!strings.HasPrefix(condition.Reason, "os_task_name:") || rule.Reason != condition.Reason {
				t.Errorf("rule %+v and condition %+v are not in ModelArts' form", rule, condition)
			}
			if rule.Path != installed+config.Source {
				t.Errorf("path %s of source %s", rule.Path, config.Source)
			}
			runs(t, config, config.Source)
		})
	}
}

// TestNPDReportsModelArtsConditions runs NPD's own custom plugin monitor on one of them. Only paths and times are changed.
func TestNPDReportsModelArtsConditions(t *testing.T) {
	const condition = "NT_KUBE_DISK_READONLY_CHECK"
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	mounted := func(how string) {
		write("proc/1/mountinfo", fmt.Sprintf("29 1 8:1 / / rw - ext4 /dev/sda rw\n50 29 8:2 / /mnt/paas/kubernetes/kubelet %s - ext4 /dev/sdb rw\n", how))
	}
	write("proc/sys/kernel/random/boot_id", "boot")
	write("proc/uptime", "86400.00 1.00")
	mounted("rw")
	config := load(t, "modelarts/"+condition+".json")
	config.Rules[0].Path = build(t, config.Source)
	config.Rules[0].Args = append(config.Rules[0].Args, "-procfs", filepath.Join(dir, "proc"), "-state-dir", filepath.Join(dir, "state"))
	second := "1s"
	config.PluginGlobalConfig.InvokeIntervalString = &second
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	write("monitor.json", string(data))
	monitor := custompluginmonitor.NewCustomPluginMonitorOrDie(filepath.Join(dir, "monitor.json"))
	statuses, err := monitor.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Stop()
	until := func(want types.ConditionStatus, message string) {
		t.Helper()
		for deadline := time.After(patience); ; {
			select {
			case status := <-statuses:
				c := status.Conditions[0]
				if c.Type == condition && c.Reason == "os_task_name:disk-readonly-check" && c.Status == want && c.Message == message {
					return
				}
			case <-deadline:
				t.Fatalf("no status %s %q within %s", want, message, patience)
			}
		}
	}
	until(types.False, "ok")
	mounted("ro")
	until(types.True, "Inspect mount /mnt/paas/kubernetes/kubelet: read-only")
	mounted("rw")
	until(types.False, "ok")
}
