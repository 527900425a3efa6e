// Package queue makes what was decided about nodes true outside of decisions: one node after another, and nothing waits for it.
package queue

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// retryMin and retryMax bound the wait after a write that failed: a conflict is over soon, a missing permission is not.
	retryMin, retryMax = 20 * time.Millisecond, time.Minute
	// deadline bounds the requests about one node.
	deadline = 10 * time.Second
)

// Queue holds the nodes that show something else than what is wanted, with W as what is wanted. It is only in memory: what a crash leaves
// out is made up for when the node is decided next, and at the start every node is.
type Queue[W any] struct {
	// failed is the log message of a write that failed.
	failed string
	write  func(ctx context.Context, node string, uid types.UID, what W) error
	isSame func(a, b W) bool
	queue  workqueue.TypedRateLimitingInterface[string]

	mu     sync.Mutex
	wanted map[string]wanted[W]
}

type wanted[W any] struct {
	uid  types.UID
	what W
	// refused is set once it was logged that the API server refuses it.
	refused bool
}

// New makes a queue that writes once it is started. write must do nothing if the node shows what is wanted, has another UID or is gone.
func New[W any](failed string, isSame func(a, b W) bool, write func(context.Context, string, types.UID, W) error) *Queue[W] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)
	return &Queue[W]{
		failed: failed, write: write, isSame: isSame, queue: workqueue.NewTypedRateLimitingQueue(limiter), wanted: map[string]wanted[W]{},
	}
}

// Want has what is wanted written to a node, until it is written or something else is wanted.
func (q *Queue[W]) Want(node string, uid types.UID, what W) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, waits := q.wanted[node]
	isOther := !waits || before.uid != uid
	q.wanted[node] = wanted[W]{uid, what, before.refused && !isOther}
	if isOther || !q.isSame(before.what, what) {
		q.queue.Forget(node)
		q.queue.Add(node)
	}
}

// Forget drops what is wanted of a node that shows it, or is gone.
func (q *Queue[W]) Forget(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.wanted, node)
}

// Len is how many nodes do not show what is wanted.
func (q *Queue[W]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.wanted)
}

// Start writes until the context ends.
func (q *Queue[W]) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, q.queue.ShutDown)
	defer stop()
	for {
		name, shutdown := q.queue.Get()
		if shutdown {
			return nil
		}
		q.attempt(ctx, name)
		q.queue.Done(name)
	}
}

// attempt writes to one node, and tries again later if that fails.
func (q *Queue[W]) attempt(ctx context.Context, name string) {
	q.mu.Lock()
	w, waits := q.wanted[name]
	q.mu.Unlock()
	if !waits {
		q.queue.Forget(name)
		return
	}
	within, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	err := q.write(within, name, w.uid, w.what)
	q.mu.Lock()
	defer q.mu.Unlock()
	now, waits := q.wanted[name]
	switch {
	case err == nil:
		q.queue.Forget(name)
		if waits && now.uid == w.uid && q.isSame(now.what, w.what) {
			delete(q.wanted, name)
		}
	case ctx.Err() == nil:
		isRefused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
		if isKnown := isRefused && w.refused; !isKnown && !apierrors.IsConflict(err) {
			ctrl.LoggerFrom(ctx).Error(err, q.failed, "node", name)
		}
		if waits && isRefused {
			now.refused = true
			q.wanted[name] = now
		}
		q.queue.AddRateLimited(name)
	}
}
