package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

func quarantineCommand(c *target) *cobra.Command {
	var confirm confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "quarantine NODE...",
		Short: "Taint nodes until `kubectl pitcrew release`; pods on them are left alone, and jobs unless a rule restarts them",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			by := c.actor(cmd, api, reason)
			changes, err := nodeChanges(cmd.Context(), api, names, "Quarantine", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.QuarantineManually(n, by.Manual, c.now().UTC())
			})
			if err != nil {
				return err
			}
			by.announceAll(changes, quarantine.NodeQuarantined, "quarantined manually")
			return confirm.apply(cmd, changes)
		},
	}
	reasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.flags(cmd)
	return cmd
}

func releaseCommand(c *target) *cobra.Command {
	var confirm confirmation
	var o releaseOptions
	var reason string
	cmd := &cobra.Command{
		Use:   "release NODE...",
		Short: "Remove our taint from nodes; they stay released until the present faults have cleared",
		Long: `Remove our taint from nodes. The faults that they have now do not quarantine them again before they have cleared. A new fault does:
that of another GPU, another one of the same class or a worse one.

Where the rule of a fault says validate: true, the node is checked under load first, and released when it has passed, unless it has passed
in this boot already. --without-validation releases it at once.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			changes, err := c.release(c.actor(cmd, api, reason), names, o)
			if err != nil {
				return err
			}
			return confirm.apply(cmd, changes)
		},
	}
	reasonFlag(cmd, &reason, "the node's record and an Event")
	cmd.Flags().BoolVar(&o.alsoClear, "clear", false, "also clear the faults in the plugins on the nodes")
	cmd.Flags().BoolVar(&o.unvalidated, "without-validation", false, "release the nodes at once, also where the policy has them checked first")
	cmd.Flags().StringVarP(&o.policyFile, "filename", "f", "", "`file` with the policy, if it is not the one that the remediator's pods use")
	c.npdFlag(cmd)
	confirm.flags(cmd)
	return cmd
}

// releaseOptions are the flags of release.
type releaseOptions struct {
	// alsoClear clears the faults in the plugins on the nodes, too.
	alsoClear bool
	// unvalidated releases nodes at once that the policy has checked first.
	unvalidated bool
	policyFile  string
}

// release are the changes that release nodes, or have them checked and then released.
func (c *target) release(by actor, names []string, o releaseOptions) ([]change, error) {
	atOnce, afterCheck := names, []corev1.Node(nil)
	if !o.unvalidated {
		var err error
		if atOnce, afterCheck, err = c.needValidation(by, names, o.policyFile); err != nil {
			return nil, err
		}
	}
	changes, err := nodeChanges(by.cmd.Context(), by.api, atOnce, "Release", func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.ReleaseManually(n, by.Manual, c.now().UTC())
	})
	if err != nil {
		return nil, err
	}
	by.announceAll(changes, quarantine.ReleaseByHand, "released manually")
	for i := range afterCheck {
		asked, err := c.request(by, afterCheck[i].Name, repair.RequestRelease, releaseText(&afterCheck[i]), mayRepair)
		if err != nil {
			return nil, err
		}
		changes = append(changes, asked)
	}
	if o.alsoClear {
		cleared, err := c.clearCauses(by, names)
		if err != nil {
			return nil, err
		}
		changes = append(cleared, changes...)
	}
	return changes, nil
}

// needValidation parts the nodes that are released at once from those that the remediator checks first. Where there is no remediator,
// as far as is known, nobody checks them. One whose policy cannot be read may.
func (c *target) needValidation(by actor, names []string, file string) (atOnce []string, afterCheck []corev1.Node, err error) {
	var i installation
	if err := c.readInstallation(by.cmd.Context(), by.api, &i); err != nil {
		return nil, nil, err
	}
	switch namespace, known := i.repairNamespace(); {
	case known && namespace == "":
		return names, nil, nil
	case !known && i.podsErr == nil && file == "":
		cli.Fprintf(by.cmd.ErrOrStderr(), "No remediator was found in namespace %s that could check a node first\n", c.namespace)
		return names, nil, nil
	}
	p, from, err := c.policyInForce(by.cmd.Context(), by.api, file)
	if err != nil {
		return nil, nil, err
	}
	if p == nil {
		return nil, nil, fmt.Errorf("whether the nodes have to be checked first is not known: %s; --without-validation releases them at once", from)
	}
	for _, name := range names {
		var n corev1.Node
		if err := by.api.Get(by.cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if awaitsValidation(p, &n, c.now()) {
			afterCheck = append(afterCheck, n)
		} else {
			atOnce = append(atOnce, name)
		}
	}
	return atOnce, afterCheck, nil
}

// releaseText says what a release of a node that is checked first does.
func releaseText(n *corev1.Node) string {
	text := fmt.Sprintf("Release node %s after its check: the policy validates it first (--without-validation releases it at once)", n.Name)
	q, err := quarantine.RecordOf(n)
	if err != nil || q == nil {
		return text
	}
	var faults []string
	for _, cause := range q.Causes {
		if cause.Due && cause.HealthySince.IsZero() {
			faults = append(faults, string(cause.Condition))
		}
	}
	if len(faults) > 0 {
		text += fmt.Sprintf("; it does not return before %s has cleared", strings.Join(faults, ", "))
	}
	return text
}

// awaitsValidation tells whether a rule of a node's quarantine asks for a check under load that the node has not passed, as far as its
// records can be read.
func awaitsValidation(p *policy.Policy, n *corev1.Node, now time.Time) bool {
	q, err := quarantine.RecordOf(n)
	if err != nil || q == nil || q.Phase != quarantine.Quarantined {
		return false
	}
	visits, err := repair.RecordOf(n)
	return quarantine.NeedsValidation(p, &q.Quarantine) && (err != nil || !visits.Validated(n, q, now))
}

// announceAll has each change of a node written as an Event once it is made.
func (a actor) announceAll(changes []change, reason, what string) {
	for i, do := range changes {
		changes[i].do = func(ctx context.Context) error {
			if err := do.do(ctx); err != nil {
				return err
			}
			a.announce(ctx, do.about, reason, "Quarantine", what)
			return nil
		}
	}
}

// clearCauses are the changes that clear what the nodes' records blame.
func (c *target) clearCauses(by actor, names []string) ([]change, error) {
	var changes []change
	for _, name := range names {
		var n corev1.Node
		if err := by.api.Get(by.cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		types, err := latched(&n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		for _, conditionType := range types {
			cleared, err := c.clearCondition(by, name, conditionType)
			if err != nil {
				return nil, err
			}
			changes = append(changes, cleared)
		}
	}
	return changes, nil
}

// nodeChanges change each node. A node that was written since the change was printed is read and decided about again.
func nodeChanges(ctx context.Context, api client.Client, names []string, verb string, to func(*corev1.Node) (*corev1.Node, error)) ([]change, error) {
	var changes []change
	for _, name := range names {
		var before corev1.Node
		if err := api.Get(ctx, client.ObjectKey{Name: name}, &before); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		after, err := to(&before)
		if err != nil {
			return nil, err
		}
		changes = append(changes, change{
			text:  fmt.Sprintf("%s node %s: %s", verb, name, taintChanges(&before, after)),
			about: referenceTo(&before),
			do:    func(ctx context.Context) error { return changeNode(ctx, api, &before, to) },
		})
	}
	return changes, nil
}

// changeNode patches a node. A heartbeat between the read and the patch is a conflict, and kubelets send them all the time: the node
// is then read again, a few times at most, and to decides about what was read.
func changeNode(ctx context.Context, api client.Client, n *corev1.Node, to func(*corev1.Node) (*corev1.Node, error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		after, err := to(n)
		if err != nil {
			return err
		}
		if err = patch(ctx, api, n, after); !apierrors.IsConflict(err) {
			return err
		}
		fresh := &corev1.Node{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(n), fresh); err != nil {
			return fmt.Errorf("get node %s: %w", n.Name, err)
		}
		n = fresh
		return err
	})
}

func patch(ctx context.Context, api client.Client, before, after *corev1.Node) error {
	return api.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
}

func taints(n *corev1.Node) string {
	var all []string
	for _, t := range n.Spec.Taints {
		all = append(all, t.ToString())
	}
	return strings.Join(all, " ")
}

// taintChanges says which taints are added and removed, and what of a quarantine that ends stays.
func taintChanges(before, after *corev1.Node) string {
	var all []string
	for _, t := range missing(after.Spec.Taints, before.Spec.Taints) {
		all = append(all, "add taint "+t)
	}
	for _, t := range missing(before.Spec.Taints, after.Spec.Taints) {
		all = append(all, "remove taint "+t)
	}
	if len(all) == 0 {
		all = append(all, "change no taint")
	}
	if before.Spec.Unschedulable && !after.Spec.Unschedulable {
		all = append(all, "uncordon")
	}
	for _, what := range quarantine.Left(before, after) {
		all = append(all, fmt.Sprintf("leave %q, which the record names but only a person may remove", quarantine.Clip(what, conditions.MaxMessage)))
	}
	return strings.Join(all, ", ")
}

// missing are the taints that the others have not.
func missing(taints, others []corev1.Taint) []string {
	var all []string
	for _, t := range taints {
		if !slices.ContainsFunc(others, func(o corev1.Taint) bool { return o.ToString() == t.ToString() }) {
			all = append(all, t.ToString())
		}
	}
	return all
}
