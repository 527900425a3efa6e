// Package pause reads the global pause: while its ConfigMap exists, nothing new is begun in the whole cluster.
package pause

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// NoReason is the reason of a pause whose ConfigMap gives none.
const NoReason = "no reason given"

// Reason returns why everything is paused; empty without a pause. The pause is ConfigMap [conditions.PauseConfigMap] in the
// namespace that Pitcrew runs in, and its key reason.
func Reason(ctx context.Context, reader client.Reader, namespace string) (string, error) {
	reason, _, err := Since(ctx, reader, namespace)
	return reason, err
}

// Since returns the [Reason] of the pause, and when it began.
func Since(ctx context.Context, reader client.Reader, namespace string) (reason string, since time.Time, err error) {
	var pause corev1.ConfigMap
	err = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: conditions.PauseConfigMap}, &pause)
	switch {
	case apierrors.IsNotFound(err):
		return "", time.Time{}, nil
	case err != nil:
		return "", time.Time{}, fmt.Errorf("get ConfigMap %s/%s: %w", namespace, conditions.PauseConfigMap, err)
	case pause.Data["reason"] == "":
		return NoReason, pause.CreationTimestamp.Time, nil
	}
	return pause.Data["reason"], pause.CreationTimestamp.Time, nil
}
