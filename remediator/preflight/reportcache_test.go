package preflight

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
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
			once, err := slim(&cm)
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
			if twice, err := slim(got.DeepCopy()); !cmp.Equal(got, twice) || err != nil {
				t.Errorf("the second time %s, %v", cmp.Diff(got, twice), err)
			}
		})
	}
	if key, err := slim(toolscache.DeletedFinalStateUnknown{Key: "k"}); err != nil || key != (toolscache.DeletedFinalStateUnknown{Key: "k"}) {
		t.Errorf("a key becomes %v, %v", key, err)
	}
}

// pagedAPI answers with pages, as the API server does without streams.
type pagedAPI struct {
	all     []corev1.ConfigMap
	largest int
	bad     []metav1.ListOptions
}

func (p *pagedAPI) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion != "" || o.ResourceVersionMatch != "" || o.Limit == 0 { // it ignores the limit
		p.bad = append(p.bad, o)
		o.Limit = int64(len(p.all))
	}
	var first int
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &first); err != nil {
			return nil, err
		}
	}
	last := min(first+int(o.Limit), len(p.all))
	page := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	for _, cm := range p.all[first:last] {
		page.Items = append(page.Items, *cm.DeepCopy())
	}
	if last < len(p.all) {
		page.Continue = fmt.Sprint(last)
	}
	p.largest = max(p.largest, last-first)
	return page, nil
}

func (*pagedAPI) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func TestListsAreReadInPages(t *testing.T) {
	api := &pagedAPI{}
	var want []corev1.ConfigMap
	for i := range 3*pageSize + 1 {
		cm := reportOf(t, podOfJob("team", fmt.Sprint(i)), report.Report{RunID: "r", Size: 100})
		if i == 2 {
			cm.Annotations["x"] = strings.Repeat("x", 1<<20)
		}
		api.all = append(api.all, cm)
		want = append(want, *keep(cm.DeepCopy()))
	}
	got, err := inPages(api).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: want}, got); diff != "" {
		t.Error(diff)
	}
	if api.largest > pageSize || len(api.bad) > 0 {
		t.Errorf("a page of %d ConfigMaps; requests whose limit the API server ignores: %+v", api.largest, api.bad)
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
