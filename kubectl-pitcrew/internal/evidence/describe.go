package evidence

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
)

// Describe prints the bundles of a node whose pods are still there, which is for a day, the newest first.
func Describe(ctx context.Context, out io.Writer, api client.Client, n *corev1.Node, ago func(time.Time) string) error {
	var pods corev1.PodList
	err := api.List(ctx, &pods, client.InNamespace(conditions.RepairNamespace))
	if apierrors.IsForbidden(err) {
		return nil // not every user may list them
	}
	if err != nil {
		return fmt.Errorf("list the pods that have collected evidence: %w", err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range pods.Items {
		pod := &pods.Items[i]
		if name := bundle.WrittenBy(pod); name != "" && pod.Spec.NodeName == n.Name && bundle.IsPod(pod, pod.Namespace) {
			at, job := ago(pod.CreationTimestamp.UTC()), pod.Labels[batchv1.JobNameLabel]
			cli.Fprintf(out, "Bundle:   %s, %s, by Job %s/%s\n", name, at, pod.Namespace, job)
		}
	}
	return nil
}
