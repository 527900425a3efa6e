package policy

import (
	"os"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

func TestAPolicyNamesNoLabelAndNoTaintOfKubernetes(t *testing.T) {
	for fields, want := range map[string]string{
		"taint: {key: node.kubernetes.io/out-of-service, effect: NoExecute}":                   `spec.rules[gpu].taint.key: Invalid value: "node.kubernetes.io/out-of-service"`,
		"taint: {key: node.cloudprovider.kubernetes.io/shutdown}":                              "spec.rules[gpu].taint.key",
		"handOff: {taints: [{key: node.kubernetes.io/out-of-service}]}":                        "spec.rules[gpu].handOff.taints[0].key",
		"handOff: {labels: {node-role.kubernetes.io/control-plane: ''}}":                       "spec.rules[gpu].handOff.labels[node-role.kubernetes.io/control-plane]",
		"handOff: {labels: {a.node-restriction.kubernetes.io/b: c}}":                           "spec.rules[gpu].handOff.labels[a.node-restriction.kubernetes.io/b]",
		"handOff: {labels: {kubernetes.io/hostname: c}}":                                       "spec.rules[gpu].handOff.labels[kubernetes.io/hostname]",
		"handOff: {labels: {a.k8s.io/b: c}}":                                                   "spec.rules[gpu].handOff.labels[a.k8s.io/b]",
		"handOff: {labels: {remediation.medik8s.io/b: c, cluster.x-k8s.io/b: c}}":              "",
		"handOff: {annotations: {cluster-autoscaler.kubernetes.io/scale-down-disabled: 'no'}}": "",
	} {
		_, err := Parse([]byte(oneRule("match: {condition: GPUXidError, repair: [Reboot]}\n" + fields)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", fields, err, want)
		}
	}
}

// What a valid policy names, the remediator may write: the admission policy has the same pattern.
func TestTheAdmissionPolicyReservesTheSameKeys(t *testing.T) {
	text, err := os.ReadFile("../../manifests/remediator/admission-self.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := `expression: "'` + strict.KubernetesOwn.String() + `'"`; !strings.Contains(string(text), want) {
		t.Errorf("manifests/remediator/admission-self.yaml has no %s", want)
	}
}
