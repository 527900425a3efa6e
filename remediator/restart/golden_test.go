package restart

import (
	"encoding/json"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// kept is a job as the API server has it.
type kept struct {
	Now         time.Time
	Labels      map[string]*string
	Annotations map[string]*string
	Suspend     bool
}

// answered is what is decided with old pods left and without, with no rank running and with all, and when time is over.
type answered struct {
	Phase                          Phase
	PodsLeft, NoneLeft, AllRunning Action
	Late                           Action
	Results                        []string
	Ends                           Phase
	Kept                           int
}

func begun() Record {
	return Record{V: 1, JobUID: "job-uid"}.With(quarantine, 2, noon)
}

func announced() Record { return begun().Announced(noon.Add(5 * time.Minute)) }

// stopped is what package jobs records when it stops a job.
func stopped(rec Record, id string) Record {
	rec = rec.Counted(noon, policy.BackOff{})
	cur := *rec.Current
	cur.ID, cur.Phase, cur.PhaseSince, cur.CheckpointBy = id, Stopping, noon.Add(time.Minute), time.Time{}
	cur.Ranks, cur.RunningSince = 4, noon.Add(-time.Hour)
	rec.Current = &cur
	cur.AddPods(&metav1.ObjectMeta{UID: types.UID("pod-0")}, &metav1.ObjectMeta{UID: types.UID("pod-1")})
	return rec
}

func done(rec Record) Record {
	return rec.Started(noon.Add(2*time.Minute)).Closed(Step{Phase: Done, Outcome: "all ranks running (4/4)"}, noon.Add(3*time.Minute))
}

var goldens = map[string]func() Record{
	"checkpointing": announced,
	"stopping":      func() Record { return stopped(announced(), "abcd2345") },
	"starting":      func() Record { return stopped(begun(), "abcd2345").Started(noon.Add(2 * time.Minute)) },
	"done":          func() Record { return done(stopped(begun(), "abcd2345")) },
	"failed": func() Record {
		return stopped(begun(), "abcd2345").Closed(Step{Phase: Failed, Outcome: "2/4 ranks running"}, noon.Add(20*time.Minute))
	},
	"again": func() Record {
		return stopped(done(stopped(begun(), "abcd2345")).With(quarantine, 0, noon.Add(time.Hour)), "wxyz6789")
	},
	"two-causes": func() Record {
		rec := stopped(begun(), "abcd2345")
		rec.Current.AddCause(Cause{ID: "q2", Node: "worse", NodeUID: "other-uid", Reason: "pod failed", Since: noon})
		rec.Current.Held = "pod team/train-0 on node bad has not ended"
		return rec
	},
	"replaced": func() Record {
		rec := stopped(begun(), "abcd2345")
		rec.Current.Retries, rec.Current.Sent, rec.Current.Command = 1, true, "command-uid"
		return rec
	},
}

func TestGoldenRestarts(t *testing.T) {
	for name, made := range goldens {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "restarts/"+name, func(t *testing.T) kept { return keep(t, made()) })
			text := *k.Annotations[conditions.AnnotationRestart]
			rec, err := ReadRecord(annotated(text))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := json.Marshal(rec); err != nil || string(again) != text {
				t.Errorf("reads %s\nand writes %s: %v", text, again, err)
			}
			goldentest.Answer(t, "restarts/"+name, goesOn(rec, k.Suspend))
		})
	}
}

func keep(t *testing.T, rec Record) kept {
	field := suspendField
	if rec.Current == nil {
		field = SuspendField{}
	}
	data, err := rec.Patch(annotated(""), field)
	if err != nil {
		t.Fatal(err)
	}
	var patch struct {
		Metadata struct{ Labels, Annotations map[string]*string }
		Spec     struct{ Suspend bool }
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	return kept{noon.Add(2 * time.Minute), patch.Metadata.Labels, patch.Metadata.Annotations, patch.Spec.Suspend}
}

func goesOn(rec Record, suspended bool) (a answered) {
	if rec.Current == nil {
		a.Ends, a.Kept = rec.Last[0].Phase, len(rec.Last)
		return a
	}
	job := jobOf(trainer(func(j *batchv1.Job) { j.Spec.Suspend = &suspended }))
	job.SuspendObserved = true
	cur, now := rec.Current, rec.Current.PhaseSince.Add(time.Minute)
	a.Phase = cur.Phase
	left := remaining(1)
	left.Affected = []corev1.Pod{rank(corev1.PodSpec{}, noon.Add(-time.Hour))}
	a.PodsLeft = Next(rec, job, left, testTimeouts, now).Action
	none := Next(rec, job, Facts{}, testTimeouts, now)
	a.NoneLeft = none.Action
	late := Next(rec, job, left, testTimeouts, now.Add(time.Hour))
	a.Late, a.Results = late.Action, append(a.Results, none.Result, late.Result)
	job.Suspended = false
	if cur.Phase != Starting {
		rec = rec.Started(now)
	}
	s := Next(rec, job, Facts{Running: 4}, testTimeouts, now)
	a.AllRunning = s.Action
	if s.Action == Close {
		rec = rec.Closed(s, now)
		a.Ends, a.Kept = rec.Last[0].Phase, len(rec.Last)
	}
	return a
}
