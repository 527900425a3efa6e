package restart

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// forged reads a record that somebody made up.
func forged(t *testing.T, text string) Record {
	t.Helper()
	rec, err := ReadRecord(annotated(text))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestAForgedRecordIsBounded(t *testing.T) {
	long := strings.Repeat("x", 3000)
	cause := fmt.Sprintf(`{"id":"q","node":"n","nodeUID":"u","reason":%q,"taint":{"key":"k","effect":"NoSchedule"}}`, long)
	restart := fmt.Sprintf(`{"phase":"Stopping","moving":%d,"ranks":-5,"streak":%d,"retries":%[2]d,"held":%[3]q,"outcome":%[3]q,"command":%[5]q,"pods":["p"],
		"startedAt":"9999-12-31T23:59:59-23:00","quarantines":[{"id":%[3]q},{"node":%[3]q},{"nodeUID":%[3]q},%[4]s]}`,
		1<<40, math.MaxInt64, long, strings.Join([]string{cause, cause}, ","), long[:maxName+1])
	var recent []string
	for i := range 150 {
		recent = append(recent, noon.Add(time.Duration(i)*time.Minute).Format(`"`+time.RFC3339+`"`))
	}
	rec := forged(t, fmt.Sprintf(`{"v":1,"jobUID":"job-uid","total":-1,"current":%[1]s,"last":[%[2]s],"recent":[%[3]s]}`,
		restart, strings.TrimSuffix(strings.Repeat(restart+",", 9), ","), strings.Join(recent, ",")))
	cur := rec.Current
	if cur.Moving != MaxPods || cur.Ranks != 0 || cur.Streak != maxCount || cur.Retries != maxCount || cur.Command != "" || rec.Total != 0 || !cur.StartedAt.IsZero() {
		t.Errorf("counters %+v", cur)
	}
	if len(cur.Held) > maxText+3 || len(cur.Outcome) > maxText+3 || len(cur.Quarantines) != 2 || len(cur.Quarantines[0].Reason) > maxReason+3 {
		t.Errorf("texts %+v", cur)
	}
	if len(rec.Last) != keptRestarts || rec.Last[0].Pods != nil || len(rec.Recent) != policy.MaxPerDayLimit || !rec.Recent[0].Equal(noon.Add(50*time.Minute)) {
		t.Errorf("%d closed restarts, %d recent ones", len(rec.Last), len(rec.Recent))
	}
	if len(cur.Pods) != 1 {
		t.Errorf("pods %v: one that is forgotten would not be waited for", cur.Pods)
	}
}

func TestTimesOfTheFutureAreClamped(t *testing.T) {
	const grace = 5 * time.Minute
	future := noon.AddDate(100, 0, 0)
	tests := map[string]struct {
		current, want Restart
		changed       bool
	}{
		"a deadline in 100 years": {Restart{Phase: Checkpointing, StartedAt: noon, PhaseSince: noon, CheckpointBy: future},
			Restart{Phase: Checkpointing, StartedAt: noon, PhaseSince: noon, CheckpointBy: noon.Add(grace)}, true},
		"a start in 100 years": {Restart{Phase: Checkpointing, StartedAt: future, PhaseSince: future, CheckpointBy: future},
			Restart{Phase: Checkpointing, StartedAt: noon, PhaseSince: noon, CheckpointBy: noon.Add(grace)}, true},
		"no start": {Restart{Phase: Checkpointing, CheckpointBy: future}, Restart{Phase: Checkpointing, CheckpointBy: time.Time{}.Add(grace)}, true},
		"a stop in 100 years": {Restart{Phase: Stopping, StartedAt: noon, PhaseSince: future, RunningSince: future},
			Restart{Phase: Stopping, StartedAt: noon, PhaseSince: noon}, true},
		"clocks that differ": {Restart{Phase: Starting, StartedAt: noon, PhaseSince: noon.Add(2 * time.Minute)},
			Restart{Phase: Starting, StartedAt: noon, PhaseSince: noon.Add(2 * time.Minute)}, false},
		"a deadline of the policy": {Restart{Phase: Checkpointing, StartedAt: noon, PhaseSince: noon, CheckpointBy: noon.Add(grace)},
			Restart{Phase: Checkpointing, StartedAt: noon, PhaseSince: noon, CheckpointBy: noon.Add(grace)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rec, changed := Record{Current: &test.current}.Clamp(grace, noon)
			if diff := cmp.Diff(test.want, *rec.Current); diff != "" || changed != test.changed {
				t.Errorf("changed %t, want %t: %s", changed, test.changed, diff)
			}
			if _, again := rec.Clamp(grace, noon.Add(time.Hour)); again {
				t.Error("a clamped record is clamped again")
			}
		})
	}
	rec, changed := Record{Recent: []time.Time{noon, future}, Last: []Restart{{Streak: 1, EndedAt: future, PhaseSince: future}}}.Clamp(grace, noon)
	if changed || len(rec.Recent) != 1 || !rec.Last[0].EndedAt.IsZero() || !rec.Incarnation().IsZero() {
		t.Errorf("changed %t: %+v", changed, rec)
	}
}

// Whatever a record says, its checkpoint ends and its start does.
func TestAForgedRestartEnds(t *testing.T) {
	job := jobOf(trainer())
	for _, phase := range []Phase{Checkpointing, Starting} {
		rec := forged(t, fmt.Sprintf(`{"v":1,"jobUID":"job-uid","current":{"phase":%q,"startedAt":"2126-01-01T00:00:00Z","phaseSince":"2126-01-01T00:00:00Z",
			"checkpointBy":"2126-01-01T00:00:00Z","ranks":1000000,"quarantines":[{"id":"q","node":"n"}]}}`, phase))
		rec, _ = rec.Clamp(time.Minute, noon)
		later := noon.Add(time.Hour)
		rec, _ = rec.Clamp(time.Minute, later)
		facts := Facts{Affected: []corev1.Pod{{}}}
		if step := Next(rec, job, facts, testTimeouts, later); step.Action != Stop && step.Action != Close {
			t.Errorf("%s: %+v", phase, step)
		}
	}
}

// What is cached of a record is small, whatever it contains, and keeps what others ask.
func TestASummaryIsSmall(t *testing.T) {
	long := Restart{ID: "r1", Phase: Stopping, Moving: 3, Held: strings.Repeat("x", 1000), Outcome: strings.Repeat("x", 1000), StartedAt: noon}
	for i := range maxCauses {
		long.AddCause(Cause{ID: fmt.Sprint(i), Node: "n", NodeUID: "u", Reason: strings.Repeat("x", 256)})
	}
	for range MaxPods {
		long.Pods = append(long.Pods, "01234567-89ab-cdef-0123-0123456789ab")
	}
	text, err := json.Marshal(long.Summary())
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 4<<10 {
		t.Errorf("%d bytes", len(text))
	}
	rec := forged(t, fmt.Sprintf(`{"v":1,"jobUID":"job-uid","current":%s}`, text))
	if cur := rec.Current; cur.Moving != 3 || cur.Held == "" || cur.Quarantines[0].ID != "0" || cur.Quarantines[0].NodeUID != "u" {
		t.Errorf("summary %+v", cur)
	}
}

// A record with as many pods and causes as fit was written by us, so it is read.
func TestWhatIsWrittenIsRead(t *testing.T) {
	rec := Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: Stopping}, Last: []Restart{{ID: "old"}, {ID: "older"}}}
	for i := range MaxPods {
		rec.Current.Pods = append(rec.Current.Pods, types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i)))
	}
	for i := range maxCauses {
		rec.Current.AddCause(CauseOf(Trigger{ID: fmt.Sprint(i), Node: strings.Repeat("n", 63), Reason: strings.Repeat("x", 500)}))
		rec.Last[0].AddCause(rec.Current.Quarantines[i])
	}
	data, err := rec.Patch(annotated(""), SuspendField{})
	if err != nil {
		t.Fatal(err)
	}
	var patch metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	text := patch.Annotations["pitcrew.dev/restart"]
	if got, err := ReadRecord(annotated(text)); err != nil || len(got.Current.Pods) != MaxPods || !got.Current.Covers("0") || len(text) > maxRecord {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}

