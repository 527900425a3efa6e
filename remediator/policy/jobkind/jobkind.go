// Package jobkind describes the kinds of training jobs that a policy adds to the built-in ones.
package jobkind

import (
	"cmp"
	"strings"

	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// Kind is a kind of training job that is not built in, and how to restart such a job. It has either suspendPath or
// activePath. The remediator needs a role for the kind: docs/jobs.md.
//
//	spec:
//	  jobKinds:
//	  - apiVersion: example.com/v1
//	    kind: Gang
//	    suspendPath: spec.suspend
//	    podLabel: example.com/gang-name
type Kind struct {
	// apiVersion is the group and version of the custom resource, like example.com/v1.
	APIVersion string `yaml:"apiVersion" required:""`
	// kind is the kind of the custom resource.
	Kind string `yaml:"kind" required:"the kind of the job"`
	// suspendPath leads to the boolean field that stops all pods of the job while it is true, like spec.suspend.
	SuspendPath string `yaml:"suspendPath" unit:"field path"`
	// activePath leads to the boolean field that stops all pods of the job while it is false, like spec.active.
	ActivePath string `yaml:"activePath" unit:"field path"`
	// podLabel is the key of a label that all pods of the job have. Its value is the job's name.
	PodLabel string `yaml:"podLabel" unit:"label key" required:""`
}

// GVK is the group, version and kind of the custom resource.
func (k Kind) GVK() apischema.GroupVersionKind {
	return apischema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
}

// SuspendField leads to the boolean field that stops the job, and is the value that stops it.
func (k Kind) SuspendField() (path string, stopped bool) {
	return cmp.Or(k.SuspendPath, k.ActivePath), k.SuspendPath != ""
}

// deepest is how many steps a path has at most. The admission policy pitcrew-remediator-jobs allows booleans down to there.
const deepest = 4

// Check checks what tags cannot.
func (k Kind) Check(d *strict.Decoder, at *field.Path) {
	gv, err := apischema.ParseGroupVersion(k.APIVersion)
	if err != nil || gv.Group == "" || gv.Version == "" {
		d.Invalid(at.Child("apiVersion"), k.APIVersion, "must be the group and version of a custom resource, like example.com/v1")
	}
	if (k.SuspendPath == "") == (k.ActivePath == "") {
		d.Invalid(at, k.Kind, "must have one of suspendPath and activePath")
	}
	for _, p := range []struct{ name, path string }{{"suspendPath", k.SuspendPath}, {"activePath", k.ActivePath}} {
		steps := strings.Split(p.path, ".")
		if p.path != "" && (len(steps) < 2 || steps[0] != "spec" || strings.Contains(p.path, "..") || strings.HasSuffix(p.path, ".")) {
			d.Invalid(at.Child(p.name), p.path, "must lead to a field of the spec, like spec.suspend")
		} else if len(steps) > deepest {
			d.Invalid(at.Child(p.name), p.path, "must lead to a field at most three steps below the spec: the remediator may write no others")
		}
	}
	d.InvalidFor(at.Child("podLabel"), k.PodLabel, validation.IsQualifiedName(k.PodLabel))
}
