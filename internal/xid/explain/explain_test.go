package explain

import (
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

func TestWords(t *testing.T) {
	for text, words := range map[string][]string{
		"Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus; gpu 0000:1b:00: Xid 119 GSP RPC timeout": {"Xid 79:", "Xid 119:"},
		"GPU has fallen off the bus":                         {"Xid 79:"},
		"GSP RPC timeout":                                    {"Xid 119:"},
		"GSP_RPC_TIMEOUT":                                    {"Xid 119:"},
		"(PCI:0000:4e:00): 119, x":                           nil,
		"NVRM: Xid (PCI:0000:4e:00): 43, pid=1, name=x, y":   {"This line:   Monitor gpu 0000:4e:00: Xid 43", "Xid 43:"},
		"| node-1 | NVRM: Xid (PCI:0000:4e:00): 94, x":       {"This line:   RestartApp gpu 0000:4e:00: Xid 94", "Xid 94:"},
		"SXid (PCI:0000:05:00.0): 22003, Fatal, Link 3":      {"SXid 22003:"},
		"Inspect nvswitch 0000:05:00 link 3: SXid 22003":     {"SXid 22003:"},
		"[1.5] NVRM: loading NVIDIA UNIX x86_64 Kernel 570":  {"This line:   no fault, it ends earlier ones (driver)"},
		"NVRM: _kgspRpcRecvPoll: LibOS heartbeat timed out":  {"This line:   Inspect nvidia driver: GSP heartbeat timed out", "GSP heartbeat timed out\nclass:"},
		"Inspect hca 0000:0c:00.0: transmit timeout":         {"hca: transmit timeout\nclass:       Inspect"},
		"Reboot gpu 0000:98:00: RmInitAdapter failed (0x62)": {"RmInitAdapter failed\nclass:       Reboot"},
		"NETIR_LINK_EVT":                                     nil,
		"reserved code":                                      nil,
		"ResetGPU":                                           nil,
		"GPU":                                                nil,
		"":                                                   nil,
	} {
		got := Words(text)
		for _, w := range words {
			if !strings.Contains(got, w) {
				t.Errorf("%q: no %q in\n%s", text, w, got)
			}
		}
		if words == nil && got != "" {
			t.Errorf("%q:\n%s", text, got)
		}
	}
	if n := strings.Count(Words("gpu a: Xid 79 x; gpu b: Xid 79 x"), "mnemonic:"); n != 1 {
		t.Errorf("an Xid that stands there twice is explained %d times", n)
	}
	if n := strings.Count(Words("Unknown Error"), "mnemonic:"); n != 8 {
		t.Errorf("%d Xids for words that many have", n)
	}
	for text, want := range map[string]string{"79": "Xid 79:", "xid 79": "Xid 79:", "Xid79": "Xid 79:", " sxid 22003 ": "SXid 22003:"} {
		if got := Code(text); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s", text, got)
		}
	}
	for _, text := range []string{"", "xid", "-79", "79 x", "99999999999"} {
		if got := Code(text); got != "" {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func FuzzWords(f *testing.F) {
	f.Add("Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus")
	f.Add("NVRM: Xid (PCI:0000:4e:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)")
	f.Fuzz(func(_ *testing.T, text string) { Words(text) })
}

func TestCatalogue(t *testing.T) {
	for code, words := range map[int][]string{
		79:   {"Xid 79: GPU has fallen off the bus", "RESTART_BM", "class:       Reboot", "a reboot, or `kubectl pitcrew clear`", "catalog"},
		48:   {"waits 2 s", "ResetGPU"},
		63:   {"Monitor (row remap event"},
		4711: {"not in the catalogue", "Inspect"},
		173:  {"nothing published", "nverror.h"},
	} {
		text := Xid(code)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("Xid(%d) does not say %q:\n%s", code, w, text)
			}
		}
	}
	for code, words := range map[int][]string{
		22003: {"RESTART_HOST_OR_SBR", "Fatal:       Reboot"},
		29999: {"not in the catalogue", "Fatal:       ResetGPU", "Non-fatal:   Monitor"},
	} {
		text := SXid(code)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("SXid(%d) does not say %q:\n%s", code, w, text)
			}
		}
	}
	for _, e := range xid.Listed() {
		if e.Rule != "bucket" && e.Rule != "override" && rules[e.Rule] == "" {
			t.Errorf("rule %q of code %d is not explained", e.Rule, e.Code)
		}
	}
	if lines := strings.Count(List(), "\n"); lines != len(xid.Listed()) {
		t.Errorf("the list has %d lines", lines)
	}
}
