package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentilesAreSamples(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	tests := []struct {
		name    string
		samples []time.Duration
		p       float64
		want    time.Duration
	}{
		{"median of one", []time.Duration{7}, 50, 7},
		{"median of an odd number", []time.Duration{9, 1, 5}, 50, 5},
		{"median of an even number is the lower one", []time.Duration{4, 3, 2, 1}, 50, 2},
		{"p99 of few is the worst", []time.Duration{4, 3, 2, 1}, 99, 4},
		{"p99 of a hundred leaves one out", hundred, 99, 99},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := percentile(tt.samples, tt.p); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestAMedianAboveItsLimitIsAnError(t *testing.T) {
	slow := []time.Duration{11 * time.Millisecond, 11 * time.Millisecond, time.Millisecond}
	for _, tt := range []struct {
		name  string
		limit time.Duration
		fails bool
	}{
		{"below", 12 * time.Millisecond, false}, {"above", 10 * time.Millisecond, true}, {"no limit", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := write(&bytes.Buffer{}, []row{{"exit", slow, tt.limit}}); (err != nil) != tt.fails {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestTheExitIsThatOfTheRunThatReportsTheSubject(t *testing.T) {
	// From a log of NPD v1.36.0 with -v=2, shortened.
	const log = `I1120 14:40:01.000200 99 plugin.go:110] Rule: &{Type:permanent}. Start time: 2026-11-20 14:40:00.5 +0000 UTC m=+1.000000001. End time: 2026-11-20 14:40:01.0001 +0000 UTC m=+1.500100001. Duration: 500.1ms
I1120 14:40:01.000300 99 plugin.go:122] Add check result {Rule:0xc0 ExitStatus:1 Message:ResetGPU gpu 0000:01:00: Xid 119 GSP RPC timeout} for rule &{Type:permanent}
I1120 14:40:02.000200 99 plugin.go:110] Rule: &{Type:permanent}. Start time: 2026-11-20 14:40:01.5 +0000 UTC m=+2.000000001. End time: 2026-11-20 14:40:02.123456789 +0000 UTC m=+2.623456790. Duration: 623.456789ms
I1120 14:40:02.000300 99 plugin.go:122] Add check result {Rule:0xc0 ExitStatus:1 Message:ResetGPU gpu 0000:02:00: Xid 119 GSP RPC timeout} for rule &{Type:permanent}
`
	got, err := pluginExit(log, "0000:02:00")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(time.Date(2026, 11, 20, 14, 40, 2, 123456789, time.UTC), got.UTC()); diff != "" {
		t.Error(diff)
	}
	if got, err := pluginExit(log, "0000:03:00"); err == nil {
		t.Errorf("a run that was not logged ended at %s", got)
	}
}
