package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// ContainerNPD is the name of the node-problem-detector's container in our chart, upstream's manifest and the community's chart.
const ContainerNPD = "node-problem-detector"

func ClearCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "clear NODE CONDITION [SUBJECT]",
		Short: "Make the plugin on a node forget the faults that it keeps, after their repair",
		Long: `Make the plugin on a node forget the faults that it keeps, after their repair: runs the condition's plugin with -clear [SUBJECT]
in the node-problem-detector's pod on the node, with the arguments that its monitor gives it. A fault that is still there is
reported again at the next check. The quarantine ends after the policy's clearAfter, or at once with release --clear. A clear works
while no remediator runs, too.

The pod must be in the namespace of Pitcrew or, for a node-problem-detector of yours, in that of --npd-namespace. In other namespaces any
container can have its name.

These conditions are kept until they are cleared: ` + strings.Join(clearable(), ", ") + `.
The others follow the hardware and end once the fault is gone.`,
		Example: `  kubectl pitcrew clear gpu-17 GPUXidError
  kubectl pitcrew clear gpu-17 GPUXidError "gpu 0000:4e:00"`,
		Args: cobra.RangeArgs(2, 3),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return c.CompleteNodes(cmd, args, typed)
			}
			return clearable(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			cleared, err := clearCondition(c, c.Actor(cmd, api, reason), args[0], args[1], args[2:]...)
			if err != nil {
				return err
			}
			return confirm.Apply(cmd, []cli.Change{cleared})
		},
	}
	cli.ReasonFlag(cmd, &reason, "an Event on the node")
	npdFlag(c, cmd)
	confirm.Flags(cmd)
	return cmd
}

func npdFlag(c *cli.Target, cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.NpdNamespace, "npd-namespace", c.NpdNamespace,
		"`namespace` of a node-problem-detector of yours that runs our plugins")
}

// clearable lists the conditions whose plugin keeps what it has seen.
func clearable() []string {
	var types []string
	for _, c := range conditions.All {
		if c.Latches {
			types = append(types, c.Type)
		}
	}
	return types
}

// clearCondition is the change that clears a condition of a node.
func clearCondition(c *cli.Target, by cli.Actor, name, conditionType string, subject ...string) (cli.Change, error) {
	if conditions.IsVerdict(conditionType) {
		return cli.Change{}, fmt.Errorf("%s is the remediator's verdict, not a plugin's: "+
			"a clean preflight run or kubectl pitcrew release ends it", conditionType)
	}
	i := slices.IndexFunc(conditions.All, func(c conditions.Condition) bool { return strings.EqualFold(c.Type, conditionType) })
	if i < 0 {
		return cli.Change{}, fmt.Errorf("no plugin answers for %s; these can be cleared: %s", conditionType, strings.Join(clearable(), ", "))
	}
	answers := conditions.All[i]
	if !answers.Latches {
		return cli.Change{}, fmt.Errorf("%s cannot be cleared: its plugin %s keeps nothing, and the condition follows the hardware; "+
			"it ends once the fault is gone", answers.Type, answers.Plugin)
	}
	var n corev1.Node
	if err := by.Api.Get(by.Cmd.Context(), client.ObjectKey{Name: name}, &n); err != nil {
		return cli.Change{}, fmt.Errorf("get node %s: %w", name, err)
	}
	pod, command, err := detector(by.Cmd.Context(), c, by.Api, name, answers.Type)
	if err != nil {
		return cli.Change{}, err
	}
	command = append(append(command, "-clear"), subject...)
	return cli.Change{
		Text: fmt.Sprintf("Clear %s of node %s: run %s in pod %s/%s", answers.Type, name, strings.Join(command, " "), pod.Namespace, pod.Name),
		Do: func(ctx context.Context) error {
			output, err := exec(ctx, c, pod, command)
			output = cli.Text(strings.TrimSpace(output))
			if err != nil {
				return fmt.Errorf("plugin %s answers %q: %w", answers.Plugin, output, err)
			}
			done := fmt.Sprintf("%s, plugin %s in pod %s/%s: %s", answers.Type, answers.Plugin, pod.Namespace, pod.Name, output)
			cli.Fprintf(by.Cmd.OutOrStdout(), "Node %s, %s\n", name, done)
			if output != "nothing to clear" {
				by.Announce(ctx, cli.ReferenceTo(&n), cli.EventFaultCleared, "Clear", done)
			}
			return nil
		},
	}, nil
}

