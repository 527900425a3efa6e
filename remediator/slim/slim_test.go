package slim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// served returns a Reader over a server that answers as handle does.
func served(t *testing.T, handle http.HandlerFunc) *slim.Reader {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	r, err := slim.New(fake.NewClientBuilder().Build(), &rest.Config{Host: server.URL, QPS: -1}, server.Client(), mapper())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// list writes a list of n items as an API server does, item by item.
func list(w http.ResponseWriter, n int, item func(i int) any) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"next"},"items":[`)
	for i := range n {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		one := item(i)
		if text, is := one.([]byte); is {
			w.Write(text)
		} else {
			json.NewEncoder(w).Encode(one)
		}
	}
	fmt.Fprint(w, "]}\n")
}

func pod(env string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ml", Name: "train-0", UID: "u", Labels: map[string]string{"a": "b"},
			Annotations:   map[string]string{"short": "kept", "long": strings.Repeat("x", 2000)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}}},
		},
		Spec: corev1.PodSpec{
			NodeName: "gpu-1", Volumes: []corev1.Volume{{Name: "v"}},
			InitContainers: []corev1.Container{{Name: "init", Command: []string{"c"}}},
			Containers: []corev1.Container{{
				Name: "main", Args: []string{"a"}, Env: []corev1.EnvVar{{Name: "E", Value: env}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
					Limits:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: 3, ImageID: "i"}}},
	}
}

func TestAListIsReadAndSlim(t *testing.T) {
	var asked string
	r := served(t, func(w http.ResponseWriter, req *http.Request) {
		asked = req.URL.String() + " " + req.Header.Get("Accept")
		list(w, 2, func(int) any { return pod("e") })
	})
	var got corev1.PodList
	err := r.List(t.Context(), &got, client.InNamespace("ml"), client.MatchingFields{"spec.nodeName": "gpu-1"}, client.MatchingLabels{"a": "b"}, client.Limit(9))
	if err != nil {
		t.Fatal(err)
	}
	if want := "/api/v1/namespaces/ml/pods?fieldSelector=spec.nodeName%3Dgpu-1&labelSelector=a%3Db&limit=9 application/json"; asked != want {
		t.Errorf("asked for %s", asked)
	}
	want := pod("e")
	want.ManagedFields, want.Spec.Volumes, want.Status.ContainerStatuses[0].ImageID = nil, nil, ""
	delete(want.Annotations, "long")
	want.Spec.InitContainers[0].Command, want.Spec.Containers[0].Args, want.Spec.Containers[0].Env = nil, nil, nil
	if diff := cmp.Diff(corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "next"}, Items: []corev1.Pod{*want, *want}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestMetadataOfPodsIsAskedForAndSlim(t *testing.T) {
	r := served(t, func(w http.ResponseWriter, req *http.Request) {
		if want := "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"; req.Header.Get("Accept") != want {
			t.Errorf("asked for %s", req.Header.Get("Accept"))
		}
		list(w, 1, func(int) any { return metav1.PartialObjectMetadata{ObjectMeta: pod("").ObjectMeta} })
	})
	var got metav1.PartialObjectMetadataList
	got.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.List(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if m := got.Items[0]; m.Name != "train-0" || m.ManagedFields != nil || len(m.Annotations) != 1 {
		t.Errorf("%+v", m)
	}
}

// 60 pods of 1.2 MB each, as anyone may create who may create pods, cost less than twice one of them at a time.
func TestLargePodsCostLittle(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	before := heap()
	var peak atomic.Uint64
	env := strings.Repeat("e", 1_200_000)
	large, err := json.Marshal(pod(env))
	if err != nil {
		t.Fatal(err)
	}
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		list(w, 60, func(int) any {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			return large
		})
	})
	var got corev1.PodList
	if err := r.List(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Items) != 60 {
		t.Errorf("%d pods", len(got.Items))
	}
	if used := int64(peak.Load()-before) >> 20; used > 30 {
		t.Errorf("%d MiB of heap for a list of 72 MB", used)
	}
}

func TestAListThatIsTooLargeIsAnErrorThatNamesIt(t *testing.T) {
	for name, item := range map[string]struct {
		n   int
		pod func() *corev1.Pod
	}{
		"to keep": {130, func() *corev1.Pod { // in a place that decisions need
			p := pod("")
			p.Spec.NodeSelector = map[string]string{"k": strings.Repeat("v", 30_000)}
			return p
		}},
		"to keep, for what they take": {4, func() *corev1.Pod {
			p := pod("")
			for i := range 4000 {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(fmt.Sprintf("a.example/%s-%d", strings.Repeat("r", 200), i))] = resource.MustParse("1")
			}
			return p
		}},
		"to read": {7, func() *corev1.Pod { return pod(strings.Repeat("e", 1<<20)) }},
	} {
		r := served(t, func(w http.ResponseWriter, _ *http.Request) {
			one, err := json.Marshal(item.pod())
			if err != nil {
				t.Error(err)
			}
			list(w, item.n, func(int) any { return one })
		})
		r.ReadAtMost(6 << 20)
		r.KeepAtMost(4 << 20)
		var got corev1.PodList
		err := r.List(t.Context(), &got, client.MatchingFields{"spec.nodeName": "gpu-1"})
		if !errors.Is(err, slim.ErrTooLarge) || !strings.Contains(err.Error(), "spec.nodeName=gpu-1") {
			t.Errorf("too large %s: %v", name, err)
		}
	}
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		device := resourceapi.Device{Name: strings.Repeat("d", 900_000)}
		one, err := json.Marshal(resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device}}})
		if err != nil {
			t.Error(err)
		}
		list(w, 48, func(int) any { return one })
	})
	if err := r.List(t.Context(), &resourceapi.ResourceSliceList{}); !errors.Is(err, slim.ErrTooLarge) {
		t.Errorf("48 slices of 0.9 MB: %v", err)
	}
}

// What one kubelet can write: the status of the pods on its node, and static pods with the labels of any job. The other pods of the job are read.
func TestWhatAKubeletWritesMakesNoListTooLarge(t *testing.T) {
	static := func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "h"}
		p.Labels = map[string]string{"a": "b"}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"a status": func(p *corev1.Pod) { p.Status.Message = strings.Repeat("m", 100_000) },
		"the spec of a static pod": func(p *corev1.Pod) {
			static(p)
			p.Spec.NodeSelector = map[string]string{"k": strings.Repeat("v", 100_000)}
		},
		"the annotations of a static pod": func(p *corev1.Pod) {
			static(p)
			for i := range 100 {
				p.Annotations[fmt.Sprint(i)] = strings.Repeat("x", 1000)
			}
		},
	} {
		large := pod("")
		change(large)
		text, err := json.Marshal(large)
		if err != nil {
			t.Fatal(err)
		}
		r := served(t, func(w http.ResponseWriter, _ *http.Request) {
			list(w, 41, func(i int) any {
				if i == 40 {
					return pod("")
				}
				return text
			})
		})
		r.KeepAtMost(4_000_000)
		var whole corev1.PodList
		if err := r.List(t.Context(), &whole); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if first := whole.Items[0]; first.Name != "train-0" || first.UID != "u" || first.Spec.NodeName != "gpu-1" || first.Status.Phase != corev1.PodRunning {
			t.Errorf("%s: %+v", name, first)
		}
		if last := whole.Items[40]; last.Labels["a"] != "b" || len(last.Spec.Containers) != 1 {
			t.Errorf("%s: %+v", name, last)
		}
		var meta metav1.PartialObjectMetadataList
		meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := r.List(t.Context(), &meta); err != nil {
			t.Errorf("%s: its metadata: %v", name, err)
		}
	}
}

func TestAnAnswerThatIsNoListIsAnError(t *testing.T) {
	for name, answer := range map[string]string{
		"cut off":       `{"kind":"PodList","items":[{"metadata":{"name":"a"}}`,
		"cut off after": `{"kind":"PodList","items":[{"metadata":{"name":"a"}}]`,
		"no object":     `[]`,
		"items a map":   `{"items":{}}`,
		"empty":         ``,
		"wrong type":    `{"items":[{"metadata":{"name":7}}]}`,
	} {
		r := served(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		if err := r.List(t.Context(), &corev1.PodList{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"kind":"PodList","metadata":{},"items":null}`)
	})
	if err := r.List(t.Context(), &corev1.PodList{}); err != nil {
		t.Errorf("no items: %v", err)
	}
}

