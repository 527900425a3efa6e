package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "no GPU is too hot or slowed down"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 2\nunknown: driver: the NVIDIA driver is not loaded", "exit 0\nno NVIDIA GPU",
		[2]string{"exit 2\nunknown: NVML: "})
}

func TestTemperatures(t *testing.T) {
	tests := map[string]struct{ say, first, second string }{
		"core at its maximum":   {"3.temperature 87", "exit 0\n" + healthy, "exit 0\n" + healthy},
		"core over its maximum": {"3.temperature 88", "exit 0\n" + healthy, "exit 1\nInspect gpu 0000:13:00: core over its maximum temperature"},
		"HBM over its maximum":  {"3.hbm 96", "exit 0\n" + healthy, "exit 1\nInspect gpu 0000:13:00: HBM over its maximum temperature"},
		"margin left":           {"3.margin 1", "exit 0\n" + healthy, "exit 0\n" + healthy},
		"no margin":             {"3.margin 0", "exit 0\n" + healthy, "exit 1\nInspect gpu 0000:13:00: no margin left to its temperature limit"},
		"at shutdown": {"3.temperature 92", "exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown",
			"exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown; gpu 0000:13:00: core over its maximum temperature"},
		"margin of shutdown": {"3.margin -8", "exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown",
			"exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown; gpu 0000:13:00: no margin left to its temperature limit"},
		"nothing supported": {"*.temperature -999\n*.hbm -999\n*.margin -999\n*.margin.shutdown -999\n*.max.core -999\n*.max.hbm -999\n" +
			"*.max.shutdown -999\n*.reasons -999\n*.slowed.thermal -999", "exit 0\n" + healthy, "exit 0\n" + healthy},
		"lost, and another hot": {"5.error.nvmlDeviceGetTemperature 15\n3.temperature 93", "exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown; gpu 0000:15:00: not read: GPU is lost",
			"exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown; gpu 0000:13:00: core over its maximum temperature; gpu 0000:15:00: not read: GPU is lost"},
		"no handle": {"5.error 999", "exit 2\nunknown: gpu 0000:15:00: Unable to determine the device handle for GPU: Unknown Error",
			"exit 2\nunknown: gpu 0000:15:00: Unable to determine the device handle for GPU: Unknown Error"},
		"one hangs, another hot": {"5.hang nvmlDeviceGetTemperature\n6.max.shutdown 40",
			"exit 1\nReboot gpu 0000:16:00: at the temperature of its shutdown; gpu 0000:15:00: not read: the calls about it do not return",
			"exit 1\nReboot gpu 0000:16:00: at the temperature of its shutdown; gpu 0000:15:00: not read: the calls about it do not return"},
		"not in NVML":   {"5.hidden 1", "exit 2\nunknown: gpu 0000:15:00: on the PCI bus but not in NVML", "exit 2\nunknown: gpu 0000:15:00: on the PCI bus but not in NVML"},
		"lost":          {"5.error 15", "exit 2\nunknown: gpu 0000:15:00: GPU is lost", "exit 2\nunknown: gpu 0000:15:00: GPU is lost"},
		"needs a reset": {"5.error 16", "exit 2\nunknown: gpu 0000:15:00: requires a reset", "exit 2\nunknown: gpu 0000:15:00: requires a reset"},
		"cannot say":    {"5.error.nvmlDeviceGetTemperature 999", "exit 2\nunknown: gpu 0000:15:00: temperature: Unknown Error", "exit 2\nunknown: gpu 0000:15:00: temperature: Unknown Error"},
	}
	n := nvmltest.New(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			state := n.Path(name)
			n.Say(test.say)
			for _, want := range []string{test.first, test.second} {
				if got := n.Run("-state-dir", state); got != want+"\n" {
					t.Errorf("got\n%swant\n%s", got, want)
				}
				later(t, state, confirmAfter)
			}
		})
	}
}

