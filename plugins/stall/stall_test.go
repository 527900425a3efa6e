package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "no GPU that is in use stands still"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 2\nunknown: driver: the NVIDIA driver is not loaded", "exit 0\nno NVIDIA GPU",
		[2]string{"exit 2\nunknown: NVML: "})
}

// The built plugin looks every 40 s, and 70 s are too long: three looks that find nothing are no stall yet, four are. The time that a
// look takes comes on top and lowers each rate, so what has to stay over a limit begins at twice the limit or more. TestTheLimits has the
// limits themselves.
const (
	between = 40 * time.Second
	tooLong = "1m10s"
)

var short = []string{"-for", tooLong}

// later makes all that a state directory remembers older.
func later(t *testing.T, state string, by time.Duration) {
	t.Helper()
	path := filepath.Join(state, "stall.json")
	var file struct {
		V      int     `json:"v"`
		BootID string  `json:"bootID"`
		State  history `json:"state"`
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	file.State.At -= by
	for address, c := range file.State.GPUs {
		c.Since -= by
		file.State.GPUs[address] = c
	}
	if data, err = json.Marshal(file); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// energy is what all GPUs use when they draw so many watts until the n-th look.
func energy(n int, watts int) string {
	return fmt.Sprintf("*.energy %d", 1_000_000+n*watts*int(between.Milliseconds()))
}

// hung is a node whose ranks wait for each other, at the n-th look.
func hung(n int) string { return "*.processes 1\n*.utilization 100\n" + energy(n, 120) }

func TestAJobThatStandsStill(t *testing.T) {
	n := nvmltest.New(t)
	look := func(i int, want string, say ...string) {
		t.Helper()
		n.Say(say...)
		n.Want(want, short...)
		if i >= 0 {
			later(t, n.State(), between)
		}
	}
	for i := range 3 {
		look(i, "exit 0\n"+healthy, hung(i))
	}
	all := "exit 1\nInspect "
	for gpu := range 8 {
		all += fmt.Sprintf("gpu 0000:1%d:00: busy for %s without traffic; ", gpu, tooLong)
	}
	all = strings.TrimSuffix(all, "; ")
	look(-1, all, hung(3))
	look(3, all, hung(3)) // the run that follows an answer
	// One rank never came. NVML lists its process; of the others it only knows the memory, as in another PID namespace.
	n2 := nvmltest.New(t)
	one := strings.ReplaceAll(all, "gpu 0000:13:00: busy for "+tooLong+" without traffic", "gpu 0000:13:00: idle for "+tooLong+" while its neighbours wait")
	for i := range 4 {
		n2.Say("3.processes 1\n3.utilization 5", "*.memory 128", "*.utilization 95", energy(i, 120))
		if i == 3 {
			n2.Want(one, short...)
			break
		}
		n2.Want("exit 0\n"+healthy, short...)
		later(t, n2.State(), between)
	}
	// Its processes end.
	look(4, "exit 0\n"+healthy, energy(4, 70))
}

func TestWhatShowsThatAJobGoesOn(t *testing.T) {
	tests := map[string]func(n *nvmltest.Node, i int) string{
		"power":         func(_ *nvmltest.Node, i int) string { return "*.processes 1\n*.utilization 100\n" + energy(i, 1000) },
		"a lower limit": func(_ *nvmltest.Node, i int) string { return "*.power.limit 100000\n" + hung(i) },
		"NVLink sends": func(_ *nvmltest.Node, i int) string {
			return fmt.Sprintf("*.nvlink.sent %d\n", 1000+i*200_000) + hung(i)
		},
		"NVLink receives": func(_ *nvmltest.Node, i int) string {
			return fmt.Sprintf("*.nvlink.received %d\n", 1000+i*200_000) + hung(i)
		},
		"NVLink 5": func(_ *nvmltest.Node, i int) string {
			return fmt.Sprintf("*.architecture 10\n*.nvlink.received %d\n", 1000+i*400_000_000) + hung(i)
		},
		"not busy": func(_ *nvmltest.Node, i int) string {
			return strings.Replace(hung(i), "utilization 100", "utilization 94", 1)
		},
		"no process": func(_ *nvmltest.Node, i int) string {
			return "*.memory 127\n" + strings.Replace(hung(i), "*.processes 1\n", "", 1)
		},
		"an adapter sends": func(n *nvmltest.Node, i int) string { counter(n, "mlx5_7", 1000+i*40_000_000); return hung(i) },
		"a new adapter":    func(n *nvmltest.Node, i int) string { counter(n, fmt.Sprint("mlx5_", i), 1000); return hung(i) },
		"one that resets":  func(n *nvmltest.Node, i int) string { counter(n, "mlx5_0", 1000-i); return hung(i) },
		"energy goes back": func(_ *nvmltest.Node, i int) string { return hung(10 - i) },
		"no energy counts": func(_ *nvmltest.Node, _ int) string { return hung(0) },
		"a reset":          func(_ *nvmltest.Node, i int) string { return fmt.Sprintf("*.nvlink.sent %d\n", 1000-i) + hung(i) },
	}
	n := nvmltest.New(t)
	for name, say := range tests {
		t.Run(name, func(t *testing.T) {
			state := n.Path("state of " + name)
			if err := os.RemoveAll(n.Path("sys/class/infiniband")); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				n.Say(say(n, i))
				if got := n.Run("-for", tooLong, "-state-dir", state); got != "exit 0\n"+healthy+"\n" {
					t.Errorf("look %d: %s", i, got)
				}
				later(t, state, between)
			}
		})
	}
}

func counter(n *nvmltest.Node, adapter string, value any) {
	n.Write("sys/class/infiniband/"+adapter+"/ports/1/counters/port_xmit_data", fmt.Sprintln(value))
}

// Little data is none: the keep-alives of a filesystem, and what NVML itself asks.
func TestLittleDataIsNone(t *testing.T) {
	for name, flags := range map[string][]string{"the default": nil, "less than -traffic": {"-traffic", "0.5"}, "more": {"-traffic", "0.1"}} {
		n := nvmltest.New(t)
		for i := range 4 {
			// 0.4 MB/s on the links, and 0.4 MB/s on two adapters together.
			n.Say(hung(i), fmt.Sprintf("*.nvlink.sent %d", 1000+i*15_625))
			counter(n, "mlx5_0", 5+i*2_000_000)
			counter(n, "mlx5_1", 5+i*2_000_000)
			want := "exit 0"
			if name != "more" && i == 3 {
				want = "exit 1"
			}
			if got, _, _ := strings.Cut(n.Run(append(flags, short...)...), "\n"); got != want {
				t.Errorf("%s, look %d: %s, want %s", name, i, got, want)
			}
			later(t, n.State(), between)
		}
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	const here = "gpu 0000:13:00: "
	tests := map[string]struct{ say, want string }{
		"no NVLink counters":     {"3.nvlink.sent -999\n3.nvlink.received -999", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"only what it sent":      {"3.nvlink.received -999", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"only what it received":  {"3.nvlink.sent -999", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"a link, only sent":      {"3.architecture 10\n3.nvlink.received -999", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"a link, only received":  {"3.architecture 10\n3.nvlink.sent -999", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"counters of 32 bits":    {"3.nvlink.type 1", here + "no NVLink counters of 64 bits, and no others show what it sends"},
		"one that fails":         {"3.error.nvmlDeviceGetFieldValues 999", here + "field values: Unknown Error"},
		"no energy":              {"3.energy -999", here + "no energy counter"},
		"no power limit":         {"3.power.limit -999", here + "no power limit"},
		"a limit of nothing":     {"3.power.limit 0", here + "no power limit"},
		"no utilization":         {"3.utilization -999", here + "no utilization"},
		"MIG":                    {"3.mig 1\n3.utilization -999", here + "not judged in MIG mode"},
		"MIG mode unread":        {"3.error.nvmlDeviceGetMigMode 999", here + "MIG mode: Unknown Error"},
		"not known if in use":    {"3.processes -999\n3.memory -999", here + "not known whether it is in use"},
		"processes fail":         {"3.error.nvmlDeviceGetComputeRunningProcesses_v3 999", here + "processes: Unknown Error"},
		"lost":                   {"3.error 15", here + "GPU is lost"},
		"lost while asked":       {"3.error.nvmlDeviceGetEnforcedPowerLimit 15", here + "GPU is lost"},
		"no handle":              {"3.error 999", here + "Unable to determine the device handle for GPU: Unknown Error"},
		"one hangs":              {"3.hang nvmlDeviceGetTotalEnergyConsumption", here + "the calls about it do not return"},
		"not in NVML":            {"3.hidden 1", here + "on the PCI bus but not in NVML"},
		"in use by memory alone": {"3.processes -999\n3.memory 128\n3.energy -999", here + "no energy counter"},
	}
	n := nvmltest.New(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.Say(test.say, hung(0))
			if got := n.Run("-state-dir", n.Path(name)); got != "exit 2\nunknown: "+test.want+"\n" {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	// Of a GPU that is not in use nothing has to be known.
	for name, say := range map[string]string{
		"MIG": "*.mig 1\n*.utilization -999", "a PCIe card": "*.nvlink.sent -999\n*.nvlink.received -999", "an old GPU": "*.energy -999\n*.power.limit -999",
		"MIG without a list of processes": "*.mig 1\n*.processes -999",
	} {
		n.Say(say)
		if got := n.Run("-state-dir", n.Path("free "+name)); got != "exit 0\n"+healthy+"\n" {
			t.Errorf("%s: %s", name, got)
		}
	}
	// What one look cannot read hides no other GPU.
	for i := range 4 {
		n.Say("3.hidden 1", hung(i), "4.utilization 50")
		got := n.Run("-for", tooLong)
		if i == 3 && (!strings.HasPrefix(got, "exit 1\nInspect gpu 0000:10:00: busy for "+tooLong+" without traffic; ") || !strings.Contains(got, "gpu 0000:13:00: not read: on the PCI bus but not in NVML")) {
			t.Error(got)
		}
		later(t, n.State(), between)
	}
}

func TestAdaptersThatCannotBeRead(t *testing.T) {
	n := nvmltest.New(t)
	for name, test := range map[string]struct {
		write func()
		want  string
	}{
		"EFA": {func() { n.Write("sys/class/infiniband/rdma/ports/1/hw_counters/tx_bytes", "1\n") },
			"hca rdma port 1: port_xmit_data: no such file or directory"},
		"saturated": {func() { counter(n, "rdma", uint64(1<<32-1)) }, "hca rdma port 1: port_xmit_data: a counter of 32 bits at its end"},
		"no PMA": {func() { counter(n, "rdma", "N/A (no PMA)") },
			"hca rdma port 1: port_xmit_data: strconv.ParseUint: parsing \"N/A (no PMA)\": invalid syntax"},
		"hangs": {func() {
			counter(n, "rdma", 0)
			file := n.Path("sys/class/infiniband/rdma/ports/1/counters/port_xmit_data")
			if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "hca rdma port 1: port_xmit_data: did not answer in time"},
		"no ports": {func() { n.Write("sys/class/infiniband/rdma/ports", "") }, "hca rdma port ?: list of its ports: not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(n.Path("sys/class/infiniband")); err != nil {
				t.Fatal(err)
			}
			test.write()
			state := n.Path(name)
			for i := range 4 {
				n.Say(hung(i))
				if got := n.Run("-for", tooLong, "-state-dir", state); got != "exit 2\nunknown: "+test.want+"\n" {
					t.Errorf("look %d: %s, want %s", i, got, test.want)
				}
				later(t, state, between)
			}
			n.Say()
			n.Want("exit 0\n" + healthy)
		})
	}
	if err := os.RemoveAll(n.Path("sys/class/infiniband")); err != nil {
		t.Fatal(err)
	}
	n.Write("sys/class/infiniband", "")
	n.Want("exit 2\nunknown: list the RDMA adapters: open " + n.Path("sys/class/infiniband") + ": not a directory")
}

// Counters that never counted anything are no evidence.
func TestNVLinksThatNeverCarriedAnything(t *testing.T) {
	n := nvmltest.New(t)
	for i := range 4 {
		n.Say("*.nvlink.sent 0\n*.nvlink.received 0\n0.processes 1\n0.utilization 100", energy(i, 120))
		want := "exit 0\n" + healthy
		if i == 3 {
			want = "exit 2\nunknown: gpu 0000:10:00: busy at low power, but its NVLink counters have never counted anything"
		}
		n.Want(want, short...)
		later(t, n.State(), between)
	}
}

func TestADriverBefore450(t *testing.T) {
	n := nvmltest.New(t)
	n.Before450()
	n.Want("exit 0\n" + healthy)
	// It has no field values, and so no counters of links.
	n.Say("2.processes 1")
	n.Want("exit 2\nunknown: gpu 0000:12:00: no NVLink counters of 64 bits, and no others show what it sends")
}

func TestADumpIsNoLook(t *testing.T) {
	n := nvmltest.New(t)
	for i := range 3 {
		n.Say(hung(i))
		n.Want("exit 0\n"+healthy, short...)
		later(t, n.State(), between)
	}
	before, err := os.ReadFile(filepath.Join(n.State(), "stall.json"))
	if err != nil {
		t.Fatal(err)
	}
	n.Say(hung(3))
	dump := n.Run("-dump")
	if after, err := os.ReadFile(filepath.Join(n.State(), "stall.json")); err != nil || string(after) != string(before) {
		t.Errorf("the dump changed the state: %v\n%s", err, after)
	}
	n.Write("dump.json", strings.TrimPrefix(dump, "exit 0\n"))
	if got := n.Run("-snapshot", n.Path("dump.json"), "-for", tooLong); !strings.HasPrefix(got, "exit 1\nInspect gpu 0000:10:00: busy for "+tooLong+" without traffic;") {
		t.Errorf("the dump is judged otherwise than the node: %s\n%.1000s", got, dump)
	}
}

func TestAStateThatNobodyLeft(t *testing.T) {
	n := nvmltest.New(t)
	path := filepath.Join(n.State(), "stall.json")
	for i := range 3 {
		n.Say(hung(i))
		n.Want("exit 0\n"+healthy, short...)
		later(t, n.State(), between)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n.Say(hung(3))
	for name, bad := range map[string]string{
		"cut": string(good[:len(good)/2]), "empty": "", "another form": `{"v":1,"bootID":"x","state":{"at":"soon"}}`,
		"another boot": strings.Replace(string(good), `"bootID":"`, `"bootID":"0`, 1), "another state": strings.ReplaceAll(string(good), "waiting", "stuck"),
		"before the boot": strings.ReplaceAll(string(good), `"since":`, `"since":-`),
	} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := n.Run(short...); got != "exit 0\n"+healthy+"\n" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := n.Run(short...); !strings.HasPrefix(got, "exit 1\n") {
		t.Errorf("the good state: %s", got)
	}
}

func TestAStateThatCannotBeKept(t *testing.T) {
	n := nvmltest.New(t)
	n.Write("state/stall.json.lock/file", "")
	if got := n.Run("-state-dir", n.Path("state")); !strings.HasPrefix(got, "exit 2\nunknown: state: not kept between runs: ") {
		t.Error(got)
	}
}

func TestFlagsChangeWhatIsJudged(t *testing.T) {
	n := nvmltest.New(t)
	for i := range 4 {
		n.Say("*.processes 1\n*.utilization 60", energy(i, 500))
		got := n.Run("-for", tooLong, "-busy-percent", "60", "-power-percent", "90")
		if i == 3 && !strings.HasPrefix(got, "exit 1\n") {
			t.Errorf("the flags have no effect: %s", got)
		}
		later(t, n.State(), between)
	}
}

// world is a node with eight GPUs whose looks are a minute apart.
type world struct {
	at      time.Duration
	history history
	s       snapshot
}

func newWorld() *world {
	w := &world{at: time.Hour}
	w.s = snapshot{Reading: gpu.Reading{Module: "nvidia 580.95.05", Bus: make([]gpu.BusDevice, 8)}}
	for i := range 8 {
		held, busy, used, limit, data := true, 100, uint64(1e6), uint64(700_000), uint64(1e9)
		w.s.GPUs = append(w.s.GPUs, gpu.GPU{Address: fmt.Sprintf("0000:1%d:00", i), Work: &gpu.Work{Held: &held, Busy: &busy, Energy: &used, PowerLimit: &limit, NVLink: &data}})
		w.s.Ports = append(w.s.Ports, port{Adapter: fmt.Sprint("mlx5_", i), Number: "1", Sent: 1e9})
	}
	return w
}

var byDefault = &limits{For: 15 * time.Minute, BusyPercent: 95, PowerPercent: 40, Traffic: 1}

// look lets time pass, in which each GPU draws so many watts, and looks.
func (w *world) look(pause time.Duration, watts uint64) npd.Result {
	w.at += pause
	for _, g := range w.s.GPUs {
		*g.Work.Energy += watts * uint64(pause.Milliseconds())
	}
	w.s.Uptime = w.at
	w.history, _ = byDefault.next(w.history, w.s)
	w.s.History = w.history
	return byDefault.judge(w.s)
}

// until returns after how many looks, a minute apart, there is a finding; -1 for none in an hour. Before each of them change is called.
func (w *world) until(watts uint64, change func(minute int)) int {
	for minute := range 60 {
		change(minute)
		if len(w.look(time.Minute, watts).Findings) > 0 {
			return minute
		}
	}
	return -1
}

func TestAStallIsNamedAfterItsTimeAndOneLook(t *testing.T) {
	w := newWorld()
	w.look(time.Minute, 500)
	if got := w.until(120, func(int) {}); got != 15 {
		t.Errorf("after %d looks", got)
	}
}

// Power and traffic at their limits show that a job goes on; utilization at its limit is busy.
func TestTheLimits(t *testing.T) {
	for name, test := range map[string]struct {
		watts, sent, data uint64
		busy, want        int
	}{
		"power at its limit":    {watts: 280, busy: 100, want: -1},
		"power below it":        {watts: 279, busy: 100, want: 15},
		"NVLink at its limit":   {watts: 120, busy: 100, data: 60e6, want: -1},
		"NVLink below it":       {watts: 120, busy: 100, data: 60e6 - 1, want: 15},
		"adapters at the limit": {watts: 120, busy: 100, sent: 15e6, want: -1},
		"adapters below it":     {watts: 120, busy: 100, sent: 15e6 - 1, want: 15},
		"busy at its limit":     {watts: 120, busy: 95, want: 15},
		"busy below it":         {watts: 120, busy: 94, want: -1},
	} {
		w := newWorld()
		w.look(time.Minute, 500)
		got := w.until(test.watts, func(int) {
			for _, g := range w.s.GPUs {
				*g.Work.NVLink += test.data
				*g.Work.Busy = test.busy
			}
			w.s.Ports[0].Sent += test.sent
		})
		if got != test.want {
			t.Errorf("%s: found after %d looks, want %d", name, got, test.want)
		}
	}
}

func TestWhatStartsAnew(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world)
		want   int
	}{
		"nothing":          {func(*world) {}, 15},
		"a step of a job":  {func(w *world) { *w.s.GPUs[0].Work.NVLink += 1e9 }, 15}, // the others still wait
		"a long pause":     {func(w *world) { w.at += 4*time.Minute + 1 }, 27},
		"one not so long":  {func(w *world) { w.at += 4 * time.Minute }, 11},
		"another driver":   {func(w *world) { w.s.Module = "nvidia 590.1" }, 27},
		"an adapter gone":  {func(w *world) { w.s.Ports = w.s.Ports[1:] }, 27},
		"an adapter works": {func(w *world) { w.s.Ports[3].Sent += 1e9 }, 27},
		"a time to come": {func(w *world) {
			for address, c := range w.history.GPUs {
				c.Since = w.at + time.Hour
				w.history.GPUs[address] = c
			}
		}, 27},
		"clock jumps back": {func(w *world) { w.at -= 10 * time.Minute }, 27},
	} {
		w := newWorld()
		w.look(time.Minute, 500)
		got := w.until(120, func(minute int) {
			if minute == 11 {
				test.change(w)
			}
		})
		if got != test.want {
			t.Errorf("%s: found after %d looks, want %d", name, got, test.want)
		}
	}
	// A GPU that is free for one look, in another mode or not read.
	for name, change := range map[string]func(g *gpu.GPU, back bool){
		"free":      func(g *gpu.GPU, back bool) { *g.Work.Held = back },
		"MIG":       func(g *gpu.GPU, back bool) { g.MIG = !back },
		"not read":  func(g *gpu.GPU, back bool) { g.NeedsReset = !back },
		"not busy":  func(g *gpu.GPU, back bool) { *g.Work.Busy = map[bool]int{true: 100, false: 94}[back] },
		"idle":      func(g *gpu.GPU, back bool) { *g.Work.Busy = map[bool]int{true: 100, false: 0}[back] },
		"back to 0": func(g *gpu.GPU, back bool) { *g.Work.NVLink -= map[bool]uint64{false: 1e6}[back] },
		"other node": func(g *gpu.GPU, back bool) {
			g.Address = map[bool]string{true: "0000:10:00", false: "0000:99:00"}[back]
		},
	} {
		w := newWorld()
		w.s.GPUs = w.s.GPUs[:1]
		w.look(time.Minute, 120)
		got := w.until(120, func(minute int) {
			if minute == 11 || minute == 12 {
				change(&w.s.GPUs[0], minute == 12)
			}
		})
		if got < 27 || got > 28 {
			t.Errorf("%s: found after %d looks, want 27 or 28", name, got)
		}
	}
}

// Even where the difference of 64 bits is small.
func TestACounterThatWentBack(t *testing.T) {
	const most = math.MaxUint64 - 10
	w := newWorld()
	*w.s.GPUs[0].Work.NVLink, *w.s.GPUs[0].Work.Energy = 5, 2e9
	if got := byDefault.state(*w.s.GPUs[0].Work, counters{NVLink: most, Energy: 1e9}, time.Hour); got != "" {
		t.Errorf("NVLink: %s", got)
	}
	if got := byDefault.state(*w.s.GPUs[0].Work, counters{NVLink: 4, Energy: 1e9}, time.Hour); got != waiting {
		t.Errorf("NVLink that goes on: %q", got)
	}
	if byDefault.quietPorts(map[string]uint64{"a": most}, map[string]uint64{"a": 5}, time.Minute) {
		t.Error("an adapter")
	}
	if byDefault.quietPorts(map[string]uint64{"a": 5}, map[string]uint64{"b": 5}, time.Minute) {
		t.Error("another adapter in its place")
	}
}

func TestTwoLooksAtOneInstant(t *testing.T) {
	w := newWorld()
	for range 20 {
		w.look(time.Minute, 120)
	}
	before := w.history
	if r := w.look(shortest-1, 0); len(r.Findings) != 8 {
		t.Errorf("the second look takes the finding back: %+v", r)
	}
	if diff := cmp.Diff(before, w.history); diff != "" {
		t.Error(diff)
	}
	*w.s.GPUs[0].Work.Held = false
	if r := w.look(0, 0); len(r.Findings) != 7 {
		t.Errorf("a free GPU is reported: %+v", r)
	}
}

// A slow look reads the counters long after it has taken its time. The next one finds that they have grown little.
func TestALookAfterASlowOne(t *testing.T) {
	const slow = 8 * time.Second
	for pause := time.Second; pause < 2*time.Minute; pause += time.Second {
		w := newWorld()
		w.look(time.Minute, 120)
		before := w.history.At
		w.at += min(slow, pause)
		if w.look(max(pause-slow, 0), 450); w.history.At == before {
			continue
		}
		for address, c := range w.history.GPUs {
			if c.State != "" {
				t.Errorf("after %s: %s is %s at 64 %% of its power limit", pause, address, c.State)
			}
		}
	}
}

func TestIdleGPUs(t *testing.T) {
	for idlers, want := range map[int]int{0: 8, 1: 8, 3: 8, 4: 4, 5: 3, 8: 0} {
		w := newWorld()
		for i := range idlers {
			*w.s.GPUs[i].Work.Busy = 0
		}
		var r npd.Result
		for range 20 {
			r = w.look(time.Minute, 120)
		}
		if len(r.Findings) != want {
			t.Errorf("%d of 8 are idle: %+v, want %d findings", idlers, r.Findings, want)
		}
		for _, f := range r.Findings {
			if f.Repair != conditions.Inspect {
				t.Errorf("%+v: a tainting class", f)
			}
		}
	}
}

// The idle one must have been idle for as long.
func TestAGPUThatIsIdleForAMoment(t *testing.T) {
	w := newWorld()
	for range 20 {
		w.look(time.Minute, 120)
	}
	*w.s.GPUs[3].Work.Busy = 0
	for minute := range 16 {
		want := 7
		if minute == 15 {
			want = 8
		}
		if r := w.look(time.Minute, 120); len(r.Findings) != want {
			t.Errorf("idle for %d minutes: %+v, want %d findings", minute, r.Findings, want)
		}
	}
}

// A day of a training job with steps, checkpoints, evaluations and pauses between jobs.
func TestADayWithoutAFalseAlarm(t *testing.T) {
	w := newWorld()
	for minute := range 24 * 60 {
		watts, busy, data := uint64(600), 100, uint64(1e12)
		switch phase := minute % 60; {
		case phase < 14: // a checkpoint that takes long: all wait at a barrier
			watts, data = 130, 0
		case phase < 20: // the input starves the GPUs
			watts, busy = 200, 60
		case phase > 55: // evaluation on each GPU by itself
			watts, data = 450, 0
		}
		for i, g := range w.s.GPUs {
			*g.Work.Busy = busy
			*g.Work.NVLink += data
			w.s.Ports[i].Sent += data / 8
		}
		if r := w.look(time.Minute, watts); len(r.Findings)+len(r.Unread) > 0 {
			t.Fatalf("minute %d: %+v", minute, r)
		}
	}
}

func FuzzHistory(f *testing.F) {
	f.Add(int64(time.Hour), int64(time.Minute), uint64(1), uint64(1), uint64(1), "waiting")
	f.Add(int64(-1), int64(1<<62), uint64(1<<63), uint64(0), uint64(1<<63), "idle")
	f.Fuzz(func(t *testing.T, at, since int64, used, data, sent uint64, s string) {
		w := newWorld()
		w.history = history{
			At: time.Duration(at), Driver: w.s.Module, Ports: map[string]uint64{"hca mlx5_0 port 1": sent},
			GPUs: map[string]counters{"0000:10:00": {used, data, state(s), time.Duration(since)}},
		}
		old := w.history
		r := w.look(time.Minute, 120)
		if len(r.Findings) > 0 {
			t.Errorf("%+v: a finding without a look at the other adapters: %+v", old, r)
		}
		soon := old.valid() && w.at-old.At < shortest
		if w.history.At != w.at && !soon || !w.history.valid() {
			t.Errorf("%+v after %+v", w.history, old)
		}
	})
}