// detector finds the node-problem-detector that checks a condition of a node, and how it runs the plugin. A node can have several.
func detector(ctx context.Context, c *cli.Target, api client.Client, name, conditionType string) (*corev1.Pod, []string, error) {
	pods, err := detectors(ctx, c, api, name)
	if err != nil {
		return nil, nil, err
	}
	for i := range pods {
		command, err := pluginCommand(ctx, api, &pods[i], conditionType)
		if command != nil || err != nil {
			return &pods[i], command, err
		}
	}
	return nil, nil, fmt.Errorf("no pod that runs on node %s has a container %s and mounts a ConfigMap "+
		"with a monitor of %s, in namespace %s: "+
		"--npd-namespace names that of another node-problem-detector", name, ContainerNPD, conditionType, strings.Join(npdNamespaces(c), " or "))
}

// npdNamespaces are where node-problem-detectors are looked for, ours first. A tenant can give any pod of its own the looks of one. An
// empty name would be all namespaces.
func npdNamespaces(c *cli.Target) []string {
	return slices.DeleteFunc(slices.Compact([]string{c.Namespace, c.NpdNamespace}), func(name string) bool { return name == "" })
}

// detectors are the node-problem-detectors that run on a node, the chart's first. Who may list only the pods of our namespace sees those.
func detectors(ctx context.Context, c *cli.Target, api client.Client, name string) ([]corev1.Pod, error) {
	var found []corev1.Pod
	var forbidden error
	for _, namespace := range npdNamespaces(c) {
		var pods corev1.PodList
		err := api.List(ctx, &pods, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": name})
		if err != nil {
			err = fmt.Errorf("list the pods of namespace %s on node %s: %w", namespace, name, err)
		}
		switch {
		case apierrors.IsForbidden(err):
			forbidden = err
		case err != nil:
			return nil, err
		}
		found = append(found, pods.Items...)
	}
	found = slices.DeleteFunc(found, func(pod corev1.Pod) bool {
		return !isNPD(&pod) || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil
	})
	if len(found) == 0 && forbidden != nil {
		return nil, forbidden
	}
	slices.SortStableFunc(found, func(a, b corev1.Pod) int { return cmp.Compare(foreign(c, &a), foreign(c, &b)) })
	return found, nil
}

// foreign is 0 for a pod of the chart and 1 for any other.
func foreign(c *cli.Target, pod *corev1.Pod) int {
	if pod.Namespace == c.Namespace && pod.Labels[cli.LabelName] == cli.OwnNPD {
		return 0
	}
	return 1
}

func isNPD(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == ContainerNPD })
}

// pluginCommand is the command by which the pod's node-problem-detector checks the condition, from the monitors that the pod mounts;
// nil when none of them has the condition.
func pluginCommand(ctx context.Context, api client.Client, pod *corev1.Pod, conditionType string) ([]string, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		var monitors corev1.ConfigMap
		key := client.ObjectKey{Namespace: pod.Namespace, Name: volume.ConfigMap.Name}
		if err := api.Get(ctx, key, &monitors); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get ConfigMap %s: %w", key, err)
		}
		for _, text := range monitors.Data {
			var monitor struct {
				Rules []struct {
					Condition string   `json:"condition"`
					Path      string   `json:"path"`
					Args      []string `json:"args"`
				} `json:"rules"`
			}
			if json.Unmarshal([]byte(text), &monitor) != nil {
				continue // a ConfigMap may hold other files
			}
			for _, rule := range monitor.Rules {
				if rule.Condition == conditionType {
					return append([]string{rule.Path}, rule.Args...), nil
				}
			}
		}
	}
	return nil, nil
}

// exec runs a command in a pod and returns what it wrote.
func exec(ctx context.Context, c *cli.Target, pod *corev1.Pod, command []string) (string, error) {
	config, err := c.Config()
	if err != nil {
		return "", err
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("make a client: %w", err)
	}
	request := api.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: ContainerNPD, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := newExecutor(config, request)
	if err != nil {
		return "", fmt.Errorf("exec into pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	var out bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &out}); err != nil {
		return out.String(), fmt.Errorf("exec into pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return out.String(), nil
}

// newExecutor prefers websockets, as kubectl does; SPDY is what older API servers speak.
func newExecutor(config *rest.Config, request *rest.Request) (remotecommand.Executor, error) {
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, httpstream.IsUpgradeFailure)
}

// latched are the conditions of a node's record that a plugin has latched.
func latched(n *corev1.Node) ([]string, error) {
	record, err := causes.RecordOf(n)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return nil, errors.New("the node has no record of a fault")
	}
	var types []string
	for _, cause := range record.Causes {
		if slices.Contains(clearable(), string(cause.Condition)) {
			types = append(types, string(cause.Condition))
		}
	}
	return types, nil
}
