package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// evidenceStore keeps the one ConfigMap that is written.
type evidenceStore struct {
	*laggard
	stored *corev1.ConfigMap
	asked  int // requests to create it
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
	r.Controller.client = store
	r.evidence = evidence.New(store, store, evidence.Options{Namespace: conditions.EvidenceNamespace, Clock: r.clock})
	return r, store
}

func TestTheConditionsOfAQuarantinedNodeAreKeptAsEvidence(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	r.client.nodes[0].Annotations = map[string]string{conditions.AnnotationGPUs: `[{"pci":"0000:1b:00","serial":"165"}]`}
	r.reconcile(t, "a")
	r.reconcile(t, "a")
	if store.asked != 1 || store.writes != 1 || store.stored.Namespace != "pitcrew-evidence" || store.stored.Name != "a" || len(store.stored.OwnerReferences) > 0 {
		t.Fatalf("asked %d times, %d writes: %+v", store.asked, store.writes, store.stored)
	}
	var got evidence.Snapshot
	if err := json.Unmarshal([]byte(store.stored.Data[slices.Sorted(maps.Keys(store.stored.Data))[0]]), &got); err != nil {
		t.Fatal(err)
	}
	if got.Node != "a" || got.BootID != "boot-1" || got.Causes[0].Message != ecc || got.Conditions[0].Message != ecc || got.Taint.Rule != "gpu" {
		t.Errorf("kept %+v", got)
	}
	if diff := cmp.Diff([]evidence.GPU{{PCI: "0000:1b:00", Code: "Xid 95"}}, got.GPUs); diff != "" {
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
	if again := r.reconcile(t, "a").RequeueAfter; again == 0 || again > evidenceRetry {
		t.Errorf("tried again after %s", again)
	}
	if said := r.reasons(); !slices.Equal(said, []string{causes.NodeQuarantined}) || len(r.restarts.quarantines) != 1 {
		t.Errorf("said %q, restarted %v: evidence must hold up nothing", said, r.restarts.quarantines)
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
	r.evidence.Forget("a")
	r.reconcile(t, "a")
	if diff := cmp.Diff(before, store.stored); diff != "" {
		t.Error(diff)
	}
}

func TestAnUpgradeIsEvidenceOfItsOwn(t *testing.T) {
	r, store := newEvidenceRig(t, "a")
	r.reconcile(t, "a")
	now := r.clock.Now().Add(time.Minute)
	r.clock.SetTime(now)
	r.client.nodes[0].Status.Conditions[0].Message = lost
	r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(now)
	r.reconcile(t, "a")
	if len(store.stored.Data) != 2 || store.stored.Annotations[conditions.AnnotationEvidenceAt] != now.Format(time.RFC3339) {
		t.Errorf("kept %v %v", slices.Sorted(maps.Keys(store.stored.Data)), store.stored.Annotations)
	}
}
