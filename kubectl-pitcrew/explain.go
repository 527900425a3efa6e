package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pitcrew-dev/pitcrew/internal/xid"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

var code = regexp.MustCompile(`(?i)^(s?)(?:xid)?\s*(\d+)$`)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "explain [xid|sxid] CODE",
		Short:   "Say what an Xid or SXid means, what it needs and what clears it",
		Example: "  kubectl pitcrew explain 79\n  kubectl pitcrew explain sxid 20034",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := code.FindStringSubmatch(strings.Join(args, " "))
			if m == nil {
				return fmt.Errorf("%q is no Xid: say 79, xid 79 or sxid 20034", strings.Join(args, " "))
			}
			number, err := strconv.Atoi(m[2])
			if err != nil {
				return fmt.Errorf("read the code: %w", err)
			}
			text := xid.Explain
			if m[1] != "" {
				text = xid.ExplainSXid
			}
			fmt.Fprint(cmd.OutOrStdout(), text(number))
			return nil
		},
	}
}

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Work with policy files"}
	cmd.AddCommand(&cobra.Command{
		Use:   "validate FILE",
		Short: "Check a policy file; an error names line, rule, field and value",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := policy.Open(args[0])
			if err != nil {
				return err
			}
			alerts, observes, enforces := 0, 0, 0
			for _, r := range file.Policy().Rules {
				switch {
				case r.AlertOnly:
					alerts++
				case r.Observe:
					observes++
				default:
					enforces++
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok: %d rules act, %d observe, %d only alert\n", args[0], enforces, observes, alerts)
			return nil
		},
	})
	return cmd
}
