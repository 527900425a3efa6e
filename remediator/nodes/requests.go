package nodes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// carryOut carries out what a person orders about a node, and answers, in one patch of the node as it is now. It reports whether it has
// written: the next decision is about what the node has become. Orders are carried out in every mode and during a pause.
func (c *Controller) carryOut(ctx context.Context, p *policy.Policy, cached *corev1.Node) (wrote bool, err error) {
	log := ctrl.LoggerFrom(ctx)
	r, err := request.Of(cached)
	if err != nil {
		log.Error(err, "Failed to read the request; ignoring it until it is written again")
		return false, nil
	}
	if !r.Waits() {
		return false, nil
	}
	var n corev1.Node
	if err := c.apiReader.Get(ctx, client.ObjectKeyFromObject(cached), &n); err != nil {
		return false, fmt.Errorf("get node %s: %w", cached.Name, err)
	}
	if r, err = request.Of(&n); err != nil || !r.Waits() {
		return false, nil //nolint:nilerr // the cache is behind: the next look says what is wrong
	}
	if c.dryRun {
		log.Info("Dry run: the request is not carried out", "kind", r.Kind, "user", r.User)
		return false, nil
	}
	if err := c.known.Refresh(ctx, p); err != nil {
		return false, err
	}
	now := c.clock.Now().UTC()
	outcome, refused := request.Carry(request.Scope{Policy: p, Visits: c.visits, Known: c.known.Of(p)}, &n, r, now)
	after := request.Answered(&n, *r, outcome, refused, now)
	// An order asks no budget, and takes a place: the cache shows it later than the next decision. If the answer is lost, the place is kept
	// until the next look at the node, which is live.
	record, err := causes.RecordOf(after)
	takes := err == nil && refused == nil && r.Kind == request.Quarantine
	if takes {
		c.pending.Add(&n, record)
	}
	if err := c.client.Patch(ctx, after, lockedPatch(&n), client.FieldOwner(quarantine.ControllerName)); err != nil {
		if takes && isRefusal(err) {
			c.pending.Refused(n.Name)
		}
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("answer the request about node %s: %w", n.Name, err)
	}
	log.Info("Request answered", "kind", r.Kind, "user", r.User, "refused", refused)
	if refused == nil {
		c.report.Node(ctx, &n, causes.Event{Type: corev1.EventTypeNormal, Reason: outcome.Event, Message: r.By().Note(outcome.Done)})
	}
	return true, nil
}
