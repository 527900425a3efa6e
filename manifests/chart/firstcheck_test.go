package chart_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The rules for node-readiness-controller are for the nodes of the presets, and ask for the conditions that are written there.
func TestNodeReadinessRulesAreForThePresets(t *testing.T) {
	text, err := os.ReadFile("files/checks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Presets map[string]struct {
			MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions"`
			Checks           []string                          `json:"checks"`
		} `json:"presets"`
	}
	if err := yaml.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile("../first-check/node-readiness-rules.yaml"); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range decode(t, string(text)) {
		// NodeReadinessRuleSpec of sigs.k8s.io/node-readiness-controller/api/v1alpha1.
		var spec struct {
			EnforcementMode string               `json:"enforcementMode"`
			Taint           corev1.Taint         `json:"taint"`
			NodeSelector    metav1.LabelSelector `json:"nodeSelector"`
			Conditions      []struct {
				Type           string                 `json:"type"`
				RequiredStatus corev1.ConditionStatus `json:"requiredStatus"`
			} `json:"conditions"`
		}
		body, err := json.Marshal(o.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(body, &spec); err != nil {
			t.Fatalf("%s: %v", o.GetName(), err)
		}
		if o.GetAPIVersion() != "readiness.node.x-k8s.io/v1alpha1" || o.GetKind() != "NodeReadinessRule" || spec.EnforcementMode != "bootstrap-only" ||
			spec.Taint != (corev1.Taint{Key: "readiness.k8s.io/pitcrew-unchecked", Effect: corev1.TaintEffectNoSchedule}) {
			t.Errorf("%s %s: mode %s, taint %v", o.GetKind(), o.GetName(), spec.EnforcementMode, spec.Taint)
		}
		name := strings.TrimPrefix(o.GetName(), "pitcrew-")
		preset, ok := known.Presets[name]
		if !ok {
			t.Errorf("there is no preset %s", name)
		}
		if diff := cmp.Diff(metav1.LabelSelector{MatchExpressions: preset.MatchExpressions}, spec.NodeSelector); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		var types []string
		for _, c := range spec.Conditions {
			if c.RequiredStatus != corev1.ConditionFalse {
				t.Errorf("%s: a node is healthy if %s is %s", name, c.Type, c.RequiredStatus)
			}
			types = append(types, c.Type)
		}
		if diff := cmp.Diff(preset.Checks, types); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		names = append(names, name)
	}
	if !slices.Equal(names, []string{"nvidia", "metax", "ascend"}) {
		t.Errorf("rules for %q", names)
	}
}
