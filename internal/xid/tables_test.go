package xid

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// word fills a pattern's free bits with fill.
func (p pattern) word(fill uint32) uint32 { return p.value | fill&^p.mask }

func TestEveryNVLinkRow(t *testing.T) {
	if len(nvlinkRules()) != 94 {
		t.Errorf("%d rows, want 94", len(nvlinkRules()))
	}
	for i, rule := range nvlinkRules() {
		for _, p := range []pattern{rule.before, rule.since} {
			for _, fill := range []uint32{0, ^uint32(0)} {
				for _, unit := range rule.units {
					// A word that contradicts the row, so that only the table can decide.
					severity := "Fatal"
					if rule.repair == conditions.ResetGPU {
						severity = "Nonfatal"
					}
					line := fmt.Sprintf("NVRM: Xid (PCI:0000:4e:00): %d, %s %-8s XC0 i0 Link -1 (0x%08x 0x%08x 0x00000001)",
						rule.code, unit, severity, p.word(fill), rule.status)
					e, ok := Parse(line)
					if !ok {
						t.Fatalf("row %d: %q is not understood", i, line)
					}
					if got := (Case{Events: []Event{e}}).Judge()[0].Repair; got != rule.repair {
						t.Errorf("row %d: %q judged %s, want %s", i, line, got, rule.repair)
					}
				}
			}
		}
	}
}

func TestNoWordFitsNVLinkRowsThatDisagree(t *testing.T) {
	for i, a := range nvlinkRules() {
		for _, b := range nvlinkRules()[:i] {
			if a.code != b.code || a.units[0] != b.units[0] || a.status != b.status || a.repair == b.repair {
				continue
			}
			for _, p := range []pattern{a.before, a.since} {
				for _, q := range []pattern{b.before, b.since} {
					if common := p.mask & q.mask; p.value&common == q.value&common {
						t.Errorf("%+v and %+v", a, b)
					}
				}
			}
		}
	}
}

func TestParsePatternRefuses(t *testing.T) {
	for _, s := range []string{"", "01", strings.Repeat("2", 32), strings.Repeat("-", 33)} {
		if p, err := parsePattern(s); err == nil {
			t.Errorf("parsePattern(%q) = %+v", s, p)
		}
	}
}

func TestEverySXidRow(t *testing.T) {
	if len(switchCatalogue()) != 92 {
		t.Errorf("%d codes, want 92", len(switchCatalogue()))
	}
	for code, entry := range switchCatalogue() {
		for word, least := range map[string]conditions.Repair{"Fatal": conditions.ResetGPU, "Non-fatal": conditions.Monitor, "Correctable": conditions.Monitor} {
			e, ok := Parse(fmt.Sprintf("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): %d, %s, Link 07 made up", code, word))
			if !ok || e.Link != "07" || e.Text != "made up" {
				t.Fatalf("%d: parsed %+v", code, e)
			}
			got := (Case{Events: []Event{e}, Now: time.Hour}).Judge()[0].Repair
			want := least
			switch {
			case word == "Fatal" && entry.Action == "RESTART_HOST_OR_SBR":
				want = conditions.Reboot
			case word != "Fatal" && code == 20012:
				want = conditions.Inspect
			}
			if got != want {
				t.Errorf("%d %s judged %s, want %s", code, word, got, want)
			}
		}
	}
}

func TestSXidDataIsNoEvent(t *testing.T) {
	for _, line := range []string{
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Data {0x00000001, 0x00000002}",
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): , Fatal",
		"nvidia-nvswitch: SXid (PCI:0000:07:00.0): 20034, Fatal",
	} {
		if e, ok := Parse(line); ok {
			t.Errorf("%q is taken for %+v", line, e)
		}
	}
}