// Whatever an annotation says: no panic, no hang, no more than 8 MiB, and what is written of it can be read again.
func FuzzRecord(f *testing.F) {
	f.Add(`{"v":1,"jobUID":"job-uid","current":{"phase":"Saving","startedAt":"2026-11-20T12:00:00Z","checkpointBy":"2126-01-01T00:00:00Z","quarantines":[{"id":"q1","node":"bad","nodeUID":"u","taint":{"key":"k","effect":"NoSchedule"}}]}}`)
	f.Add(`{"v":1,"jobUID":"job-uid","current":{"id":"r1","phase":"Stopping","pods":["a","b"],"moving":1099511627776,"held":"x","retries":-1},"total":9223372036854775807}`)
	f.Add(`{"v":1,"jobUID":"job-uid","current":{"phase":"Starting","phaseSince":"9999-12-31T23:59:59-23:59","ranks":-9223372036854775808},"recent":["0000-01-01T00:00:00+23:59"]}`)
	f.Add(`{"v":1,"jobUID":"job-uid","last":[{"streak":9223372036854775807,"endedAt":"2026-11-20T12:00:00Z","quarantines":[{"id":"q1"}]}]}`)
	f.Add(`{"v":1,"jobUID":"job-uid","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`)
	suspended := jobOf(trainer())
	suspended.Suspended, suspended.SuspendObserved = true, true
	facts := []Facts{{}, {Affected: []corev1.Pod{{}}, Running: 1}, {Remaining: []metav1.PartialObjectMetadata{{}}, Refused: "x"}}
	f.Fuzz(func(t *testing.T, text string) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rec, err := ReadRecord(annotated(text))
		if err == nil {
			walk(t, rec, suspended, facts)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
			t.Errorf("%d bytes were allocated for a record of %d", used, len(text))
		}
	})
}

// walk has everything decided that a record is asked for.
func walk(t *testing.T, rec Record, suspended Job, facts []Facts) {
	t.Helper()
	backOff := policy.BackOff{Max: 30 * time.Minute}
	rec, _ = rec.Clamp(time.Hour, noon)
	if _, again := rec.Clamp(time.Hour, noon); again {
		t.Errorf("clamped again: %+v", rec)
	}
	for _, job := range []Job{jobOf(trainer()), suspended} {
		Evaluate(quarantine, job, rec, true, nil)
		if rec.Current == nil {
			continue
		}
		for _, f := range facts {
			next := rec.InKnownPhase(job)
			step := Next(next, job, f, testTimeouts, noon)
			switch step.Action {
			case Close:
				next = next.Closed(step, noon)
			case Start:
				next = next.Started(noon)
			case Stop:
				next = next.Counted(noon, backOff)
			}
			data, err := next.Patch(job.Object, SuspendField{})
			if err != nil {
				t.Fatal(err)
			}
			var patch metav1.PartialObjectMetadata
			if err := json.Unmarshal(data, &patch); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadRecord(annotated(patch.Annotations["pitcrew.dev/restart"])); err != nil {
				t.Errorf("what is written is not read: %v", err)
			}
		}
	}
}
