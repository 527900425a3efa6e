package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pitcrew-dev/pitcrew/internal/version"
)

// addVersion lets root print its version by flag and by command: people try either.
func addVersion(root *cobra.Command) {
	line := "kubectl-pitcrew " + version.String() + "\n"
	root.Version = version.String()
	root.SetVersionTemplate(line)
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version of this plugin",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), line)
			return err
		},
	})
}
