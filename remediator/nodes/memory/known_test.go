package memory

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Attack 1: what an earlier policy put on nodes is known after a restart of the remediator, from its own ConfigMap.
func TestWhatEarlierPoliciesPutOnNodesIsRemembered(t *testing.T) {
	handsOff := func(label string) *policy.Policy {
		return &policy.Policy{Rules: []policy.Rule{{HandOff: policy.HandOff{Labels: map[string]string{label: "yes"}}}}}
	}
	claim := func(label string) *handoff.Added { return &handoff.Added{Labels: map[string]string{label: "yes"}} }
	api := fake.NewFakeClient()
	remembers := func() *Known {
		now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		return NewKnown(Options{Client: api, Reader: api, Namespace: "pitcrew", Clock: clocktesting.NewFakePassiveClock(now)})
	}
	refresh := func(k *Known, p *policy.Policy) (version string) {
		t.Helper()
		if err := k.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.KnownConfigMap}}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil {
			t.Fatal(err)
		}
		return stored.ResourceVersion
	}
	first, second := handsOff("example.com/first"), handsOff("example.com/second")
	known := remembers()
	written := refresh(known, first)
	for range 3 {
		if diff := cmp.Diff(written, refresh(known, first)); diff != "" {
			t.Errorf("it is written again: %s", diff)
		}
	}
	known = remembers()
	refresh(known, second)
	for _, label := range []string{"example.com/first", "example.com/second"} {
		if _, unknown := known.Of(second).Split(claim(label)); len(unknown) > 0 {
			t.Errorf("%v is not known", unknown)
		}
	}
	if _, unknown := known.Of(second).Split(claim("example.com/third")); len(unknown) == 0 {
		t.Error("a label of no policy is known")
	}
}
