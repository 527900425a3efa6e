package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "no memory fault on any GPU"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 2\nunknown: driver: the NVIDIA driver is not loaded", "exit 0\nno NVIDIA GPU",
		[2]string{"exit 2\nunknown: NVML: "})
}

// gpuOfPages is a GPU from before row remapping.
const gpuOfPages = "*.remap.correctable -999\n*.retired.pending 0\n*.retired.sbe 0\n*.retired.dbe 0\n"

func TestFindings(t *testing.T) {
	tests := map[string]struct{ say, want string }{
		"remap failed":       {"2.remap.failed 1", "exit 1\nReplace gpu 0000:12:00: row remapping failed"},
		"remap pending":      {"2.remap.pending 1\n2.remap.uncorrectable 1", "exit 1\nResetGPU gpu 0000:12:00: row remapping pending"},
		"bank remap pending": {"2.banks.active 0\n2.banks.pending 1", "exit 1\nInspect gpu 0000:12:00: bank remapping pending"},
		"banks remapped":     {"2.banks.active 3", "exit 0\n" + healthy},
		"banks unread": {"2.error.nvmlDeviceGetBankRemapperStatus_v1 999",
			"exit 2\nunknown: gpu 0000:12:00: remapped banks: Unknown Error"},
		"remapped":                {"2.remap.correctable 3", "exit 0\n" + healthy},
		"SRAM":                    {"2.sram 1", "exit 1\nReplace gpu 0000:12:00: SRAM errors over the vendor's threshold"},
		"contained error":         {"2.ecc.volatile 7\n2.ecc.aggregate 9", "exit 0\n" + healthy},
		"recovery none":           {"2.recovery 0", "exit 0\n" + healthy},
		"recovery reset":          {"2.recovery 1", "exit 1\nResetGPU gpu 0000:12:00: the driver asks for a GPU reset"},
		"recovery reboot":         {"2.recovery 2", "exit 1\nReboot gpu 0000:12:00: the driver asks for a reboot of the node"},
		"recovery drain P2P":      {"2.recovery 3", "exit 0\n" + healthy},
		"recovery drain, reset":   {"2.recovery 4", "exit 1\nResetGPU gpu 0000:12:00: the driver asks to drain and reset"},
		"recovery IMEX":           {"2.recovery 5", "exit 1\nInspect gpu 0000:12:00: the driver asks to recover the IMEX domain"},
		"recovery bus reset":      {"2.recovery 6", "exit 1\nResetGPU gpu 0000:12:00: the driver asks for a reset of the bus"},
		"recovery system reboot":  {"2.recovery 7", "exit 1\nReboot gpu 0000:12:00: the driver asks for a reboot of the system"},
		"recovery unknown":        {"2.recovery 9", "exit 1\nInspect gpu 0000:12:00: the driver asks for an unknown recovery action"},
		"recovery not supported":  {"2.recovery -999", "exit 0\n" + healthy},
		"InfoROM":                 {"2.error.nvmlDeviceGetInforomConfigurationChecksum 14", "exit 1\nInspect gpu 0000:12:00: InfoROM is corrupt"},
		"needs a reset":           {"2.error 16", "exit 1\nResetGPU gpu 0000:12:00: requires a reset"},
		"pages: healthy":          {gpuOfPages, "exit 0\n" + healthy},
		"pages: pending":          {"2.retired.pending 1\n" + gpuOfPages, "exit 1\nResetGPU gpu 0000:12:00: page retirement pending"},
		"pages: volatile":         {"2.ecc.volatile 7\n" + gpuOfPages, "exit 1\nResetGPU gpu 0000:12:00: uncorrected memory errors since the driver was loaded"},
		"pages: one double bit":   {"2.retired.dbe 1\n" + gpuOfPages, "exit 1\nInspect gpu 0000:12:00: pages retired after double-bit errors"},
		"pages: all double bit":   {"2.retired.dbe 64\n" + gpuOfPages, "exit 1\nReplace gpu 0000:12:00: too many pages retired after double-bit errors"},
		"pages: 63 double bit":    {"2.retired.dbe 63\n" + gpuOfPages, "exit 1\nInspect gpu 0000:12:00: pages retired after double-bit errors"},
		"pages: 60 single bit":    {"2.retired.sbe 60\n" + gpuOfPages, "exit 0\n" + healthy},
		"pages: 61 single bit":    {"2.retired.sbe 61\n" + gpuOfPages, "exit 1\nInspect gpu 0000:12:00: many pages retired after single-bit errors"},
		"nothing readable in MIG": {"*.mig 1\n*.remap.correctable -999\n*.ecc.volatile -999", "exit 0\n" + healthy},
		// It may be a GPU that remaps rows, on which a contained error leaves the counter above zero.
		"contained error, row remapping unread": {"2.ecc.volatile 7\n2.error.nvmlDeviceGetRemappedRows 999", "exit 2\nunknown: gpu 0000:12:00: remapped rows: Unknown Error"},
		"row remapping unread, retired pages answered": {"2.ecc.volatile 7\n2.error.nvmlDeviceGetRemappedRows 999\n*.retired.pending 0\n*.retired.sbe 0\n*.retired.dbe 0",
			"exit 2\nunknown: gpu 0000:12:00: remapped rows: Unknown Error"},
		"contained error, nothing says the kind of memory": {"2.ecc.volatile 7\n2.remap.correctable -999",
			"exit 2\nunknown: gpu 0000:12:00: uncorrected memory errors, and neither row remapping nor retired pages to judge them by"},
		"no errors, nothing says the kind of memory": {"2.remap.correctable -999", "exit 0\n" + healthy},
		"row remapping unread, SRAM sick": {"2.sram 1\n2.error.nvmlDeviceGetRemappedRows 999",
			"exit 1\nReplace gpu 0000:12:00: SRAM errors over the vendor's threshold; gpu 0000:12:00: not read: remapped rows: Unknown Error"},
		"not in NVML": {"4.hidden 1", "exit 2\nunknown: gpu 0000:14:00: on the PCI bus but not in NVML"},
		"not in NVML, another sick": {"4.hidden 1\n2.remap.failed 1",
			"exit 1\nReplace gpu 0000:12:00: row remapping failed; gpu 0000:14:00: not read: on the PCI bus but not in NVML"},
		// Every check names the GPU that it could not read, and judges the others.
		"no handle": {"4.error 999", "exit 2\nunknown: gpu 0000:14:00: Unable to determine the device handle for GPU: Unknown Error"},
		"no handle, another sick": {"4.error 999\n2.remap.failed 1",
			"exit 1\nReplace gpu 0000:12:00: row remapping failed; gpu 0000:14:00: not read: Unable to determine the device handle for GPU: Unknown Error"},
		"no power, another sick": {"4.error 8\n2.remap.failed 1", "exit 1\nReplace gpu 0000:12:00: row remapping failed; " +
			"gpu 0000:14:00: not read: Unable to determine the device handle for GPU: Insufficient External Power, external power not connected"},
		"one hangs, another sick": {"4.hang nvmlDeviceGetRemappedRows\n6.remap.failed 1",
			"exit 1\nReplace gpu 0000:16:00: row remapping failed; gpu 0000:14:00: not read: the calls about it do not return"},
		"two hang, another sick": {"0.hang *\n1.hang *\n6.remap.failed 1",
			"exit 1\nReplace gpu 0000:16:00: row remapping failed; gpu 0000:10:00: not read: the calls about it do not return; " +
				"gpu 0000:11:00: not read: the calls about it do not return"},
		"a query fails": {"2.error.nvmlDeviceGetRemappedRows 999", "exit 2\nunknown: gpu 0000:12:00: remapped rows: Unknown Error"},
		// Other than NVML's index 0, which a lost GPU's questions answer with.
		"a lost GPU hides no other": {"6.error.nvmlDeviceGetTotalEccErrors 15\n2.remap.failed 1\n4.error.nvmlDeviceGetRemappedRows 999",
			"exit 1\nReplace gpu 0000:12:00: row remapping failed; gpu 0000:16:00: GPU is lost; gpu 0000:14:00: not read: remapped rows: Unknown Error"},
		"lost before the look": {"6.error 15", "exit 1\nReboot gpu 0000:16:00: GPU is lost"},
	}
	n := nvmltest.New(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.Say(test.say)
			want := test.want
			if got := n.Run(); got != want+"\n" {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
	n.Say("*.mig 1\n0.remap.correctable -999\n0.ecc.volatile -999")
	n.Want("exit 1\nMonitor gpu 0000:10:00: memory errors are not readable in MIG mode", "-min-repair", "Monitor")
}

func TestLimitsOfRetiredPages(t *testing.T) {
	n := nvmltest.New(t)
	n.Say(gpuOfPages + "2.retired.sbe 5")
	n.Want("exit 0\n"+healthy, "-retired-sbe-limit", "5")
	n.Want("exit 1\nInspect gpu 0000:12:00: many pages retired after single-bit errors", "-retired-sbe-limit", "4")
	n.Say(gpuOfPages + "2.retired.dbe 5")
	n.Want("exit 1\nInspect gpu 0000:12:00: pages retired after double-bit errors", "-retired-dbe-limit", "5")
	n.Want("exit 1\nReplace gpu 0000:12:00: too many pages retired after double-bit errors", "-retired-dbe-limit", "4")
}

func TestADumpIsJudgedLikeTheNode(t *testing.T) {
	n := nvmltest.New(t)
	n.Say("2.remap.failed 1")
	dump, ok := strings.CutPrefix(n.Run("-dump"), "exit 0\n")
	if !ok {
		t.Fatal(dump)
	}
	n.Write("dump.json", dump)
	n.Say("init 9")
	n.Want("exit 1\nReplace gpu 0000:12:00: row remapping failed", "-snapshot", n.Path("dump.json"))
}

func TestXidLearnsOfAReset(t *testing.T) {
	n := nvmltest.New(t)
	recoveries := func() map[string]bool {
		var file struct{ State gpu.Recoveries }
		data, err := os.ReadFile(filepath.Join(n.State(), gpu.RecoveryFile+".json"))
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		now := map[string]bool{}
		for address, r := range file.State {
			now[address] = r.Needed
			if r.Needed == (r.Recovered > 0) {
				t.Errorf("%s: %+v", address, r)
			}
		}
		return now
	}
	n.Say("2.recovery 1", "6.error 15")
	n.Run()
	if diff := cmp.Diff(map[string]bool{"0000:12:00": true, "0000:16:00": true}, recoveries()); diff != "" {
		t.Error(diff)
	}
	n.Say("6.error 15")
	n.Run()
	if diff := cmp.Diff(map[string]bool{"0000:12:00": false, "0000:16:00": true}, recoveries()); diff != "" {
		t.Error(diff)
	}
	n.Say("6.error 999")
	n.Run()
	if diff := cmp.Diff(map[string]bool{"0000:12:00": false, "0000:16:00": true}, recoveries()); diff != "" {
		t.Error("a GPU that cannot be asked has not recovered", diff)
	}
}

func TestXidLearnsThatALostGPUIsBackWithoutARecoveryAction(t *testing.T) {
	n := nvmltest.New(t)
	recovered := func() (bool, gpu.Recovery) {
		t.Helper()
		var file struct{ State gpu.Recoveries }
		data, err := os.ReadFile(filepath.Join(n.State(), gpu.RecoveryFile+".json"))
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		r := file.State["0000:16:00"]
		return !r.Needed && r.Recovered > 0, r
	}
	n.Say("*.recovery -999", "6.error 15")
	n.Run()
	n.Say("*.recovery -999", "6.hidden 1")
	n.Run()
	if ok, r := recovered(); ok {
		t.Errorf("a GPU that NVML does not list has recovered: %+v", r)
	}
	n.Say("*.recovery -999")
	n.Run()
	if ok, r := recovered(); !ok {
		t.Errorf("the GPU is back and not noted: %+v", r)
	}
}

func TestADriverBefore450(t *testing.T) {
	n := nvmltest.New(t)
	n.Before450()
	n.Say("*.retired.pending 0", "*.retired.sbe 0", "*.retired.dbe 0")
	n.Want("exit 0\n" + healthy)
	n.Say("*.retired.pending 0", "*.retired.sbe 0", "*.retired.dbe 0", "2.ecc.volatile 7")
	n.Want("exit 1\nResetGPU gpu 0000:12:00: uncorrected memory errors since the driver was loaded")
}
