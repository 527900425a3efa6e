package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record/pending"
)

// settleDeadline bounds the read that reports whether a node was written.
const settleDeadline = 5 * time.Second

// errOutdated means that the policy was reloaded since a decision was made, or that everything is paused and the cache does not show it.
var errOutdated = errors.New("the decision is outdated")

// apply carries out a decision on the node: at most one write, and Events only once it has succeeded. Applying a decision
// twice equals applying it once.
func (c *Controller) apply(ctx context.Context, by basis, n *corev1.Node, d quarantine.Decision, started time.Time) error {
	c.report.Blocked(ctx, c.policy.Policy(), n, d.Blocked)
	c.report.StaleUpgrade(ctx, n, d.StaleUpgrade)
	changes := d.Changes(n)
	if !changes {
		c.report.Refused(ctx, n, d, nil)
	}
	if changes || c.devices.Changes(by.devices, d.Devices) { // rules for devices are written after the node, or alone
		if err := c.confirm(ctx, by); err != nil {
			c.pending.Refused(n.Name)
			return err
		}
	}
	if !changes {
		return nil
	}
	after := n.DeepCopy()
	d.State.Apply(after)
	err := c.write(ctx, n, after)
	if isDenied(err) {
		c.report.Refused(ctx, n, d, err)
	} else {
		c.report.Refused(ctx, n, d, nil)
	}
	if err != nil {
		if isRefusal(err) {
			c.pending.Refused(n.Name)
		} else {
			c.pending.Doubt(n.Name, lostWrite{Decision: d, Started: started, Node: after})
		}
		return err
	}
	c.burst.Wrote(n.Name, after.ResourceVersion)
	c.breaker.Remember(c.policy.Policy(), after, d.Started)
	c.report.Written(ctx, after, d, started)
	return nil
}

// lockedPatch is a merge patch. It replaces the taint list as a whole, so it is only good for the version of the node it
// was computed from. No decision changes a status, which is most of a node: it is not compared.
func lockedPatch(before *corev1.Node) client.Patch {
	return specPatch{client.MergeFromWithOptions(withoutStatus(before), client.MergeFromWithOptimisticLock{})}
}

type specPatch struct{ client.Patch }

// Data is the difference of two nodes without their status.
func (p specPatch) Data(after client.Object) ([]byte, error) {
	return p.Patch.Data(withoutStatus(after.(*corev1.Node)))
}

func withoutStatus(n *corev1.Node) *corev1.Node {
	return &corev1.Node{TypeMeta: n.TypeMeta, ObjectMeta: n.ObjectMeta, Spec: n.Spec}
}

// write patches the node; in a dry run the pending write is enough.
func (c *Controller) write(ctx context.Context, before, after *corev1.Node) error {
	if c.dryRun {
		return nil
	}
	if excess := node.TooLarge(before); excess != "" { // the patch would drop what the cache does not show of the taints
		return fmt.Errorf("patch node %s: it is too large: %s", before.Name, excess)
	}
	if err := c.client.Patch(ctx, after, lockedPatch(before), client.FieldOwner(quarantine.ControllerName)); err != nil {
		return fmt.Errorf("patch node %s: %w", before.Name, err)
	}
	return nil
}

// nodeWriter is a client to which the API server answers a patch of a Node with its metadata alone: a whole node is 29 KB and more, and the
// watch brings it anyway.
type nodeWriter struct{ client.Client }

// Patch leaves a Node as it is, but for its resourceVersion.
func (w nodeWriter) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	n, ok := object.(*corev1.Node)
	if !ok {
		return w.Client.Patch(ctx, object, patch, opts...)
	}
	data, err := patch.Data(n)
	if err != nil {
		return fmt.Errorf("compute the patch: %w", err)
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	answer.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err = w.Client.Patch(ctx, answer, client.RawPatch(patch.Type(), data), opts...)
	if err == nil {
		n.ResourceVersion = answer.ResourceVersion
	}
	return err
}

// isRefusal reports whether an error of a write means that the API server has not carried it out. Any other error leaves that
// open: the answer was lost, or the server itself does not know.
func isRefusal(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isDenied(err)
}

// isDenied reports whether the same write would be refused again: by a validation, an admission policy or for lack of a permission.
func isDenied(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

// lostWrite is what is to be reported once the node is known to carry a decision of which the answer was lost.
type lostWrite struct {
	Decision quarantine.Decision
	Started  time.Time
	// Node is as it was to be written.
	Node *corev1.Node
}

type (
	// writes are the records of quarantines that the cache does not show yet.
	writes = pending.Writes[*causes.Record, lostWrite]
	write  = pending.Write[*causes.Record, lostWrite]
)

func newWrites(dryRun bool) *writes {
	return pending.New[*causes.Record, lostWrite](quarantine.Pending, dryRun)
}

// settle finds out whether the node has a write whose answer was lost, and reports the decision if it has. Until that is
// known nothing else is decided about the node.
func (c *Controller) settle(ctx context.Context, n *corev1.Node) error {
	lost, ok := c.pending.Doubtful(n.Name)
	if !ok {
		return nil
	}
	now := n
	if n.UID == lost.UID && n.ResourceVersion == lost.Over {
		ctx, cancel := context.WithTimeout(ctx, settleDeadline)
		defer cancel()
		now = &corev1.Node{}
		if err := c.apiReader.Get(ctx, client.ObjectKeyFromObject(n), now); apierrors.IsNotFound(err) {
			now = nil
		} else if err != nil {
			return fmt.Errorf("find out whether node %s was written: %w", n.Name, err)
		}
	}
	if now == nil || now.UID != lost.UID {
		c.fleet.rememberDoubtful(c.policy.Policy(), lost)
	}
	if c.pending.Settle(n.Name, now) {
		c.fleet.rememberDoubtful(c.policy.Policy(), lost)
		c.report.Written(ctx, n, lost.Lost.Decision, lost.Lost.Started)
	}
	return nil
}
