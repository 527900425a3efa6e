package kinds

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// OptIn is whether a workload may be restarted at all, and why.
type OptIn struct {
	In bool
	// By is the label that decided, as key=value; empty: no label decides, and it is not.
	By string
	// Namespace: the label is that of the namespace, not of the workload itself.
	Namespace bool
}

// ReadOptIn asks the labels of a workload, and where they do not decide those of its namespace.
func ReadOptIn(ctx context.Context, reader client.Reader, w Workload) (OptIn, error) {
	if in, by := optIn(w.labels()); by != "" {
		return OptIn{In: in, By: by}, nil
	}
	var namespace metav1.PartialObjectMetadata
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := reader.Get(ctx, client.ObjectKey{Name: w.Namespace}, &namespace); err != nil {
		return OptIn{}, fmt.Errorf("get namespace %s: %w", w.Namespace, err)
	}
	in, by := optIn(namespace.Labels)
	return OptIn{In: in, By: by, Namespace: by != ""}, nil
}

// optIn reads the labels of a job or of a namespace. by is the label that decides; empty when they do not decide.
func optIn(labels map[string]string) (in bool, by string) {
	switch {
	case labels[conditions.LabelRestartOnNodeFault] == "false":
		return false, conditions.LabelRestartOnNodeFault + "=false"
	case labels[conditions.LabelRestartOnNodeFault] == "true":
		return true, conditions.LabelRestartOnNodeFault + "=true"
	case labels[conditions.LabelKcoverRecovery] == "true":
		return true, conditions.LabelKcoverRecovery + "=true"
	}
	return false, ""
}
