// Package queue makes what was decided about nodes true outside of decisions: one node after another, and nothing waits for it.
package queue

import (
	"context"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	reader client.Reader
	write  func(ctx context.Context, live *corev1.Node, what W) error
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

// New makes a queue that writes once it is started. reader reads from the API server: others may have written to a node since the cache saw
// it, so a patch is only good for what is read right before it. write must do nothing if the node shows what is wanted.
func New[W any](failed string, reader client.Reader, write func(ctx context.Context, live *corev1.Node, what W) error) *Queue[W] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)
	return &Queue[W]{
		failed: failed, reader: reader, write: write, queue: workqueue.NewTypedRateLimitingQueue(limiter), wanted: map[string]wanted[W]{},
	}
}

// Want has what is wanted written to a node, until it is written or something else is wanted.
func (q *Queue[W]) Want(node string, uid types.UID, what W) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, waits := q.wanted[node]
	isOther := !waits || before.uid != uid
	q.wanted[node] = wanted[W]{uid, what, before.refused && !isOther}
	if isOther || !reflect.DeepEqual(before.what, what) {
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
	err := q.show(within, name, w)
	q.mu.Lock()
	defer q.mu.Unlock()
	now, waits := q.wanted[name]
	switch {
	case err == nil:
		q.queue.Forget(name)
		if waits && now.uid == w.uid && reflect.DeepEqual(now.what, w.what) {
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

// show writes what is wanted to a node, unless that is gone or another one has its name.
func (q *Queue[W]) show(ctx context.Context, name string, w wanted[W]) error {
	var live corev1.Node
	err := q.reader.Get(ctx, client.ObjectKey{Name: name}, &live)
	if err == nil && live.UID == w.uid {
		err = q.write(ctx, &live, w.what)
	}
	return client.IgnoreNotFound(err)
}
