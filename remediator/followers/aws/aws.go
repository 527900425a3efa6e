// Package aws keeps the labels and annotations of the AWS GPU cluster health check suite in step with what was decided.
package aws

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/queue"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Follower writes the labels and annotations of one node after another.
type Follower struct {
	*queue.Queue[handoff.Health]

	client    client.Client
	apiReader client.Reader
	clock     clock.PassiveClock
}

// New makes a follower that writes once it is started.
func New(api client.Client, apiReader client.Reader, clock clock.PassiveClock) *Follower {
	f := &Follower{client: api, apiReader: apiReader, clock: clock}
	isSame := func(a, b handoff.Health) bool { return reflect.DeepEqual(a, b) }
	f.Queue = queue.New("Failed to write the labels and annotations of the AWS health check suite; retrying", isSame, f.write)
	return f
}

// Follow has a node show its health; nil: what it shows stays.
func (f *Follower) Follow(n *corev1.Node, health *handoff.Health) {
	if health == nil || !health.Changes(n) {
		f.Forget(n.Name)
		return
	}
	f.Want(n.Name, n.UID, *health)
}

// write patches a node unless it shows its health. The suite itself may have written since the cache saw the node: the patch is only good
// for what is read here.
func (f *Follower) write(ctx context.Context, name string, uid types.UID, health handoff.Health) error {
	var live corev1.Node
	if err := f.apiReader.Get(ctx, client.ObjectKey{Name: name}, &live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if live.UID != uid || !health.Changes(&live) {
		return nil
	}
	after := live.DeepCopy()
	health.Show(after, f.clock.Now().UTC())
	locked := client.MergeFromWithOptions(&live, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(f.client.Patch(ctx, after, locked, client.FieldOwner(quarantine.ControllerName)))
}
