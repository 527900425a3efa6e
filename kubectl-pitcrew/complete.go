package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// completeNodes offers the names of the cluster's nodes to the shell.
func (c *target) completeNodes(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	api, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var nodes corev1.NodeList
	if err := api.List(cmd.Context(), &nodes); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, n := range nodes.Items {
		if strings.HasPrefix(n.Name, begun) && !slices.Contains(args, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
