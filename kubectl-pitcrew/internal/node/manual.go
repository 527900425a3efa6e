package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func QuarantineCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "quarantine NODE...",
		Short: "Taint nodes until `kubectl pitcrew release`; pods on them are left alone, and jobs unless a rule restarts them",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: c.CompleteNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			by := c.Actor(cmd, api, reason)
			changes, err := cli.NodeChanges(cmd.Context(), api, names, "Quarantine", func(n *corev1.Node) (*corev1.Node, error) {
				return quarantine.QuarantineManually(n, by.Manual, c.Now().UTC())
			})
			if err != nil {
				return err
			}
			by.AnnounceAll(changes, causes.NodeQuarantined, "quarantined manually")
			return confirm.Apply(cmd, changes)
		},
	}
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event")
	confirm.Flags(cmd)
	return cmd
}

func ReleaseCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
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
		ValidArgsFunction: c.CompleteNodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			changes, err := release(c, c.Actor(cmd, api, reason), names, o)
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, changes)
		},
	}
	cli.ReasonFlag(cmd, &reason, "the node's record and an Event; wrong, repaired or other, alone or before a colon, is also counted")
	cmd.Flags().BoolVar(&o.alsoClear, "clear", false, "also clear the faults in the plugins on the nodes")
	cmd.Flags().BoolVar(&o.unvalidated, "without-validation", false, "release the nodes at once, also where the policy has them checked first")
	cli.PolicyFlag(cmd, &o.policyFile)
	npdFlag(c, cmd)
	confirm.Flags(cmd)
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
func release(c *cli.Target, by cli.Actor, names []string, o releaseOptions) ([]cli.Change, error) {
	atOnce, afterCheck := names, []corev1.Node(nil)
	if !o.unvalidated {
		var err error
		if atOnce, afterCheck, err = needValidation(c, by, names, o.policyFile); err != nil {
			return nil, err
		}
	}
	changes, err := cli.NodeChanges(by.Cmd.Context(), by.Api, atOnce, "Release", func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.ReleaseManually(n, by.Manual, c.Now().UTC())
	})
	if err != nil {
		return nil, err
	}
	by.AnnounceAll(changes, causes.ReleaseByHand, "released manually")
	for i := range afterCheck {
		asked, err := request(c, by, afterCheck[i].Name, visit.RequestRelease, releaseText(&afterCheck[i]), mayRepair)
		if err != nil {
			return nil, err
		}
		changes = append(changes, asked)
	}
	if o.alsoClear {
		cleared, err := clearCauses(c, by, names)
		if err != nil {
			return nil, err
		}
		changes = append(cleared, changes...)
	}
	return changes, nil
}

// needValidation parts the nodes that are released at once from those that the remediator checks first. Where there is no remediator,
// as far as is known, no check runs on them. One whose policy cannot be read may.
func needValidation(c *cli.Target, by cli.Actor, names []string, file string) (atOnce []string, afterCheck []corev1.Node, err error) {
	var i health.Installation
	if err := health.ReadInstallation(by.Cmd.Context(), c, by.Api, &i); err != nil {
		return nil, nil, err
	}
	switch namespace, known := i.RepairNamespace(); {
	case known && namespace == "":
		return names, nil, nil
	case !known && i.PodsErr == nil && file == "":
		cli.Fprintf(by.Cmd.ErrOrStderr(), "No remediator was found in namespace %s that could check a node first\n", c.Namespace)
		return names, nil, nil
	}
	p, from, err := c.PolicyInForce(by.Cmd.Context(), by.Api, file)
	if err != nil {
		return nil, nil, err
	}
	if p == nil {
		return nil, nil, fmt.Errorf("whether the nodes have to be checked first is not known: %s; --without-validation releases them at once",
			from)
	}
	for _, name := range names {
		var n corev1.Node
		if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if awaitsValidation(p, &n, c.Now()) {
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
	q, err := causes.RecordOf(n)
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

// awaitsValidation reports whether a rule of a node's quarantine asks for a check under load that the node has not passed, as far as its
// records can be read.
func awaitsValidation(p *policy.Policy, n *corev1.Node, now time.Time) bool {
	q, err := causes.RecordOf(n)
	if err != nil || q == nil || q.Phase != causes.Quarantined {
		return false
	}
	visits, err := visit.RecordOf(n)
	return quarantine.NeedsValidation(p, &q.Quarantine) && (err != nil || !visits.Validated(n, q, now))
}

// clearCauses are the changes that clear what the nodes' records blame.
func clearCauses(c *cli.Target, by cli.Actor, names []string) ([]cli.Change, error) {
	var changes []cli.Change
	for _, name := range names {
		var n corev1.Node
		if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		types, err := latched(&n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		for _, conditionType := range types {
			cleared, err := clearCondition(c, by, name, conditionType)
			if err != nil {
				return nil, err
			}
			changes = append(changes, cleared)
		}
	}
	return changes, nil
}
