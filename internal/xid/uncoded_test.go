package xid

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

//go:embed testdata/uncoded.tsv
var uncodedTSV string

func TestLinesOfTheDriverWithoutAnXid(t *testing.T) {
	for row := range strings.Lines(uncodedTSV) {
		line, want, found := strings.Cut(strings.TrimSuffix(row, "\n"), "\t")
		if strings.HasPrefix(row, "#") {
			continue
		}
		if !found {
			t.Fatalf("row %q", row)
		}
		got := "none"
		if e, ok := Parse(kmsg.Unescape(line)); ok {
			f := (Case{Events: []Event{e}, Now: time.Hour}).Judge()[0]
			got = f.Repair.String() + " " + f.Subject + ": " + f.Text
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", line, got, want)
		}
	}
}

const (
	initText   = "RmInitAdapter failed (0x62:0x40:2119)"
	marked     = "NVRM: GPU0 _kgspLogRpcTimeout: Back to back GSP RPC timeout detected! GPU marked for reset"
	heartbeat  = "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out"
	watchdog   = "NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7"
	initFailed = "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x62:0x40:2119)"
)

func TestALineWithoutAnXidBesideOne(t *testing.T) {
	for name, test := range map[string]struct {
		lines []string
		want  conditions.Repair
	}{
		"alone":                        {[]string{"1 " + marked}, conditions.Inspect},
		"before an Xid 119":            {[]string{"1 " + marked, "60 a 119, x"}, conditions.Monitor},
		"after an Xid 79":              {[]string{"1 a 79, x", "100 " + marked}, conditions.Monitor},
		"long after":                   {[]string{"1 a 79, x", "122 " + marked}, conditions.Inspect},
		"beside an application's":      {[]string{"1 a 31, x", "1 " + marked}, conditions.Inspect},
		"beside a 154 that withdraws":  {[]string{"1 " + marked, "2 a " + none}, conditions.Inspect},
		"beside a failed init":         {[]string{"1 " + marked, "2 " + initFailed}, conditions.Monitor},
		"the watchdog beside its Xid":  {[]string{"1 " + watchdog, "2 a 8, x"}, conditions.Monitor},
		"the watchdog beside another":  {[]string{"1 " + watchdog, "2 a 31, x"}, conditions.Inspect},
		"a heartbeat beside an Xid 8":  {[]string{"1 " + heartbeat, "2 a 8, x"}, conditions.Inspect},
		"before the driver was loaded": {[]string{"1 " + marked, "200 " + driverLoad}, 0},
	} {
		got := conditions.Repair(0)
		for _, f := range (Case{Events: log(t, test.lines...).Events, Now: time.Hour}).Judge() {
			if f.Kind == KindUncoded {
				got = f.Repair
			}
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// A line that waits for its Xid is not reported, so that the answer does not change twice.
func TestALineWithoutAnXidSettles(t *testing.T) {
	events := log(t, "100 "+marked).Events
	for now, want := range map[time.Duration]int{100 * time.Second: 0, 103 * time.Second: 1} {
		if faults := (Case{Events: events, Now: now}).Judge(); len(faults) != want {
			t.Errorf("at %s: %+v", now, faults)
		}
	}
}

// What is folded must say the same: otherwise the first of two faults hides the worse one.
func TestDifferentFaultsOfOneDeviceAreNotFolded(t *testing.T) {
	const aer = "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:02:00.0"
	const fatal = "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0"
	const assertion = "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: 0 @ kernel_gsp.c:1446"
	for _, lines := range [][]string{{"1 " + aer, "2 " + fatal}, {"1 " + assertion, "2 " + heartbeat}} {
		faults := (Case{Events: log(t, lines...).Events, Now: time.Hour}).Judge()
		if len(faults) != 1 || faults[0].Repair != conditions.Inspect {
			t.Errorf("%q: %+v", lines, faults)
		}
	}
}

func TestAFailedInitialisationIsOverWhenTheNextOneWorks(t *testing.T) {
	for name, test := range map[string]struct {
		lines     []string
		recovered time.Duration
		want      string
	}{
		"failed":                         {[]string{"1 " + driverLoad, "2 " + initFailed}, 0, initText},
		"a driver load later":            {[]string{"1 " + initFailed, "2 " + driverLoad}, 0, ""},
		"failed again after it":          {[]string{"1 " + initFailed, "2 " + driverLoad, "3 " + initFailed}, 0, initText},
		"NVML has the GPU again":         {[]string{"1 " + initFailed}, 2 * time.Second, ""},
		"NVML had it before":             {[]string{"3 " + initFailed}, 2 * time.Second, initText},
		"off the bus, and the load":      {[]string{"1 " + initFailed, "2 a 79, x", "3 " + driverLoad}, 0, "Xid 79 GPU has fallen off the bus"},
		"off the bus before it":          {[]string{"1 a 79, x", "2 " + initFailed, "3 " + driverLoad}, 0, "Xid 79 GPU has fallen off the bus"},
		"its recovery action is None":    {[]string{"1 " + initFailed, "2 a " + none}, 0, ""},
		"a driver load, another GPU's":   {[]string{"1 " + initFailed, "2 " + driverLoad, "3 " + strings.Replace(initFailed, ":0a:", ":0b:", 1)}, 0, initText},
		"a driver unload is no new init": {[]string{"1 " + initFailed, "2 nvidia-nvlink: Unregistered Nvlink Core, major device number 240"}, 0, initText},
	} {
		c := Case{Events: log(t, test.lines...).Events, Now: time.Hour, Recovered: map[string]time.Duration{"0000:0a:00": test.recovered}}
		got := ""
		for _, f := range c.Judge() {
			got += f.Text
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
