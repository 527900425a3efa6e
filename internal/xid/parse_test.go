package xid

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg/kmsgtest"
)

// The lines are composed to the driver's formats (see parse.go) with made-up addresses and values.
func TestParse(t *testing.T) {
	tests := map[string]struct {
		body string
		want Event
	}{
		"1 with a process": {
			"NVRM: Xid (PCI:0000:2b:00): 31, pid=1942, name=pt_main_thread, channel 0x00000002, intr 00000000. MMU Fault",
			Event{Kind: KindXid, Code: 31, Device: "0000:2b:00", Detail: Detail{Process: "pt_main_thread"}, Text: "channel 0x00000002, intr 00000000. MMU Fault"},
		},
		"1 with a process that the driver does not know": {
			"NVRM: Xid (PCI:0000:4e:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected",
			Event{Kind: KindXid, Code: 48, Device: "0000:4e:00", Text: "An uncorrectable double bit error (DBE) has been detected"},
		},
		"1 with a pid but no name": {
			"NVRM: Xid (PCI:0000:4e:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
			Event{Kind: KindXid, Code: 95, Device: "0000:4e:00", Text: "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"},
		},
		"2 without a process": {
			"NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
			Event{Kind: KindXid, Code: 79, Device: "0000:4e:00", Text: "GPU has fallen off the bus."},
		},
		"2 with nothing after the number": {
			"NVRM: Xid (PCI:0000:4e:00): 79", Event{Kind: KindXid, Code: 79, Device: "0000:4e:00"},
		},
		"2 with a space after the number": {
			"NVRM: Xid (PCI:0000:4e:00): 62 223b6a66 00002100", Event{Kind: KindXid, Code: 62, Device: "0000:4e:00", Text: "223b6a66 00002100"},
		},
		"2 with what netfilter's log adds": {
			"NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus. IN= OUT=lo SRC=127.0.0.1",
			Event{Kind: KindXid, Code: 79, Device: "0000:4e:00", Text: "GPU has fallen off the bus. IN= OUT=lo SRC=127.0.0.1"},
		},
		"3 MIG": {
			"NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
			Event{Kind: KindXid, Code: 94, Device: "0000:01:00", MIG: "GPU-I:05 GPU-CI:00", Text: "Contained: CE User Channel (0x9). RST: No, D-RST: No"},
		},
		"4 very old": {
			"NVRM: Xid (0000:03:00): 14, Channel 00000001", Event{Kind: KindXid, Code: 14, Device: "0000:03:00", Text: "Channel 00000001"},
		},
		"5 caused by another": {
			"NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
			Event{Kind: KindXid, Code: 45, Device: "0000:dc:00", Detail: Detail{Process: "python3"}, Cause: 149, Text: "Ch 00000001 caused by previous Xid 149"},
		},
		"7 lost": {
			"NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", Event{Kind: KindLost, Device: "0000:91:00", Text: "GPU has fallen off the bus"},
		},
		"8 lost at probe, three lines in one record": {
			"NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",
			Event{Kind: KindLost, Device: "0000:b3:00", Text: "GPU has fallen off the bus"},
		},
		"9 init": {
			"NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
			Event{Kind: KindInit, Device: "0000:0a:00", Text: "RmInitAdapter failed (0x24:0x72:1568)"},
		},
		"10 recovery action": {
			"NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
			Event{Kind: KindXid, Code: 154, Device: "0018:01:00", Detail: Detail{Action: Action{4, "Drain and Reset"}}, Text: "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"},
		},
		"where a 13 happened": {
			"NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 10, TPC 1, SM 1): Out Of Range Address",
			Event{Kind: KindXid, Code: 13, Device: "0000:38:00", Detail: Detail{Unit: "GPC 10, TPC 1"}, Text: "Graphics SM Warp Exception on (GPC 10, TPC 1, SM 1): Out Of Range Address"},
		},
		"eight digits of domain, upper case": {
			"NVRM: Xid (PCI:00000000:4E:00): 79, x", Event{Kind: KindXid, Code: 79, Device: "0000:4e:00", Text: "x"},
		},
		"a large domain stays": {
			"NVRM: Xid (PCI:00010000:4e:00): 79, x", Event{Kind: KindXid, Code: 79, Device: "10000:4e:00", Text: "x"},
		},
		"driver load": {
			"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build",
			Event{Kind: KindDriver, Text: "x86_64 Kernel Module  570.86.15  Release Build"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := Parse(test.body)
			if !ok {
				t.Fatal("not understood")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseIgnores(t *testing.T) {
	for name, body := range map[string]string{
		"audit quotes the driver":       `audit: type=1400 msg='NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.'`,
		"a process of that name":        "NVRM: Xid (PCI:[15097]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4",
		"not at the start":              " NVRM: Xid (PCI:0000:4e:00): 79, x",
		"no address":                    "NVRM: Xid (PCI:): 79, x",
		"no number":                     "NVRM: Xid (PCI:0000:4e:00): , x",
		"a number that runs into words": "NVRM: Xid (PCI:0000:4e:00): 79th, x",
		"GPU identity":                  "NVRM: GPU at PCI:0000:4e:00: GPU-8f3c0d6e-0000-0000-0000-000000000000",
		"board serial":                  "NVRM: GPU Board Serial Number: 1650000000000",
		"other driver talk":             "NVRM: nvAssertFailedNoLog: Assertion failed",
		"line cut in the address":       "NVRM: Xid (PCI:0000:4e",
		"empty":                         "",
	} {
		t.Run(name, func(t *testing.T) {
			if e, ok := Parse(body); ok {
				t.Errorf("understood as %+v", e)
			}
		})
	}
}

// Attack 18: users choose the names of processes and files, and no name makes a record the driver's.
func TestNoNameOfAProcessOrAFileIsADriver(t *testing.T) {
	processes, files := kmsgtest.DriversWords()
	for _, process := range processes {
		for _, file := range files {
			isNoDriver(t, process, file)
		}
	}
}

// isNoDriver fails the test if a record about a process is taken for a driver's or for the first one of a boot.
func isNoDriver(t *testing.T, process, file string) {
	t.Helper()
	for _, body := range kmsgtest.About(process, file) {
		if e, ok := Parse(body); ok {
			t.Errorf("%q is understood as %+v", body, e)
		}
		if gpu, uuid, ok := ParseIdentity(body); ok {
			t.Errorf("%q identifies %s as %s", body, gpu, uuid)
		}
		if NewBoot(body) {
			t.Errorf("%q begins a boot", body)
		}
		// The driver really says so of a GPU that it does not support.
		var j Joiner
		j.Parse("NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5)")
		if e, ok := j.Parse(body); ok {
			t.Errorf("%q is understood as the end of %+v", body, e)
		}
	}
}

func TestTheFirstRecordOfABoot(t *testing.T) {
	for body, want := range map[string]bool{
		"Linux version 6.18.44-fc (root@x) (gcc (Debian 14) 14.2.0) #1 SMP": true,
		"Linux version 5.10.0-136.12.0.86.oe2203sp1.x86_64 (root@x)":        true,
		"Linux version x[4711]: segfault at 0 ip 1 sp 2 error 4":            false,
	} {
		if got := NewBoot(body); got != want {
			t.Errorf("%q: %v", body, got)
		}
	}
}

func FuzzTheNameOfAProcessIsNoDriver(f *testing.F) {
	processes, files := kmsgtest.DriversWords()
	for i := range max(len(processes), len(files)) {
		f.Add(processes[i%len(processes)], files[i%len(files)])
	}
	f.Fuzz(isNoDriver)
}

func FuzzParse(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained caused by previous Xid 31")
	f.Add("NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
	f.Add("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus")
	f.Fuzz(func(t *testing.T, body string) {
		e, ok := Parse(body)
		if !ok {
			return
		}
		ofNVIDIA := strings.HasPrefix(body, "NVRM: ") || strings.HasPrefix(body, "nvidia-")
		if ofNVIDIA == (e.Kind == KindHardware) || e.Code < 0 || ofNVIDIA && e.Kind != KindDriver && e.Device != strings.ToLower(e.Device) {
			t.Fatalf("%q gave %+v", body, e)
		}
		var s State
		s.Add(e)
		for _, fault := range (Case{Events: s.Events, Now: e.At + settle}).Judge() {
			if fault.Repair == 0 || fault.Text == "" {
				t.Fatalf("%q was judged %+v", body, fault)
			}
		}
		if _, err := json.Marshal(s); err != nil {
			t.Fatal(err)
		}
	})
}
