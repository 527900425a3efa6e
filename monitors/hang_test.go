package monitors

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/node-problem-detector/pkg/custompluginmonitor"
	"k8s.io/node-problem-detector/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

// TestAHungDriverDoesNotFreezeNPD runs NPD's own monitor on a plugin whose call into the driver's library sleeps
// uninterruptibly. Such a call in NPD's own process, or in one with NPD's pipes, would block the monitor permanently.
func TestAHungDriverDoesNotFreezeNPD(t *testing.T) {
	t.Parallel()
	node, frozen := nvmltest.NewFor(t, "../plugins/ecc"), npdtest.Freeze(t)
	binary, args := node.Command()
	config := load(t, conditions.GPUMemoryError+".json")
	config.Rules[0].Path = binary
	config.Rules[0].Args = append(append(config.Rules[0].Args, args...), "-timeout", "2s", "-hung-after", "3s", "-every", "1s", "-healthy-every", "0")
	interval := "1s"
	config.PluginGlobalConfig.InvokeIntervalString = &interval
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "monitor.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	monitor := custompluginmonitor.NewCustomPluginMonitorOrDie(file)
	statuses, err := monitor.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		// Otherwise a monitor that is blocked after all could not be stopped.
		frozen.Thaw()
		monitor.Stop()
	}()
	until := func(want types.ConditionStatus, message string) {
		t.Helper()
		for deadline := time.After(patience); ; {
			select {
			case status := <-statuses:
				if c := status.Conditions[0]; c.Status == want && (message == "" || c.Message == message) {
					return
				}
			case <-deadline:
				t.Fatalf("no status %s %q within %s", want, message, patience)
			}
		}
	}
	until(types.False, "no memory fault on any GPU")
	node.Say("write " + filepath.Join(frozen.Dir, "file"))
	until(types.Unknown, "")
	until(types.True, "Reboot driver: a call into it has not returned for 3s and cannot be killed")
	node.Say()
	frozen.Thaw()
	until(types.False, "no memory fault on any GPU")
}

// slowInit is how long nvmlInit may take: on a node with eight GPUs and without persistence mode it starts each of them.
const slowInit = 8 * time.Second

// TestASlowDriverAnswersInTime runs the monitors that use NVML, with their own arguments, where nvmlInit is slow. They run
// side by side, as in NPD.
func TestASlowDriverAnswersInTime(t *testing.T) {
	t.Parallel()
	node := nvmltest.NewFor(t, "../plugins/ecc")
	node.Say(fmt.Sprintf("slow %d", slowInit/time.Second))
	_, own := node.Command()
	var answers sync.WaitGroup
	for _, c := range conditions.All {
		if !slices.Contains([]string{"ecc", "gpucount", "nvlink", "stall", "thermal"}, c.Plugin) {
			continue
		}
		config := load(t, c.Type+".json")
		check := exec.CommandContext(t.Context(), build(t, c.Plugin), append(config.Rules[0].Args, own...)...)
		answers.Go(func() {
			if out, err := check.Output(); err != nil || string(out) != config.DefaultConditions[0].Message+"\n" {
				t.Errorf("%s %q: %s(%v)", c.Type, config.Rules[0].Args, out, err)
			}
		})
	}
	answers.Wait()
}
