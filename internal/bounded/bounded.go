// Package bounded makes calls that may never return: a read of sysfs that waits for the firmware of an adapter, a statfs of a mount whose
// server is gone. See docs/adr/0038-one-sick-part-hides-no-other.md.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNoAnswer is the error of a call that did not return in time. Its text is the same at every look.
var ErrNoAnswer = errors.New("did not answer in time")

// Calls knows which things do not answer. The zero value is ready. It is not for concurrent use.
type Calls struct{ hanging map[string]chan struct{} }

// Share returns a context with a share of the time that ctx has left, one of so many: the first of them that hangs leaves time for the
// others.
func Share(ctx context.Context, shares int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(shares))
}

// Do returns what f returns, or [ErrNoAnswer] when f has used half of the time that ctx has left: one thing that hangs leaves time for the
// others. While a call about a thing hangs there is no second one, so at most one goroutine is left for each. f may go on after Do has
// returned: it must touch nothing that its caller uses.
func Do[T any](ctx context.Context, c *Calls, thing string, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none outcome
	if returned, ok := c.hanging[thing]; ok {
		select {
		case <-returned:
			delete(c.hanging, thing)
		default:
			return none.value, ErrNoAnswer
		}
	}
	ctx, cancel := Share(ctx, 2)
	defer cancel()
	done, returned := make(chan outcome, 1), make(chan struct{})
	go func() {
		defer close(returned)
		var o outcome
		defer func() {
			if v := recover(); v != nil {
				o.err = fmt.Errorf("panic: %v", v)
			}
			done <- o
		}()
		o.value, o.err = f()
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		if c.hanging == nil {
			c.hanging = map[string]chan struct{}{}
		}
		c.hanging[thing] = returned
		return none.value, ErrNoAnswer
	}
}
