// Package aws keeps the labels and annotations of the AWS GPU cluster health check suite in step with what was decided.
package aws

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/queue"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Follower writes the labels and annotations of one node after another.
type Follower struct {
	*queue.Queue[handoff.Health]

	client client.Client
	clock  clock.PassiveClock
}

// New makes a follower that writes once it is started.
func New(api client.Client, apiReader client.Reader, clock clock.PassiveClock) *Follower {
	f := &Follower{client: api, clock: clock}
	f.Queue = queue.New("Failed to write the labels and annotations of the AWS health check suite; retrying", apiReader, f.write)
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

// write patches a node unless it shows its health.
func (f *Follower) write(ctx context.Context, live *corev1.Node, health handoff.Health) error {
	if !health.Changes(live) {
		return nil
	}
	after := live.DeepCopy()
	health.Show(after, f.clock.Now().UTC())
	locked := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
	return f.client.Patch(ctx, after, locked, client.FieldOwner(quarantine.ControllerName))
}
