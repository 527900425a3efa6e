package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// podless is an API server without pods that counts who asks for one.
type podless struct {
	client.Client
	asked int
	// ofPod are the reports of every pod.
	ofPod []corev1.ConfigMap
}

func (p *podless) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	p.asked++
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "train")
}

func (p *podless) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.ConfigMapList).Items = p.ofPod
	return nil
}

func (p *podless) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return nil
}

func TestAFloodHasItsShareAndNoMore(t *testing.T) {
	api, said := &podless{}, events.NewFakeRecorder(10*wordsAtOnce)
	c := &Controller{
		Options: Options{Timeout: time.Hour, Events: said, Now: time.Now}, nodes: api, live: api, reports: api,
		known: map[types.NamespacedName]map[types.UID]look{}, told: map[types.UID]string{}, written: map[types.UID]string{}, limits: map[string]limits{},
	}
	flood := make([]corev1.ConfigMap, 2*looksAtOnce)
	for i := range flood {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "flood", Name: "train", UID: types.UID(fmt.Sprint(i)),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "train", UID: "job", Controller: new(true)}}}}
		cm, err := reportconfigmap.New(pod, report.Report{RunID: "r", Size: 8, Node: "node"})
		if err != nil {
			t.Fatal(err)
		}
		cm.UID, cm.CreationTimestamp = pod.UID, metav1.Now()
		flood[i] = *cm
	}
	if _, _, err := c.look(t.Context(), types.NamespacedName{Namespace: "flood", Name: "r"}, flood); !errors.Is(err, errTooMany) {
		t.Errorf("error %v, want that it is too many", err)
	}
	// What the bucket gains meanwhile is a matter of milliseconds.
	if api.asked < looksAtOnce || api.asked > looksAtOnce+looksAtOnce/2 {
		t.Errorf("the API server was asked %d times, want about %d", api.asked, looksAtOnce)
	}
	if n := len(said.Events); n < wordsAtOnce || n > wordsAtOnce+5 {
		t.Errorf("%d Events, want about %d", n, wordsAtOnce)
	}
	before := api.asked
	if _, _, err := c.look(t.Context(), types.NamespacedName{Namespace: "quiet", Name: "r"}, flood[:1]); err != nil || api.asked != before+1 {
		t.Errorf("another namespace: %v, asked %d times", err, api.asked-before)
	}
	if _, _, err := c.look(t.Context(), types.NamespacedName{Namespace: "flood", Name: "r"}, flood); !errors.Is(err, errTooMany) {
		t.Errorf("the flood goes on: %v", err)
	}
}

func TestAPodReportsOfSoManyRuns(t *testing.T) {
	reports := make([]corev1.ConfigMap, maxPerPod+1)
	for i := range reports {
		reports[i].UID, reports[i].CreationTimestamp = types.UID(fmt.Sprint(i)), metav1.NewTime(noon.Add(time.Duration(i)*time.Second))
	}
	c := &Controller{reports: &podless{ofPod: reports}}
	for i, want := range map[int]int{0: 0, 1: 1, maxPerPod - 1: maxPerPod - 1, maxPerPod: maxPerPod} {
		if got, err := c.before(t.Context(), &reports[i]); err != nil || got != want {
			t.Errorf("%d reports before number %d, %v", got, i, err)
		}
	}
}

func TestSlim(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	tests := map[string]struct{ in, want corev1.ConfigMap }{
		"a report": {
			corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: "{}"}},
			corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: "{}"}},
		},
		"too large": {
			corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: large}},
			corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: large[:report.MaxBytes+1]}},
		},
		"another key":  {corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: "{}", "other": large}}, corev1.ConfigMap{}},
		"binary data":  {corev1.ConfigMap{Data: map[string]string{reportconfigmap.Key: "{}"}, BinaryData: map[string][]byte{"b": []byte(large)}}, corev1.ConfigMap{}},
		"an other key": {corev1.ConfigMap{Data: map[string]string{"other": large}}, corev1.ConfigMap{}},
		"annotations": {
			corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": large, conditions.AnnotationPreflightPod: "p"}}, Data: map[string]string{reportconfigmap.Key: "{}"}},
			corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{conditions.AnnotationPreflightPod: "p"}}, Data: map[string]string{reportconfigmap.Key: "{}"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := slim(&tt.in)
			if diff := cmp.Diff(&tt.want, got); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
}
