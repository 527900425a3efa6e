package aws

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

const status = "gpu-healthcheck.aws-samples.io/status"

// run lets a follower do what it has to do.
func run(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it ends when nothing is left to do
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestANodeShowsItsHealth(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"team": "a"}}}
	patches, refuse := 0, true
	api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(n).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if patches++; refuse {
				return errors.New("refused")
			}
			return api.Patch(ctx, o, p, opts...)
		},
	})
	f := New(api, api, clocktesting.NewFakePassiveClock(time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)))
	shows := func(want string, left, wantPatches int) {
		t.Helper()
		run(t, f)
		var now corev1.Node
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(n), &now); err != nil {
			t.Fatal(err)
		}
		if now.Labels[status] != want || now.Labels["team"] != "a" || f.Len() != left || patches != wantPatches {
			t.Errorf("labels %v, %d left, %d patches; want status %q, %d left, %d patches", now.Labels, f.Len(), patches, want, left, wantPatches)
		}
		*n = now
		f.Queue = New(api, api, f.clock).Queue // a queue that has ended begins no more
	}
	healthy := &handoff.Health{Checks: []handoff.Check{{Condition: "GPUXidError", Outcome: handoff.Pass}}}
	f.Follow(n, healthy)
	shows("", 1, 1)
	refuse = false
	f.Follow(n, healthy)
	shows("pass", 0, 2)
	f.Follow(n, healthy) // nothing to do
	shows("pass", 0, 2)
	f.Follow(n, nil)
	shows("pass", 0, 2)
	f.Follow(n, &handoff.Health{Off: true})
	shows("", 0, 3)
	// The cache shows another Node of this name, or one that is gone.
	for _, name := range []string{"n", "gone"} {
		f.Follow(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "before"}}, healthy)
	}
	shows("", 0, 3)
}