func TestTheKindOfAnErrorIsKept(t *testing.T) {
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}`)
	})
	if err := r.List(t.Context(), &corev1.PodList{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
}

// A list of a kind that has no slim type would be read whole.
func TestAListOfAnotherTypeIsAnError(t *testing.T) {
	r := served(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	if err := r.List(t.Context(), &corev1.NodeList{}); err == nil {
		t.Error("no error")
	}
}

// A list of a kind that has no Go type is read in the same way, and each item knows its kind.
func TestAListWithoutAGoTypeIsSlim(t *testing.T) {
	large, n := "", 8
	r := served(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/apis/kueue.x-k8s.io/v1beta1/namespaces/ml/workloads" {
			t.Errorf("asked for %s", req.URL)
		}
		list(w, n, func(i int) any {
			return map[string]any{"metadata": map[string]any{"name": fmt.Sprint(i), "generation": 7, "managedFields": []any{map[string]any{"manager": "m"}}},
				"spec": map[string]any{"large": large}}
		})
	})
	var got unstructured.UnstructuredList
	got.SetGroupVersionKind(workloads.GroupVersion().WithKind("WorkloadList"))
	if err := r.List(t.Context(), &got, client.InNamespace("ml")); err != nil {
		t.Fatal(err)
	}
	one := got.Items[7]
	if len(got.Items) != 8 || one.GetName() != "7" || one.GetGeneration() != 7 || one.GroupVersionKind() != workloads || one.GetManagedFields() != nil ||
		got.GetContinue() != "next" || got.GetResourceVersion() != "7" {
		t.Errorf("%+v of %s", one, got.GroupVersionKind())
	}
	large, n = strings.Repeat("x", 100_000), 45
	r.KeepAtMost(4 << 20)
	if err := r.List(t.Context(), &got, client.InNamespace("ml")); !errors.Is(err, slim.ErrTooLarge) {
		t.Errorf("45 Workloads of 0.1 MB: %v", err)
	}
}

// The Jobs of a JobSet have pod templates of any size.
func TestJobsAreSlim(t *testing.T) {
	r := served(t, func(w http.ResponseWriter, _ *http.Request) {
		list(w, 1, func(int) any {
			j := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}}
			j.Spec.Template.Spec, j.Spec.Selector = pod("e").Spec, &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			return j
		})
	})
	var got batchv1.JobList
	if err := r.List(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if j := got.Items[0]; j.Name != "j" || j.Spec.Selector == nil || j.Spec.Template.Spec.Volumes != nil || j.Spec.Template.Spec.Containers[0].Env != nil {
		t.Errorf("%+v", j)
	}
}

var workloads = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta1", Kind: "Workload"}

// mapper knows the kinds of these tests.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(workloads, meta.RESTScopeNamespace)
	m.Add(batchv1.SchemeGroupVersion.WithKind("Job"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	return m
}
