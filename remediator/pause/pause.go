// Package pause reads the global pause: while its ConfigMap exists, nothing new is begun in the whole cluster.
package pause

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// NoReason is the reason of a pause whose ConfigMap gives none.
const NoReason = "no reason given"

// Reason says why everything is paused; empty when nothing is. The pause is ConfigMap [conditions.PauseConfigMap] in the
// namespace that Pitcrew runs in, and its key reason.
func Reason(ctx context.Context, reader client.Reader, namespace string) (string, error) {
	var pause corev1.ConfigMap
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: conditions.PauseConfigMap}, &pause)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get ConfigMap %s/%s: %w", namespace, conditions.PauseConfigMap, err)
	case pause.Data["reason"] == "":
		return NoReason, nil
	}
	return pause.Data["reason"], nil
}
