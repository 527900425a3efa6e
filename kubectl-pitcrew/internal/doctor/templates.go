package doctor

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

// object is one that a pod needs in its namespace.
type object struct{ kind, name string }

// needs returns the objects without which pods of a template do not start. A variable or a volume that may be missing is none.
func needs(pod *corev1.PodSpec) (all []object) {
	add := func(kind, name string, optional *bool) {
		if o := (object{kind, name}); name != "" && (optional == nil || !*optional) && !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	add("ServiceAccount", pod.ServiceAccountName, nil)
	for _, s := range pod.ImagePullSecrets {
		add("Secret", s.Name, nil)
	}
	for _, v := range pod.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			add("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName, nil)
		case v.Secret != nil:
			add("Secret", v.Secret.SecretName, v.Secret.Optional)
		case v.ConfigMap != nil:
			add("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, e := range c.EnvFrom {
			if s := e.SecretRef; s != nil {
				add("Secret", s.Name, s.Optional)
			}
			if m := e.ConfigMapRef; m != nil {
				add("ConfigMap", m.Name, m.Optional)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				continue
			}
			if s := e.ValueFrom.SecretKeyRef; s != nil {
				add("Secret", s.Name, s.Optional)
			}
			if m := e.ValueFrom.ConfigMapKeyRef; m != nil {
				add("ConfigMap", m.Name, m.Optional)
			}
		}
	}
	return all
}

// templateNeeds looks for what pods of the templates need in their namespace.
func (d *doctor) templateNeeds(ctx context.Context, templates []corev1.PodTemplate) (found []cli.Finding, err error) {
	of := map[object][]string{}
	var order []object
	for i := range templates {
		t := &templates[i]
		for _, o := range needs(&t.Template.Spec) {
			if of[o] == nil {
				order = append(order, o)
			}
			of[o] = append(of[o], t.Name)
		}
	}
	for _, o := range order {
		namespace := templates[0].Namespace
		meta := &metav1.PartialObjectMetadata{}
		meta.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: o.kind})
		err := d.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: o.name}, meta)
		switch {
		case apierrors.IsNotFound(err):
			found = append(found, cli.Problem("", "create it, or correct the values of the chart",
				"pods of template %s do not start: there is no %s %s in namespace %s", cli.Some(of[o]), o.kind, o.name, namespace))
		case apierrors.IsForbidden(err):
			found = append(found, cli.NotKnown("", fmt.Errorf("whether %s %s of template %s is there: %w", o.kind, o.name, cli.Some(of[o]), err)))
		case err != nil:
			return nil, err
		}
	}
	return found, nil
}
