// Replacer is an example of a receiver of Pitcrew's webhooks. It has the machine of a quarantined node replaced when no repair helps: it
// deletes the NodeClaim of Karpenter, or sets Cluster API's annotation cluster.x-k8s.io/remediate-machine on the Machine.
//
//	replacer -replace nodeclaim -when class -secret /etc/replacer/secret -cert /etc/replacer/tls.crt -key /etc/replacer/tls.key
//	replacer -replace machine -when advice -namespace clusters -cluster training -machines-kubeconfig /etc/replacer/management ...
//
// A delivery only makes the replacer look at the Nodes at once; what it does depends on them alone. So a forged, a repeated, an old or a
// lost delivery does no harm. For each quarantine it makes one write, which is also the note that it was made. So a crash repeats nothing.
// karpenter.yaml and cluster-api.yaml have the rights that it needs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/pitcrew-dev/pitcrew/docs/examples/webhook"
)

const (
	// every is how often the Nodes are looked at without a delivery: no webhook says that the advice has changed.
	every = 30 * time.Second
	// remediate asks Cluster API to replace a Machine. It needs a MachineHealthCheck that selects the Machine.
	remediate = "cluster.x-k8s.io/remediate-machine"
	// notedFor is the quarantine for which a Machine has got it, so that it is not set again when a person has removed it.
	notedFor = "pitcrew.dev/replaced-for"
)

// The values of -when.
const (
	// onClass: a cause of the quarantine has the class Replace.
	onClass = "class"
	// onAdvice: Pitcrew's repairs have come to the advice replace. It needs spec.repair in the policy.
	onAdvice = "advice"
)

func main() {
	hook := webhook.Register(flag.CommandLine)
	replace := flag.String("replace", "", "what is replaced: nodeclaim (Karpenter) or machine (Cluster API)")
	when := flag.String("when", onClass, "when: class (a fault has the class Replace) or advice (Pitcrew's repairs advise it)")
	pitcrew := flag.String("pitcrew-namespace", "pitcrew", "namespace of Pitcrew: nothing is replaced while everything is paused")
	namespace := flag.String("namespace", "", "namespace of the Machines")
	cluster := flag.String("cluster", "", "name of the Cluster of the Machines")
	machines := flag.String("machines-kubeconfig", "", "kubeconfig of the management cluster, if the Machines are not in the cluster of the Nodes")
	flag.Parse()
	r := &replacer{when: *when, pitcrewNamespace: *pitcrew}
	if err := r.run(hook, *replace, *namespace, *cluster, *machines); err != nil {
		slog.Error("The replacer ended", "error", err)
		os.Exit(1)
	}
}

func (r *replacer) run(hook *webhook.Flags, replace, namespace, cluster, machines string) (err error) {
	if r.when != onClass && r.when != onAdvice {
		return fmt.Errorf("-when=%s: want %s or %s", r.when, onClass, onAdvice)
	}
	switch {
	case replace == "nodeclaim":
		r.kind = nodeClaim
	case replace == "machine" && namespace != "" && cluster != "":
		r.kind = machine(namespace, cluster)
	default:
		return fmt.Errorf("-replace=%s: want nodeclaim, or machine with -namespace and -cluster", replace)
	}
	cfg, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("configure the client: %w", err)
	}
	if r.nodes, err = client.New(cfg, client.Options{}); err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	if r.machines = r.nodes; machines != "" {
		if cfg, err = clientcmd.BuildConfigFromFlags("", machines); err != nil {
			return fmt.Errorf("read -machines-kubeconfig: %w", err)
		}
		if r.machines, err = client.New(cfg, client.Options{}); err != nil {
			return fmt.Errorf("make the client of the management cluster: %w", err)
		}
	}
	return hook.Serve(every, r.look)
}

// kind is what stands for a machine.
type kind struct {
	apiVersion, kind string
	within           []client.ListOption
	// nodeName and providerID are the paths of the fields that identify the node.
	nodeName, providerID []string
	// replace has it replaced for a quarantine, if that was not asked for. The write must fail if the object has changed since it was read.
	replace func(ctx context.Context, c client.Client, object *unstructured.Unstructured, quarantine string) error
}

// nodeClaim is Karpenter's. Its deletion is the only write, so it needs no note.
var nodeClaim = kind{
	apiVersion: "karpenter.sh/v1", kind: "NodeClaim",
	nodeName: []string{"status", "nodeName"}, providerID: []string{"status", "providerID"},
	replace: func(ctx context.Context, c client.Client, object *unstructured.Unstructured, quarantine string) error {
		slog.Info("Delete a NodeClaim", "nodeclaim", object.GetName(), "quarantine", quarantine)
		return c.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID()), ResourceVersion: ptr.To(object.GetResourceVersion())})
	},
}

