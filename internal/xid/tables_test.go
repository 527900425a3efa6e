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
		"EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0":                                                                                    "Inspect memory 0 CPU_SrcID#0_MC#0_Chan#1_DIMM#0: uncorrectable memory error",
		"EDAC MC3: 7 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0":                                                                                    "Monitor memory 3 CPU_SrcID#0_MC#0_Chan#1_DIMM#0: correctable memory error",
		"EDAC MC0: 1 CE on mc#0csrow#1channel#4 (csrow:1 channel:4 page:0x1b offset:0x0 grain:64 syndrome:0x0)":                                                 "Monitor memory 0 mc#0csrow#1channel#4: correctable memory error",
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

		"nvidia 0000:1a:00.0: Unable to change power state from D3cold to D0, device inaccessible":                                  "Inspect pci 0000:1a:00.0: does not answer, device inaccessible",
		"pcieport 0000:00:1c.0: DPC: containment event, status:0x1f01 source:0x0000":                                                "Inspect pci 0000:00:1c.0: link stopped after a fatal PCIe error (DPC)",
		"pcieport 0000:00:1c.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected":                       "Inspect pci 0000:00:1c.0: link stopped after a fatal PCIe error (DPC)",
		"DMAR: [DMA Read NO_PASID] Request device [1a:00.0] fault addr 0x7f000 [fault reason 0x06] PTE Read access is not set":      "Monitor pci 1a:00.0: IOMMU fault",
		"nvidia 0000:1a:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x1000 flags=0x0050]":                       "Monitor pci 0000:1a:00.0: IOMMU fault",
		"AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:1a:00.0 domain=0x1 address=0x1000 flags=0x1]":                              "Monitor pci 0000:1a:00.0: IOMMU fault",
		"mlx5_core 0000:0c:00.0: print_health_info:427:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:": "Inspect hca 0000:0c:00.0: firmware reports a health issue",
		"mlx5_core 0000:0c:00.0: temp_warn:197:(pid 0): High temperature on sensors with bit set 0 1":                               "Inspect hca 0000:0c:00.0: adapter over temperature",
		"mlx5_core 0000:0c:00.0: Port module event[error]: module 0, Cable error, Bus or shorted cable":                             "Inspect hca 0000:0c:00.0: cable error",
		"NETDEV WATCHDOG: eth0 (ice): transmit queue 5 timed out 5000 ms":                                                           "Inspect nic ice: transmit timeout",
		"bnxt_en 0000:0c:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms":                                    "Inspect nic 0000:0c:00.0: transmit timeout",
		"bnxt_en 0000:0c:00.0 eth0: TX timeout detected, starting reset task!":                                                      "Inspect nic 0000:0c:00.0: transmit timeout",
		"md/raid1:md0: Disk failure on nvme1n1p1, disabling device.":                                                                "Inspect disk nvme1n1p1: failed in its array",
		"BTRFS info (device nvme0n1p2: state E): forced readonly":                                                                   "Inspect filesystem nvme0n1p2: btrfs forced read-only after an error",
		"BTRFS info (device md1): forced readonly":                                                                                  "Inspect filesystem md1: btrfs forced read-only after an error",
		"EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0":                     "Inspect filesystem nvme0n1p2: ext4 error",
		"watchdog: Watchdog detected hard LOCKUP on cpu 17":                                                                         "Inspect cpu 17: hard lockup",
		"NMI watchdog: Watchdog detected hard LOCKUP on cpu 3":                                                                      "Inspect cpu 3: hard lockup",
		"rcu: INFO: rcu_sched self-detected stall on CPU":                                                                           "Monitor kernel rcu_sched: RCU stall",
		"rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:":                                                                     "Monitor kernel rcu_preempt: RCU stall",
		"CPU17: Package temperature above threshold, cpu clock throttled (total events = 1)":                                        "Monitor cpu 17: over temperature",
		"mce: CPU5: Core temperature is above threshold, cpu clock is throttled (total events = 9)":                                 "Monitor cpu 5: over temperature",
		"amdgpu 0000:1a:00.0: amdgpu: socket: 0, die: 0 1 uncorrectable hardware errors detected in umc block":                      "Inspect amdgpu 0000:1a:00.0: uncorrectable memory or hardware error (RAS)",
		"amdgpu 0000:1a:00.0: amdgpu: GPU reset end with ret = -62":                                                                 "Inspect amdgpu 0000:1a:00.0: reset failed",
		"amdgpu 0000:1a:00.0: amdgpu: GPU reset begin!":                                                                             "Monitor amdgpu 0000:1a:00.0: was reset",

		"mlx5_core 0000:0c:00.0 eth0: TX timeout detected":                                                                          "Inspect hca 0000:0c:00.0: transmit timeout",
		"mlx5_core 0000:0c:00.0: poll_health:815:(pid 0): Fatal error 1 detected":                                                   "Inspect hca 0000:0c:00.0: fatal health error",
		"nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff":                                            "Inspect disk nvme2: NVMe controller lost",
		"nvme nvme0: Device not ready; aborting reset, CSTS=0x1":                                                                    "Inspect disk nvme0: NVMe controller not ready",
		"nvme nvme0: Device not ready; aborting initialisation, CSTS=0x0":                                                           "Inspect disk nvme0: NVMe controller not ready",
		"nvme nvme1: Removing after probe failure status: -19":                                                                      "Inspect disk nvme1: NVMe controller disabled after a failure",
		"nvme nvme1: Disabling device after reset failure: -19":                                                                     "Inspect disk nvme1: NVMe controller disabled after a failure",
		"I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2":                                   "Inspect disk nvme0n1: I/O error of the disk",
		"blk_update_request: I/O error, dev nvme2n1, sector 104857600 op 0x1:(WRITE) flags 0x800 phys_seg 1":                        "Inspect disk nvme2n1: I/O error of the disk",
		"critical medium error, dev nvme3n1, sector 4096 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2":                           "Inspect disk nvme3n1: I/O error of the disk",
		"Aborting journal on device nvme2n1p1-8.":                                                                                   "Inspect filesystem nvme2n1p1: ext4 journal aborted",
		"EXT4-fs error (device md0): ext4_journal_check_start:83: comm containerd: Detected aborted journal":                        "Inspect filesystem md0: ext4 journal aborted",
		"EXT4-fs (nvme2n1): Remounting filesystem read-only":                                                                        "Inspect filesystem nvme2n1: ext4 remounted read-only after an error",
		"XFS (nvme0n1p2): Log I/O Error (0x2) detected at xlog_ioend_work+0x6a/0x80":                                                "Inspect filesystem nvme0n1p2: XFS shut down after an error",
		"XFS (md127): I/O Error Detected. Shutting down filesystem":                                                                 "Inspect filesystem md127: XFS shut down after an error",
		"XFS (nvme0n1p2): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x1a":                                     "Inspect filesystem nvme0n1p2: XFS shut down after an error",
		"XFS (nvme0n1p2): Metadata CRC error detected at xfs_agf_read_verify+0x9a/0xc0 [xfs], xfs_agf block 0x1 ":                   "Inspect filesystem nvme0n1p2: XFS metadata corrupt",
		"XFS (md127): Metadata corruption detected at xfs_buf_ioend+0x158/0x1f0 [xfs], xfs_inode block 0x4c40 xfs_inode_buf_verify": "Inspect filesystem md127: XFS metadata corrupt",
		"EXT4-fs (nvme2n1): shut down requested (2)":                                                                                "Inspect filesystem nvme2n1: ext4 shut down",
		"pcieport 0000:00:1c.0: AER: Multiple Corrected error received: 0000:02:00.0":                                               "Monitor pci 0000:00:1c.0: correctable PCIe error",
		"pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:02:00.0":                                          "Monitor pci 0000:00:1c.0: correctable PCIe error",
		"nvme 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)":                           "Monitor pci 0000:01:00.0: correctable PCIe error",
		"EDAC MC1: 255 CE memory scrubbing error on any memory (channel:0 slot:0 page:0x0 offset:0x0)":                              "Monitor memory 1: correctable memory error",
		"mlx5_core 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms":                                  "Inspect hca 0000:65:00.0: transmit timeout",
		"mlx5_core 0000:65:00.0 eth0: RX timeout on channel: 3, ICOSQ: 0x1 RQ: 0x2, CQ: 0x3":                                        "Monitor hca 0000:65:00.0: receive timeout",
		"mlx5_core 0000:65:00.0: print_health_info:431:(pid 0): synd 0x8: unrecoverable hardware error":                             "Inspect hca 0000:65:00.0: unrecoverable hardware error",
		"infiniband rdmap79s0: Wait for completion (polling) timeout":                                                               "Inspect hca rdmap79s0: EFA admin command timed out",
		"infiniband efa_0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0":                               "Inspect hca efa_0: EFA admin command timed out",
		"efa 0000:4f:00.0: Admin queue is closed":                                                                                   "Inspect hca 0000:4f:00.0: EFA admin queue closed",
		"efa 0000:4f:00.0: Reset indication didn't turn on":                                                                         "Inspect hca 0000:4f:00.0: EFA reset failed",
		"nvme nvme2: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10":                                                     "Monitor disk nvme2: NVMe controller reset",
		"nvme nvme0: I/O 540 QID 10 timeout, aborting":                                                                              "Monitor disk nvme0: NVMe command timed out",
		"nvme nvme2: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 3 timeout, reset controller":                                        "Monitor disk nvme2: NVMe command timed out",
		"INFO: task kubelet:2113 blocked for more than 120 seconds.":                                                                "Monitor task kubelet: hung in the kernel",
		"INFO: task containerd-shim:99 blocked for more than 241 seconds.":                                                          "Monitor task containerd-shim: hung in the kernel",
		"watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]":                                                      "Monitor cpu 18: soft lockup",
		"nfs: server 7.247.192.16 not responding, timed out":                                                                        "Monitor nfs server 7.247.192.16: not responding",
		"nfs: server nfs-prod-01.example.com not responding, still trying":                                                          "Monitor nfs server nfs-prod-01.example.com: not responding",
		"Lustre: hpc-OST0001-osc-ffff: Connection to hpc-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations":               "Monitor lustre hpc-OST0001: connection lost",
		"ceph: [9b1deb4d 4235]: mds0 hung":                                                                                          "Monitor ceph mds0: metadata server hung",
		"ceph: mds0 hung":                                                                                                           "Monitor ceph mds0: metadata server hung",
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
		"I/O error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0", // often a pod's volume in the network
		"Buffer I/O error on dev loop0, logical block 0, async page read",
		"EXT4-fs (sdb): Remounting filesystem read-only",
		"EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode",
		"XFS (nvme0n1p2): User initiated shutdown (0x1) detected at xfs_fs_goingdown+0x4e (fs/xfs/xfs_fsops.c:452).",
		"XFS (nvme0n1p2): Mounting V5 Filesystem",
		"EXT4-fs (nvme0n1p1): shut down requested (0)",
		"EXT4-fs (sdb): shut down requested (2)",
		"audit: msg='Aborting journal on device nvme2n1p1-8.'",
		"INFO: task kubelet[15097]: segfault at 0 ip 0000000000401136 sp 00007ffd blocked for more than 120 seconds", // a process of that name
		"INFO: task jfsmount:136986 blocked for more than 120 seconds.",                                              // users choose names
		"nfs: server 7.247.192.16 OK",
		"nfs: server nfs-prod-01.example.com OK",
		"infiniband mlx5_0: Admin queue is closed",
		"nvme nvme0: 12/0/0 default/read/poll queues",
		"nvme nvme0: I/O [15097]: segfault, timeout, aborting",
	} {
		if e, ok := Parse(line); ok {
			t.Errorf("%q is taken for %+v", line, e)
		}
	}
}

