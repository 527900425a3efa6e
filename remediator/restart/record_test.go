package restart

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func annotated(text string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "train", UID: "job-uid", ResourceVersion: "7", Annotations: map[string]string{"pitcrew.dev/restart": text},
	}}
}

func TestARecordComesBackFromItsPatch(t *testing.T) {
	rec := Record{V: 1, JobUID: "job-uid",
		Current: &Restart{
			Phase: Stopping, StartedAt: noon, PhaseSince: noon.Add(time.Second), Pods: []types.UID{"p1", "p2"}, Held: "pod p1 on node bad has not ended",
			Quarantines: []Cause{{ID: "q1", Node: "bad", NodeUID: "node-uid", Reason: `Xid 79 "lost"`, Since: noon}},
		},
		Last: []Restart{{Phase: Done, StartedAt: noon, PhaseSince: noon, EndedAt: noon.Add(time.Minute), Outcome: "all ranks running (4/4)"}},
	}
	data, err := rec.Patch(annotated(""), suspendField)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct {
			ResourceVersion     string
			Labels, Annotations map[string]*string
		}
		Spec map[string]bool
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.ResourceVersion != "7" || *got.Metadata.Labels["pitcrew.dev/restarting"] != "true" || !got.Spec["suspend"] {
		t.Errorf("patch %s", data)
	}
	back, err := ReadRecord(annotated(*got.Metadata.Annotations["pitcrew.dev/restart"]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rec, back); diff != "" {
		t.Error(diff)
	}
}

func TestAClosedRecordDropsItsLabelAndLeavesSuspendAlone(t *testing.T) {
	rec := Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: Starting}}.Closed(Step{Phase: Done, Outcome: "all ranks running (4/4)"}, noon)
	data, err := rec.Patch(annotated(""), SuspendField{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	label, found := got["metadata"].(map[string]any)["labels"].(map[string]any)["pitcrew.dev/restarting"]
	if !found || label != nil {
		t.Errorf("label is %v (in the patch: %t), want null", label, found)
	}
	if _, found := got["spec"]; found {
		t.Errorf("the patch touches spec: %s", data)
	}
}

func TestARecordKeepsTheLastFiveRestarts(t *testing.T) {
	rec := Record{}
	for i := range 7 {
		rec.Current = &Restart{Quarantines: []Cause{{ID: fmt.Sprint(i)}}, Pods: []types.UID{"p"}}
		rec = rec.Closed(Step{Phase: Done}, noon)
	}
	var ids []string
	for _, r := range rec.Last {
		ids = append(ids, r.Quarantines[0].ID)
		if r.Pods != nil {
			t.Errorf("restart %s still lists pods", r.Quarantines[0].ID)
		}
	}
	if diff := cmp.Diff([]string{"6", "5", "4", "3", "2"}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestReadRecord(t *testing.T) {
	fresh := Record{V: 1, JobUID: "job-uid"}
	tests := map[string]struct {
		text    string
		want    Record
		wantErr bool
	}{
		"of this job":           {text: `{"v":1,"jobUID":"job-uid","current":{"phase":"Starting"}}`, want: Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: Starting}}},
		"copied from another":   {text: `{"v":1,"jobUID":"other","current":{"phase":"Stopping"}}`, want: fresh},
		"broken":                {text: `{"v":1,`, wantErr: true},
		"of a version to come":  {text: `{"v":2,"jobUID":"job-uid"}`, wantErr: true},
		"emptied by somebody":   {text: ``, wantErr: true},
		"in a phase to come":    {text: `{"v":1,"jobUID":"job-uid","current":{"phase":"Waiting"}}`, want: Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: "Waiting"}}},
		"in no phase":           {text: `{"v":1,"jobUID":"job-uid","current":{"phase":"x y"}}`, wantErr: true},
		"in a phase that ended": {text: `{"v":1,"jobUID":"job-uid","current":{"phase":"Done"}}`, wantErr: true},
		"written by hand, bare": {text: `{}`, want: fresh},
		"with fields to come": {text: `{"v":1,"jobUID":"job-uid","a":{"b":[1]},"current":{"phase":"Starting","c":1,"quarantines":[{"id":"q1","d":true}]},"last":[{"e":null}]}`,
			want: Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: Starting, Quarantines: []Cause{{ID: "q1"}}}, Last: []Restart{{}}}},
		"with an id that is no name": {text: `{"v":1,"jobUID":"job-uid","current":{"id":"../x","phase":"Stopping"}}`, wantErr: true},
		"too large":                  {text: `{"v":1,"jobUID":"job-uid","x":"` + strings.Repeat("x", maxRead) + `"}`, wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadRecord(annotated(test.text))
			if (err != nil) != test.wantErr {
				t.Fatalf("error %v, want one: %t", err, test.wantErr)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	none := annotated("")
	none.Annotations = nil
	if got, err := ReadRecord(none); err != nil || !cmp.Equal(got, fresh) {
		t.Errorf("without an annotation: %+v, %v", got, err)
	}
}

// A wave of faults in a job of many nodes, again and again, by conditions of somebody else that say much.
func TestARecordForgetsOldRestartsRatherThanGrow(t *testing.T) {
	var rec Record
	for i := range 6 {
		rec.Current = &Restart{Phase: Starting, Streak: 1, ID: fmt.Sprint(i)}
		for node := range 150 {
			rec.Current.Quarantines = append(rec.Current.Quarantines, CauseOf(Trigger{
				ID: fmt.Sprint(node), Node: fmt.Sprintf("gpu-node-%d.example.com", node), NodeUID: "01234567-89ab-cdef-0123-456789abcdef", Since: noon,
				Reason: strings.Repeat("é", 16<<10), Taint: quarantine.Taint,
			}))
		}
		if i < 5 {
			rec = rec.Closed(Step{Phase: Done, Outcome: "all ranks running (4/4)"}, noon)
		}
	}
	for range 512 {
		rec.Current.Pods = append(rec.Current.Pods, "01234567-89ab-cdef-0123-456789abcdef")
	}
	data, err := rec.Patch(annotated(""), SuspendField{})
	if err != nil {
		t.Fatal(err)
	}
	var body metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &body); err != nil {
		t.Fatal(err)
	}
	text := body.Annotations["pitcrew.dev/restart"]
	var got Record
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if len(text) > maxRecord || len(got.Last) == 0 || got.Last[0].ID != "4" || len(got.Current.Quarantines) != 150 || len(got.Current.Pods) != 512 {
		t.Errorf("%d bytes, %d closed restarts", len(text), len(got.Last))
	}
}

func TestCausesAreBounded(t *testing.T) {
	rec := Record{V: 1, JobUID: "job-uid", Current: &Restart{Phase: Stopping}}
	for i := range maxCauses + 1 {
		rec.Current.AddCause(Cause{ID: fmt.Sprint(i)})
		rec.Current.AddCause(Cause{ID: fmt.Sprint(i)})
	}
	if n := len(rec.Current.Quarantines); n != maxCauses {
		t.Errorf("%d causes", n)
	}
	// An earlier version wrote up to 500.
	rec.Current.Quarantines = append(rec.Current.Quarantines, make([]Cause, 436)...)
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRecord(annotated(string(text))); err != nil || len(got.Current.Quarantines) != maxCauses || got.Current.Quarantines[0].ID != "0" {
		t.Errorf("%d causes are read as %v, %v", len(rec.Current.Quarantines), got, err)
	}
}

// The annotations of an object are limited to 256 KiB together.
func TestTheLargestRecordFitsAnAnnotation(t *testing.T) {
	rec := Record{Current: &Restart{}}
	for i := range MaxPods {
		rec.Current.Pods = append(rec.Current.Pods, types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i)))
	}
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 200<<10 {
		t.Errorf("%d bytes", len(text))
	}
}
