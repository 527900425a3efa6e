// Package pause reads the global pause: while its ConfigMap exists, nothing new is begun in the whole cluster.
package pause

import (
	"cmp"
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

// ByKey is the key of the pause's ConfigMap that has the user who paused.
const ByKey = "by"

// Pause is a pause of everything.
type Pause struct {
	Reason string
	// By is the user as `kubectl pitcrew pause` wrote it; empty: it is not known.
	By string
	// Since is when it began.
	Since time.Time
}

// Reason returns why everything is paused; empty without a pause.
func Reason(ctx context.Context, reader client.Reader, namespace string) (string, error) {
	pause, err := Read(ctx, reader, namespace)
	if err != nil || pause == nil {
		return "", err
	}
	return pause.Reason, nil
}

// ReasonOf is [Reason] of the first of several readers that shows a pause. Before something begins that cannot be taken back, ask a cache
// and then the API server: that the cache shows none proves nothing, as its watch may be late.
func ReasonOf(ctx context.Context, namespace string, readers ...client.Reader) (string, error) {
	for _, reader := range readers {
		if reason, err := Reason(ctx, reader, namespace); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

// Read returns the pause; nil: there is none. The pause is ConfigMap [conditions.PauseConfigMap] in the namespace that Pitcrew
// runs in, with the keys reason and [ByKey].
func Read(ctx context.Context, reader client.Reader, namespace string) (*Pause, error) {
	var object corev1.ConfigMap
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: conditions.PauseConfigMap}, &object)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get ConfigMap %s/%s: %w", namespace, conditions.PauseConfigMap, err)
	}
	return &Pause{Reason: cmp.Or(object.Data["reason"], NoReason), By: object.Data[ByKey], Since: object.CreationTimestamp.Time}, nil
}
