package conditions

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	tests := map[string]struct {
		findings []Finding
		want     string
	}{
		"nothing found": {nil, ""},
		"worst class leads, subjects in order": {
			[]Finding{
				{ResetGPU, "gpu 0000:4e:00", "Xid 119 GSP RPC timeout"},
				{Monitor, "gpu 0000:99:00", "Xid 63 row remapped"},
				{ResetGPU, "gpu 0000:1b:00", "Xid 95 uncontained ECC error"},
			},
			"ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error; gpu 0000:4e:00: Xid 119 GSP RPC timeout; gpu 0000:99:00: Xid 63 row remapped",
		},
		"a finding seen twice is said once": {
			[]Finding{{Reboot, "gpu a", "lost"}, {Reboot, "gpu a", "lost"}},
			"Reboot gpu a: lost",
		},
		"foreign text cannot break the line": {
			[]Finding{{Inspect, "hca mlx5_0: x", "95% of ports; see\nlog \x1b[31m\u00e9"}},
			"Inspect hca mlx5_0:x: 95/ of ports, see log ?[31m?",
		},
		"empty text is visible": {[]Finding{{Inspect, "", " "}}, "Inspect -: -"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Summarize(test.findings).String(); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestSummarizeCountsWhatDoesNotFit(t *testing.T) {
	var findings []Finding
	for c := 'a'; c <= 'z'; c++ {
		findings = append(findings, Finding{Reboot, "gpu " + string(c), strings.Repeat("x", 60)})
	}
	m := Summarize(findings)
	if len(m.Parts)+m.More != 26 || m.More == 0 {
		t.Errorf("%d parts and %d more, want 26 together", len(m.Parts), m.More)
	}
	if n := len(m.String()); n > MaxMessage || n < MaxMessage-100 {
		t.Errorf("message of %d bytes, want just under %d", n, MaxMessage)
	}
}

func TestParseMessageRefuses(t *testing.T) {
	for _, s := range []string{
		"", "Reboot", "Reboot ", "reboot gpu a: b", "Explode gpu a: b", "Reboot gpu a", "Reboot gpu a: ", "Reboot : b",
		"Reboot +3 more", "Reboot gpu a: b; +0 more", "Reboot gpu a: b; +03 more", "Reboot gpu a: b;c: d", "Reboot gpu a: 5%",
		"Reboot gpu a: b\n", "Reboot gpu a: " + strings.Repeat("b", MaxMessage),
	} {
		if m, err := ParseMessage(s); err == nil {
			t.Errorf("ParseMessage(%q) = %+v, want an error", s, m)
		}
	}
}

func FuzzSummarizeRoundTrip(f *testing.F) {
	f.Add(6, "gpu 0000:4e:00", "Xid 79 GPU has fallen off the bus", "hca: mlx5_0", "+3 more")
	f.Add(1, "::", "; ;", "a;b", "%s\x00")
	f.Fuzz(func(t *testing.T, class int, s1, t1, s2, t2 string) {
		worst := Repair(uint(class)%6) + 1
		m := Summarize([]Finding{{worst, s1, t1}, {Monitor, s2, t2}, {Monitor, t2, s2}})
		line := m.String()
		if len(line) > MaxMessage || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' || r == '%' }) {
			t.Fatalf("unsafe line %q", line)
		}
		back, err := ParseMessage(line)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, back); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	f.Add("ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error; gpu 0000:4e:00: Xid 119 GSP RPC timeout; +2 more")
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := ParseMessage(s); err == nil && m.String() != s {
			t.Fatalf("ParseMessage(%q).String() = %q", s, m.String())
		}
	})
}

func TestRepairRoundTrip(t *testing.T) {
	for r := Monitor; r <= Replace; r++ {
		if got, err := ParseRepair(r.String()); err != nil || got != r {
			t.Errorf("ParseRepair(%q) = %v, %v", r.String(), got, err)
		}
	}
	if !slices.IsSorted([]Repair{Monitor, RestartApp, Inspect, ResetGPU, Reboot, Replace}) {
		t.Error("the classes are out of order")
	}
}
