package nodes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// A write that does not succeed must not hold back the policy that it is about.
func TestANewPolicyDoesNotWaitUntilItIsShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(testPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	elected := make(chan struct{})
	close(elected)
	changes := make(chan event.GenericEvent, 1)
	decided := -1 // at the first write
	api := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			if decided < 0 {
				decided = len(changes)
			}
			return errors.New("connection refused")
		},
	})
	r := &reloader{Controller: &Controller{
		client: api, policy: file, elected: elected, clock: testclock.NewFakePassiveClock(time.Now()),
		report: newReporter(events.NewFakeRecorder(10), testclock.NewFakePassiveClock(time.Now())), namespace: "pitcrew",
	}, changes: changes}
	if err := os.WriteFile(path, []byte(strings.Replace(testPolicy, "for: 1m", "for: 2m", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if r.reload(t.Context()); decided != 1 {
		t.Error("the policy is written before the nodes are decided by it")
	}
}

// appliedWriter keeps what is written to the key [conditions.AppliedKey].
type appliedWriter struct {
	laggard
	written []string
	// reads counts the live reads, which answer with stored.
	reads  int
	stored string
}

func (w *appliedWriter) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	w.reads++
	object.(*corev1.ConfigMap).Data = map[string]string{conditions.AppliedKey: w.stored}
	return nil
}

func (w *appliedWriter) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if w.refuse != nil {
		return w.refuse
	}
	w.stored = object.(*corev1.ConfigMap).Data[conditions.AppliedKey]
	w.written = append(w.written, w.stored)
	return nil
}

func TestTheLeaderShowsWhichPolicyItAppliesWhenThatChanges(t *testing.T) {
	file, write := policyFile(t, testPolicy)
	elected := make(chan struct{})
	api, clock := &appliedWriter{}, testclock.NewFakePassiveClock(time.Now())
	r := &reloader{Controller: &Controller{
		client: api, apiReader: api, policy: file, elected: elected, clock: clock, report: newReporter(events.NewFakeRecorder(10), testclock.NewFakePassiveClock(time.Now())), namespace: "pitcrew",
	}, changes: make(chan event.GenericEvent, 1)}
	reload := func(want ...string) {
		t.Helper()
		for range 3 {
			r.reload(t.Context())
		}
		if diff := cmp.Diff(want, api.written); diff != "" {
			t.Fatal(diff)
		}
	}
	reload() // a replica that does not lead writes nothing
	close(elected)
	api.refuse = errors.New("connection refused")
	reload()
	api.refuse = nil
	hash := policy.Hash([]byte(testPolicy))
	first := `{"version":"` + version.String() + `","policy":"` + hash + `"}`
	reload(first)

	write(strings.Replace(testPolicy, "for: 1m", "for: soon", 1))
	r.reload(t.Context())
	if len(api.written) != 2 || !strings.HasPrefix(api.written[1], strings.TrimSuffix(first, "}")+`,"invalid":"policy `) || !strings.Contains(api.written[1], "soon") {
		t.Fatalf("written %q", api.written)
	}
	refused := api.written[1]
	reload(first, refused)

	changed := strings.Replace(testPolicy, "for: 1m", "for: 2m", 1)
	write(changed)
	reload(first, refused, strings.Replace(first, hash, policy.Hash([]byte(changed)), 1))

	if api.reads > 0 {
		t.Errorf("%d reads", api.reads)
	}
	// What others have deleted is written again, what is right is read now and then.
	clock.SetTime(clock.Now().Add(seeAppliedEvery))
	reload(api.written...)
	api.stored = ""
	reload(api.written...)
	clock.SetTime(clock.Now().Add(seeAppliedEvery))
	reload(append(api.written, api.written[2])...)
	if api.reads != 2 {
		t.Errorf("%d reads, want 2", api.reads)
	}

	r.applied, r.dryRun = nil, true
	reload(api.written...)
}
