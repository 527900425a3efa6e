// kubectl-pitcrew is the kubectl plugin of Pitcrew: it shows what the remediator did and will do, and why, and lets users overrule it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// fieldOwner is the manager of our changes in managedFields.
const fieldOwner = "kubectl-pitcrew"

func main() {
	log.SetLogger(logr.Discard()) // errors are returned
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, errUnhealthy):
		os.Exit(2)
	case err != nil:
		cli.PrintError(os.Stderr, err)
		os.Exit(1)
	}
}

// target is where the commands work; the flags say which.
type target struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	namespace string
	// npdNamespace is the namespace of a node-problem-detector that the chart has not installed.
	npdNamespace string
	now          func() time.Time
}

func newCommand() *cobra.Command {
	c := &target{rules: clientcmd.NewDefaultClientConfigLoadingRules(), namespace: "pitcrew", npdNamespace: metav1.NamespaceSystem, now: time.Now}
	root := &cobra.Command{
		Use:           "kubectl-pitcrew",
		Short:         "Show and control what Pitcrew does about faulty nodes",
		SilenceUsage:  true,
		SilenceErrors: true, // main prints them
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl pitcrew"},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "kubeconfig `file`")
	kubectls := clientcmd.RecommendedConfigOverrideFlags("")
	kubectls.ContextOverrideFlags.Namespace = clientcmd.FlagInfo{} // our -n is Pitcrew's namespace
	clientcmd.BindOverrideFlags(&c.overrides, flags, kubectls)
	flags.StringVarP(&c.namespace, "namespace", "n", c.namespace, "`namespace` that Pitcrew runs in")
	root.AddCommand(
		statusCommand(c), describeCommand(c), explainCommand(), quarantineCommand(c), releaseCommand(c), repairCommand(c), checkCommand(c),
		clearCommand(c), abortCommand(c), pauseCommand(c), resumeCommand(c), resetCommand(c), policyCommand(c), preflightCommand(c),
		doctorCommand(c), uninstallCommand(c),
	)
	addVersion(c, root)
	addOptions(root)
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

func (c *target) kubeconfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
}

func (c *target) config() (*rest.Config, error) {
	config, err := c.kubeconfig().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no kubeconfig found (%s): name one with --kubeconfig or KUBECONFIG", strings.Join(c.rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("find a cluster: %w", err)
	}
	return config, nil
}

func (c *target) client() (client.WithWatch, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	made, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return made, nil
}
