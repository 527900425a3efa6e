package slim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// dense is an affinity with n empty terms, each of three bytes of JSON and 48 in memory. It selects no node.
func dense(n int) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, n)},
	}}
}

// mostLabels are as many labels as fit into an object.
func mostLabels() map[string]string {
	labels := map[string]string{}
	for i := range 120_000 {
		labels[fmt.Sprintf("l%d", i)] = ""
	}
	return labels
}

func heap() uint64 {
	var now runtime.MemStats
	runtime.GC()
	runtime.GC() // what a pool holds goes with the second one
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}

// Anyone who may create pods can write them so that they take 30 times more memory than their text. What they take on their node is read all
// the same.
func TestPodsOfManyEmptyEntriesCostLittle(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	for name, test := range map[string]struct{ pods, terms int }{"large ones": {6, 400_000}, "small ones": {120, 12_000}} {
		p := pod("")
		p.Spec.Affinity = dense(test.terms)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		before, peak := heap(), uint64(0)
		r := served(t, func(w http.ResponseWriter, _ *http.Request) {
			list(w, test.pods, func(int) any {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
				return text
			})
		})
		var got corev1.PodList
		if err := r.List(t.Context(), &got); err != nil {
			t.Fatal(err)
		}
		if used := int64(max(peak, heap())-before) >> 20; used > 30 {
			t.Errorf("%s: %d MiB of heap", name, used)
		}
		last := got.Items[test.pods-1]
		gpus := last.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
		if len(got.Items) != test.pods || last.Name != "train-0" || last.Spec.NodeName != "gpu-1" || last.Spec.Affinity != nil || gpus.Value() != 8 {
			t.Errorf("%s: %d pods, %+v", name, len(got.Items), last)
		}
	}
}

// A kubelet may add such static pods to every namespace, with the labels of any job.
func TestMetadataOfManyLabelsCostLittle(t *testing.T) {
	m := metav1.PartialObjectMetadata{ObjectMeta: pod("").ObjectMeta}
	m.Labels = mostLabels()
	isController := true
	m.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "gpu-1", UID: "n", Controller: &isController}}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r := served(t, func(w http.ResponseWriter, _ *http.Request) { list(w, 20, func(int) any { return text }) })
	var got metav1.PartialObjectMetadataList
	got.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.List(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	want := metav1.ObjectMeta{Namespace: "ml", Name: "train-0", UID: "u", OwnerReferences: m.OwnerReferences}
	if diff := cmp.Diff(want, got.Items[19].ObjectMeta); diff != "" || len(got.Items) != 20 {
		t.Errorf("%d items; %s", len(got.Items), diff)
	}
}

// What a list keeps is bounded by this figure, and what is decoded by that of its text.
func TestWhatIsHeldIsKnown(t *testing.T) {
	terms, labelled, honest := pod(""), pod(""), pod("value")
	terms.Spec.Affinity, labelled.Labels = dense(10_000), mostLabels()
	statuses := pod("")
	statuses.Status.ContainerStatuses = make([]corev1.ContainerStatus, 2000)
	for name, test := range map[string]struct {
		object any
		make   func() any
	}{
		"empty terms":        {terms, func() any { return &corev1.Pod{} }},
		"labels":             {labelled, func() any { return &corev1.Pod{} }},
		"container statuses": {statuses, func() any { return &corev1.Pod{} }},
		"a pod":              {honest, func() any { return &corev1.Pod{} }},
		"empty objects":      {map[string]any{"spec": []any{make([]struct{}, 20_000)}}, func() any { return &map[string]any{} }},
		"objects of one key": {map[string]any{"spec": []any{make([]struct{ A int }, 20_000)}}, func() any { return &map[string]any{} }},
	} {
		text, err := json.Marshal(test.object)
		if err != nil {
			t.Fatal(err)
		}
		const n = 8
		var all [n]any
		before := heap()
		for i := range all {
			all[i] = test.make()
			if err := json.Unmarshal(text, all[i]); err != nil {
				t.Fatal(err)
			}
		}
		held := int(heap()-before) / n
		if is := slim.HeapOf(all[0]); is < held*2/3 || is > 2*held || slim.CostOf(text) < held*2/3 {
			t.Errorf("%s: %d bytes are held by %d of JSON: HeapOf says %d, the cost %d", name, held, len(text), is, slim.CostOf(text))
		}
		runtime.KeepAlive(&all)
	}
}

