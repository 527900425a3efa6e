// Package explain prints what the words of Pitcrew mean, and what to do about each.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pitcrew-dev/pitcrew/docs/runbooks"
	meaning "github.com/pitcrew-dev/pitcrew/internal/xid/explain"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

// pageOf are the pages on what has none of its own, by the lower-case name: a condition of Kubernetes and the alerts about jobs.
var pageOf = map[string]string{
	"ready": "PitcrewNodeNotReady", "pitcrewjobnotrestarted": "JobRestart", "pitcrewjobrestartfailed": "PitcrewJobRestartHeld",
}

// kindsOfPages are words that may precede the name of a page; the name alone is enough.
var kindsOfPages = []string{"condition", "alert", "class", "event", "reason", "metric", "status", "visit", "phase"}

func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [xid|sxid] CODE | WORDS OF A MESSAGE | [" + strings.Join(kindsOfPages, "|") + "] NAME",
		Short: "Explain an Xid, SXid, condition, alert, repair class, Event, reason of a block, metric, status of a node or visit to one",
		Example: "  kubectl pitcrew explain 79\n  kubectl pitcrew explain sxid 20034\n" +
			"  kubectl pitcrew explain 'ResetGPU gpu 0000:4e:00: Xid 119 GSP RPC timeout'\n" +
			"  kubectl pitcrew explain condition HCAPortDown\n  kubectl pitcrew explain PitcrewBreakerOpen\n" +
			"  kubectl pitcrew explain ResetGPU\n  kubectl pitcrew explain reason BackOff",
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return append(append(explained(), "xid", "sxid"), kindsOfPages...), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := explain(args)
			if err != nil {
				return err
			}
			cli.Fprintf(cmd.OutOrStdout(), "%s", cli.Lines(text))
			return nil
		},
	}
}

func explain(args []string) (string, error) {
	what := strings.Join(args, " ")
	if text := meaning.Code(what); text != "" {
		return text, nil
	}
	name := args[len(args)-1]
	if isName := len(args) == 1 || len(args) == 2 && slices.Contains(kindsOfPages, strings.ToLower(args[0])); !isName {
		if text := cmp.Or(meaning.Words(what), message(what)); text != "" {
			return text, nil
		}
		return "", fmt.Errorf("unknown topic %s: neither an Xid (79, xid 79, sxid 20034), words of its message, nor one of %s NAME",
			what, strings.Join(kindsOfPages, "|"))
	}
	if text, _ := topic(name); text != "" {
		return text, nil
	}
	page, err := runbooks.Page(cmp.Or(pageOf[strings.ToLower(name)], name))
	if err == nil {
		if strings.Contains(page, "-n pitcrew POD") {
			page += "\nPOD is the pod that `kubectl pitcrew describe NODE` names in the line Detector.\n"
		}
		return plain(page, "docs/runbooks"), nil
	}
	if text := cmp.Or(meaning.Words(what), message(what)); text != "" {
		return text, nil
	}
	if like := runbooks.Similar(name, explained()); len(like) > 0 {
		return "", fmt.Errorf("unknown topic %s. Did you mean %s?", name, strings.Join(like, ", "))
	}
	return "", err
}

// explained are the names that can be explained.
func explained() []string {
	_, names := topic("")
	names = append(names, runbooks.Names()...)
	names = append(names, "PitcrewJobNotRestarted", "PitcrewJobRestartFailed")
	slices.Sort(names)
	return slices.Compact(names)
}
