package quarantine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// The record as commit 0360749 decodes it, strictly: it refuses a field that it does not know.
type (
	previousRecord struct {
		V       int       `json:"v"`
		NodeUID types.UID `json:"nodeUID"`
		Boot    struct {
			ID   string    `json:"id"`
			Seen time.Time `json:"seen,omitzero"`
		} `json:"boot"`
		previousQuarantine
		Repairs []struct {
			GPU    string            `json:"gpu"`
			Code   string            `json:"code"`
			Repair conditions.Repair `json:"repair"`
			At     time.Time         `json:"at"`
		} `json:"repairs,omitempty"`
		Notices []struct {
			ID         string                   `json:"id"`
			Event      string                   `json:"event"`
			At         time.Time                `json:"at"`
			Quarantine string                   `json:"quarantine"`
			Condition  corev1.NodeConditionType `json:"condition"`
			Rule       string                   `json:"rule"`
			Repair     conditions.Repair        `json:"repair"`
			Message    string                   `json:"message"`
			Taint      string                   `json:"taint"`
			To         []string                 `json:"to"`
		} `json:"notices,omitempty"`
		LastNotified string               `json:"noticed,omitempty"`
		Last         []previousQuarantine `json:"last,omitempty"`
	}
	previousQuarantine struct {
		ID     string       `json:"id"`
		Phase  causes.Phase `json:"phase"`
		Causes []struct {
			Condition      corev1.NodeConditionType `json:"condition"`
			Rule           string                   `json:"rule"`
			Repair         conditions.Repair        `json:"repair"`
			Message        string                   `json:"message"`
			Covered        json.RawMessage          `json:"covered,omitempty"` // is newer; a version since then ignores what it does not know
			FirstSeen      time.Time                `json:"firstSeen"`
			Due            bool                     `json:"due,omitempty"`
			BootID         string                   `json:"bootID"`
			FlapTimes      []time.Time              `json:"dips,omitempty"`
			RepairRecorded bool                     `json:"mended,omitempty"`
			HealthySince   time.Time                `json:"healthySince,omitzero"`
		} `json:"causes"`
		QuarantinedAt time.Time `json:"quarantinedAt,omitzero"`
		Taint         *struct {
			Key         string             `json:"key"`
			Value       string             `json:"value,omitempty"`
			Effect      corev1.TaintEffect `json:"effect"`
			Rule        string             `json:"rule"`
			Repair      conditions.Repair  `json:"repair"`
			Since       time.Time          `json:"since"`
			Restored    bool               `json:"restored,omitempty"`
			PreExisting bool               `json:"foreign,omitempty"`
		} `json:"taint,omitempty"`
		HandOff *struct {
			Labels      map[string]string `json:"labels,omitempty"`
			Annotations map[string]string `json:"annotations,omitempty"`
			Taints      []corev1.Taint    `json:"taints,omitempty"`
		} `json:"handOff,omitempty"`
		ReleasedAt          time.Time `json:"releasedAt,omitzero"`
		ReleasedBy          string    `json:"releasedBy,omitempty"`
		ManualReleaseOnly   bool      `json:"sticky,omitempty"`
		ManualReleaseActive bool      `json:"holds,omitempty"`
	}
)

// readByPrevious returns the error of the decoder of commit 0360749.
func readByPrevious(text string) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(&previousRecord{})
}

func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Attack 13: record-previous.json was written by commit 0360749, every field set; record-next.json is the same with a field
// more at every level.
func TestTheRecordsOfThePreviousAndOfTheNextVersionAreRead(t *testing.T) {
	for _, name := range []string{"record-previous.json", "record-next.json"} {
		got, err := causes.ParseRecord(golden(t, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(full(), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if readByPrevious(golden(t, "record-next.json")) == nil {
		t.Error("the decoder of the previous version accepts any field: it proves nothing")
	}
}

// Attack 13: after a downgrade the next version's quarantines are dealt with.
func TestARecordOfTheNextVersionIsActedOn(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{gpu(ecc), decide} {
		s(w)
	}
	text := w.node.Annotations[conditions.AnnotationQuarantine]
	text = strings.NewReplacer(`{"v":1`, `{"v":1,"next":[{"a":1}]`, `"causes":[{`, `"causes":[{"next":{},`, `"taint":{`, `"taint":{"next":1,`).Replace(text)
	w.node.Annotations[conditions.AnnotationQuarantine] = text
	for _, s := range []step{gpuFine, decide, lasts(10 * time.Minute)} {
		s(w)
	}
	if o := w.outcome(); o.Phase != causes.Released || o.Taints != "" {
		t.Errorf("%+v", o)
	}
}

// After a downgrade a record may have a phase of the later version. The node is released in order, and no taint stays.
func TestAPhaseOfALaterVersionEnds(t *testing.T) {
	for phase, test := range map[string]struct{ fault, healthy step }{
		"suspect": {says("DiskFailing", "True", "x"), says("DiskFailing", "False", "fine")}, "quarantined": {gpu(ecc), gpuFine},
	} {
		w := newWorld(t)
		for _, s := range []step{test.fault, decide} {
			s(w)
		}
		text := w.node.Annotations[conditions.AnnotationQuarantine]
		was := w.outcome().Taints
		later := strings.Replace(text, `"phase":"`+phase+`"`, `"phase":"draining"`, 1)
		if later == text {
			t.Fatalf("%s: %s", phase, text)
		}
		w.node.Annotations[conditions.AnnotationQuarantine] = later
		decide(w)
		if o := w.outcome(); o.Taints != was || string(o.Phase) != phase {
			t.Errorf("%s: %+v, want taints %s", phase, o, was)
		}
		for _, s := range []step{test.healthy, decide, lasts(10 * time.Minute)} {
			s(w)
		}
		if o := w.outcome(); o.Phase == causes.Quarantined || o.Taints != "" {
			t.Errorf("%s: %+v", phase, o)
		}
	}
	closed := strings.Replace(full().String(), `"last":[`, `"last":[{"id":"x","phase":"archived","causes":[]},`, 1)
	if r, err := causes.ParseRecord(closed); err != nil || len(r.Last) != len(full().Last) {
		t.Errorf("a closed one: %+v, %v", r, err)
	}
}

// withNext adds a field to every object of a record, as a next version may.
func withNext(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if key != "labels" && key != "annotations" { // maps of a fixed form
				v[key] = withNext(value)
			}
		}
		v["next"] = map[string]any{"fan": []any{1, "x"}}
	case []any:
		for i := range v {
			v[i] = withNext(v[i])
		}
	}
	return v
}

// After a downgrade, in every phase that a golden has, isolations of devices, broken links and incidents among them: fields that are not
// known change no answer.
func TestFieldsOfTheNextVersionChangeNoAnswer(t *testing.T) {
	for name, made := range goldens {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "quarantines/"+name, made)
			for _, n := range append([]*corev1.Node{k.Node}, k.Others...) {
				text, has := n.Annotations[conditions.AnnotationQuarantine]
				if !has {
					continue
				}
				var fields map[string]any
				if err := json.Unmarshal([]byte(text), &fields); err != nil {
					t.Fatal(err)
				}
				next, err := json.Marshal(withNext(fields))
				if err != nil {
					t.Fatal(err)
				}
				n.Annotations[conditions.AnnotationQuarantine] = string(next)
			}
			goldentest.Answer(t, "quarantines/"+name, k.goesOn(t))
		})
	}
}

