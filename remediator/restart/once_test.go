package restart

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// onceWorld is a job, a node with one quarantine, and what the record on the job says.
type onceWorld struct {
	job     Job
	trigger Trigger
	rec     Record
	now     time.Time
	// pod is on the node, nil: none is.
	pod *corev1.Pod
	// retainted: the node was tainted anew.
	retainted bool
	stops     int
}

// onceEvents are what may happen to the job and its node.
var onceEvents = map[string]func(*onceWorld){
	"the taint is dropped and a pod placed": func(w *onceWorld) {
		pod := rank(corev1.PodSpec{}, w.now)
		w.pod = &pod
	},
	"a new leader taints anew": func(w *onceWorld) { w.trigger.Since, w.retainted = w.now, true },
	"the restart ends": func(w *onceWorld) {
		if w.rec.Current != nil {
			w.rec.Last = append([]Restart{*w.rec.Current}, w.rec.Last...)
			w.rec.Current = nil
		}
	},
	"the record is read by another process": func(w *onceWorld) {
		text, err := json.Marshal(w.rec)
		if err != nil {
			panic(err)
		}
		object := &metav1.ObjectMeta{UID: w.rec.JobUID, Annotations: map[string]string{conditions.AnnotationRestart: string(text)}}
		rec, err := ReadRecord(object)
		if err != nil {
			panic(err)
		}
		w.rec = rec
	},
	"time passes": func(w *onceWorld) { w.now = w.now.Add(20 * time.Second) },
}

// look does what a remediator does with the pod on the node.
func (w *onceWorld) look() (verdict Verdict) {
	w.now = w.now.Add(time.Second)
	if w.pod == nil {
		return LeaveAlone
	}
	if verdict, _ = Evaluate(w.trigger, w.job, w.rec, true, []corev1.Pod{*w.pod}); verdict != StartRestart {
		return verdict
	}
	w.stops++
	if w.rec.Current != nil {
		w.rec.Last = append([]Restart{*w.rec.Current}, w.rec.Last...)
	}
	w.rec.Current = &Restart{ID: fmt.Sprint("r", w.stops), Phase: Starting, PhaseSince: w.now, Quarantines: []Cause{CauseOf(w.trigger)}}
	w.pod = nil
	return verdict
}

// Once per quarantine, in every order in which a foreign writer drops the taint, the scheduler places a pod there again, and the leader
// changes. Pods that are replaced one by one are replaced once more if no one has tainted the node anew, see boundLate.
func TestAQuarantineRestartsAJobOnceInEveryOrder(t *testing.T) {
	var names []string
	for name := range onceEvents {
		names = append(names, name)
	}
	one := func(metav1.Object) string { return "" }
	const steps = 6
	orders := 1
	for range steps {
		orders *= len(names)
	}
	restartedTwice := false
	for gang, most := range map[bool]int{false: 1, true: 2} {
		for order := range orders {
			w := &onceWorld{job: jobOf(trainer()), trigger: quarantine, rec: Record{V: 1, JobUID: "job-uid"}, now: noon}
			if w.trigger.Since = noon; gang {
				w.job.Gang = one
			}
			first := rank(corev1.PodSpec{}, noon.Add(-time.Hour))
			w.pod = &first
			w.look()
			var happened []string
			for n := order; len(happened) < steps; n /= len(names) {
				event := names[n%len(names)]
				happened = append(happened, event)
				onceEvents[event](w)
				if verdict := w.look(); verdict == StartRestart && w.retainted {
					t.Fatalf("gang %t: stopped again after %q", gang, happened)
				}
			}
			if w.stops > most {
				t.Fatalf("gang %t: stopped %d times by %q", gang, w.stops, happened)
			}
			restartedTwice = restartedTwice || w.stops == 2
		}
	}
	if !restartedTwice {
		t.Error("no pod that was bound late was replaced again")
	}
}
