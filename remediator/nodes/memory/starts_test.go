package memory

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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

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
	if text, ok := object.(*corev1.ConfigMap).Data[limits.StartsKey]; ok {
		c.writes <- text
	}
	return nil
}

func newStarts(clock *clocktesting.FakePassiveClock) (*Breaker, *startsMap) {
	stored := &startsMap{writes: make(chan string, 100)}
	return newBreaker(stored, clock, false), stored
}

func TestManyStartsAreFewWrites(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	b, stored := newStarts(clocktesting.NewFakePassiveClock(now))
	p := &policy.Policy{Budget: policy.Budget{MaxNodes: 1}}
	if err := b.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), UID: types.UID("u")}}
		b.Remember(p, n, &limits.Start{Rule: "gpu", At: now})
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.saveStartsEvery(ctx, time.Hour, time.Millisecond) }()
	text := await(t, "the write of the starts", stored.writes)
	if m, err := limits.ParseMemory(text, now); err != nil || len(m) != 500 {
		t.Errorf("%d starts are stored, %v", len(m), err)
	}
	// What is still to be written when the process ends is written.
	b.Remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "last"}}, &limits.Start{Rule: "gpu", At: now})
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
	b.Remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: now})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.saveStartsEvery(ctx, time.Hour, time.Millisecond) }()
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
		if err := b.Refresh(t.Context(), p); err != nil {
			t.Error(err)
		}
		if got := b.Remembered(); len(got) != want {
			t.Errorf("%s: remembers %s", text, got)
		}
		if rewritten := len(b.due) > 0; rewritten != (text != "" && want == 0) {
			t.Errorf("%s: is replaced: %v", text, rewritten)
		}
	}
}

// A person closes the breaker by deleting the ConfigMap. The quarantines began all the same.
func TestAResetMakesNoStartUndone(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	b, stored := newStarts(clock)
	p := &policy.Policy{Budget: policy.Unlimited, Breaker: &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}}
	b.Remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	if err := b.SaveStarts(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-b.due
	b.Set(&limits.BreakerState{OpenedAt: clock.Now()})
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored.data = nil
	clock.SetTime(clock.Now().Add(limits.RetryBlocked))
	if err := b.Refresh(t.Context(), p); err != nil || b.State(p) != nil {
		t.Errorf("the breaker is %s, %v", b.State(p), err)
	}
	if len(b.Remembered()) != 1 || len(b.due) != 1 {
		t.Errorf("remembers %s, to be written %d", b.Remembered(), len(b.due))
	}
}

func TestADryRunWritesNoStarts(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	b := newBreaker(&startsMap{}, clock, true)
	b.Remember(&policy.Policy{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	if len(b.Remembered()) != 1 || len(b.due) > 0 {
		t.Errorf("remembers %s, to be written %d", b.Remembered(), len(b.due))
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
	b.state.Reader = &lateReader{stored, func() {
		if err := b.Refresh(t.Context(), p); err != nil {
			t.Error(err)
		}
		b.Remember(p, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &limits.Start{Rule: "gpu", At: clock.Now()})
	}}
	if err := b.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if b.Remembered()["a"] == nil {
		t.Error("the start is forgotten")
	}
}
