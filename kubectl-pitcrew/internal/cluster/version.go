package cluster

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
)

// versions is what version shows. Of what is empty, Unknown says why.
type versions struct {
	Client string `json:"client"`
	// Remediator is the version of the one that leads or, if that is not known, the tag of its image.
	Remediator string `json:"remediator,omitempty"`
	Image      string `json:"image,omitempty"`
	Chart      string `json:"chart,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Unknown    string `json:"unknown,omitempty"`
}

// askFor is how long version asks the cluster: it must answer without one, too.
const askFor = 5 * time.Second

// AddVersion lets root print its version by flag and by command: people try either.
func AddVersion(c *cli.Target, root *cobra.Command) {
	root.Version = version.String()
	root.SetVersionTemplate("kubectl-pitcrew " + version.String() + "\n")
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this plugin, the remediator, the chart and Kubernetes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "yaml" {
				return fmt.Errorf("-o %s is not json or yaml", output)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), askFor)
			defer cancel()
			v := versions{Client: version.String()}
			if err := readVersions(ctx, c, &v); err != nil {
				v.Unknown = err.Error()
			}
			if output != "" {
				return cli.Encode(cmd.OutOrStdout(), output, v)
			}
			v.print(cmd.OutOrStdout())
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`format`: json or yaml")
	root.AddCommand(cmd)
}

// readVersions asks the cluster; an error says what is not known, and what was found stays.
func readVersions(ctx context.Context, c *cli.Target, v *versions) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	config.Timeout = askFor
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	info, err := server.ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	v.Kubernetes = info.GitVersion
	api, err := c.Client()
	if err != nil {
		return err
	}
	i := health.Inspection{}
	if err := health.ReadInstallation(ctx, c, api, &i.Installation); err != nil {
		return err
	}
	if err := health.ReadApplied(ctx, c, api, &i); err != nil {
		return err
	}
	if d := i.Deployment; d != nil {
		v.Chart = d.Labels["helm.sh/chart"]
	}
	i.Installed()
	v.Remediator = i.Version
	pod, ok := i.PodSpec()
	v.Image = health.Container(pod).Image
	switch {
	case i.DeploymentErr != nil:
		return i.DeploymentErr
	case !ok && v.Remediator == "":
		return fmt.Errorf("there is no remediator in namespace %s; name another one with -n", c.Namespace)
	}
	return nil
}

func (v versions) print(out io.Writer) {
	cli.Fprintf(out, "kubectl-pitcrew %s\n", v.Client)
	for _, line := range []struct{ name, version string }{{"remediator", v.Remediator}, {"image", v.Image}, {"chart", v.Chart},
		{"Kubernetes", v.Kubernetes}} {
		if line.version != "" {
			cli.Fprintf(out, "%-15s %s\n", line.name, line.version)
		}
	}
	if v.Unknown != "" {
		cli.Fprintf(out, "not known: %s\n", v.Unknown)
	}
}
