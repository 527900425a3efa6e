package xid

import "testing"

func TestLinesOfTheDriverThatAreNotRead(t *testing.T) {
	for line, want := range map[string]bool{
		"NVRM: Xid (PCI:0000:1a:00):79, GPU has fallen off the bus.":                                                                    true,
		"NVRM: GPU0 Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.":                                                              true,
		"NVRM: GPU 0000:1a:00.0: the GPU has fallen off the bus.":                                                                       true,
		"nvidia-nvswitch0: a new SXid (PCI:0000:c3:00.0): 20034, Fatal":                                                                 true,
		"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Data {0x00140004}":                                                           false,
		"NVRM: Xid (PCI:[4711]: segfault at 0 ip 0000000000400078 sp 00007ffd21528c60 error 4 in a[78]":                                 false,
		"NVRM: The NVIDIA GPU 0000:0f:00.0 (PCI ID: 10de:2330)":                                                                         false,
		"NVRM: Xid (PCI:[4711]: segfault at 0 ip 1 sp 2 error 4 in NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.[78,400000+1000]": false,
		"NVRM: GPU 0000:[4711]: segfault at 0 ip 1 sp 2 error 4 in 91:00.0: GPU has fallen off the bus.[78,400000+1000]":                false,
		"audit: msg='NVRM: Xid (PCI:0000:1a:00):79'":                                                                                    false,
		"NVRM: Xid (PCI:0000:1a:00):79, x: potentially unexpected fatal signal 11.":                                                     false,
	} {
		if _, ok := Parse(line); ok {
			t.Errorf("%q is read", line)
		}
		if got := IsUnreadDriverLine(line); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
	if e, ok := Parse("NVRM: GPU at 0000:1a:00.0 has fallen off the bus."); !ok || e.Kind != KindLost || e.Device != "0000:1a:00" {
		t.Errorf("the words of older drivers: %+v", e)
	}
}
