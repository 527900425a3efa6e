package bounded

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAThingThatHangsIsAskedOnceAndHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var calls atomic.Int32
		answer := make(chan struct{})
		hang := func() (int, error) {
			calls.Add(1)
			<-answer
			return 7, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		start := time.Now()
		for range 3 {
			if n, err := Do(ctx, &c, "a", hang); n != 0 || !errors.Is(err, ErrNoAnswer) {
				t.Errorf("%d, %v", n, err)
			}
		}
		if waited := time.Since(start); waited != 4*time.Second || calls.Load() != 1 {
			t.Errorf("%d calls in %s", calls.Load(), waited)
		}
		if n, err := Do(ctx, &c, "b", func() (int, error) { return 5, nil }); n != 5 || err != nil {
			t.Errorf("the other one: %d, %v", n, err)
		}
		close(answer)
		synctest.Wait()
		if n, err := Do(ctx, &c, "a", hang); n != 7 || err != nil || calls.Load() != 2 {
			t.Errorf("answers again: %d, %v after %d calls", n, err, calls.Load())
		}
	})
}

func TestTwoThingsThatHangAreAskedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		calls := map[string]int{}
		answer := make(chan struct{})
		defer close(answer)
		for range 3 {
			for _, thing := range []string{"a", "b"} {
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				asked := make(chan struct{}, 1)
				_, err := Do(ctx, &c, thing, func() (int, error) {
					asked <- struct{}{}
					<-answer
					return 0, nil
				})
				calls[thing] += len(asked)
				cancel()
				if !errors.Is(err, ErrNoAnswer) {
					t.Error(err)
				}
			}
		}
		if calls["a"] != 1 || calls["b"] != 1 {
			t.Errorf("%v calls", calls)
		}
	})
}

func TestACallMayFailOrPanic(t *testing.T) {
	var c Calls
	failed := errors.New("no")
	if _, err := Do(t.Context(), &c, "a", func() (int, error) { return 0, failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := Do(t.Context(), &c, "a", func() (int, error) { panic("bad") }); err == nil || !strings.Contains(err.Error(), "panic: bad") {
		t.Error(err)
	}
}
