package repair

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestARecordThatNoRemediatorWritesIsRefused(t *testing.T) {
	long := strings.Repeat("x", 5000)
	tests := map[string]struct{ text, want string }{
		"no JSON":                  {`{`, "decode repair record"},
		"two records":              {`{"v":1}{"v":1}`, "after top-level value"},
		"another version":          {`{"v":2}`, "version 2"},
		"a visit without an id":    {`{"v":1,"current":{"kind":"repair","phase":"Emptying"}}`, "has the id"},
		"an id that is no label":   {`{"v":1,"current":{"id":"a b","kind":"repair","phase":"Emptying"}}`, `has the id "a b"`},
		"a closed visit goes on":   {`{"v":1,"current":{"id":"a","kind":"repair","phase":"Passed"}}`, "is Passed and under way"},
		"an open one is over":      {`{"v":1,"last":[{"id":"a","kind":"repair","phase":"Working","attempt":1}]}`, "is Working and among those"},
		"a kind that is no label":  {`{"v":1,"current":{"id":"a","kind":"a b","phase":"Emptying"}}`, `kind "a b"`},
		"a visit without a phase":  {`{"v":1,"current":{"id":"a","kind":"repair"}}`, `is ""`},
		"works without an attempt": {`{"v":1,"current":{"id":"a","kind":"repair","phase":"Working"}}`, "in attempt 0"},
		"many attempts":            {`{"v":1,"current":{"id":"a","kind":"repair","phase":"Emptying","attempt":100000}}`, "in attempt 100000"},
		"a long text":              {`{"v":1,"current":{"id":"a","kind":"repair","phase":"Emptying","outcome":"` + long + `"}}`, "outcome has 5000 bytes"},
		"a long name":              {`{"v":1,"checked":{"bootID":"` + long + `"}}`, "checked.bootID has 5000 bytes"},
		"a long stop":              {`{"v":1,"stopped":"` + long + `"}`, "stopped has 5000 bytes"},
		"many arguments":           {`{"v":1,"checked":{"args":["` + strings.Repeat(`","`, 100) + `"]}}`, "checked.args has 101 entries"},
		"many actions":             {`{"v":1,"repairs":[{}` + strings.Repeat(`,{}`, 50) + `]}`, "repairs has 51 entries"},
		"many skipped actions":     {`{"v":1,"repairs":[{"skipped":["` + strings.Repeat(`","`, 100) + `"]}]}`, "repairs.skipped has 101 entries"},
		"too large":                {`{"v":1,"x":"` + strings.Repeat(long, 10) + `"}`, "is larger than any"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if r, err := visit.ParseRecord(test.text); err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 400 {
				t.Errorf("got %v, %v, want %q", r, err, test.want)
			}
		})
	}
	if r, err := visit.ParseRecord(`{"v":1,"nodeUID":"u","later":{}}`); err != nil || r.String() != "" {
		t.Errorf("a field of a later version: %v, %v", r, err)
	}
}

// A record is input: times that lie ahead must not keep a visit open.
func TestForgedTimesEndNoTimer(t *testing.T) {
	for _, phase := range []visit.Phase{visit.Emptying, visit.Working, visit.Proving} {
		t.Run(string(phase), func(t *testing.T) {
			w, m := sick(t, ecc)
			w.engine(m)
			ahead := w.now.Add(100 * 365 * day)
			m.pods = []corev1.Pod{gpuPod("train", "Job")}
			m.Annotations[conditions.AnnotationRepair] = (&visit.Record{V: 1, NodeUID: m.UID, Current: &visit.Visit{
				ID: "forged", Kind: visit.Repair, Phase: phase, Quarantine: m.quarantine().ID, StartedAt: ahead, PhaseSince: ahead, ActionSince: ahead,
				RetryAt: ahead, Deadline: ahead, JobEndedAt: ahead, Attempt: 1, Template: "reset-gpu", BootID: "a-boot-0", JobUID: "x", Reboots: true,
			}, Repairs: []visit.Action{{At: ahead, Template: "reset-gpu", Quarantine: "x"}}, Request: &visit.Request{Kind: visit.RequestCheck, At: ahead},
				Checked: &visit.Checked{At: ahead}, Advice: &visit.Advice{At: ahead}, Last: []visit.Visit{{ID: "l", Kind: visit.Sweep, Phase: visit.Passed, EndedAt: ahead}}}).String()
			if phase == visit.Working {
				m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, "repair"))
			}
			w.until("the visit ends", 30*time.Hour, func() bool { return m.record().Current == nil })
			if r := m.record(); causes.FromFuture(r.Repairs[0].At, w.now) || causes.FromFuture(r.Checked.At, w.now) {
				t.Errorf("record %s", r)
			}
		})
	}
}

