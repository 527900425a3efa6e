// Package policy validates policies, and tries them on the cluster as it is.
package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/outlook"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

var errNoPolicy = errors.New("name the policy with -f")

func Command(c *cli.Target) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Work with policy files"}
	cmd.AddCommand(policyValidateCommand(), policyTestCommand(c))
	return cmd
}

func policyValidateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "validate FILE | -f FILE",
		Short: "Check a policy file; an error or a warning names line, rule, field and value",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				file = args[0]
			}
			if file == "" {
				return errNoPolicy
			}
			p, err := openPolicy(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			printWarnings(cmd.ErrOrStderr(), file, p)
			alerts, observes, enforces := 0, 0, 0
			for _, r := range p.Rules {
				switch {
				case r.AlertOnly:
					alerts++
				case r.Observe:
					observes++
				default:
					enforces++
				}
			}
			cli.Fprintf(cmd.OutOrStdout(), "%s: ok: %d rules enforce, %d observe, %d only alert\n", file, enforces, observes, alerts)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "`file` with the policy; - is the standard input")
	return cmd
}

// openPolicy reads a policy from a file, or from in for the name -.
func openPolicy(in io.Reader, file string) (*policy.Policy, error) {
	read := func() ([]byte, error) { return os.ReadFile(file) }
	if file == "-" {
		read = func() ([]byte, error) { return io.ReadAll(in) }
	}
	text, err := read()
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	p, err := policy.Parse(text)
	if err == nil {
		return p, nil
	}
	if areValues(text) {
		return nil, fmt.Errorf("policy %s: this looks like values of the chart: a policy file begins with apiVersion and kind; "+
			"its spec has what the values have under policy\n%w", file, err)
	}
	return nil, fmt.Errorf("policy %s: %w", file, err)
}

// areValues reports whether a text looks like a values file of the chart.
func areValues(text []byte) bool {
	var top map[string]any
	if yaml.Unmarshal(text, &top) != nil || top["apiVersion"] != nil || top["kind"] != nil {
		return false
	}
	return slices.ContainsFunc([]string{"pools", "policy", "image", "remediator"}, func(key string) bool { _, ok := top[key]; return ok })
}

// printWarnings prints what is valid in a policy and most likely a mistake.
func printWarnings(out io.Writer, file string, p *policy.Policy) {
	for _, w := range p.Warnings {
		cli.Fprintf(out, "warning: %s: %s\n", file, w)
	}
}

func policyTestCommand(c *cli.Target) *cobra.Command {
	var file string
	var enforce bool
	cmd := &cobra.Command{
		Use:   "test -f FILE",
		Short: "Show what a policy would do to this cluster now, and how that differs from the present policy",
		Long: `Show what a policy would do to this cluster now: the remediator's own decisions, on the nodes as they are, one node after the other
by name. Nothing is written. Timers go on from the nodes' records.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errNoPolicy
			}
			p, err := openPolicy(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			printWarnings(cmd.ErrOrStderr(), file, p)
			if enforce {
				p = enforced(p)
			}
			api, err := c.Client()
			if err != nil {
				return err
			}
			return testPolicy(cmd.Context(), c, cmd.OutOrStdout(), api, p)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "`file` with the policy; - is the standard input")
	cmd.Flags().BoolVar(&enforce, "enforce", false, "treat rules that observe as rules that enforce")
	return cmd
}

// enforced is the policy with every rule that observes enforced.
func enforced(p *policy.Policy) *policy.Policy {
	on := *p
	on.Rules = slices.Clone(p.Rules)
	for i := range on.Rules {
		on.Rules[i].Observe = false
	}
	return &on
}

func testPolicy(ctx context.Context, c *cli.Target, out io.Writer, api client.Client, p *policy.Policy) error {
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	// The question is what would be done once a pause has ended.
	stored, err := outlook.Stored(ctx, c, api)
	if err != nil {
		return err
	}
	now := c.Now().UTC()
	would := simulate.Run(p, nodes.Items, "", stored, now)
	present, from, err := c.PolicyInForce(ctx, api, "")
	if err != nil {
		return err
	}
	does := map[string]string{}
	if present != nil {
		for _, o := range simulate.Run(present, nodes.Items, "", stored, now) {
			does[o.Before.Name] = outlook.Text(o, present, now)
		}
	} else {
		cli.Fprintf(out, "The effect of the present policy is unknown: %s.\n", from)
	}
	lines := []cli.Line{{Cells: []string{"NODE", "STATUS", "NEW STATUS", "ACTION"}}}
	unchanged := 0
	for _, o := range would {
		is, becomes := statusOf(o.Before), statusOf(o.After)
		text := outlook.Text(o, p, now)
		same, known := does[o.Before.Name]
		if known && same == text || !known && becomes == is && o.Blocked == nil {
			unchanged++
			continue
		}
		if known {
			text += " [now: " + same + "]"
		}
		lines = append(lines, cli.Line{Cells: []string{o.Before.Name, is, becomes, text}, Colour: status.Colours[becomes]})
	}
	if len(lines) > 1 {
		if err := cli.Table(out, lines, cli.IsTerminal(out)); err != nil {
			return err
		}
	}
	if unchanged == len(would) {
		cli.Fprintf(out, "No change on %d nodes.\n", unchanged)
	} else {
		cli.Fprintf(out, "No change on %d of %d nodes.\n", unchanged, len(would))
	}
	return nil
}

// statusOf is the label that the remediator keeps on a node.
func statusOf(n *corev1.Node) string {
	if status := n.Labels[conditions.LabelStatus]; status != "" {
		return status
	}
	return "-"
}
