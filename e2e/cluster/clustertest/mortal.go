package clustertest

import (
	"context"
	"errors"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// ErrCrashed is the result of every write of a dead process.
var ErrCrashed = errors.New("the process has crashed")

// Mortal simulates a process that does a number of writes and then dies: no later write reaches the API
// server. Make it with [NewMortal].
type Mortal struct {
	// Dead is closed when the process dies.
	Dead chan struct{}

	late   bool
	mu     sync.Mutex
	writes int // still to be done
}

// NewMortal returns a process that dies as soon as its last write is done, before it receives the response, or, if late, when
// it tries one more.
func NewMortal(writes int, late bool) *Mortal {
	return &Mortal{Dead: make(chan struct{}), late: late, writes: writes}
}

// Funcs are the client functions of the process.
func (m *Mortal) Funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return m.do(func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return m.do(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return m.do(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return m.do(func() error { return c.SubResource(name).Patch(ctx, o, p, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
			return m.do(func() error { return c.SubResource(name).Create(ctx, o, sub, opts...) })
		},
	}
}

func (m *Mortal) do(write func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes > 0 {
		if err := write(); err != nil {
			return err // a conflict writes nothing
		}
		m.writes--
		if m.late || m.writes > 0 {
			return nil
		}
	}
	select {
	case <-m.Dead:
	default:
		close(m.Dead)
	}
	return ErrCrashed
}
