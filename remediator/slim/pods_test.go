package slim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Thirty pods with labels of 0.6 MB each made the list of a node too large for everybody's restart.
func TestOfALargePodStaysWhatItTakes(t *testing.T) {
	large := pod("")
	for i := range 4000 {
		large.Labels[fmt.Sprintf("example.com/%s-%d", strings.Repeat("l", 50), i)] = strings.Repeat("v", 60)
	}
	large.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "train", UID: "j", Controller: new(bool)}}
	*large.OwnerReferences[0].Controller = true
	large.Spec.Containers = append(large.Spec.Containers, corev1.Container{Name: "side", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("1")},
	}})
	large.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus"}}
	text, err := json.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}
	r := served(t, func(w http.ResponseWriter, _ *http.Request) { list(w, 11, func(int) any { return text }) })
	r.KeepAtMost(4 << 20)
	var got corev1.PodList
	if err := r.List(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	want := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-0", UID: "u", OwnerReferences: large.OwnerReferences},
		Spec: corev1.PodSpec{NodeName: "gpu-1", ResourceClaims: large.Spec.ResourceClaims, Containers: []corev1.Container{{Name: "all",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("9")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if diff := cmp.Diff(want, got.Items[10]); diff != "" || len(got.Items) != 11 {
		t.Errorf("%d pods; %s", len(got.Items), diff)
	}
}

// cluster answers with the pods of namespaces, of which each has some of a size. It knows the selector of ListPods.
func cluster(t *testing.T, asked *[]string, pods map[string]int, size int) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		*asked = append(*asked, req.URL.Query().Get("fieldSelector"))
		with, err := fields.ParseSelector(req.URL.Query().Get("fieldSelector"))
		if err != nil {
			t.Error(err)
		}
		var all [][]byte
		for _, namespace := range slices.Sorted(maps.Keys(pods)) {
			p := pod(strings.Repeat("e", size))
			p.Namespace = namespace
			one, err := json.Marshal(p)
			if err != nil {
				t.Error(err)
			}
			for range pods[namespace] {
				if with.Matches(fields.Set{"spec.nodeName": "gpu-1", "metadata.namespace": namespace}) {
					all = append(all, one)
				}
			}
		}
		list(w, len(all), func(i int) any { return all[i] })
	}
}

func TestTheNamespaceThatMakesAListTooLargeIsLeftOut(t *testing.T) {
	with := fields.OneTermEqualSelector("spec.nodeName", "gpu-1")
	for name, test := range map[string]struct {
		pods    map[string]int
		leftOut []string
		kept    int
		fails   bool
	}{
		"none":                   {map[string]int{"alice": 2, "bob": 1}, nil, 3, false},
		"one that comes first":   {map[string]int{"a-mallory": 90, "bob": 1}, []string{"a-mallory"}, 1, false},
		"one that comes last":    {map[string]int{"bob": 1, "mallory": 90}, []string{"mallory"}, 1, false},
		"two of one tenant":      {map[string]int{"a-mallory": 20, "bob": 1, "mallory": 90}, []string{"mallory"}, 21, false},
		"two that are too large": {map[string]int{"a-mallory": 90, "bob": 1, "mallory": 90}, []string{"a-mallory", "mallory"}, 1, false},
		"more than are left out": {map[string]int{"a": 90, "b": 90, "c": 90, "d": 90, "e": 90}, []string{"a", "b", "c", "d"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			r := served(t, cluster(t, &asked, test.pods, 10_000))
			r.ReadAtMost(900_000)
			var got corev1.PodList
			leftOut, err := slim.ListPods(t.Context(), r, &got, with)
			if !slices.Equal(leftOut, test.leftOut) || errors.Is(err, slim.ErrTooLarge) != test.fails || !test.fails && (err != nil || len(got.Items) != test.kept) {
				t.Errorf("left out %q, %d pods, %v; asked for %q", leftOut, len(got.Items), err, asked)
			}
		})
	}
}
