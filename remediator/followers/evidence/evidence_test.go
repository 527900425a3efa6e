package evidence

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// configMap is an API server with one ConfigMap.
type configMap struct {
	client.Client
	stored *corev1.ConfigMap
}

func (c *configMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.stored.DeepCopyInto(object.(*corev1.ConfigMap))
	return nil
}

func (c *configMap) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if c.stored != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, object.GetName())
	}
	c.stored = object.(*corev1.ConfigMap).DeepCopy()
	return nil
}

func (c *configMap) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	c.stored = object.(*corev1.ConfigMap).DeepCopy()
	return nil
}

func TestEvidenceIsBounded(t *testing.T) {
	api := &configMap{}
	store := New(api, api, Options{Clock: clocktesting.NewFakePassiveClock(now)})
	n := &corev1.Node{}
	n.Status.Conditions = slices.Repeat([]corev1.NodeCondition{{Type: "Long", Message: strings.Repeat("x", 5000)}}, 200)
	n.Annotations = map[string]string{conditions.AnnotationGPUs: `"` + strings.Repeat("x", maxInventory) + `"`}
	record := &causes.Record{Quarantine: causes.Quarantine{ID: "id", Phase: causes.Quarantined, Taint: &causes.Taint{Key: "k"}}}
	var newest string
	for i := range keptEvidence + 3 {
		record.Taint.Since = now.Add(time.Duration(i) * time.Hour)
		newest = keyOf(record)
		if err := store.Keep(t.Context(), n, record); err != nil {
			t.Fatal(err)
		}
	}
	if _, kept := api.stored.Data[newest]; len(api.stored.Data) != keptEvidence || !kept {
		t.Errorf("kept %v", slices.Sorted(maps.Keys(api.stored.Data)))
	}
	// An API server takes no more than 1 MiB.
	if size := api.stored.Size(); size > 1<<20/2 {
		t.Errorf("%d bytes", size)
	}
}

func TestGPUsOfForeignMessages(t *testing.T) {
	record := &causes.Record{}
	record.Causes = []causes.Cause{{Condition: "GpuMemWatch", Message: "DCGM_FR_VOLATILE_DBE on GPU-01234567-89ab-cdef-0123-456789abcdef, not on GPU-12"}}
	got := snapshot(&corev1.Node{}, record, now).GPUs
	if diff := cmp.Diff([]GPU{{UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEvidenceExpiresByAgeAndNumber(t *testing.T) {
	kept := func(n int, age time.Duration) (list []metav1.PartialObjectMetadata) {
		for i := range n {
			list = append(list, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("%s-%d", age, i),
				Annotations: map[string]string{conditions.AnnotationEvidenceAt: now.Add(-age).Format(time.RFC3339)},
			}})
		}
		return list
	}
	const day = 24 * time.Hour
	unreadable := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "x", CreationTimestamp: metav1.NewTime(now)}}
	for name, test := range map[string]struct {
		kept []metav1.PartialObjectMetadata
		want []string
	}{
		"nothing":              {nil, nil},
		"young":                {kept(2, 89*day), nil},
		"old":                  {append(kept(1, 91*day), kept(1, 89*day)...), []string{"2184h0m0s-0"}},
		"too many":             {append(kept(1, 2*day), kept(evidenceNodes, day)...), []string{"48h0m0s-0"}},
		"without a time of it": {[]metav1.PartialObjectMetadata{unreadable}, nil},
	} {
		var got []string
		for _, m := range expired(test.kept, now) {
			got = append(got, m.Name)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
