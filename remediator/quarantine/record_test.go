package quarantine

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// full has every field set.
func full() *causes.Record {
	at := func(minute int) time.Time { return time.Date(2026, 11, 20, 12, minute, 0, 345e6, time.UTC) }
	q := causes.Quarantine{
		ID: "0123456789ab", Phase: causes.Released,
		Causes: []causes.Cause{{
			Condition: "GPUXidError", Rule: "gpu-xid", Repair: conditions.Reboot, Message: lost,
			FirstSeen: at(1), Due: true, BootID: "b1", RepairRecorded: true, HealthySince: at(3),
		}},
		QuarantinedAt: at(2),
		Taint: &causes.Taint{
			Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: "NoSchedule", Rule: "gpu-xid",
			Repair: conditions.Reboot, Since: at(2), Restored: true, PreExisting: true,
		},
		HandOff: &handoff.Added{
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
			Taints: []corev1.Taint{{Key: "example.com/repair", Value: "now", Effect: "NoSchedule"}},
		},
		ReleasedAt: at(4), ReleasedBy: causes.ByPerson, ManualReleaseOnly: true, ManualReleaseActive: true,
	}
	notice := handoff.Notice{ID: "id", Event: causes.NodeReleased, At: at(4), Case: handoff.Case{
		Quarantine: q.ID, Condition: "GPUXidError", Rule: "gpu-xid", Repair: conditions.Reboot, Message: lost, Taint: gpuTaint,
	}, To: []string{"pager"}}
	return &causes.Record{V: 1, NodeUID: "u", Boot: causes.Boot{ID: "b2", Seen: at(5)}, Quarantine: q, Repairs: []causes.RepairRecord{{GPU: "0000:4e:00", Code: "Xid 79", Repair: conditions.Reboot, At: at(3)}}, Last: []causes.Quarantine{q}, Notices: []handoff.Notice{notice}, LastNotified: q.ID + " released"}
}

func TestRecordRoundTrip(t *testing.T) {
	got, err := causes.ParseRecord(full().String())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full(), got); diff != "" {
		t.Error(diff)
	}
}

func TestRecordIsTheOneOfTheContract(t *testing.T) {
	const want = `{"v":1,"nodeUID":"u","boot":{"id":"b2"},"id":"0123456789ab","phase":"suspect",` +
		`"causes":[{"condition":"GPUXidError","rule":"gpu-xid","repair":"Reboot","message":"m","firstSeen":"2026-11-20T12:01:00.345Z","bootID":"b1"}]}`
	r := full()
	r.Boot.Seen, r.Repairs, r.Last, r.Notices, r.LastNotified = time.Time{}, nil, nil, nil, ""
	r.Quarantine = causes.Quarantine{ID: r.ID, Phase: causes.Suspect, Causes: []causes.Cause{{
		Condition: "GPUXidError", Rule: "gpu-xid", Repair: conditions.Reboot, Message: "m", FirstSeen: r.Causes[0].FirstSeen, BootID: "b1",
	}}}
	if diff := cmp.Diff(want, r.String()); diff != "" {
		t.Error(diff)
	}
}

func TestParseRecordRefuses(t *testing.T) {
	suspect := full()
	suspect.Phase, suspect.Last = causes.Suspect, nil
	open := full()
	open.Last[0].Phase, open.Last[0].ManualReleaseActive = causes.Quarantined, false
	good := full().String()
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("no %s in %s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	tests := map[string]struct{ text, want string }{
		"nothing":                       {"", "unexpected end of JSON input"},
		"no JSON":                       {"quarantined", "invalid character"},
		"half a record":                 {good[:len(good)/2], "unexpected end of JSON input"},
		"text after the record":         {good + "{}", "after top-level value"},
		"an open one among the closed":  {open.String(), "is quarantined and among those that were closed"},
		"released, but not closed":      {replace(`"phase":"released"`, `"phase":"quarantined"`), "is quarantined and was released manually"},
		"too many bytes":                {good + strings.Repeat(" ", causes.MaxRecord), "larger"},
		"too many causes":               {replace(`"causes":[`, `"causes":[`+strings.Repeat(`{"due":true},`, causes.MaxCauses)), "causes has 65 entries"},
		"too many notices":              {replace(`"notices":[`, `"notices":[`+strings.Repeat(`{"id":"x"},`, causes.MaxSent)), "notices has 65 entries"},
		"too many closed quarantines":   {replace(`"last":[`, `"last":[`+strings.Repeat(`{},`, causes.MaxClosed)), "last has 21 entries"},
		"a long message":                {replace(`"message":"`, `"message":"`+strings.Repeat("x", causes.MaxText)), "message has"},
		"a long rule":                   {replace(`"rule":"`, `"rule":"`+strings.Repeat("x", causes.MaxName)), "rule has"},
		"a taint that no node can have": {replace(`"key":"pitcrew.dev/unhealthy"`, `"key":"a/b/c"`), "has taint"},
		"a taint without an effect":     {replace(`"effect":"NoSchedule"`, `"effect":"No"`), "unknown effect"},
		"another version":               {replace(`"v":1`, `"v":2`), "version 2"},
		"null":                          {"null", "version 0"},
		"no phase":                      {replace(`"phase":"released"`, `"phase":""`), `phase ""`},
		"what is no class":              {replace(`"repair":"Reboot"`, `"repair":"ex plode"`), "ex plode"},
		"no id":                         {replace(`"id":"0123456789ab"`, `"id":""`), "no id"},
		"no causes":                     {`{"v":1,"nodeUID":"u","boot":{"id":"b"},"id":"i","phase":"suspect","causes":[]}`, "no causes"},
		"a quarantine without a taint": {
			`{"v":1,"nodeUID":"u","boot":{"id":"b"},"id":"i","phase":"quarantined","causes":[{"due":true}]}`, "no taint",
		},
		"a quarantine without a cause": {replace(`"due":true`, `"due":false`), "no cause that was due"},
		"a suspect with a taint":       {suspect.String(), "suspect and has a taint"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := causes.ParseRecord(test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("ParseRecord = %+v, %v, want an error with %q", r, err, test.want)
			}
		})
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(full().String())
	f.Add(`{"v":1,"causes":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := causes.ParseRecord(text)
		if err != nil {
			return
		}
		again, err := causes.ParseRecord(r.String())
		if err != nil {
			t.Fatalf("%v: %s", err, r)
		}
		if diff := cmp.Diff(r.String(), again.String()); diff != "" {
			t.Fatal(diff)
		}
	})
}
