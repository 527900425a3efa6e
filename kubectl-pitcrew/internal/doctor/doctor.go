// Package doctor checks the installation, the rights and what jobs and nodes need.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
)

// doctor is what the checks work with.
type doctor struct {
	*cli.Target
	api client.Client
	*health.Inspection
	// nodes are all nodes; nil with nodesErr, if the user may not list them.
	nodes    []corev1.Node
	nodesErr error
	// noRoles: the remediator's roles are not installed.
	noRoles bool
}

// examination is one check of doctor. What it may not read it returns as an error, and doctor shows that.
type examination struct {
	name string
	run  func(*doctor, context.Context) ([]cli.Finding, error)
}

// examinations are the checks in the order in which they are shown.
var examinations = []examination{
	{"installations", (*doctor).installations},
	{"your rights", (*doctor).ownRights},
	{"remediator's rights", (*doctor).remediatorRights},
	{"devices", (*doctor).deviceRights},
	{"job kinds", (*doctor).jobKinds},
	{"admission policies", (*doctor).admissionPolicies},
	{"detectors", (*doctor).detectors},
	{"GPU nodes", (*doctor).gpuNodes},
	{"stale conditions", (*doctor).staleConditions},
	{"records", (*doctor).records},
	{"webhooks", (*doctor).webhooks},
	{"repairs", (*doctor).repairs},
	{"opt-in", (*doctor).optIn},
}

func Command(c *cli.Target) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation, the rights, the detectors and the opt-ins, and say what to do",
		Long: `Check the installation, your own rights and the remediator's, the admission policies, the kinds of jobs, the node problem
detectors, the nodes with GPUs, the deliveries to webhooks, what repairs and checks of nodes need, and the labels that opt jobs in.
It changes nothing.

Each line is ok, warning, problem or unknown. Exit code 2: there is a problem. Exit code 1: the command failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "yaml" {
				return fmt.Errorf("-o %s is not json or yaml", output)
			}
			api, err := c.Client()
			if err != nil {
				return err
			}
			all, err := examine(cmd.Context(), c, api)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output != "" {
				err = cli.Encode(out, output, map[string][]cli.Finding{"findings": all})
			} else {
				printExamination(out, all, cli.IsTerminal(out))
			}
			if err != nil {
				return err
			}
			return cli.ExitBy(cli.Worst(all))
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`format`: json or yaml")
	return cmd
}

// examine runs all checks.
func examine(ctx context.Context, c *cli.Target, api client.Client) ([]cli.Finding, error) {
	h, err := health.Inspect(ctx, c, api)
	if err != nil {
		return nil, err
	}
	d := &doctor{Target: c, api: api, Inspection: h}
	var nodes corev1.NodeList
	err = api.List(ctx, &nodes)
	if d.nodesErr, err = cli.Forbidden(err); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	d.nodes = nodes.Items
	all := d.Facts
	for i := range all {
		if all[i].Name == "mode" && h.Mode == "observe" {
			all[i].Do = "once its Events are right: helm upgrade --reuse-values --set policy.mode=enforce"
		}
	}
	for _, e := range examinations {
		found, err := e.run(d, ctx)
		if apierrors.IsForbidden(err) {
			found, err = append(found, cli.NotKnown(e.name, err)), nil
		}
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", e.name, err)
		}
		for i := range found {
			found[i].Name = e.name
		}
		all = append(all, found...)
	}
	return all, nil
}

// printExamination writes a line for each finding, and below it what to do.
func printExamination(out io.Writer, all []cli.Finding, colour bool) {
	level, name := 0, 0
	for _, f := range all {
		level, name = max(level, len(f.Level)), max(name, len(f.Name))
	}
	count := map[string]int{}
	for _, f := range all {
		count[string(f.Level)]++
		cli.Coloured(out, fmt.Sprintf("%-*s  %-*s  %s", level, f.Level, name, f.Name, f.Seen), cli.LevelColours[f.Level], colour)
		if f.Do != "" {
			cli.Fprintf(out, "%s-> %s\n", strings.Repeat(" ", level+name+4), f.Do)
		}
	}
	cli.Fprintf(out, "\n%d ok, %d warnings, %d problems, %d unknown\n", count[string(cli.IsOK)], count[string(cli.IsWarning)],
		count[string(cli.IsProblem)], count[string(cli.IsNotKnown)])
}
