package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestWhatABreakerSays(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                                    {},
		`{"openedAt":"2026-11-20T11:30:00Z"}`: now.Add(-30 * time.Minute),
		`{"openedAt":"2026-11-20T12:30:00Z"}`: now, // from a clock that was wrong: it must end
		`{}`:                                  now,
		"open":                                now,
	} {
		got := parseBreaker(text, now)
		if (got == nil) != want.IsZero() || got != nil && !got.OpenedAt.Equal(want) {
			t.Errorf("%q is %+v, want %s", text, got, want)
		}
	}
}

// A person closes the breaker by changing the ConfigMap; the remediator finds it within seconds, and one that takes over
// finds it open.
func TestTheBreakerIsReadWhileItIsOpen(t *testing.T) {
	now := time.Now()
	stored := &configMap{}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := &breaker{reader: stored, client: stored, now: func() time.Time { return now }}
	open := func() bool {
		t.Helper()
		s, err := b.state(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return s != nil
	}
	for range 2 {
		if open() {
			t.Fatal("a breaker that nobody opened is open")
		}
	}
	if stored.reads != 1 {
		t.Fatalf("a closed breaker was read %d times", stored.reads)
	}
	if err := b.set(t.Context(), &BreakerState{OpenedAt: now}); err != nil {
		t.Fatal(err)
	}
	b = &breaker{reader: stored, client: stored, now: b.now}
	if !open() {
		t.Error("who takes over does not find it open")
	}
	stored.state = ""
	if !open() {
		t.Error("it is read for every node")
	}
	now = now.Add(retryBlocked)
	if open() {
		t.Error("a person closed it and nobody looked")
	}
	dry := &breaker{reader: stored, client: stored, now: b.now, dryRun: true}
	if err := dry.set(t.Context(), &BreakerState{OpenedAt: now}); err != nil || stored.state != "" || dry.open == nil {
		t.Errorf("a dry run wrote %q, %v", stored.state, err)
	}
}

// configMap is an API server with one ConfigMap.
type configMap struct {
	client.Client
	state string
	reads int
}

func (c *configMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.reads++
	object.(*corev1.ConfigMap).Data = map[string]string{"state": c.state}
	return nil
}

func (c *configMap) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	c.state = object.(*corev1.ConfigMap).Data["state"]
	return nil
}

func TestASuspectDetectorIsSaidOnceForAllNodes(t *testing.T) {
	r := newRig(t, "a", "b", "c", "d")
	r.policy.Policy().Budget = policy.Unlimited
	r.policy.Policy().Correlated = &policy.Correlated{MaxPercent: 50, MinNodes: 3, Window: time.Minute, Scopes: []string{""}}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.reconcile(t, name)
	}
	if said := r.reasons(); !slices.Equal(said, []string{DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
	// Once the rule has acted again, the next suspicion is news.
	guard := r.policy.Policy().Correlated
	r.policy.Policy().Correlated = nil
	r.reconcile(t, "a")
	r.policy.Policy().Correlated = guard
	r.client.nodes[1].Status.Conditions[0].Message = lost
	r.memory.news("b", nil)
	r.reconcile(t, "b")
	if said := r.reasons(); !slices.Equal(said, []string{NodeQuarantined, DetectorSuspect}) {
		t.Errorf("said %q", said)
	}
}

func TestABrokenPolicyIsSaidOnceAndTheLastGoodOneStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(testPolicy)
	file, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	elected := make(chan struct{})
	close(elected)
	said := events.NewFakeRecorder(10)
	changes := make(chan event.GenericEvent, 1)
	r := &reloader{&Controller{policy: file, elected: elected, events: said, metrics: newMetrics(), namespace: "pitcrew"}, changes, ""}

	write(strings.Replace(testPolicy, "for: 1m", "for: soon", 1))
	for range 3 {
		r.reload(t.Context())
	}
	if len(said.Events) != 1 {
		t.Fatalf("said %d times", len(said.Events))
	}
	if e := <-said.Events; !strings.Contains(e, PolicyInvalid) || !strings.Contains(e, "line ") {
		t.Errorf("said %q", e)
	}
	if len(changes) != 0 || len(file.Policy().Rules) == 0 {
		t.Error("the last good policy is gone")
	}
	write(strings.Replace(testPolicy, "for: 1m", "for: 2m", 1))
	r.reload(t.Context())
	r.reload(t.Context())
	if len(changes) != 1 {
		t.Error("nobody decides by the new policy")
	}
}