func TestStorms(t *testing.T) {
	ce := "EDAC MC1: 255 CE memory scrubbing error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x3f1c2a offset:0x0 grain:32)"
	nvme := "nvme nvme0: I/O 540 QID 10 timeout, aborting"
	for name, test := range map[string]struct {
		line  string
		lines int
		apart time.Duration
		want  string
	}{
		"of a DIMM":               {ce, 50, time.Second, "Inspect memory 1 CPU_SrcID#0_MC#1_Chan#0_DIMM#0: correctable memory error, 50 lines an hour or more"},
		"one less":                {ce, 49, time.Second, "Monitor memory 1 CPU_SrcID#0_MC#1_Chan#0_DIMM#0: correctable memory error"},
		"the same in a day":       {ce, 500, 2 * time.Minute, "Monitor memory 1 CPU_SrcID#0_MC#1_Chan#0_DIMM#0: correctable memory error"},
		"of a disk, far between":  {nvme, 3, 20 * time.Minute, "Inspect disk nvme0: NVMe command timed out, 3 lines an hour or more"},
		"of a disk, one an hour":  {nvme, 9, time.Hour, "Monitor disk nvme0: NVMe command timed out"},
		"a kubelet once":          {"INFO: task kubelet:2113 blocked for more than 120 seconds.", 1, 0, "Inspect task kubelet: hung in the kernel"},
		"a row without a rate":    {"nfs: server 10.0.0.5 not responding, timed out", 99, time.Second, "Monitor nfs server 10.0.0.5: not responding"},
		"what is Inspect already": {"efa 0000:4f:00.0: Admin queue is closed", 99, time.Second, "Inspect hca 0000:4f:00.0: EFA admin queue closed"},
	} {
		var s, journal State
		for i := range test.lines {
			e, ok := Parse(test.line)
			if !ok {
				t.Fatal(test.line)
			}
			e.At = time.Duration(i+1) * test.apart
			s.Add(e)
			journal.Add(e)
		}
		judged := func(s State, storms bool) string {
			f := (Case{Events: s.Events, Now: 999 * time.Hour, Storms: storms}).Judge()[0]
			return fmt.Sprintf("%s %s: %s", f.Repair, f.Subject, f.Text)
		}
		if got := judged(s, true); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
		if got := judged(s, false); strings.HasPrefix(test.want, "Monitor") && got != test.want || strings.Contains(got, "an hour") {
			t.Errorf("%s, without -storms: %s", name, got)
		}
		// What was read from the journal is folded before it is taken in. A storm that is over stays one.
		var merged State
		for _, e := range journal.Events {
			merged.add(e)
		}
		e, _ := Parse(test.line)
		e.At = merged.Events[len(merged.Events)-1].Last + time.Minute
		if name != "one less" && name != "of a disk, one an hour" {
			merged.Add(e)
		}
		if got := judged(merged, true); got != test.want {
			t.Errorf("%s, from the journal: %s", name, got)
		}
	}
}

func TestTheLargestCountOfAnHourIsKept(t *testing.T) {
	var r Rate
	for _, step := range []struct {
		at   time.Duration
		add  Rate
		want Rate
	}{
		{time.Minute, Rate{Lines: 7, Most: 7}, Rate{0, 7, 7}},
		{59 * time.Minute, Rate{Lines: 2, Most: 5}, Rate{0, 9, 9}},
		{time.Hour, Rate{Lines: 1, Most: 1}, Rate{time.Hour, 1, 9}},
		{61 * time.Minute, Rate{Lines: 1, Most: 20}, Rate{time.Hour, 2, 20}},
	} {
		if r.add(step.at, step.add); r != step.want {
			t.Errorf("after %s: %+v, want %+v", step.at, r, step.want)
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
