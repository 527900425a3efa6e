// Package monitors ties the shipped NPD configurations to the plugins, to the vocabulary and to NPD itself.
package monitors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/node-problem-detector/pkg/custompluginmonitor"
	npdconfig "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
	"k8s.io/node-problem-detector/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// patience is far more than NPD takes to run a plugin.
const patience = 3 * time.Minute

// installed is the folder of the plugins in our images.
const installed = "/opt/pitcrew/bin/"

func TestMain(m *testing.M) {
	// The plugins hold only for a parent of this name; NPD's monitor runs inside this process.
	if err := os.WriteFile("/proc/self/comm", []byte("node-problem-detector"), 0); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// load reads one monitor strictly: NPD itself ignores unknown keys.
func load(t *testing.T, file string) npdconfig.CustomPluginConfig {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config npdconfig.CustomPluginConfig
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&config); err != nil {
		t.Fatal(err)
	}
	return config
}

func files(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("monitors: %q, %v", files, err)
	}
	return files
}

// build compiles the plugin of a monitor.
func build(t *testing.T, plugin string) string {
	t.Helper()
	return npdtest.BuildIn(t, "../plugins/"+plugin)
}

func TestEveryConditionHasAMonitor(t *testing.T) {
	shipped := files(t)
	for _, c := range conditions.All {
		if !slices.Contains(shipped, c.Type+".json") {
			t.Errorf("%s has no monitor", c.Type)
		}
	}
}

func TestEveryMonitor(t *testing.T) {
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			config := load(t, file)
			if len(config.Rules) != 1 || len(config.DefaultConditions) != 1 {
				t.Fatalf("%d rules and %d conditions; one of each, because NPD exports all conditions of a file with every result",
					len(config.Rules), len(config.DefaultConditions))
			}
			rule, condition := config.Rules[0], config.DefaultConditions[0]
			i := slices.IndexFunc(conditions.All, func(c conditions.Condition) bool { return c.Type == condition.Type })
			if i < 0 || file != condition.Type+".json" {
				t.Fatalf("%s is not a condition of Pitcrew, or not of this file", condition.Type)
			}
			want := conditions.All[i]
			if rule.Type != types.Perm || rule.Condition != want.Type || rule.Reason != want.Problem ||
				condition.Reason != want.Healthy || config.Source != cmp.Or(want.Source, want.Plugin) {
				t.Errorf("rule %+v and condition %+v differ from the vocabulary: %+v", rule, condition, want)
			}
			if rule.Path != installed+want.Plugin {
				t.Errorf("path %s, want %s", rule.Path, installed+want.Plugin)
			}
			clears(t, runs(t, config, want.Plugin), rule.Args, want)
		})
	}
}

// clears tests that -clear succeeds exactly for the plugins that latch according to the vocabulary.
func clears(t *testing.T, binary string, args []string, c conditions.Condition) {
	t.Helper()
	empty := t.TempDir()
	// A plugin reads this before it clears, so that it forgets all earlier records.
	logs := map[string][]string{"xid": {"-kmsg", os.DevNull}, "metax": {"-kmsg", os.DevNull}, "podlog": {"-pod-logs", empty}}
	args = slices.Concat(args, logs[c.Plugin], []string{"-state-dir", empty, "-clear"})
	out, err := exec.Command(binary, args...).Output()
	want, wantExit := "nothing to clear\n", 0
	if !c.Latches {
		want, wantExit = "unknown: "+c.Plugin+" latches nothing, so there is nothing to clear\n", int(npd.Unknown)
	}
	exit := 0
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		exit = failed.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if string(out) != want || exit != wantExit {
		t.Errorf("%s %q: exit %d, %s; want exit %d, %s", c.Plugin, args, exit, out, wantExit, want)
	}
}

