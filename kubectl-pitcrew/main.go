// kubectl-pitcrew is the kubectl plugin of Pitcrew: it shows what the remediator did and will do, and why, and lets users overrule it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cluster"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/doctor"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/evidence"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/explain"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/job"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/node"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/policy"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/preflight"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
)

func main() {
	log.SetLogger(logr.Discard()) // errors are returned
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, cli.ErrUnhealthy):
		os.Exit(2)
	case err != nil:
		cli.PrintError(os.Stderr, err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	c := &cli.Target{Rules: clientcmd.NewDefaultClientConfigLoadingRules(), Namespace: "pitcrew", NpdNamespace: metav1.NamespaceSystem,
		Now: time.Now}
	root := &cobra.Command{
		Use:           "kubectl-pitcrew",
		Short:         "Show and control what Pitcrew does about faulty nodes",
		SilenceUsage:  true,
		SilenceErrors: true, // main prints them
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl pitcrew"},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.Rules.ExplicitPath, "kubeconfig", "", "kubeconfig `file`")
	kubectls := clientcmd.RecommendedConfigOverrideFlags("")
	kubectls.ContextOverrideFlags.Namespace = clientcmd.FlagInfo{} // our -n is Pitcrew's namespace
	clientcmd.BindOverrideFlags(&c.Overrides, flags, kubectls)
	flags.StringVarP(&c.Namespace, "namespace", "n", c.Namespace, "`namespace` that Pitcrew runs in")
	root.AddCommand(
		status.Command(c), explain.Command(), policy.Command(c), preflight.Command(c), doctor.Command(c),
		node.DescribeCommand(c), node.QuarantineCommand(c), node.ReleaseCommand(c), node.RepairCommand(c), node.CheckCommand(c),
		node.ClearCommand(c), evidence.Command(c), job.AbortCommand(c),
		cluster.PauseCommand(c), cluster.ResumeCommand(c), cluster.ResetCommand(c), cluster.UninstallCommand(c),
	)
	cluster.AddVersion(c, root)
	cli.AddOptions(root)
	// -f was --filename for some commands and --policy for others: each takes both.
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "policy" {
			name = "filename"
		}
		return pflag.NormalizedName(name)
	})
	for _, cmd := range root.Commands() {
		nameUse(cmd)
	}
	return root
}

// nameUse adds the usage line to errors about the number of arguments.
func nameUse(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %s", err, cmd.UseLine())
		}
		return nil
	}
}
