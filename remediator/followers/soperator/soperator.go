// Package soperator keeps the condition by which soperator learns that a node is out of service in step with what was decided.
package soperator

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/queue"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Follower writes the condition of one node after another.
type Follower struct {
	*queue.Queue[string]

	client client.Client
	clock  clock.PassiveClock
}

// New makes a follower that writes once it is started.
func New(api client.Client, apiReader client.Reader, clock clock.PassiveClock) *Follower {
	f := &Follower{client: api, clock: clock}
	f.Queue = queue.New("Failed to write the condition for soperator; retrying", apiReader, f.write)
	return f
}

// Follow has the condition of a node say why it is out of service; an empty message: it is in service.
func (f *Follower) Follow(n *corev1.Node, message string) {
	if _, changes := handoff.Suspicion(n, message, f.clock.Now()); !changes {
		f.Forget(n.Name)
		return
	}
	f.Want(n.Name, n.UID, message)
}

// write patches the status of a node unless its condition reports what it is to report.
func (f *Follower) write(ctx context.Context, live *corev1.Node, message string) error {
	condition, changes := handoff.Suspicion(live, message, f.clock.Now().UTC())
	if !changes {
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
	target.Name = live.Name
	by := client.RawPatch(types.StrategicMergePatchType, patch)
	return f.client.Status().Patch(ctx, target, by, client.FieldOwner(quarantine.ControllerName))
}
