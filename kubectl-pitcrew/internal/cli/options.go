package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// AddOptions keeps the connection flags, which every command has, out of the help of the commands: `options` lists them, as kubectl's does.
func AddOptions(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:   "options",
		Short: "List the flags that every command has: kubeconfig, context, user and so on",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			Fprintf(cmd.OutOrStdout(), "Every command has these flags, too:\n\n%s", Lines(cmd.InheritedFlags().FlagUsages()))
		},
	})
	cobra.AddTemplateFunc("ownFlags", ownFlags)
	const local, global = "{{if .HasAvailableLocalFlags}}\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}",
		"{{if .HasAvailableInheritedFlags}}\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}"
	root.SetUsageTemplate(strings.NewReplacer(
		local, "{{with ownFlags .}}\n\nFlags:\n{{. | trimTrailingWhitespaces}}{{end}}",
		global, "\n\nUse \"kubectl pitcrew options\" for the flags of the connection (--kubeconfig, --context, ...).",
	).Replace(root.UsageTemplate()))
}

// ownFlags describes the flags of a command, and the namespace, without those of the connection.
func ownFlags(cmd *cobra.Command) string {
	connection := cmd.Root().PersistentFlags()
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	add := func(f *pflag.Flag) {
		if connection.Lookup(f.Name) != f || f.Name == "namespace" {
			own.AddFlag(f)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return own.FlagUsages()
}
