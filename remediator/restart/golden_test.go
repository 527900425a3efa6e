package restart

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	// NoField: the kind has no suspend field. Elsewhere is the patch of another object that has it.
	NoField   bool            `json:",omitempty"`
	Elsewhere json.RawMessage `json:",omitempty"`
}

// answered is what is decided with old pods left and without, with no rank running and with all, and when time is over.
type answered struct {
	Phase                          Phase
	PodsLeft, NoneLeft, AllRunning Action
	Late                           Action
	Results                        []string
	Ends                           Phase
	Kept                           int
	// Beside is what has to be done beside the record while old pods are left, of a job without a suspend field of its own.
	Beside string `json:",omitempty"`
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
	"pod-failed":          func() Record { return stopped(of(podFailed), "abcd2345") },
	"pod-failed-starting": func() Record { return stopped(of(podFailed), "abcd2345").Started(noon.Add(2 * time.Minute)) },
	"pod-failed-done":     func() Record { return done(stopped(of(podFailed), "abcd2345")) },
	"stalled":             func() Record { return stopped(of(stalled), "abcd2345") },
	"stalled-starting":    func() Record { return stopped(of(stalled), "abcd2345").Started(noon.Add(2 * time.Minute)) },
	"no-field":            func() Record { return stopped(begun(), "abcd2345") },
	"no-field-starting":   func() Record { return stopped(begun(), "abcd2345").Started(noon.Add(2 * time.Minute)) },
	"elsewhere":           func() Record { return stopped(begun(), "abcd2345") },
	"elsewhere-pending":   func() Record { return stopped(begun(), "abcd2345") },
	"elsewhere-starting":  func() Record { return stopped(begun(), "abcd2345").Started(noon.Add(2 * time.Minute)) },
}

// podFailed and stalled are why a job is restarted without a fault of a node. They have no taint, and a stall no node.
var (
	podFailed = Trigger{Kind: PodFailed, ID: "job-uid-failure-0", Node: "bad", NodeUID: "node-uid", Reason: "pod train-0 failed: container main: Error, exit code 1", Since: noon}
	stalled   = Trigger{Kind: JobStalled, ID: "job-uid-stall-0123456789abcdef", Reason: "no rank has made progress since 2026-11-20T11:30:00Z", Since: noon}
)

func of(q Trigger) Record { return Record{V: 1, JobUID: "job-uid"}.With(q, 0, noon) }

// fieldOf is the suspend field of the job of a golden: its own, none, or that of another object.
func (k kept) fieldOf(t *testing.T) SuspendField {
	switch {
	case k.NoField:
		return SuspendField{}
	case k.Elsewhere == nil:
		return suspendField
	}
	field := SuspendField{Path: "spec.active", Elsewhere: &unstructured.Unstructured{}}
	if err := json.Unmarshal(k.Elsewhere, &field.Elsewhere.Object); err != nil {
		t.Fatal(err)
	}
	return field
}

func TestGoldenRestarts(t *testing.T) {
	for name, made := range goldens {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "restarts/"+name, func(t *testing.T) kept { return keep(t, name, made()) })
			text := *k.Annotations[conditions.AnnotationRestart]
			rec, err := ReadRecord(annotated(text))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := json.Marshal(rec); err != nil || string(again) != text {
				t.Errorf("reads %s\nand writes %s: %v", text, again, err)
			}
			goldentest.Answer(t, "restarts/"+name, k.goesOn(t, rec))
		})
	}
}

func keep(t *testing.T, name string, rec Record) kept {
	k, field := kept{Now: noon.Add(2 * time.Minute), NoField: strings.HasPrefix(name, "no-field")}, suspendField
	if rec.Current == nil || k.NoField {
		field = SuspendField{}
	}
	if strings.HasPrefix(name, "elsewhere") {
		field = SuspendField{Path: "spec.active", Elsewhere: &unstructured.Unstructured{Object: map[string]any{}}}
		patch, err := rec.Current.PatchElsewhere(field)
		if err != nil {
			t.Fatal(err)
		}
		k.Elsewhere = patch
		if name == "elsewhere-pending" {
			k.Elsewhere = []byte(`{"spec":{"active":true}}`)
		}
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
	k.Labels, k.Annotations, k.Suspend = patch.Metadata.Labels, patch.Metadata.Annotations, patch.Spec.Suspend
	return k
}

func (k kept) goesOn(t *testing.T, rec Record) (a answered) {
	if rec.Current == nil {
		a.Ends, a.Kept = rec.Last[0].Phase, len(rec.Last)
		return a
	}
	job := jobOf(trainer(func(j *batchv1.Job) { j.Spec.Suspend = &k.Suspend }))
	job.SuspendField, job.SuspendObserved = k.fieldOf(t), true
	job.Suspended = k.Suspend || k.Elsewhere != nil && job.SuspendField.Stops(job.SuspendField.Elsewhere)
	cur, now := rec.Current, rec.Current.PhaseSince.Add(time.Minute)
	a.Phase = cur.Phase
	left := remaining(1)
	left.Affected = []corev1.Pod{rank(corev1.PodSpec{}, noon.Add(-time.Hour))}
	waits := Next(rec, job, left, testTimeouts, now)
	a.PodsLeft = waits.Action
	none := Next(rec, job, Facts{}, testTimeouts, now)
	a.NoneLeft = none.Action
	if waits.OutOfBand.Needed() && (k.NoField || k.Elsewhere != nil) {
		a.Beside = fmt.Sprintf("replaces pods: %t, sets the field: %t", waits.OutOfBand.ReplacePods, waits.OutOfBand.SetSuspendField)
	}
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
