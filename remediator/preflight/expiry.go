package preflight

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// verdicts are the conditions of preflight.
var verdicts = []string{conditions.PreflightFailed, conditions.SlowNode}

// setupExpiry adds the controller that clears verdicts after their TTL.
func (c *Controller) setupExpiry(mgr ctrl.Manager) error {
	hasVerdict := func(object client.Object) bool {
		return slices.ContainsFunc(verdicts, func(verdict string) bool {
			cond, found := condition(object.(*corev1.Node), verdict)
			return found && cond.Status == corev1.ConditionTrue
		})
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("preflight-expiry").
		For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(hasVerdict))).
		Complete(reconcile.Func(c.expire)); err != nil {
		return fmt.Errorf("add the controller of expired verdicts: %w", err)
	}
	return nil
}

// expire clears the expired verdicts of a node, and requeues it for the next one to expire.
func (c *Controller) expire(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := c.client.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	var requeueAfter time.Duration
	for _, verdict := range verdicts {
		if err := c.patchCondition(ctx, req.Name, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return expiredCondition(n, verdict, c.ttl, c.clock.Now())
		}); err != nil {
			return ctrl.Result{}, err
		}
		cond, found := condition(&n, verdict)
		left := cond.LastHeartbeatTime.Add(c.ttl).Sub(c.clock.Now())
		if found && cond.Status == corev1.ConditionTrue && left > 0 && (requeueAfter == 0 || left < requeueAfter) {
			requeueAfter = left
		}
	}
	return ctrl.Result{RequeueAfter: requeueAfter}, nil
}