func TestAHistoryThatIsFullStaysReadable(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	r := (*visit.Record)(nil).Clone(n)
	text := strings.Repeat("\"<", conditions.MaxMessage/2)
	for i := range 100 {
		r.Last = append([]visit.Visit{{ID: "v", Kind: visit.Repair, Phase: visit.Failed, Outcome: text, Args: []string{text, text, text}, Attempt: i}}, r.Last...)
		r.Repairs = append(r.Repairs, visit.Action{Template: "reset-gpu", Quarantine: "q"})
		r.Fit()
		if _, err := visit.ParseRecord(r.String()); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.Repairs) != visit.RepairsKept || len(r.Last) == 0 || r.Last[0].Attempt != 99 {
		t.Errorf("%d repairs, %d visits", len(r.Repairs), len(r.Last))
	}
}

func TestAskReplacesTheRequest(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	by := quarantine.Manual{User: strings.Repeat("u", 1000), Reason: strings.Repeat("r", 5000)}
	for _, kind := range []string{visit.RequestStop, visit.RequestRepair} {
		var err error
		if n, err = visit.Ask(n, kind, "q", by, start); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := visit.RecordOf(n); err != nil || r.Request.Kind != visit.RequestRepair || r.NodeUID != "u" {
		t.Errorf("record %s, %v", r, err)
	}
	if _, err := visit.Ask(n, "dance", "q", by, start); err == nil {
		t.Error("an unknown request is written")
	}
	n.Annotations[conditions.AnnotationRepair] = "{"
	if _, err := visit.Ask(n, visit.RequestStop, "q", by, start); err == nil {
		t.Error("an unreadable record is replaced")
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(`{"v":1,"nodeUID":"u","current":{"id":"a","kind":"repair","phase":"Working","attempt":1,"deadline":"2026-11-22T12:00:00Z"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := visit.ParseRecord(text)
		if err != nil {
			return
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: r.NodeUID, Annotations: map[string]string{conditions.AnnotationRepair: text}}}
		w := newWorld(t, parse(t), "a")
		s := Next(w.policy, Facts{Node: n, Record: r, Namespace: "x"}, start)
		s.Apply(n)
		if _, err := visit.RecordOf(n); err != nil {
			t.Errorf("what is written for %q cannot be read: %v", text, err)
		}
	})
}

// A record that parses may still be one that no remediator writes.
func TestNoRecordIsTooMuchForAStep(t *testing.T) {
	full := parse(t, "  rules:\n", "  sweeps: {all: {every: 24h, template: check}}\n  firstCheck: {template: check, conditions: [GPUXidError]}\n  rules:\n")
	none := *full
	none.Repair, none.Sweeps, none.FirstCheck = nil, nil, nil
	unactionable := *full
	actionless := *full.Repair
	actionless.Actions, actionless.Validate = policy.RepairActions{}, nil
	unactionable.Repair = &actionless
	for _, kind := range []visit.Kind{visit.Sweep, visit.Repair, visit.Validation, visit.FirstCheck} {
		for _, phase := range []visit.Phase{visit.Emptying, visit.Working, visit.Ending, visit.Proving} {
			for _, of := range []string{"", "mine", "old"} {
				for _, request := range []string{"", visit.RequestRepair, visit.RequestStop, visit.RequestCheck, visit.RequestRelease} {
					for _, p := range []*policy.Policy{full, &none, &unactionable} {
						for facts := range 32 {
							w := newWorld(t, p, "a")
							m := w.nodes["a"]
							if facts&1 != 0 {
								w.fault(m, "GPUXidError", ecc)
								w.engine(m)
							}
							v := visit.Visit{ID: "v", Kind: kind, Phase: phase, Quarantine: of, Sweep: "all", Template: "check", Attempt: 1, Reboots: facts&8 != 0}
							if q := m.quarantine(); of == "mine" && q != nil {
								v.Quarantine = q.ID
							}
							if phase == visit.Ending {
								v.Then = visit.Emptying
							}
							r := &visit.Record{V: 1, NodeUID: m.UID, Current: &v}
							if request != "" {
								r.Request = &visit.Request{Kind: request, Quarantine: v.Quarantine}
							}
							if facts&2 != 0 {
								m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, string(kind)))
							}
							r.Put(m.Node)
							if _, err := visit.RecordOf(m.Node); err != nil {
								t.Fatal(err)
							}
							if job := (&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: r.JobName(m.Node)}}); facts&4 != 0 && job.Name != "" {
								m.jobs[job.Name], m.ended[job.Name] = job, corev1.Pod{}
								w.end(m, job, int32(facts/16), "")
							}
							w.now = w.now.Add(time.Hour)
							w.visit(m)
						}
					}
				}
			}
		}
	}
}
