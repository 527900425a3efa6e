package node

import (
	"context"
	"encoding/json"
	"errors"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// evidenceStore keeps the one ConfigMap that is written.
type evidenceStore struct {
	*laggard
	stored *corev1.ConfigMap
	asked  int // to create
	writes int
	down   error
}

func (s *evidenceStore) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if kept, ok := object.(*corev1.ConfigMap); ok && key.Namespace == conditions.EvidenceNamespace {
		s.stored.DeepCopyInto(kept)
		return nil
	}
	return s.laggard.Get(ctx, key, object, opts...)
}

func (s *evidenceStore) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	s.asked++
	switch {
	case s.down != nil:
		return s.down
	case s.stored != nil:
		return apierrors.NewAlreadyExists(schema.GroupResource{}, object.GetName())
	}
	s.writes++
	s.stored = object.(*corev1.ConfigMap).DeepCopy()
	return nil
}

func (s *evidenceStore) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if kept, ok := object.(*corev1.ConfigMap); ok {
		s.writes++
		s.stored = kept.DeepCopy()
		return nil
	}
	return s.laggard.Patch(ctx, object, patch, opts...)
}

func newEvidenceRig(t *testing.T, nodes ...string) (rig, *evidenceStore) {
	t.Helper()
	r := newRig(t, nodes...)
	store := &evidenceStore{laggard: r.client}
	r.Controller.client, r.reader, r.evidence = store, store, conditions.EvidenceNamespace
	return r, store
}

func TestWhatTheNodeSaidIsKeptAsEvidence(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	r.client.nodes[0].Annotations = map[string]string{conditions.AnnotationGPUs: `[{"pci":"0000:1b:00","serial":"165"}]`}
	r.reconcile(t, "a")
	r.reconcile(t, "a")
	if store.asked != 1 || store.writes != 1 || store.stored.Namespace != "pitcrew-evidence" || store.stored.Name != "a" || len(store.stored.OwnerReferences) > 0 {
		t.Fatalf("asked %d times, %d writes: %+v", store.asked, store.writes, store.stored)
	}
	var got evidence
	if err := json.Unmarshal([]byte(store.stored.Data[slices.Sorted(maps.Keys(store.stored.Data))[0]]), &got); err != nil {
		t.Fatal(err)
	}
	if got.Node != "a" || got.BootID != "boot-1" || got.Causes[0].Message != ecc || got.Conditions[0].Message != ecc || got.Taint.Rule != "gpu" {
		t.Errorf("kept %+v", got)
	}
	if diff := cmp.Diff([]blamed{{PCI: "0000:1b:00", Code: "Xid 95"}}, got.GPUs); diff != "" {
		t.Error(diff)
	}
	var compact []map[string]string
	if err := json.Unmarshal(got.Inventory, &compact); err != nil || compact[0]["serial"] != "165" {
		t.Errorf("inventory %s, %v", got.Inventory, err)
	}
}

func TestEvidenceThatCouldNotBeKeptIsKeptLater(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	store.down = errors.New("namespace is gone")
	if again := r.reconcile(t, "a").RequeueAfter; again == 0 || again > recheck {
		t.Errorf("tried again after %s", again)
	}
	if said := r.reasons(); !slices.Equal(said, []string{NodeQuarantined}) || len(r.swept.quarantines) != 1 {
		t.Errorf("said %q, swept %v: evidence must hold up nothing", said, r.swept.quarantines)
	}
	store.down = nil
	r.reconcile(t, "a")
	if store.writes != 1 {
		t.Errorf("%d writes", store.writes)
	}
}

func TestWhoTakesOverKeepsTheEvidenceOnce(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	r.reconcile(t, "a")
	before := store.stored.DeepCopy()
	r.memory.kept = map[string]string{}
	r.reconcile(t, "a")
	if diff := cmp.Diff(before, store.stored); diff != "" {
		t.Error(diff)
	}
}

func TestAnUpgradeIsEvidenceOfItsOwn(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	now := r.now()
	r.now = func() time.Time { return now }
	r.reconcile(t, "a")
	now = now.Add(time.Minute)
	r.client.nodes[0].Status.Conditions[0].Message = lost
	r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(now)
	r.reconcile(t, "a")
	if len(store.stored.Data) != 2 || store.stored.Annotations[conditions.AnnotationEvidenceAt] != now.Format(time.RFC3339) {
		t.Errorf("kept %v %v", slices.Sorted(maps.Keys(store.stored.Data)), store.stored.Annotations)
	}
}

func TestEvidenceIsBounded(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	n := &r.client.nodes[0]
	n.Status.Conditions = slices.Repeat([]corev1.NodeCondition{{Type: "Long", Message: strings.Repeat("x", 5000)}}, 200)
	n.Annotations = map[string]string{conditions.AnnotationGPUs: `"` + strings.Repeat("x", maxInventory) + `"`}
	record := full()
	record.Phase, record.Taint = Quarantined, &Taint{Key: "k"}
	var newest string
	for i := range keptEvidence + 3 {
		record.Taint.Since = r.now().Add(time.Duration(i) * time.Hour)
		newest = evidenceKey(record)
		if err := r.keep(t.Context(), n, record, newest); err != nil {
			t.Fatal(err)
		}
	}
	if _, kept := store.stored.Data[newest]; len(store.stored.Data) != keptEvidence || !kept {
		t.Errorf("kept %v", slices.Sorted(maps.Keys(store.stored.Data)))
	}
	// An API server takes no more than 1 MiB.
	if size := store.stored.Size(); size > 1<<20/2 {
		t.Errorf("%d bytes", size)
	}
}

func TestGPUsOfForeignMessages(t *testing.T) {
	r, _ := newEvidenceRig(t, "a")
	record := full()
	record.Causes = []Cause{{Condition: "GpuMemWatch", Message: "DCGM_FR_VOLATILE_DBE on GPU-01234567-89ab-cdef-0123-456789abcdef, not on GPU-12"}}
	got := r.snapshot(&r.client.nodes[0], record).GPUs
	if diff := cmp.Diff([]blamed{{UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEvidenceExpiresByAgeAndNumber(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
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
