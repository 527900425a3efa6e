package procfs

import "testing"

func TestPendingKill(t *testing.T) {
	for status, want := range map[string]bool{
		"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n":                            true,
		"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n":                            true,
		"SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n": false,
		"": false, "SigPnd:\tx\n": false,
	} {
		if got := PendingKill(status); got != want {
			t.Errorf("%q: %t", status, got)
		}
	}
}

func TestTheNameOfAProcessMayHoldAnything(t *testing.T) {
	const rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 18 4711 20"
	for text, want := range map[string]Stat{
		"7 (a) R (b) D " + rest: {State: "D", Threads: 3, Start: "4711"},
		"7 (a) D 1 2":           {},
		"":                      {},
	} {
		if got := ParseStat(text); got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
