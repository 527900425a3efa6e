package policy

import (
	"strings"

	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// JobKind is a kind of training job that the remediator does not know by itself, and how such a job is restarted.
type JobKind struct {
	GVK apischema.GroupVersionKind
	// Toggle leads to the boolean field that stops all pods of the job and starts them again, e.g. spec.suspend.
	Toggle string
	// Active tells that the field is true while the job runs, not while it is stopped.
	Active bool
	// PodLabel is a label of all of the job's pods, whose value is the job's name.
	PodLabel string
}

type jobKind struct {
	APIVersion  string `yaml:"apiVersion"`
	Kind        string `yaml:"kind"`
	SuspendPath string `yaml:"suspendPath"`
	ActivePath  string `yaml:"activePath"`
	PodLabel    string `yaml:"podLabel"`
}

func (c *checker) jobKinds(at *field.Path, kinds []jobKind) []JobKind {
	var out []JobKind
	for i, k := range kinds {
		out = append(out, c.jobKind(at.Index(i), k))
	}
	return out
}

func (c *checker) jobKind(at *field.Path, k jobKind) JobKind {
	gv, err := apischema.ParseGroupVersion(k.APIVersion)
	if err != nil || gv.Group == "" || gv.Version == "" {
		c.invalid(at.Child("apiVersion"), k.APIVersion, "must be the group and version of a custom resource, like example.com/v1")
	}
	if k.Kind == "" {
		c.errs = append(c.errs, field.Required(at.Child("kind"), "the kind of the job"))
	}
	if (k.SuspendPath == "") == (k.ActivePath == "") {
		c.invalid(at, k.Kind, "must have one of suspendPath and activePath")
	}
	out := JobKind{GVK: gv.WithKind(k.Kind), Toggle: k.SuspendPath + k.ActivePath, Active: k.ActivePath != "", PodLabel: k.PodLabel}
	name := "suspendPath"
	if out.Active {
		name = "activePath"
	}
	if steps := strings.Split(out.Toggle, "."); len(steps) < 2 || steps[0] != "spec" || strings.Contains(out.Toggle, "..") || strings.HasSuffix(out.Toggle, ".") {
		c.invalid(at.Child(name), out.Toggle, "must lead to a field of the spec, like spec.suspend")
	}
	c.all(at.Child("podLabel"), k.PodLabel, validation.IsQualifiedName(k.PodLabel))
	return out
}
