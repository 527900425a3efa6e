package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// remove deletes a node, and has the controller notice it.
func (r rig) remove(t *testing.T, name string) {
	t.Helper()
	for i, n := range r.client.nodes {
		if n.Name == name {
			r.client.nodes = append(r.client.nodes[:i:i], r.client.nodes[i+1:]...)
			break
		}
	}
	r.reconcile(t, name)
}

// Attack 6: the place of a node that was quarantined is not free once the node is gone.
func TestADeletedNodeKeepsItsPlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.remove(t, "a")
	r.reconcile(t, "b")
	if got := strings.Join(r.reasons(), " "); got != quarantine.NodeQuarantined+" "+quarantine.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
	r.clock.SetTime(r.clock.Now().Add(limits.GoneFor))
	r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
	r.reconcile(t, "b")
	if got := strings.Join(r.reasons(), " "); got != quarantine.NodeQuarantined {
		t.Errorf("later said %q", got)
	}
}

// A quarantine that another remediator or a person began is remembered, too.
func TestTheQuarantineInARecordIsRemembered(t *testing.T) {
	r := newRig(t, "a", "b")
	ordered, err := quarantine.QuarantineManually(&r.client.nodes[0], quarantine.Manual{Reason: "smells of smoke"}, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.client.nodes[0] = *ordered
	r.reconcile(t, "a")
	r.remove(t, "a")
	r.reconcile(t, "b")
	if got := r.reasons(); got[len(got)-1] != quarantine.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
}

// A write that was refused began no quarantine.
func TestARefusedWriteIsNotRemembered(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = errors.New("no")
	r.fails(t, "a", r.client.refuse)
	if got := r.breaker.remembered(); len(got) > 0 {
		t.Errorf("remembers %s", got)
	}
}

func TestASkippedNodeKeepsItsPlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.client.nodes[0].Labels = map[string]string{"pitcrew.dev/skip": "true"} // as a kubelet may
	r.client.nodes[0].ResourceVersion = "8"
	r.reconcile(t, "b")
	if got := r.reasons(); got[len(got)-1] != quarantine.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
}

// startsMap is an API server with the ConfigMap of the breaker, key by key.
type startsMap struct {
	client.Client
	data   map[string]string
	writes chan string
	down   error
}

func (c *startsMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.(*corev1.ConfigMap).Data = c.data
	return nil
}

func (c *startsMap) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if c.down != nil {
		err := c.down
		c.down = nil
		return err
	}
	c.writes <- object.(*corev1.ConfigMap).Data[limits.StartsKey]
	return nil
}

func newStarts(clock *clocktesting.FakePassiveClock) (*breakerStore, *startsMap) {
	stored := &startsMap{writes: make(chan string, 100)}
	return &breakerStore{client: stored, apiReader: stored, clock: clock, deadline: breakerDeadline, unsavedStarts: make(chan struct{}, 1)}, stored
}

func TestManyStartsAreFewWrites(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	b, stored := newStarts(clocktesting.NewFakePassiveClock(now))
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 1}}
	if err := b.refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), UID: types.UID("u")}}
		b.remember(p, n, &limits.Start{Rule: "gpu", At: now})
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&startsSaver{b, time.Hour, time.Millisecond}).Start(ctx) }()
	text := await(t, "the write of the starts", stored.writes)
	if m, err := limits.ParseMemory(text, now); err != nil || len(m) != 500 {
		t.Errorf("%d starts are stored, %v", len(m), err)
	}
	// What is still to be written when the process ends is written.
	b.remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "last"}}, &limits.Start{Rule: "gpu", At: now})
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if text := await(t, "the last write", stored.writes); !strings.Contains(text, `"last"`) || len(stored.writes) > 0 {
		t.Errorf("written %s, and %d times more", text, len(stored.writes))
	}
}

func TestStartsThatCannotBeWrittenAreWrittenLater(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	b, stored := newStarts(clocktesting.NewFakePassiveClock(now))
	stored.down = errors.New("no API server today")
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 1}}
	b.remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: now})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&startsSaver{b, time.Hour, time.Millisecond}).Start(ctx) }()
	if text := await(t, "the second write", stored.writes); !strings.Contains(text, `"a"`) {
		t.Errorf("written %s", text)
	}
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
}

func TestWhoTakesOverReadsTheStarts(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 1}}
	for text, want := range map[string]int{
		"": 0,
		`[{"n":"a","u":"u","r":"gpu","t":"2026-11-20T11:30:00Z"}]`: 1,
		`[{"n":"a","u":"u","r":"gpu","t":"2027-11-20T11:30:00Z"}]`: 0,
		`{`: 0,
	} {
		b, stored := newStarts(clocktesting.NewFakePassiveClock(now))
		stored.data = map[string]string{limits.StartsKey: text}
		if err := b.refresh(t.Context(), p); err != nil {
			t.Error(err)
		}
		if got := b.remembered(); len(got) != want {
			t.Errorf("%s: remembers %s", text, got)
		}
		if rewritten := len(b.unsavedStarts) > 0; rewritten != (text != "" && want == 0) {
			t.Errorf("%s: is replaced: %v", text, rewritten)
		}
	}
}

// A person closes the breaker by deleting the ConfigMap. The quarantines began all the same.
func TestAResetMakesNoStartUndone(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	b, stored := newStarts(clock)
	p := &policy.Policy{Budget: policy.Unlimited, Breaker: &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}}
	b.remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	if err := b.saveStarts(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-b.unsavedStarts
	b.set(&limits.BreakerState{OpenedAt: clock.Now()})
	b.unsaved, stored.data = false, nil
	clock.SetTime(clock.Now().Add(limits.RetryBlocked))
	if err := b.refresh(t.Context(), p); err != nil || b.state(p) != nil {
		t.Errorf("the breaker is %s, %v", b.state(p), err)
	}
	if len(b.remembered()) != 1 || len(b.unsavedStarts) != 1 {
		t.Errorf("remembers %s, to be written %d", b.remembered(), len(b.unsavedStarts))
	}
}

func TestADryRunWritesNoStarts(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	b, _ := newStarts(clock)
	b.dryRun = true
	b.remember(&policy.Policy{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	if len(b.remembered()) != 1 || len(b.unsavedStarts) > 0 {
		t.Errorf("remembers %s, to be written %d", b.remembered(), len(b.unsavedStarts))
	}
}

// lateReader is an API server that answers a read only after something else has happened.
type lateReader struct {
	*startsMap
	before func()
}

func (l *lateReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	return l.startsMap.Get(ctx, key, object, opts...)
}

func TestALateAnswerMakesNoStartUndone(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	b, stored := newStarts(clock)
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 1}}
	b.apiReader = &lateReader{stored, func() {
		if err := b.refresh(t.Context(), p); err != nil {
			t.Error(err)
		}
		b.remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	}}
	if err := b.refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if b.remembered()["a"] == nil {
		t.Error("the start is forgotten")
	}
}
