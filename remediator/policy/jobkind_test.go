package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
)

func jobKinds(fields string) string {
	return head + "spec:\n  budget: {maxNodes: 1}\n  jobKinds:\n  - {" + fields + "}\n"
}

func TestParseJobKinds(t *testing.T) {
	gang := apischema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gang"}
	tests := map[string]struct {
		fields string
		want   jobkind.Kind
		path   string
		stops  bool
	}{
		"that is suspended": {
			"apiVersion: example.com/v1, kind: Gang, suspendPath: spec.run.suspend, podLabel: example.com/gang",
			jobkind.Kind{APIVersion: "example.com/v1", Kind: "Gang", SuspendPath: "spec.run.suspend", PodLabel: "example.com/gang"},
			"spec.run.suspend", true,
		},
		"that is made inactive": {
			"apiVersion: example.com/v1, kind: Gang, activePath: spec.active, podLabel: example.com/gang",
			jobkind.Kind{APIVersion: "example.com/v1", Kind: "Gang", ActivePath: "spec.active", PodLabel: "example.com/gang"},
			"spec.active", false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kinds := parse(t, jobKinds(test.fields)).JobKinds
			if diff := cmp.Diff([]jobkind.Kind{test.want}, kinds); diff != "" {
				t.Fatal(diff)
			}
			if path, stops := kinds[0].SuspendField(); kinds[0].GVK() != gang || path != test.path || stops != test.stops {
				t.Errorf("%s is stopped by %s: %v", kinds[0].GVK(), path, stops)
			}
		})
	}
}

func TestJobKindsAreStrict(t *testing.T) {
	const kind = "apiVersion: example.com/v1, kind: Gang, "
	tests := map[string]struct{ fields, want string }{
		"a core kind":             {"apiVersion: v1, kind: Pod, suspendPath: spec.suspend, podLabel: a", `spec.jobKinds[0].apiVersion: Invalid value: "v1"`},
		"no kind":                 {"apiVersion: example.com/v1, suspendPath: spec.suspend, podLabel: a", "spec.jobKinds[0].kind: Required value"},
		"no path":                 {kind + "podLabel: a", "must have one of suspendPath and activePath"},
		"both paths":              {kind + "suspendPath: spec.a, activePath: spec.b, podLabel: a", "must have one of suspendPath and activePath"},
		"a path outside the spec": {kind + "activePath: status.active, podLabel: a", `spec.jobKinds[0].activePath: Invalid value: "status.active"`},
		"a path too deep":         {kind + "activePath: spec.a.b.c.d, podLabel: a", `spec.jobKinds[0].activePath: Invalid value: "spec.a.b.c.d"`},
		"a path with a gap":       {kind + "suspendPath: spec..suspend, podLabel: a", `spec.jobKinds[0].suspendPath: Invalid value: "spec..suspend"`},
		"no label":                {kind + "suspendPath: spec.suspend", `spec.jobKinds[0].podLabel: Invalid value: ""`},
		"an unknown field":        {kind + "suspendPath: spec.suspend, podLabel: a, ranks: 4", "field ranks not found"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(jobKinds(test.fields)))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
