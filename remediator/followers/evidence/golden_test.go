package evidence

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
)

// The evidence that 19f658c has kept is read, and deleted when it is old.
func TestGoldenEvidence(t *testing.T) {
	k := goldentest.Read(t, "clusters/open", func(t *testing.T) struct{ ConfigMaps []corev1.ConfigMap } {
		t.Fatal("package nodes makes it")
		return struct{ ConfigMaps []corev1.ConfigMap }{}
	})
	api, snapshots := fake.NewFakeClient(), 0
	for _, object := range k.ConfigMaps {
		if err := api.Create(t.Context(), &object); err != nil {
			t.Fatal(err)
		}
		if object.Namespace != conditions.EvidenceNamespace {
			continue
		}
		for _, text := range object.Data {
			var s Snapshot
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				t.Fatal(err)
			}
			if s.Node != object.Name || s.Quarantine == "" || s.Taint.Rule != "gpu" || len(s.Causes) != 1 || len(s.Conditions) != 1 || s.GPUs[0].PCI != "0000:1b:00" {
				t.Errorf("%s: %+v", object.Name, s)
			}
			snapshots++
		}
	}
	if snapshots != 2 {
		t.Errorf("%d snapshots", snapshots)
	}
	for _, tt := range []struct {
		age  time.Duration
		want int
	}{{evidenceAge - time.Hour, 2}, {evidenceAge + time.Hour, 0}} {
		clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).Add(tt.age))
		if err := New(api, api, Options{Namespace: conditions.EvidenceNamespace, Clock: clock}).expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		var left corev1.ConfigMapList
		if err := api.List(t.Context(), &left, client.InNamespace(conditions.EvidenceNamespace)); err != nil || len(left.Items) != tt.want {
			t.Errorf("%d left after %s, want %d: %v", len(left.Items), tt.age, tt.want, err)
		}
	}
}
