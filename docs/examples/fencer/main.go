// Fencer is an example of a receiver of Pitcrew's webhooks. It asks the provider of a machine whether a quarantined node that is not Ready
// runs, and tells Kubernetes what the answer proves: the Node of a terminated machine is deleted, that of a stopped one gets the taint
// node.kubernetes.io/out-of-service. Both end the wait of the jobs with pods there.
//
//	fencer -secret /etc/fencer/secret -cert /etc/fencer/tls.crt -key /etc/fencer/tls.key -command /usr/local/bin/machine-state
//
// The command gets the node's spec.providerID as its only argument and prints one word: terminated, stopped, or any other for a machine
// that may still run. It must print terminated and stopped only when the machine cannot run again by itself.
//
// A delivery only makes the fencer look at the Nodes at once; what it does depends on them and on the provider alone. So a forged, a
// repeated or a lost delivery does no harm. It needs to get, list, patch and delete Nodes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/pitcrew-dev/pitcrew/docs/examples/webhook"
)

const (
	// every is how often the Nodes are looked at without a delivery, since a machine may stop later.
	every = 15 * time.Second
	// commandTimeout bounds one question to the provider.
	commandTimeout = 30 * time.Second
)

// fenced is the taint that the fencer sets, and takes back from a node that is Ready again. The value tells it from a person's.
var fenced = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "fencer", Effect: corev1.TaintEffectNoExecute}

func main() {
	hook := webhook.Register(flag.CommandLine)
	command := flag.String("command", "", "program that prints the state of the machine whose provider id is its argument")
	flag.Parse()
	if err := run(hook, *command); err != nil {
		slog.Error("The fencer ended", "error", err)
		os.Exit(1)
	}
}

func run(hook *webhook.Flags, command string) error {
	cfg, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("configure the client: %w", err)
	}
	api, err := client.New(cfg, client.Options{})
	if err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	f := &fencer{client: api, state: func(ctx context.Context, providerID string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, command, providerID).Output()
		return strings.TrimSpace(string(out)), err
	}}
	return hook.Serve(every, f.fence)
}

type fencer struct {
	client client.Client
	// state asks the provider for the state of a machine.
	state func(ctx context.Context, providerID string) (string, error)
}

// fence looks at every quarantined node.
func (f *fencer) fence(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := f.client.List(ctx, &nodes, client.MatchingLabels{"pitcrew.dev/status": "quarantined"}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		err := f.settle(ctx, &nodes.Items[i])
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // it changed meanwhile: it is looked at again
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settle writes what is known of the machine of one node. The write fails if the node has changed since it was read: its kubelet may be back.
func (f *fencer) settle(ctx context.Context, node *corev1.Node) error {
	ready, known := readiness(node)
	ours := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&fenced) && t.Value == fenced.Value })
	switch {
	case !known, node.Spec.ProviderID == "":
		return nil
	case ready && ours:
		return f.taint(ctx, node, slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.MatchTaint(&fenced) }))
	case ready:
		return nil
	}
	state, err := f.state(ctx, node.Spec.ProviderID)
	if err != nil {
		return fmt.Errorf("ask for the state of %s: %w", node.Spec.ProviderID, err)
	}
	switch state {
	case "terminated":
		slog.Info("Delete the Node of a terminated machine", "node", node.Name, "machine", node.Spec.ProviderID)
		return f.client.Delete(ctx, node, client.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion})
	case "stopped":
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == fenced.Key }) {
			return nil
		}
		slog.Info("Taint the node of a stopped machine", "node", node.Name, "machine", node.Spec.ProviderID)
		return f.taint(ctx, node, append(slices.Clone(node.Spec.Taints), fenced))
	}
	return nil
}

func (f *fencer) taint(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	before := node.DeepCopy()
	node.Spec.Taints = taints
	return f.client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// readiness reports whether a node is Ready, if its kubelet has ever reported.
func readiness(node *corev1.Node) (ready, known bool) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, true
		}
	}
	return false, false
}