// runs tests that NPD accepts a monitor, that the plugin accepts its arguments and that their timeouts fit together. It returns the
// plugin's binary.
func runs(t *testing.T, config npdconfig.CustomPluginConfig, plugin string) string {
	t.Helper()
	rule := config.Rules[0]
	rule.Path = build(t, plugin)
	if err := config.ApplyConfiguration(); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	global := config.PluginGlobalConfig
	if *global.Concurrency != 1 || *global.MaxOutputLength != conditions.MaxMessage {
		t.Errorf("concurrency %d, output %d; want 1, %d", *global.Concurrency, *global.MaxOutputLength, conditions.MaxMessage)
	}
	if !*global.SkipInitialStatus {
		t.Error("without skip_initial_status a restarted NPD reports False for a moment")
	}
	if !*global.EnableMessageChangeBasedConditionUpdate {
		t.Error("without the message-change flag the first fault's message never changes")
	}
	// -version is handled after parsing: it fails if an argument is unknown.
	if out, err := exec.Command(rule.Path, append(slices.Clone(rule.Args), "-version")...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", plugin, rule.Args, err, out)
	}
	common := npd.New(plugin, "")
	for _, name := range []string{"hold", "timeout"} {
		if i := slices.Index(rule.Args, "-"+name); i >= 0 {
			if err := common.FlagSet.Set(name, rule.Args[i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A plugin that holds is started again immediately. One that does not hold costs a process each time.
	interval := *global.InvokeInterval
	if common.Hold > 0 && interval != time.Second || common.Hold == 0 && interval < 15*time.Second {
		t.Errorf("interval %s with a hold of %s; want 1s with a hold, at least 15s without", interval, common.Hold)
	}
	if longest := common.Hold + common.Timeout + time.Second; longest >= *global.Timeout {
		t.Errorf("hold + timeout + 1s = %s reaches NPD's timeout %s", longest, *global.Timeout)
	}
	return rule.Path
}

// hca counts the losses that a look sees, and three of them make a port unreliable.
func TestPortsAreLookedAtEverySecond(t *testing.T) {
	args := load(t, "HCAPortDown.json").Rules[0].Args
	i := slices.Index(args, "-every")
	if i < 0 || args[i+1] != "1s" {
		t.Errorf("hca %s: a short loss is not counted", args)
	}
}

// TestNPDRunsTheXidMonitor runs NPD's own custom plugin monitor on the shipped configuration. Only paths are changed.
func TestNPDRunsTheXidMonitor(t *testing.T) {
	dir, binary := t.TempDir(), build(t, "xid")
	kmsg, state := filepath.Join(dir, "kmsg"), filepath.Join(dir, "state")
	if err := syscall.Mkfifo(kmsg, 0o600); err != nil {
		t.Fatal(err)
	}
	// Kept open, so that the next run of the plugin can still read what was written.
	kernel, err := os.OpenFile(kmsg, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	paths := []string{"-kmsg", kmsg, "-state-dir", state}
	config := load(t, conditions.GPUXidError+".json")
	config.Rules[0].Path = binary
	// A short hold keeps the test short. The length of the hold is not under test.
	config.Rules[0].Args = append(append(config.Rules[0].Args, paths...), "-hold", "2s")
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "monitor.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}

	monitor := custompluginmonitor.NewCustomPluginMonitorOrDie(file)
	statuses, err := monitor.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Stop()
	var events []types.Event
	until := func(want types.ConditionStatus, reason, message string) {
		t.Helper()
		for deadline := time.After(patience); ; {
			select {
			case status := <-statuses:
				events = append(events, status.Events...)
				c := status.Conditions[0]
				if c.Type == conditions.GPUXidError && c.Status == want && c.Reason == reason && c.Message == message {
					return
				}
			case <-deadline:
				t.Fatalf("no status %s %s %q within %s", want, reason, message, patience)
			}
		}
	}
	const healthy = "no fault of a GPU in the kernel log of this boot"
	until(types.False, "GPUKernelLogChecked", healthy)
	fmt.Fprintln(kernel, "3,0,1,-;NVRM: Xid (PCI:0000:4e:00): 119, Timeout after 6s of waiting for RPC response from GPU4 GSP!")
	until(types.True, "GPUXidSeen", "ResetGPU gpu 0000:4e:00: Xid 119 GSP RPC timeout")
	fmt.Fprintln(kernel, "3,1,2,-;NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.")
	until(types.True, "GPUXidSeen", "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus")
	if out, err := exec.Command(binary, append(paths, "-clear", "gpu", "0000:4e:00")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until(types.False, "GPUKernelLogChecked", healthy)

	var reasons []string
	for _, e := range events {
		reasons = append(reasons, e.Reason)
		if strings.Contains(e.Message, "MISSING") {
			t.Errorf("NPD mangled the event %q", e.Message)
		}
	}
	if got := strings.Join(reasons, " "); !strings.HasSuffix(got, "GPUXidSeen GPUXidSeen GPUKernelLogChecked") {
		t.Errorf("events %s", got)
	}
}