// The lines are composed to the formats of the kernel sources named in data/hardware.csv.
func TestHardwareLines(t *testing.T) {
	tests := map[string]string{
		"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0":                                                                          "Inspect pci 0000:00:01.0: uncorrectable fatal PCIe error",
		"pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:02:00.0":                                                   "Inspect pci 0000:00:01.0: uncorrectable fatal PCIe error",
		"nvidia 0000:4e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)":                                              "Inspect pci 0000:4e:00.0: uncorrectable fatal PCIe error",
		"nvidia 0000:4e:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer":                                                    "Monitor pci 0000:4e:00.0: uncorrectable non-fatal PCIe error",
		"pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:02:00.0":                                                                      "Monitor pci 0000:00:01.0: uncorrectable non-fatal PCIe error",
		"mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800400":                                                                              "Inspect cpu 12: machine check",
		"EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0":                                                                                    "Inspect memory 0: uncorrectable memory error",
		"EDAC MC3: 7 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0":                                                                                    "Monitor memory 3: correctable memory error",
		"EDAC MC0: 1 CE on mc#0csrow#1channel#4 (csrow:1 channel:4 page:0x1b offset:0x0 grain:64 syndrome:0x0)":                                                 "Monitor memory 0: correctable memory error",
		"EDAC MC1: 2 UE on any memory (page:0x0 offset:0x0 grain:0)":                                                                                            "Inspect memory 1: uncorrectable memory error",
		"mlx5_core 0000:03:00.0: wait_func_handle_exec_timeout:1250:(pid 9): cmd[0]: DESTROY_EQ(0x302) Async, timeout. Will cause a leak of a command resource": "Inspect hca 0000:03:00.0: firmware command timeout",
		"XFS (nvme0n1p2): Log I/O error (0x2) detected at xlog_ioend_work+0x6a/0x80 (fs/xfs/xfs_log.c:1378). Shutting down filesystem":                          "Inspect filesystem nvme0n1p2: XFS shut down after an error",
		"XFS (nvme0n1p2): Block device removal (0x20) detected at fs_bdev_mark_dead+0x66 (fs/xfs/xfs_super.c:1146).  Shutting down filesystem.":                 "Inspect filesystem nvme0n1p2: XFS shut down after an error",
		"{1}[Hardware Error]: event severity: fatal":                                                                                                            "Inspect firmware fatal: fatal hardware error",
		"{2}[Hardware Error]: event severity: corrected":                                                                                                        "Monitor firmware corrected: corrected hardware error",
		"mlx5_core 0000:03:00.0: wait_func:964:(pid 1234): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource":                                  "Inspect hca 0000:03:00.0: firmware command timeout",
		"mlx5_core 0000:c1:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count":                                                     "Inspect hca 0000:c1:00.0: device health compromised",
		"mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature":                                                             "Inspect hca 0000:5c:00.0: transceiver module over temperature",
		"mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).":                                         "Monitor hca 0000:5c:00.0: insufficient slot power",

		"mlx5_core 0000:0c:00.0 eth0: TX timeout detected":                                                   "Inspect hca 0000:0c:00.0: transmit timeout",
		"mlx5_core 0000:0c:00.0: poll_health:815:(pid 0): Fatal error 1 detected":                            "Inspect hca 0000:0c:00.0: fatal health error",
		"nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff":                     "Inspect disk nvme2: NVMe controller lost",
		"nvme nvme0: Device not ready; aborting reset, CSTS=0x1":                                             "Inspect disk nvme0: NVMe controller not ready",
		"nvme nvme0: Device not ready; aborting initialisation, CSTS=0x0":                                    "Inspect disk nvme0: NVMe controller not ready",
		"nvme nvme1: Removing after probe failure status: -19":                                               "Inspect disk nvme1: NVMe controller disabled after a failure",
		"nvme nvme1: Disabling device after reset failure: -19":                                              "Inspect disk nvme1: NVMe controller disabled after a failure",
		"I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2":            "Inspect disk nvme0n1: I/O error of the disk",
		"blk_update_request: I/O error, dev nvme2n1, sector 104857600 op 0x1:(WRITE) flags 0x800 phys_seg 1": "Inspect disk nvme2n1: I/O error of the disk",
		"critical medium error, dev nvme3n1, sector 4096 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2":    "Inspect disk nvme3n1: I/O error of the disk",
		"Aborting journal on device nvme2n1p1-8.":                                                            "Inspect filesystem nvme2n1p1: ext4 journal aborted",
		"EXT4-fs error (device md0): ext4_journal_check_start:83: comm containerd: Detected aborted journal": "Inspect filesystem md0: ext4 journal aborted",
		"EXT4-fs (nvme2n1): Remounting filesystem read-only":                                                 "Inspect filesystem nvme2n1: ext4 remounted read-only after an error",
		"XFS (nvme0n1p2): Log I/O Error (0x2) detected at xlog_ioend_work+0x6a/0x80":                         "Inspect filesystem nvme0n1p2: XFS shut down after an error",
		"XFS (md127): I/O Error Detected. Shutting down filesystem":                                          "Inspect filesystem md127: XFS shut down after an error",
		"XFS (nvme0n1p2): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x1a":              "Inspect filesystem nvme0n1p2: XFS shut down after an error",
	}
	seen := map[string]bool{}
	for line, want := range tests {
		e, ok := Parse(line)
		if !ok {
			t.Errorf("%q is not understood", line)
			continue
		}
		seen[e.Text] = true
		f := (Case{Events: []Event{e}}).Judge()[0]
		if got := fmt.Sprintf("%s %s: %s", f.Repair, f.Subject, f.Text); got != want {
			t.Errorf("%q\n got %s\nwant %s", line, got, want)
		}
	}
	for _, row := range hardware() {
		if !seen[row.Text] && !strings.HasPrefix(row.Text, "recoverable") {
			t.Errorf("%q has no line here", row.Text)
		}
	}
	for _, line := range []string{
		"[Hardware Error]: event severity: fatal",                                       // the record of an earlier boot
		"EDAC MC0: 1 UE [15097]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4", // a process of that name
		"mce: [Hardware Error]: Machine check events logged",
		"audit: msg='EDAC MC0: 1 UE memory read error'",
		"mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
		"pcieport 0000:00:01.0: AER: Corrected error received: 0000:02:00.0",
		"nvme nvme2: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10", // a reset that may help
		"I/O error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0",               // often a pod's volume in the network
		"Buffer I/O error on dev loop0, logical block 0, async page read",
		"EXT4-fs (sdb): Remounting filesystem read-only",
		"EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode",
		"XFS (nvme0n1p2): User initiated shutdown (0x1) detected at xfs_fs_goingdown+0x4e (fs/xfs/xfs_fsops.c:452).",
		"XFS (nvme0n1p2): Mounting V5 Filesystem",
		"nfs: server 10.0.0.5 not responding, still trying",
		"INFO: task kubelet:2113 blocked for more than 120 seconds.",
		"audit: msg='Aborting journal on device nvme2n1p1-8.'",
	} {
		if e, ok := Parse(line); ok {
			t.Errorf("%q is taken for %+v", line, e)
		}
	}
}

func TestADriverLoadMendsNoHardware(t *testing.T) {
	e, _ := Parse("EDAC MC0: 1 UE memory read error on DIMM")
	load, _ := Parse("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15")
	if faults := (Case{Events: []Event{e, load}}).Judge(); len(faults) != 1 {
		t.Errorf("%+v", faults)
	}
}

func TestJoinerPutsASplitMessageTogether(t *testing.T) {
	var j Joiner
	var got []Event
	for _, body := range []string{
		"NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has",
		"NVRM: fallen off the bus and is not responding to commands.",
		"NVRM: fallen off the bus and is not responding to commands.",
		"NVRM: The NVIDIA GPU 0000:b4:00.0", "usb 1-1: new device", "NVRM: Xid (PCI:0000:4e:00): 31, x", "NVRM: fallen off the bus",
	} {
		if e, ok := j.Parse(body); ok {
			got = append(got, e)
		}
	}
	if len(got) != 2 || got[0].Kind != KindLost || got[0].Device != "0000:b3:00" || got[1].Code != 31 {
		t.Errorf("%+v", got)
	}
}
