// Package soperator keeps the condition by which soperator learns that a node is out of service in step with what was decided.
package soperator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

const (
	// retryMin and retryMax bound the wait after a write that failed: a conflict is over soon, a missing permission is not.
	retryMin, retryMax = 20 * time.Millisecond, time.Minute
	// deadline bounds the requests about one node.
	deadline = 10 * time.Second
)

// Follower writes the condition of one node after another, and nothing waits for it. What a crash leaves out is made up for when the
// node is decided next: at the start every node is.
type Follower struct {
	client    client.Client
	apiReader client.Reader
	clock     clock.PassiveClock
	queue     workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// wanted is what the conditions are to say, of the nodes on which they may say something else.
	wanted map[string]want
}

type want struct {
	uid     types.UID
	message string
	// refused is set once it was logged that the API server refuses the condition.
	refused bool
}

// New makes a follower that writes once it is started.
func New(api client.Client, apiReader client.Reader, clock clock.PassiveClock) *Follower {
	return &Follower{
		client: api, apiReader: apiReader, clock: clock, wanted: map[string]want{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)),
	}
}

// Want has the condition of a node say why it is out of service; an empty message: it is in service.
func (f *Follower) Want(n *corev1.Node, message string) {
	_, changes := handoff.Suspicion(n, message, f.clock.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	before, waits := f.wanted[n.Name]
	if !changes {
		delete(f.wanted, n.Name)
		return
	}
	f.wanted[n.Name] = want{n.UID, message, before.refused && before.uid == n.UID}
	if !waits || before.uid != n.UID || before.message != message {
		f.queue.Forget(n.Name)
		f.queue.Add(n.Name)
	}
}

// Forget drops what a node that is gone was to show.
func (f *Follower) Forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.wanted, node)
}

// Start writes until the context ends.
func (f *Follower) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, f.queue.ShutDown)
	defer stop()
	for {
		name, shutdown := f.queue.Get()
		if shutdown {
			return nil
		}
		f.attempt(ctx, name)
		f.queue.Done(name)
	}
}

// attempt writes the condition of a node, and tries again later if that fails.
func (f *Follower) attempt(ctx context.Context, name string) {
	f.mu.Lock()
	w, waits := f.wanted[name]
	f.mu.Unlock()
	if !waits {
		f.queue.Forget(name)
		return
	}
	within, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	err := f.write(within, name, w)
	f.mu.Lock()
	defer f.mu.Unlock()
	now, waits := f.wanted[name]
	switch {
	case err == nil:
		f.queue.Forget(name)
		if waits && now.uid == w.uid && now.message == w.message {
			delete(f.wanted, name)
		}
	case ctx.Err() == nil:
		isRefused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
		if isKnown := isRefused && w.refused; !isKnown && !apierrors.IsConflict(err) {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to write the condition for soperator; retrying", "node", name)
		}
		if waits && isRefused {
			now.refused = true
			f.wanted[name] = now
		}
		f.queue.AddRateLimited(name)
	}
}

// write patches the status of a node unless its condition says what it is to say. Another writer may have set the condition since the
// cache saw the node: the patch is only good for what is read here.
func (f *Follower) write(ctx context.Context, name string, w want) error {
	var live corev1.Node
	if err := f.apiReader.Get(ctx, client.ObjectKey{Name: name}, &live); err != nil {
		return client.IgnoreNotFound(err)
	}
	condition, changes := handoff.Suspicion(&live, w.message, f.clock.Now().UTC())
	if !changes || live.UID != w.uid {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": live.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", condition.Type, err)
	}
	target := &corev1.Node{}
	target.Name = name
	by := client.RawPatch(types.StrategicMergePatchType, patch)
	return client.IgnoreNotFound(f.client.Status().Patch(ctx, target, by, client.FieldOwner(quarantine.ControllerName)))
}