// machine is that of a Cluster of Cluster API.
func machine(namespace, cluster string) kind {
	return kind{
		apiVersion: "cluster.x-k8s.io/v1beta2", kind: "Machine",
		within:   []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{"cluster.x-k8s.io/cluster-name": cluster}},
		nodeName: []string{"status", "nodeRef", "name"}, providerID: []string{"spec", "providerID"},
		replace: func(ctx context.Context, c client.Client, object *unstructured.Unstructured, quarantine string) error {
			annotations := object.GetAnnotations()
			if _, asked := annotations[remediate]; asked || annotations[notedFor] == quarantine {
				return nil
			}
			slog.Info("Have a Machine remediated", "machine", object.GetName(), "quarantine", quarantine)
			before := object.DeepCopy()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[remediate], annotations[notedFor] = "", quarantine
			object.SetAnnotations(annotations)
			return c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		},
	}
}

type replacer struct {
	kind
	nodes, machines  client.Client
	when             string
	pitcrewNamespace string
}

// look has the machine of every node replaced that needs it. The machines are read before the nodes: a machine that is made for a
// new node of the same name while this runs is not among them.
func (r *replacer) look(ctx context.Context) error {
	err := r.nodes.Get(ctx, client.ObjectKey{Namespace: r.pitcrewNamespace, Name: "pitcrew-pause"}, &corev1.ConfigMap{})
	if !apierrors.IsNotFound(err) {
		return err // nil: everything is paused
	}
	machines := &unstructured.UnstructuredList{}
	machines.SetAPIVersion(r.apiVersion)
	machines.SetKind(r.kind.kind + "List")
	if err := r.machines.List(ctx, machines, r.within...); err != nil {
		return fmt.Errorf("list each %s: %w", r.kind.kind, err)
	}
	var nodes corev1.NodeList
	if err := r.nodes.List(ctx, &nodes, client.MatchingLabels{"pitcrew.dev/status": "quarantined"}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		quarantine, err := r.quarantine(node)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
		}
		if quarantine == "" {
			continue
		}
		at := slices.IndexFunc(machines.Items, func(m unstructured.Unstructured) bool { return r.stands(m, node) })
		if at < 0 {
			slog.Warn("A node is not replaced: it has none", "node", node.Name, "kind", r.kind.kind, "machine", node.Spec.ProviderID)
			continue
		}
		object := &machines.Items[at]
		if object.GetDeletionTimestamp() != nil {
			continue
		}
		if err := r.replace(ctx, r.machines, object, quarantine); !apierrors.IsConflict(err) { // it changed meanwhile: it is looked at again
			errs = append(errs, client.IgnoreNotFound(err))
		}
	}
	return errors.Join(errs...)
}

// stands reports whether an object stands for the machine of a node: names of nodes are used again, and so are those of other clusters.
func (r *replacer) stands(object unstructured.Unstructured, node *corev1.Node) bool {
	name, _, _ := unstructured.NestedString(object.Object, r.nodeName...)
	id, _, _ := unstructured.NestedString(object.Object, r.providerID...)
	return name == node.Name && id != "" && id == node.Spec.ProviderID
}

// quarantine is the id of the quarantine for which the machine of a node is to be replaced; empty: it is not to be.
func (r *replacer) quarantine(node *corev1.Node) (string, error) {
	var record struct {
		NodeUID   types.UID
		ID, Phase string
		Taint     corev1.Taint
		Causes    []struct {
			Repair string
			Due    bool
		}
	}
	var repairs struct {
		NodeUID types.UID
		Advice  struct{ Quarantine, Do string }
	}
	for key, into := range map[string]any{"pitcrew.dev/quarantine": &record, "pitcrew.dev/repair": &repairs} {
		if text := node.Annotations[key]; text != "" {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return "", fmt.Errorf("read annotation %s: %w", key, err)
			}
		}
	}
	// A kubelet may annotate its own Node where no admission policy forbids it, but it may never taint it.
	tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&record.Taint) && t.Value == record.Taint.Value })
	if record.NodeUID != node.UID || record.Phase != "quarantined" || !tainted || node.Labels["pitcrew.dev/skip"] == "true" {
		return "", nil
	}
	replace := false
	switch r.when {
	case onClass:
		for _, cause := range record.Causes {
			replace = replace || cause.Due && cause.Repair == "Replace"
		}
	case onAdvice:
		replace = repairs.NodeUID == node.UID && repairs.Advice.Quarantine == record.ID && repairs.Advice.Do == "replace"
	}
	if !replace {
		return "", nil
	}
	return record.ID, nil
}
