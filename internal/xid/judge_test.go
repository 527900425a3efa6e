package xid

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// log builds a State from lines `<seconds> <body without NVRM>`; the GPU is written as a or b.
func log(t *testing.T, lines ...string) *State {
	t.Helper()
	s := &State{}
	for _, line := range lines {
		at, body, _ := strings.Cut(line, " ")
		seconds, err := time.ParseDuration(at + "s")
		if err != nil {
			t.Fatal(err)
		}
		if code, found := strings.CutPrefix(body, "a "); found {
			body = "Xid (PCI:0000:0a:00): " + code
		} else if code, found := strings.CutPrefix(body, "b "); found {
			body = "Xid (PCI:0000:0b:00): " + code
		}
		e, ok := Parse("NVRM: " + body)
		if !ok {
			t.Fatalf("%q is not understood", body)
		}
		e.At = seconds
		s.Add(e)
	}
	return s
}

const (
	resetRequired = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	none          = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
	driverLoad    = "loading NVIDIA UNIX x86_64 Kernel Module  570.86.15"
)

// short shortens a subject: gpu a, switch link.
func short(subject string) string {
	return strings.NewReplacer("gpu 0000:0", "", ":00", "", "nvswitch 0000:0", "switch ").Replace(subject)
}

func to(action string) string { return "154, GPU recovery action changed from 0x0 (None) to " + action }

