package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

// addBudgets counts what the budgets of the policy in file, or of the one in force, have room for. breaker may be nil.
func (c *target) addBudgets(ctx context.Context, api client.Client, f *fleet, nodes []corev1.Node, breaker *corev1.ConfigMap, file string) error {
	p, from, err := c.policyInForce(ctx, api, file)
	switch {
	case apierrors.IsForbidden(err):
		f.BudgetsUnknown = err.Error()
	case err != nil:
		return err
	case p == nil:
		f.BudgetsUnknown = from
	default:
		now := c.now().UTC()
		f.Budgets = limits.Uses(p, simulate.Peers(p, nodes, breaker, now), now)
	}
	return nil
}

func (f fleet) printBudgets(out io.Writer) {
	if f.BudgetsUnknown != "" {
		fmt.Fprintf(out, "BUDGET unknown: %s\n", printable(f.BudgetsUnknown))
	}
	for _, u := range f.Budgets {
		name := u.Budget
		if u.Scope != "" {
			name += fmt.Sprintf(", %s=%s", u.Scope, u.Value)
		}
		var nodes []string
		for _, n := range u.Nodes {
			nodes = append(nodes, n.Node+" ("+n.Why+")")
		}
		fmt.Fprintf(out, "BUDGET %s: %d/%d nodes", printable(name), u.Used, u.Limit)
		if len(nodes) > 0 {
			fmt.Fprintf(out, ": %s", printable(strings.Join(nodes, ", ")))
		}
		fmt.Fprintln(out)
	}
}
