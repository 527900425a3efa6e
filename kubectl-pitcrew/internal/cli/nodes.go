package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// NodesWith lists the nodes, and finds the one of a name; nil: there is none.
func NodesWith(ctx context.Context, api client.Client, name string) (all []corev1.Node, n *corev1.Node, err error) {
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	if i := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		n = &nodes.Items[i]
	}
	return nodes.Items, n, nil
}

// ChangeNode patches a node. A heartbeat between the read and the patch is a conflict, and kubelets send them all the time: the node
// is then read again, a few times at most, and to decides about what was read.
func ChangeNode(ctx context.Context, api client.Client, n *corev1.Node, to func(*corev1.Node) (*corev1.Node, error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		after, err := to(n)
		if err != nil {
			return err
		}
		if err = patch(ctx, api, n, after); !apierrors.IsConflict(err) {
			return err
		}
		fresh := &corev1.Node{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(n), fresh); err != nil {
			return fmt.Errorf("get node %s: %w", n.Name, err)
		}
		n = fresh
		return err
	})
}

func patch(ctx context.Context, api client.Client, before, after *corev1.Node) error {
	return api.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner))
}

func Taints(n *corev1.Node) string {
	var all []string
	for _, t := range n.Spec.Taints {
		all = append(all, t.ToString())
	}
	return strings.Join(all, " ")
}

// TaintChanges returns which taints are added and removed, and what of a quarantine that ends stays.
func TaintChanges(before, after *corev1.Node) string {
	var all []string
	for _, t := range missing(after.Spec.Taints, before.Spec.Taints) {
		all = append(all, "add taint "+t)
	}
	for _, t := range missing(before.Spec.Taints, after.Spec.Taints) {
		all = append(all, "remove taint "+t)
	}
	if len(all) == 0 {
		all = append(all, "change no taint")
	}
	if before.Spec.Unschedulable && !after.Spec.Unschedulable {
		all = append(all, "uncordon")
	}
	for _, what := range quarantine.Left(before, after) {
		all = append(all, fmt.Sprintf("leave %q, which the record names but only a person may remove",
			causes.Clip(what, conditions.MaxMessage)))
	}
	return strings.Join(all, ", ")
}

// missing are the taints that the others have not.
func missing(taints, others []corev1.Taint) []string {
	var all []string
	for _, t := range taints {
		if !slices.ContainsFunc(others, func(o corev1.Taint) bool { return o.ToString() == t.ToString() }) {
			all = append(all, t.ToString())
		}
	}
	return all
}