func TestJudge(t *testing.T) {
	const later = 3600 * 100
	tests := map[string]struct {
		lines []string
		now   float64 // seconds
		want  string
	}{
		"nothing":                      {nil, later, ""},
		"79 at once":                   {[]string{"1 a 79, x"}, 1, "Reboot a Xid 79 GPU has fallen off the bus"},
		"79 and its line are one":      {[]string{"1 a 79, x", "1 GPU 0000:0a:00.0: GPU has fallen off the bus."}, 1, "Reboot a Xid 79 GPU has fallen off the bus"},
		"its line alone":               {[]string{"1 GPU 0000:0a:00.0: GPU has fallen off the bus."}, 1, "Reboot a GPU has fallen off the bus"},
		"RmInitAdapter":                {[]string{"1 GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)"}, 1, "Reboot a RmInitAdapter failed"},
		"95 at once":                   {[]string{"1 a 95, x"}, 1, "ResetGPU a Xid 95 uncontained ECC error"},
		"119 at once":                  {[]string{"1 a 119, x"}, 1, "ResetGPU a Xid 119 GSP RPC timeout"},
		"63":                           {[]string{"1 a 63, x"}, 1, "Monitor a Xid 63 row remapping event"},
		"64":                           {[]string{"1 a 64, x"}, 1, "ResetGPU a Xid 64 row remapping failure"},
		"94":                           {[]string{"1 a 94, x"}, 1, "RestartApp a Xid 94 contained ECC error"},
		"13":                           {[]string{"1 a 13, x"}, 1, "RestartApp a Xid 13 Graphics Engine Exception"},
		"31":                           {[]string{"1 a 31, x"}, 1, "RestartApp a Xid 31 GPU memory page fault"},
		"43":                           {[]string{"1 a 43, x"}, 1, "Monitor a Xid 43 GPU stopped processing"},
		"a number that is in no table": {[]string{"1 a 4711, x"}, 1, "Inspect a Xid 4711 not in the catalogue"},
		"two GPUs":                     {[]string{"1 b 119, x", "2 a 79, x"}, 2, "Reboot a Xid 79 GPU has fallen off the bus, ResetGPU b Xid 119 GSP RPC timeout"},
		"the worst class of a GPU":     {[]string{"1 a 119, x", "2 a 79, x", "3 a 31, x"}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"the first of equal classes":   {[]string{"1 a 119, x", "2 a 95, x"}, 2, "ResetGPU a Xid 119 GSP RPC timeout"},

		"48 settling":                 {[]string{"10 a 48, x"}, 11.9, ""},
		"48 alone":                    {[]string{"10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with 94":                  {[]string{"10 a 48, x", "10.1 a 63, x", "10.2 a 94, x"}, 12, "RestartApp a Xid 48 double bit ECC error"},
		"48 after 94":                 {[]string{"9 a 94, x", "10 a 48, x"}, 12, "RestartApp a Xid 94 contained ECC error"},
		"48 with 94 and 64":           {[]string{"10 a 94, x", "10 a 48, x", "10 a 64, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with 94 and 95":           {[]string{"10 a 94, x", "10 a 48, x", "11 a 95, x"}, 13, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with a 94 long before":    {[]string{"1 a 94, x", "10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with another GPU's 94":    {[]string{"10 b 94, x", "10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error, RestartApp b Xid 94 contained ECC error"},
		"a later 48 without its 94":   {[]string{"10 a 48, x", "10 a 94, x", "20 a 48, x"}, 22, "ResetGPU a Xid 48 double bit ECC error"},
		"a 48 from the future counts": {[]string{"10 a 48, x"}, 5, "ResetGPU a Xid 48 double bit ECC error"},
		"95 does not wait for a 48":   {[]string{"10 a 48, x", "10 a 95, x"}, 10, "ResetGPU a Xid 95 uncontained ECC error"},

		"45 settling":                {[]string{"10 a 45, Ch 1 caused by previous Xid 119"}, 11, ""},
		"45 alone":                   {[]string{"10 a 45, Ch 1"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error"},
		"45 caused by 31":            {[]string{"10 a 45, Ch 1 caused by previous Xid 31"}, later, "RestartApp a Xid 45 preemptive cleanup after an earlier error, caused by Xid 31"},
		"45 caused by 119":           {[]string{"10 a 45, Ch 1 caused by previous Xid 119"}, later, "ResetGPU a Xid 45 preemptive cleanup after an earlier error, caused by Xid 119"},
		"45 caused by NVLink5":       {[]string{"10 a 45, Ch 1 caused by previous Xid 149"}, later, "Inspect a Xid 45 preemptive cleanup after an earlier error, caused by Xid 149"},
		"45 caused by 45":            {[]string{"10 a 45, Ch 1 caused by previous Xid 45"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error, caused by Xid 45"},
		"45 caused by an unknown":    {[]string{"10 a 45, Ch 1 caused by previous Xid 4711"}, later, "Inspect a Xid 45 preemptive cleanup after an earlier error, caused by Xid 4711"},
		"a burst of 45 on many GPUs": {[]string{"10 a 45, Ch 1", "10 b 45, Ch 1", "11 a 45, Ch 2", "11 b 45, Ch 2"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error, Monitor b Xid 45 preemptive cleanup after an earlier error"},

		"154 None":                  {[]string{"1 a " + none}, 1, ""},
		"154 GPU reset":             {[]string{"1 a " + resetRequired}, 1, "ResetGPU a Xid 154 recovery action GPU Reset"},
		"154 node reboot":           {[]string{"1 a " + to("0x2 (Node Reboot Required)")}, 1, "Reboot a Xid 154 recovery action Node Reboot"},
		"154 drain P2P":             {[]string{"1 a " + to("0x3 (Drain P2P)")}, 1, "RestartApp a Xid 154 recovery action Drain P2P"},
		"154 drain and reset":       {[]string{"1 a " + to("0x4 (Drain and Reset)")}, 1, "ResetGPU a Xid 154 recovery action Drain and Reset"},
		"154 IMEX":                  {[]string{"1 a " + to("0x5 (Recover IMEX Domain)")}, 1, "Inspect a Xid 154 recovery action Recover IMEX Domain"},
		"154 bus reset":             {[]string{"1 a " + to("0x6 (Bus Reset)")}, 1, "ResetGPU a Xid 154 recovery action Bus Reset"},
		"154 system reboot":         {[]string{"1 a " + to("0x7 (OS Reboot)")}, 1, "Reboot a Xid 154 recovery action System Reboot"},
		"154 the number goes first": {[]string{"1 a " + to("0x2 (GPU Reset Required)")}, 1, "Reboot a Xid 154 recovery action Node Reboot"},
		"154 the name helps out":    {[]string{"1 a " + to("0x9 (PF FLR)")}, 1, "ResetGPU a Xid 154 recovery action GPU Reset"},
		"154 neither is known":      {[]string{"1 a " + to("0x9 (Pray)")}, 1, "Inspect a Xid 154 recovery action Pray"},
		"154 cut short":             {[]string{"1 a 154, GPU recovery action changed from 0x0 (No"}, 1, "Inspect a Xid 154 recovery action not understood"},
		"154 never lowers":          {[]string{"1 a 79, x", "2 a " + resetRequired}, 2, "Reboot a Xid 79 GPU has fallen off the bus"},
		"154 raises":                {[]string{"1 a 94, x", "2 a " + resetRequired}, 2, "ResetGPU a Xid 154 recovery action GPU Reset"},

		"154 None clears a reset":       {[]string{"1 a 119, x", "2 a " + resetRequired, "3 a " + none}, 3, ""},
		"154 None clears only its GPU":  {[]string{"1 a 119, x", "1 b 119, x", "3 a " + none}, 3, "ResetGPU b Xid 119 GSP RPC timeout"},
		"154 None clears no reboot":     {[]string{"1 a 79, x", "3 a " + none}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"a driver load clears resets":   {[]string{"1 a 119, x", "1 b 4711, x", "3 " + driverLoad}, 3, ""},
		"a driver load clears no 79":    {[]string{"1 a 79, x", "3 " + driverLoad}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"a fault after the driver load": {[]string{"1 a 119, x", "3 " + driverLoad, "4 a 119, x"}, 4, "ResetGPU a Xid 119 GSP RPC timeout"},
		"what the driver says at boot":  {[]string{"1 " + driverLoad}, 1, ""},

		"31 recurring": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "3800 a 31, pid=3, name=x, y"}, later,
			"Inspect a Xid 31 GPU memory page fault, recurring with several applications",
		},
		"31 recurring with one application": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=x, y", "3800 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 recurring with applications that nobody knows": {
			[]string{"0 a 31, pid=1, name=<unknown>, y", "1900 a 31, pid=2, name=x, y", "3800 a 31, x"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 in quick succession": {
			[]string{"0 a 31, pid=1, name=x, y", "1000 a 31, pid=2, name=z, y", "2000 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 everywhere": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "2000 b 31, pid=2, name=z, y", "3800 a 31, pid=3, name=x, y"}, later,
			"RestartApp a Xid 31 GPU memory page fault, RestartApp b Xid 31 GPU memory page fault",
		},
		"31 before and after a reset": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "2000 a " + none, "3800 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"13 recurring at one place": {
			[]string{"0 a 13, pid=1, name=x, on (GPC 1, TPC 2, SM 0)", "1900 a 13, pid=2, name=z, on (GPC 1, TPC 2, SM 1)", "3800 a 13, pid=3, name=x, on (GPC 1, TPC 2, SM 0)"}, later,
			"Inspect a Xid 13 Graphics Engine Exception, recurring with several applications",
		},
		"13 at several places": {
			[]string{"0 a 13, pid=1, name=x, on (GPC 1, TPC 2, SM 0)", "1900 a 13, pid=2, name=z, on (GPC 2, TPC 2, SM 1)", "3800 a 13, pid=3, name=x, on (GPC 1, TPC 2, SM 0)"}, later,
			"RestartApp a Xid 13 Graphics Engine Exception",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := log(t, test.lines...)
			var got []string
			for _, f := range (Case{Events: s.Events, Now: time.Duration(test.now * float64(time.Second))}).Judge() {
				got = append(got, fmt.Sprint(f.Repair, " ", short(f.Subject), " ", f.Text))
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), test.want)
			}
		})
	}
}

func TestInjectedRecordsSaySo(t *testing.T) {
	e, _ := Parse("NVRM: Xid (PCI:0000:0a:00): 79, x")
	e.Injected = true
	s := State{}
	s.Add(e)
	if got := (Case{Events: s.Events}).Judge()[0].Text; got != "Xid 79 GPU has fallen off the bus (injected)" {
		t.Error(got)
	}
	if !s.DropInjected() || len(s.Events) != 0 || s.DropInjected() {
		t.Errorf("injected records were not dropped once: %+v", s)
	}
}

func TestABurstIsOneEvent(t *testing.T) {
	var lines []string
	for i := range 5000 {
		lines = append(lines, fmt.Sprintf("%d a 31, pid=%d, name=x, channel %x", i, i, i))
	}
	lines = append(lines, "6000 a 31, pid=1, name=x, y")
	s := log(t, lines...)
	if len(s.Events) != 2 || s.Events[0].Count != 5000 || s.Events[0].Last != 4999*time.Second {
		t.Errorf("%d events, first %+v", len(s.Events), s.Events[0])
	}
}

func TestTheStateIsBoundedAndTheWorstStays(t *testing.T) {
	s := log(t, "1 a 79, x")
	for i := range 3 * maxEvents {
		e, _ := Parse(fmt.Sprintf("NVRM: Xid (PCI:0000:0b:00): 31, pid=1, name=app%d, y", i))
		e.At = time.Duration(i) * time.Second
		s.Add(e)
	}
	if len(s.Events) != maxEvents || s.Dropped != 2*maxEvents+1 {
		t.Errorf("%d events, %d dropped", len(s.Events), s.Dropped)
	}
	if f := (Case{Events: s.Events}).Judge()[0]; f.Code != 79 {
		t.Errorf("the worst was dropped: %+v", f)
	}
}

func TestClear(t *testing.T) {
	s := log(t, "1 a 79, x", "1 b 119, x", "2 "+driverLoad, "3 b 95, x")
	if got := s.Clear("0000:0c", 9); got != nil {
		t.Errorf("cleared %q", got)
	}
	if got := s.Clear("gpu 0000:0a:00", 9); len(got) != 1 || got[0] != "gpu 0000:0a:00" {
		t.Errorf("cleared %q", got)
	}
	if got := s.Clear("", 9); len(got) != 1 || got[0] != "gpu 0000:0b:00" {
		t.Errorf("cleared %q", got)
	}
	if faults := (Case{Events: s.Events, Now: time.Hour}).Judge(); len(faults) != 0 {
		t.Errorf("still %+v", faults)
	}
}
