package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// ordersOf has a command ask the remediator for changes of nodes: it gets the flags for that, and what it runs is returned. The reason is
// noted where reasonIn tells. A new leader needs some seconds until it answers.
func ordersOf(
	c *cli.Target, cmd *cobra.Command, reasonIn string, changes func(cli.Actor, []string) ([]cli.Change, error),
) func(*cobra.Command, []string) error {
	var confirm cli.Confirmation
	var reason string
	cli.ReasonFlag(cmd, &reason, reasonIn)
	cmd.Flags().DurationVar(&c.AnswerWithin, "timeout", 30*time.Second, "how long to wait for the remediator, which carries this out")
	confirm.Flags(cmd)
	return func(cmd *cobra.Command, names []string) error {
		api, err := c.Client()
		if err != nil {
			return err
		}
		all, err := changes(c.Actor(cmd, api, reason), names)
		if err != nil {
			return err
		}
		return confirm.Apply(cmd, all)
	}
}

// orders are the changes that ask the remediator for something about nodes, and wait for its answers. What it would refuse now is an error
// at once.
func orders(c *cli.Target, by cli.Actor, names []string, kind request.Kind, file string) ([]cli.Change, error) {
	scope, err := scopeOf(c, by, kind, file)
	if err != nil {
		return nil, err
	}
	var changes []cli.Change
	for _, name := range names {
		var n corev1.Node
		if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		r := request.Request{ID: string(uuid.NewUUID()), Kind: kind, At: c.Now().UTC(), User: by.User, Reason: by.Reason}
		r.Regard(&n)
		outcome, err := request.Carry(scope, &n, &r, c.Now().UTC())
		if err != nil {
			return nil, err //nolint:wrapcheck // it names the node
		}
		changes = append(changes, cli.Change{
			Text: orderText(kind, &n, outcome),
			Do:   func(ctx context.Context) error { return order(ctx, c, by, &n, r) },
		})
	}
	return changes, nil
}

// scopeOf returns what the remediator carries an order out by, as far as it is known.
func scopeOf(c *cli.Target, by cli.Actor, kind request.Kind, file string) (s request.Scope, err error) {
	if kind == request.Quarantine || kind == request.ReleaseNow || kind == request.Stop {
		return s, nil
	}
	var i health.Installation
	if err := health.ReadInstallation(by.Cmd.Context(), c, by.Api, &i); err != nil {
		return s, err
	}
	namespace, known := i.RepairNamespace()
	s.Visits = !known || namespace != ""
	p, from, err := c.PolicyInForce(by.Cmd.Context(), by.Api, file)
	switch {
	case err != nil && file != "":
		return s, err
	case err != nil:
		from = err.Error()
	}
	if s.Policy = p; p == nil {
		cli.Fprintf(by.Cmd.ErrOrStderr(), "The policy is not known here, and the remediator decides by it: %s\n", from)
	}
	return s, nil
}

// orderText returns what an order does to a node.
func orderText(kind request.Kind, n *corev1.Node, o request.Outcome) string {
	switch {
	case kind == request.Quarantine:
		return "Quarantine node " + n.Name + ": " + cli.TaintChanges(n, o.Node)
	case o.Event == causes.ReleaseByHand:
		return "Release node " + n.Name + ": " + cli.TaintChanges(n, o.Node)
	case kind == request.Release:
		return releaseText(n)
	case kind == request.Stop:
		return "Stop the repair or the check of node " + n.Name + "; if it is quarantined, no other begins in this quarantine"
	case kind == request.Check:
		return "Have node " + n.Name + " checked"
	}
	return "Have node " + n.Name + " repaired"
}

// releaseText returns what a release of a node that is checked first does.
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

// order writes the request, which replaces an earlier one, and waits for the answer.
func order(ctx context.Context, c *cli.Target, by cli.Actor, n *corev1.Node, r request.Request) error {
	err := cli.ChangeNode(ctx, by.Api, n, func(n *corev1.Node) (*corev1.Node, error) {
		if n.DeletionTimestamp != nil {
			return nil, errors.New("the node is being deleted")
		}
		after := n.DeepCopy()
		r.Put(after)
		return after, nil
	})
	if err != nil {
		return err
	}
	var answer *request.Answer
	within := c.AnswerWithin
	err = wait.PollUntilContextTimeout(ctx, time.Second/5, within, true, func(context.Context) (bool, error) {
		var now corev1.Node // by ctx: near the end of the wait a request would be refused rather than waited for
		if err := by.Api.Get(ctx, client.ObjectKeyFromObject(n), &now); err != nil {
			return false, fmt.Errorf("get node %s: %w", n.Name, err)
		}
		asked, err := request.Of(&now)
		switch {
		case err != nil:
			return false, err
		case asked == nil || asked.ID != r.ID:
			return false, errors.New("another request has replaced this one")
		}
		answer = asked.Answer
		return answer != nil, nil
	})
	switch {
	case wait.Interrupted(err) && ctx.Err() == nil:
		c.AnswerWithin = min(within, time.Second) // the next node is not waited for as long
		return fmt.Errorf("no remediator has answered within %s: the request stays on the node until one runs, and "+
			"`kubectl annotate node %s %s-` takes it back. Without a remediator `kubectl cordon` takes a node out of service, "+
			"and `kubectl taint node %s %s-` brings it back",
			within, n.Name, conditions.AnnotationRequest, n.Name, conditions.TaintUnhealthy)
	case err != nil:
		return err
	case !answer.Done:
		return fmt.Errorf("the remediator refuses: %s", cli.Text(answer.Text))
	}
	cli.Fprintf(by.Cmd.OutOrStdout(), "Node %s: %s\n", n.Name, cli.Text(answer.Text))
	return nil
}
