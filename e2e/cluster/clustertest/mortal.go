package clustertest

import (
	"context"
	"errors"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// ErrCrashed is what a dead process is told of its writes.
var ErrCrashed = errors.New("the process has crashed")

// Mortal is the client of a process that does one write and then dies: nothing that it tries afterwards reaches the API
// server. Make it with [NewMortal].
type Mortal struct {
	// Dead is closed when the process dies.
	Dead chan struct{}

	late  bool
	mu    sync.Mutex
	wrote bool
}

// NewMortal returns a process that dies as soon as it has written, before it learns of it, or, if late, when it tries
// to write again.
func NewMortal(late bool) *Mortal { return &Mortal{Dead: make(chan struct{}), late: late} }

// Funcs are its writes.
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
	}
}

func (m *Mortal) do(write func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.wrote {
		if err := write(); err != nil {
			return err // a conflict writes nothing
		}
		m.wrote = true
		if m.late {
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