// later makes all that a state directory remembers older.
func later(t *testing.T, state string, by time.Duration) {
	t.Helper()
	path := filepath.Join(state, "thermal.json")
	var file struct {
		V      int                 `json:"v"`
		BootID string              `json:"bootID"`
		State  map[string][]sample `json:"state"`
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, history := range file.State {
		for i := range history {
			history[i].At -= by
		}
	}
	if data, err = json.Marshal(file); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneLookOverALimitIsAPeak(t *testing.T) {
	n := nvmltest.New(t)
	for _, say := range []string{"3.temperature 88", "3.hbm 96", "3.margin 0"} {
		for range 2 {
			n.Say()
			n.Want("exit 0\n" + healthy)
			later(t, n.State(), confirmAfter)
			n.Say(say)
			n.Want("exit 0\n" + healthy)
			later(t, n.State(), confirmAfter)
		}
	}
}

func TestALookOverALimitMayBeConfirmedByTheNext(t *testing.T) {
	n := nvmltest.New(t)
	for say, want := range map[string]bool{
		"": false, "3.temperature 87": false, "3.temperature 88": true, "3.hbm 96": true, "3.margin 1": false, "3.margin 0": true,
		"3.reasons 4": false, "3.reasons 64": true, "*.margin -999": false,
	} {
		n.Say(say)
		var s snapshot
		if err := json.Unmarshal([]byte(n.Run("-dump")[len("exit 0\n"):]), &s); err != nil {
			t.Fatal(err)
		}
		if got := (&limits{slowedPercent: 10, slowMinutesPercent: 60}).judge(s); len(got.Findings) > 0 || got.Unconfirmed != want {
			t.Errorf("%q: %+v, want unconfirmed %t", say, got, want)
		}
	}
}

// Two monitors, or a person beside one, see one instant twice.
func TestLooksAtOneInstantConfirmNothing(t *testing.T) {
	n := nvmltest.New(t)
	const hot = "exit 1\nInspect gpu 0000:13:00: core over its maximum temperature"
	n.Say("3.temperature 88")
	n.Want("exit 0\n" + healthy)
	n.Want("exit 0\n" + healthy)
	later(t, n.State(), confirmAfter/2)
	n.Want("exit 0\n" + healthy)
	later(t, n.State(), confirmAfter/2)
	n.Want(hot)
	n.Want(hot)
	// A look between that saw it well: two peaks.
	n.Say()
	n.Want("exit 0\n" + healthy)
	n.Say("3.temperature 88")
	n.Want("exit 0\n" + healthy)
}

func TestADumpIsNoLook(t *testing.T) {
	n := nvmltest.New(t)
	n.Say("3.temperature 88")
	dump := n.Run("-dump")
	if !strings.Contains(dump, `"history"`) || !strings.Contains(dump, `"core": 88`) {
		t.Errorf("the dump does not show what is judged:\n%.2000s", dump)
	}
	if _, err := os.Stat(filepath.Join(n.State(), "thermal.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dump is kept as a look: %v", err)
	}
	n.Want("exit 0\n" + healthy)
	later(t, n.State(), confirmAfter)
	n.Say()
	n.Run("-dump")
	n.Say("3.temperature 88")
	n.Want("exit 1\nInspect gpu 0000:13:00: core over its maximum temperature")
}

// SW power cap (bit 2) is how a GPU at work looks; the counters are nanoseconds.
func TestSlowdowns(t *testing.T) {
	n := nvmltest.New(t)
	const slowed = "exit 1\nInspect gpu 0000:13:00: slowed down by heat or power brake"
	n.Say("3.slowed.thermal 5000000000", "*.reasons 4")
	n.Want("exit 0\n" + healthy)
	n.Say("3.slowed.thermal 40000000000", "3.slowed.brake 24999999999")
	n.Want("exit 0\n" + healthy)
	n.Say("3.slowed.thermal 40000000000", "3.slowed.brake 25000000000")
	n.Want(slowed)
	// The driver was loaded again.
	n.Say("3.slowed.thermal 1", "3.slowed.brake 1")
	n.Want("exit 0\n" + healthy)
}

func TestLimitsOfSlowdowns(t *testing.T) {
	n := nvmltest.New(t)
	const slowed = "exit 1\nInspect gpu 0000:13:00: slowed down by heat or power brake"
	// 5 % of the window of 10 minutes.
	n.Want("exit 0\n" + healthy)
	n.Say("3.slowed.thermal 30000000000")
	n.Want("exit 0\n" + healthy)
	n.Want("exit 0\n"+healthy, "-slowed-percent", "5.1")
	n.Want(slowed, "-slowed-percent", "5")
	// One minute of ten, by a driver without the counters.
	n.Say("driver 550.163.01", "3.reasons 8")
	state := []string{"-state-dir", n.Path("flags")}
	n.Want("exit 0\n"+healthy, state...)
	n.Want(slowed, append(state, "-slow-minutes-percent", "10")...)
}

// The numbers of the counters' fields moved twice. Where there are none, or no counters come back, the flags count.
func TestTheSlowdownCountersOfEachDriver(t *testing.T) {
	n := nvmltest.New(t)
	const slowed = "exit 1\nInspect gpu 0000:13:00: slowed down by heat or power brake"
	for _, driver := range []string{"575.51.03", "575.57.08", "580.65.06", "580.76.05", "580.82.07", "580.95.05", "590.44.01"} {
		state := []string{"-state-dir", n.Path(driver)}
		n.Say("driver " + driver)
		n.Want("exit 0\n"+healthy, state...)
		n.Say("driver "+driver, "3.slowed.thermal 40000000000", "3.slowed.brake 25000000000")
		n.Want(slowed, state...)
	}
	for name, say := range map[string]string{
		"before the counters": "driver 575.50.99", "no power smoothing": "driver 550.163.01\n*.smoothing -999", "no version": "driver unknown",
		"version not told":           "error.nvmlSystemGetDriverVersion 999",
		"32 bits":                    "*.slowed.type 1",
		"more time than there was":   "*.slowed.thermal 4000000000000000000\n*.slowed.brake 1",
		"overflows":                  "*.slowed.thermal -1\n*.slowed.brake 2",
		"only one of the two counts": "*.slowed.brake -999",
	} {
		n.Say(say, "3.reasons 8")
		if _, dump, _ := strings.Cut(n.Run("-dump", "-state-dir", n.Path(name)), `"gpus"`); strings.Contains(dump, `"slowed"`) || !strings.Contains(dump, `"slow": true`) {
			t.Errorf("%s: something else is taken for the counters, or the flags are not read:\n%.3000s", name, dump)
		}
	}
}

// A driver that takes a function away says so for a while; the function's successor has the answer.
func TestDeprecatedQuestions(t *testing.T) {
	n := nvmltest.New(t)
	n.Say("*.error.nvmlDeviceGetTemperature 26", "*.error.nvmlDeviceGetCurrentClocksThrottleReasons 26", "*.error.nvmlDeviceGetTemperatureThreshold 26")
	n.Want("exit 0\n" + healthy)
	n.Say("*.error.nvmlDeviceGetTemperature 26", "*.error.nvmlDeviceGetCurrentClocksThrottleReasons 26", "3.temperature 92", "3.reasons 8")
	n.Want("exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown", "-state-dir", n.Path("hot"))
	if dump := n.Run("-dump", "-state-dir", n.Path("slow")); !strings.Contains(dump, `"slow": true`) {
		t.Errorf("the clock events of the successor are not read:\n%s", dump)
	}
	// Its successor says no more, or is not there.
	n.Say("*.error.nvmlDeviceGetTemperature 26", "*.error.nvmlDeviceGetTemperatureV 3")
	n.Want("exit 0\n"+healthy, "-state-dir", n.Path("none"))
}

func TestADriverBefore450(t *testing.T) {
	n := nvmltest.New(t)
	n.Before450()
	n.Want("exit 0\n" + healthy)
	n.Say("3.temperature 92")
	n.Want("exit 1\nReboot gpu 0000:13:00: at the temperature of its shutdown", "-state-dir", n.Path("hot"))
	n.Say("*.error.nvmlDeviceGetTemperature 26", "*.error.nvmlDeviceGetCurrentClocksThrottleReasons 26")
	n.Want("exit 0\n"+healthy, "-state-dir", n.Path("none"))
}

func TestSlowdownsByOlderDrivers(t *testing.T) {
	yes, no := true, false
	var history []sample
	for i := range 21 {
		s := sample{At: time.Duration(i) * 30 * time.Second, Thermal: gpu.Thermal{Slow: &no}}
		if i < 11 { // in 6 minutes: 0 to 5
			s.Thermal.Slow = &yes
		}
		history = append(history, s)
	}
	l := limits{slowMinutesPercent: 60}
	if !l.slowed(history, 10*time.Minute) {
		t.Error("6 of 10 minutes are healthy")
	}
	if l.slowed(history[2:], 10*time.Minute) {
		t.Error("5 of 10 minutes are not healthy")
	}
}

func TestHistoryIsAsLongAsTheWindow(t *testing.T) {
	counter := func(d time.Duration) gpu.Thermal { return gpu.Thermal{Slowed: &d} }
	old := map[string][]sample{
		"a": {{0, counter(1)}, {time.Minute, counter(2)}}, "gone": {{0, counter(1)}},
	}
	reading := gpu.Reading{Uptime: 10*time.Minute + 1, GPUs: []gpu.GPU{{Address: "a", Thermal: &gpu.Thermal{}}, {Address: "lost"}}}
	*reading.GPUs[0].Thermal = counter(2)
	want := map[string][]sample{"a": {{time.Minute, counter(2)}, {10*time.Minute + 1, counter(2)}}}
	if diff := cmp.Diff(want, remember(old, reading, 10*time.Minute)); diff != "" {
		t.Error(diff)
	}
	for range 2 * maxSamples {
		old = remember(old, reading, 10*time.Minute)
	}
	if len(old["a"]) != maxSamples {
		t.Errorf("%d samples", len(old["a"]))
	}
}
