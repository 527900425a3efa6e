package kinds

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/suggest"
)

// OptIn is whether a workload may be restarted at all, and why.
type OptIn struct {
	In bool
	// By is the label that decided, as key=value; empty: no label decides, and it is not.
	By string
	// Namespace: the label is that of the namespace, not of the workload itself.
	Namespace bool
	// Mistakes are labels and annotations that look like an opt-in and do not count, as sentences; empty if a label decides.
	Mistakes []string
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
	o := OptIn{In: in, By: by, Namespace: by != ""}
	if by == "" {
		o.Mistakes = w.mistakes(&namespace)
	}
	return o, nil
}

// mistakes are those on the workload and on its namespace.
func (w Workload) mistakes(namespace metav1.Object) (all []string) {
	switch {
	case w.Job != nil:
		all = Mistakes(w.Job.Object, fmt.Sprintf("%s %s/%s", w.Job.GVK.Kind, w.Namespace, w.Job.Object.GetName()))
	case w.BarePod != nil:
		all = Mistakes(w.BarePod, fmt.Sprintf("Pod %s/%s", w.Namespace, w.BarePod.Name))
	}
	return append(all, Mistakes(namespace, "namespace "+w.Namespace)...)
}

// Mistakes are the labels and annotations of an object that look like an opt-in and do not count. name is that of the object, for
// the sentences.
func Mistakes(object metav1.Object, name string) (all []string) {
	key := conditions.LabelRestartOnNodeFault
	if value, found := object.GetLabels()[key]; found && value != "true" && value != "false" {
		all = append(all, fmt.Sprintf(`label %s=%s on %s does not count: the value must be "true" or "false"`, key, value, name))
	}
	if value, found := object.GetLabels()[conditions.LabelKcoverRecovery]; found && value != "true" && value != "false" {
		all = append(all, fmt.Sprintf(`label %s=%s on %s does not count: the value must be "true"`, conditions.LabelKcoverRecovery, value, name))
	}
	for _, other := range slices.Sorted(maps.Keys(object.GetLabels())) {
		if other != key && isLike(other, key) {
			all = append(all, fmt.Sprintf("label %s=%s on %s does not count: its key must be %s", other, object.GetLabels()[other], name, key))
		}
	}
	for _, other := range slices.Sorted(maps.Keys(object.GetAnnotations())) {
		switch {
		case other == key:
			all = append(all, fmt.Sprintf("annotation %s on %s does not count: it must be a label", key, name))
		case isLike(other, key):
			all = append(all, fmt.Sprintf("annotation %s on %s does not count: it must be the label %s", other, name, key))
		}
	}
	return all
}

// isLike reports whether a key is nearly another one, in any domain or in none.
func isLike(other, key string) bool {
	return suggest.Closest(path.Base(other), []string{path.Base(key)}) != ""
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
