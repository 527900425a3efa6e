package preflighttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Environment is the environment of a container as the kubelet would set it: values, labels, annotations, names and keys of ConfigMaps.
func Environment(t testing.TB, c client.Client, pod *corev1.Pod, container corev1.Container) func(string) string {
	t.Helper()
	env := map[string]string{}
	for _, e := range container.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = e.Value
		case from.FieldRef != nil:
			env[e.Name] = field(t, pod, from.FieldRef.FieldPath)
		case from.ConfigMapKeyRef != nil:
			var cm corev1.ConfigMap
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: from.ConfigMapKeyRef.Name}, &cm); err != nil {
				t.Fatal(err)
			}
			env[e.Name] = cm.Data[from.ConfigMapKeyRef.Key]
		default:
			t.Fatalf("the value of %s is from %+v", e.Name, from)
		}
	}
	return func(name string) string { return env[name] }
}

func field(t testing.TB, pod *corev1.Pod, path string) string {
	t.Helper()
	kind, key, _ := strings.Cut(strings.TrimSuffix(path, "']"), "['")
	switch kind {
	case "spec.nodeName":
		return pod.Spec.NodeName
	case "metadata.name":
		return pod.Name
	case "metadata.namespace":
		return pod.Namespace
	case "metadata.labels":
		return pod.Labels[key]
	case "metadata.annotations":
		return pod.Annotations[key]
	}
	t.Fatalf("no field %s", path)
	return ""
}