// answers returns a Reader over a server that answers each request with an object.
func answers(t *testing.T, object any) *slim.Reader {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(text)
	})
}

func TestAnObjectIsRead(t *testing.T) {
	key := client.ObjectKey{Namespace: "ml", Name: "train-0"}
	record := strings.Repeat("r", 200_000)
	job := &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: *pod("").ObjectMeta.DeepCopy()}
	job.Annotations["record"], job.Spec.Template.Spec = record, pod("e").Spec
	want := job.DeepCopy()
	want.ManagedFields, want.TypeMeta = nil, metav1.TypeMeta{}
	got := &batchv1.Job{Status: batchv1.JobStatus{Failed: 7}} // which is no more
	if err := answers(t, job).Get(t.Context(), key, got); err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v: %s", err, cmp.Diff(want, got))
	}

	var asked string
	r := served(t, func(w http.ResponseWriter, req *http.Request) {
		asked = req.URL.String() + " " + req.Header.Get("Accept")
		json.NewEncoder(w).Encode(metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata"}, ObjectMeta: job.ObjectMeta})
	})
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	err := r.Get(t.Context(), key, m)
	if at := "/apis/batch/v1/namespaces/ml/jobs/train-0 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"; err != nil || asked != at ||
		m.Kind != "Job" || m.Annotations["record"] != record || m.ManagedFields != nil {
		t.Errorf("asked for %s: %v, %+v", asked, err, m)
	}

	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(workloads)
	err = answers(t, map[string]any{
		"apiVersion": workloads.GroupVersion().String(), "kind": "Workload", "metadata": map[string]any{"name": "w", "generation": 7},
	}).Get(t.Context(), key, u)
	if err != nil || u.GetName() != "w" || u.GetGeneration() != 7 || u.GroupVersionKind() != workloads {
		t.Errorf("%v, %+v", err, u)
	}

	pods := pod("e")
	if err := answers(t, pods).Get(t.Context(), key, pods); err != nil || pods.Spec.Containers[0].Env[0].Value != "e" {
		t.Errorf("%v, %+v", err, pods)
	}
}

func TestAnObjectThatCostsTooMuchIsAnError(t *testing.T) {
	key := client.ObjectKey{Namespace: "ml", Name: "train-0"}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "train-0"}}
	job.Spec.Template.Spec.Affinity = dense(500_000)
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(workloads)
	for _, into := range []client.Object{&batchv1.Job{}, u} {
		if err := answers(t, job).Get(t.Context(), key, into); !errors.Is(err, slim.ErrTooLarge) || !strings.Contains(err.Error(), "ml/train-0") {
			t.Errorf("%T: %v", into, err)
		}
	}
	if err := answers(t, pod(strings.Repeat("e", 17<<20))).Get(t.Context(), key, &corev1.Pod{}); !errors.Is(err, slim.ErrTooLarge) {
		t.Errorf("17 MiB: %v", err)
	}
	large := pod("")
	large.Spec.Affinity = dense(500_000)
	var got corev1.Pod
	if err := answers(t, large).Get(t.Context(), key, &got); err != nil || got.Spec.NodeName != "gpu-1" || got.Spec.Affinity != nil || got.Labels != nil {
		t.Errorf("a pod: %v, %+v", err, got.ObjectMeta)
	}
}

func TestTheErrorOfAnObjectIsThatOfTheAPIServer(t *testing.T) {
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"NotFound","code":404}`)
	})
	key := client.ObjectKey{Namespace: "ml", Name: "a"}
	if err := r.Get(t.Context(), key, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gang"})
	if err := r.Get(t.Context(), key, u); !meta.IsNoMatchError(err) {
		t.Errorf("%v", err)
	}
	// Others are read as before, here from a client that has none.
	if err := r.Get(t.Context(), key, &corev1.Node{}); !apierrors.IsNotFound(err) || strings.Contains(err.Error(), ": no") {
		t.Errorf("%v", err)
	}
}
