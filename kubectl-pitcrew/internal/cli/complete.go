package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

// CompleteNodes offers the names of the cluster's nodes to the shell.
func (c *Target) CompleteNodes(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	api, err := c.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var nodes corev1.NodeList
	if err := api.List(cmd.Context(), &nodes); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, n := range nodes.Items {
		if strings.HasPrefix(n.Name, typed) && !slices.Contains(args, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// CompleteDescribe offers nodes, kinds of jobs and, after a kind, the jobs of the namespace.
func (c *Target) CompleteDescribe(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	resource, _, slash := strings.Cut(typed, "/")
	switch {
	case len(args) == 1 && !strings.Contains(args[0], "/"):
		return c.completeJobs(cmd, args[0], "", typed)
	case len(args) > 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	case slash:
		return c.completeJobs(cmd, resource, resource+"/", typed)
	}
	names, directive := c.CompleteNodes(cmd, args, typed)
	if len(names) > 0 || directive == cobra.ShellCompDirectiveError {
		return names, directive
	}
	for _, k := range kinds.BuiltIn() {
		if name := strings.ToLower(k.GVK.Kind) + "/"; strings.HasPrefix(name, typed) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeJobs offers the objects of a kind in the job's namespace, with a prefix.
func (c *Target) completeJobs(cmd *cobra.Command, resource, prefix, typed string) ([]string, cobra.ShellCompDirective) {
	api, err := c.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	gvk, err := c.KindFor(api, resource)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	namespace, err := cmd.Flags().GetString("namespace")
	if err == nil && namespace == "" {
		namespace, err = c.ContextNamespace()
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := api.List(cmd.Context(), &list, client.InNamespace(namespace)); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, object := range list.Items {
		if name := prefix + object.Name; strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