// The role of a broken link, and a phase of an isolation, that a later version has: the node returns, and neither taint nor rule stays.
func TestWhatALaterVersionSaysOfLinksAndDevicesEnds(t *testing.T) {
	for name, change := range map[string][]string{
		"link-origin": {`"role":"origin"`, `"role":"relay"`},
		"link-victim": {`"role":"victim"`, `"role":"relay"`},
		"isolated":    {`"phase":"quarantined"`, `"phase":"draining"`},
		"incident":    {`"phase":"quarantined"`, `"phase":"draining"`},
	} {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "quarantines/"+name, goldens[name])
			text := k.Node.Annotations[conditions.AnnotationQuarantine]
			later := strings.Replace(text, change[0], change[1], 1)
			if later == text {
				t.Fatalf("no %s in %s", change[0], text)
			}
			k.Node.Annotations[conditions.AnnotationQuarantine] = later
			// What it has is not lost before the node is healthy.
			was := k.Node.DeepCopy().Spec.Taints
			a := k.goesOn(t)
			if len(was) > 0 && len(a.First.Taints) != len(was) {
				t.Errorf("first taints %v, which were %v", a.First.Taints, was)
			}
			if name == "isolated" && a.First.Rules == "" {
				t.Error("its rules are lost at once")
			}
			if a.Healthy.Phase != causes.Released || len(a.Healthy.Taints) > 0 || a.Healthy.Rules != "" {
				t.Errorf("in the end %+v", a.Healthy)
			}
		})
	}
}

// The classes of a later version: the node keeps what it has until it is healthy, and returns then as it would without them.
func TestAClassOfALaterVersionEnds(t *testing.T) {
	class := regexp.MustCompile(`"repair":"[A-Za-z]+"`)
	for name, made := range goldens {
		k := goldentest.Read(t, "quarantines/"+name, made)
		if k.Node.Annotations[conditions.AnnotationQuarantine] == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			want := goldentest.Read(t, "quarantines/"+name, made).goesOn(t)
			had := k.Node.DeepCopy().Spec.Taints
			text := k.Node.Annotations[conditions.AnnotationQuarantine]
			later := class.ReplaceAllString(text, `"repair":"ResetSwitch"`)
			if k.Devices != nil { // that of its first cause: a new class of the taint has the rules written anew
				later = strings.Replace(text, class.FindString(text), `"repair":"ResetSwitch"`, 1)
			}
			k.Node.Annotations[conditions.AnnotationQuarantine] = later
			if _, err := causes.RecordOf(k.Node); err != nil {
				t.Fatal(err)
			}
			got := k.goesOn(t)
			if len(had) > 0 && len(got.First.Taints) < len(had) {
				t.Errorf("first taints %v, which were %v", got.First.Taints, had)
			}
			if g, w := got.Healthy, want.Healthy; g.Phase != w.Phase || !slices.Equal(g.Taints, w.Taints) || g.Rules != w.Rules {
				t.Errorf("in the end %+v, want %+v", g, w)
			}
		})
	}
}

// Attack 13: whatever is written is read by the previous version.
func TestWhatIsWrittenIsReadByThePreviousVersion(t *testing.T) {
	if err := readByPrevious(full().String()); err != nil {
		t.Error(err)
	}
	w := newWorld(t)
	for i, s := range []step{
		hooks(), handsOver, gpu(ecc), decide, says("DiskFailing", "True", "x"), decide, lasts(time.Minute), untaints, decide, untaints, decide, gpu(lost), decide,
		gpuFine, dips(2), decide, reboots, decide, lasts(time.Hour), flaps(2), gpu(lost), decide, pardonedIfQuarantined, decide,
	} {
		s(w)
		if text, ok := w.node.Annotations[conditions.AnnotationQuarantine]; ok {
			if err := readByPrevious(text); err != nil {
				t.Errorf("after step %d: %v: %s", i, err, text)
			}
		}
	}
}
