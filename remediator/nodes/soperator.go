package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// suspicionRetry is how soon a condition that the API server refuses is tried again.
const suspicionRetry = time.Minute

// statusOf names the status of a node among the refused writes.
func statusOf(node string) string { return node + "/status" }

// showSuspicion keeps the condition for soperator in step with the node, after the node was written. Once the output is off, the
// condition is taken back, also from nodes that are not decided about. What a crash between the two
// writes leaves out is made up for when the node is decided next: at the start every node is. Unless after is zero, it is to be
// tried again after that time.
func (c *Controller) showSuspicion(ctx context.Context, n *corev1.Node, d quarantine.Decision, now time.Time) (after time.Duration, err error) {
	if c.dryRun {
		return 0, nil
	}
	message := ""
	if c.policy.Policy().Output.Soperator {
		known := false
		if message, known = d.State.Suspicion(); !known {
			return 0, nil
		}
	}
	if _, changes := handoff.Suspicion(n, message, now); !changes {
		return 0, nil
	}
	// Another writer may have set the condition since the cache saw the node. The patch is only good for what is read here.
	var live corev1.Node
	if err := c.apiReader.Get(ctx, client.ObjectKeyFromObject(n), &live); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("get node %s: %w", n.Name, err)
	}
	condition, changes := handoff.Suspicion(&live, message, now)
	if !changes || live.UID != n.UID {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": live.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{condition}},
	})
	if err != nil {
		return 0, fmt.Errorf("encode condition %s: %w", condition.Type, err)
	}
	target := &corev1.Node{}
	target.Name = n.Name
	err = c.client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(quarantine.ControllerName))
	isNew := c.reports.isNewRefusal(statusOf(n.Name), err != nil && isDenied(err))
	switch {
	case err != nil && isDenied(err):
		// No error of the node: its quarantine does not depend on this.
		if isNew {
			ctrl.LoggerFrom(ctx).Error(err, "The API server refuses condition "+string(condition.Type)+", so soperator does not learn the state of the node")
		}
		return suspicionRetry, nil
	case apierrors.IsConflict(err):
		return conflictRetry, nil
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("write condition %s of node %s: %w", condition.Type, n.Name, err)
	}
	return 0, nil
}
