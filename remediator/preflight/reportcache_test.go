package preflight

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

func TestOnlyWhatIsReadIsKept(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	// many are keys that are too large together.
	many := map[string]string{}
	for i := range 200 {
		many[fmt.Sprintf("%s/key-%d", strings.Repeat("x", 100), i)] = "x"
	}
	const only, metadata = "report.json must be its only key", "its labels, annotations, owners and finalizers have "
	tests := map[string]struct {
		change func(*corev1.ConfigMap)
		// wrong is the beginning of the reason why it is not kept.
		wrong string
	}{
		"a report": {change: func(*corev1.ConfigMap) {}},
		"what is not read": {change: func(cm *corev1.ConfigMap) {
			cm.GenerateName, cm.Finalizers = "x", []string{"x/y"}
			cm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
			cm.Labels["app"], cm.Annotations["pitcrew.dev/other"] = "x", "x"
		}},
		"a large verdict":        {change: func(cm *corev1.ConfigMap) { cm.Annotations[conditions.AnnotationPreflightVerdict] = large }},
		"a large report":         {func(cm *corev1.ConfigMap) { cm.Data[reportconfigmap.Key] = large }, "report.json has 1048576 bytes, at most 16384"},
		"a key more":             {func(cm *corev1.ConfigMap) { cm.Data["other"] = large }, only},
		"another key":            {func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"other": large} }, only},
		"no key":                 {func(cm *corev1.ConfigMap) { cm.Data = nil }, only},
		"binary data":            {func(cm *corev1.ConfigMap) { cm.BinaryData = map[string][]byte{"b": []byte(large)} }, only},
		"a large annotation":     {func(cm *corev1.ConfigMap) { cm.Annotations["x"] = large }, metadata},
		"a large one of ours":    {func(cm *corev1.ConfigMap) { cm.Annotations[conditions.AnnotationPreflightPod] = large }, metadata},
		"many labels":            {func(cm *corev1.ConfigMap) { maps.Copy(cm.Labels, many) }, metadata},
		"a large owner":          {func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].Name = large }, metadata},
		"a large finalizer":      {func(cm *corev1.ConfigMap) { cm.Finalizers = []string{large} }, metadata},
		"metadata of 16 KiB + 1": {func(cm *corev1.ConfigMap) { cm.Labels["x"] = strings.Repeat("x", maxMetadataBytes-metadataBytes(cm)) }, metadata + "16385 bytes, at most 16384"},
		"metadata of 16 KiB":     {change: func(cm *corev1.ConfigMap) { cm.Labels["x"] = strings.Repeat("x", maxMetadataBytes-1-metadataBytes(cm)) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cm := reportOf(t, podOfJob("team", "a"), report.Report{RunID: "r", Size: 2})
			cm.ResourceVersion = "7"
			want := cm.DeepCopy()
			if tt.wrong != "" {
				want.Annotations, want.OwnerReferences, want.Immutable = nil, nil, nil
			}
			tt.change(&cm)
			once, err := newBudget(1).slimmed(&cm)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := once.(*corev1.ConfigMap)
			if !ok {
				t.Fatalf("%T", once)
			}
			if tt.wrong != "" {
				reason := got.Data[refusedKey]
				if !strings.HasPrefix(reason, tt.wrong) {
					t.Errorf("not kept because %q, want %q", reason, tt.wrong)
				}
				want.Data = map[string]string{refusedKey: reason}
				if _, err := readSubmission(got); err == nil || err.Error() != reason {
					t.Errorf("it is refused because %v, want %q", err, reason)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if twice, err := newBudget(1).slimmed(got.DeepCopy()); !cmp.Equal(got, twice) || err != nil {
				t.Errorf("the second time %s, %v", cmp.Diff(got, twice), err)
			}
		})
	}
	if key, err := newBudget(1).slimmed(toolscache.DeletedFinalStateUnknown{Key: "k"}); err != nil || key != (toolscache.DeletedFinalStateUnknown{Key: "k"}) {
		t.Errorf("a key becomes %v, %v", key, err)
	}
}

// A refusal is one Event, however often its run is reconciled, and no patch: the answer would be the whole ConfigMap.
func TestATooLargeConfigMapIsRefusedOnce(t *testing.T) {
	cm := reportOf(t, podOfJob("team", "a"), report.Report{RunID: "r", Size: 2})
	cm.Annotations["x"] = strings.Repeat("x", 1<<20)
	api := &fakeAPI{}
	c, recorder, _ := newTestController(api)
	for range 3 {
		if _, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "team", Name: "r"}, []corev1.ConfigMap{*keep(&cm)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("%d Events", n)
	}
	if got := <-recorder.Events; !strings.HasPrefix(got, "Warning PreflightRefused report in run r refused: its labels, annotations, owners and finalizers have 10") {
		t.Errorf("Event %q", got)
	}
	if api.gets > 0 || api.patches > 0 {
		t.Errorf("%d reads and %d patches", api.gets, api.patches)
	}
}

func TestAReasonFitsIntoAnEvent(t *testing.T) {
	pod := podOfJob("team", "a")
	cm := reportOf(t, pod, report.Report{RunID: "r", Size: 2})
	cm.Data[reportconfigmap.Key] = `{"rank":` + strings.Repeat("9", 10_000) + `}`
	cm.Annotations[conditions.AnnotationPreflightPod] = strings.Repeat("x", 253)
	c, recorder, _ := newTestController(&fakeAPI{})
	if _, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "team", Name: "r"}, []corev1.ConfigMap{cm}); err != nil {
		t.Fatal(err)
	}
	if got := <-recorder.Events; len(got) > 1000 || !strings.Contains(got, "not the JSON of a report") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestTheReportsOfANamespaceHaveAShare(t *testing.T) {
	room := newBudget(3)
	keptOf := func(namespace, uid string) bool {
		t.Helper()
		cm := reportOf(t, podOfJob(namespace, "a"), report.Report{RunID: "r", Size: 2})
		cm.UID, cm.Namespace = types.UID(uid), namespace
		cm.Data[reportconfigmap.Key] = strings.Repeat("x", report.MaxBytes)
		once, err := room.slimmed(&cm)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := room.slimmed(once.(*corev1.ConfigMap).DeepCopy())
		if diff := cmp.Diff(once, twice); diff != "" || err != nil {
			t.Errorf("slimmed twice: %v, %s", err, diff)
		}
		reason := once.(*corev1.ConfigMap).Data[refusedKey]
		if reason != "" && !strings.Contains(reason, "namespace "+namespace+" has more reports than the 8 MiB") {
			t.Errorf("refused because %q", reason)
		}
		return reason == ""
	}
	kept := 0
	for keptOf("noisy", fmt.Sprint(kept)) {
		kept++
	}
	if most := maxAllReports / 3 / report.MaxBytes; kept > most || kept < most-50 {
		t.Errorf("%d reports of 16 KiB are kept", kept)
	}
	if !keptOf("quiet", "q") || !keptOf("noisy", "0") {
		t.Error("another namespace has no room, or a report that is kept already")
	}
	gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "noisy", UID: "0"}}
	room.free(toolscache.DeletedFinalStateUnknown{Obj: gone})
	if !keptOf("noisy", "new") || keptOf("noisy", "newer") {
		t.Error("a report that was deleted does not give back its room, and only that")
	}
	room.free(toolscache.DeletedFinalStateUnknown{Key: "k"})
	if share := newBudget(1000).share; share != minShare {
		t.Errorf("of 1000 namespaces each has %d bytes", share)
	}
}
