package xid

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// NVIDIA's bucket decides the class unless the row has a note with the reason.
var buckets = map[string]conditions.Repair{
	"IGNORE": conditions.Monitor, "RESTART_APP": conditions.RestartApp, "CONTACT_SUPPORT": conditions.Inspect,
	"CHECK_MECHANICALS": conditions.Inspect, "UPDATE_SWFW": conditions.Inspect, "RESET_GPU": conditions.ResetGPU,
	"RESTART_BM": conditions.Reboot, "RESTART_VM": conditions.Reboot,
}

func TestEveryCatalogueRow(t *testing.T) {
	sources := map[string]bool{"catalog": true, "nverror.h": true, "operational-events": true, "third-party": true}
	rules := map[string]bool{
		"bucket": true, "override": true, "settle": true, "cause": true, "text": true, "episodes": true, "registers": true, "nvlink5": true, "uncontained": true,
	}
	if len(xids().listed) != 183 {
		t.Errorf("%d codes, want 183", len(xids().listed))
	}
	for code, e := range xids().listed {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			if e.Code != code || e.Text == "" || e.Mnemonic == "" || !rules[e.Rule] || !sources[e.Source] {
				t.Errorf("incomplete row %+v", e)
			}
			if conditions.Sanitize(e.Text) != e.Text || len(e.Text) > 60 {
				t.Errorf("text %q does not fit a message", e.Text)
			}
			if want, known := buckets[e.Action]; e.Rule == "bucket" && known && e.Repair != want {
				t.Errorf("class %s, NVIDIA's %s means %s", e.Repair, e.Action, want)
			}
			if e.Rule == "override" && e.Note == "" && e.Text == "" {
				t.Error("an override without a reason")
			}
			line := fmt.Sprintf("NVRM: Xid (PCI:0000:4e:00): %d, made up", code)
			parsed, ok := Parse(line)
			if !ok || parsed.Code != code {
				t.Fatalf("Parse(%q) = %+v", line, parsed)
			}
			faults := (Case{Events: []Event{parsed}, Now: settle}).Judge()
			if len(faults) != 1 || !strings.HasPrefix(faults[0].Text, fmt.Sprintf("Xid %d ", code)) {
				t.Errorf("judged %+v", faults)
			}
		})
	}
}

func TestUnknownCodesAreKept(t *testing.T) {
	for _, code := range []int{0, 183, 999, 123456789} {
		e, known := Lookup(code)
		if known || e.Code != code || e.Repair != conditions.Inspect {
			t.Errorf("Lookup(%d) = %+v, %v", code, e, known)
		}
	}
}

func TestParseCatalogueRefuses(t *testing.T) {
	const head, rest = "code,repair,rule,text,mnemonic,action,investigate,note,source\n", ",bucket,t,m,a,i,n,s\n"
	for name, data := range map[string]string{
		"a class that is none": head + "1,Explode" + rest + "*,Inspect" + rest,
		"a code that is none":  head + "x,Inspect" + rest + "*,Inspect" + rest,
		"a code twice":         head + "1,Inspect" + rest + "1,Reboot" + rest + "*,Inspect" + rest,
		"no default":           head + "1,Inspect" + rest,
		"too few columns":      head + "1,Inspect\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseCatalogue([]byte(data)); err == nil {
				t.Error("no error")
			}
		})
	}
}
