package chart_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// The remediator may cordon and write the condition for soperator only under a policy that asks for it.
func TestTheAdmissionPolicyFollowsTheHandOff(t *testing.T) {
	for values, want := range map[string]string{
		"":                                  "false false",
		"policy: {handOff: {cordon: true}}": "true false",
		"policy: {handOff: {cordon: false}, rules: {gpu-xid: {handOff: {cordon: false}}}}": "false false",
		"policy: {rules: {gpu-xid: {mode: observe}, gpu-ecc: {handOff: {cordon: true}}}}":  "true false",
		"policy: {output: {soperator: true}}":                                              "false true",
		"policy: {output: {aws: true}}":                                                    "false false",
		"policy: {handOff: {cordon: true}, output: {soperator: true}}":                     "true true",
	} {
		spec := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, values), "ValidatingAdmissionPolicy", "pitcrew-remediator-nodes").Spec
		got := map[string]string{}
		for _, v := range spec.Variables {
			got[v.Name] = v.Expression
		}
		if got := got["mayCordon"] + " " + got["maySuspect"]; got != want {
			t.Errorf("%q: %s, want %s", values, got, want)
		}
	}
}

// While output.soperator is in the values, also as false, the remediator may take back what it has set.
func TestOutputForSoperatorNeedsAPermission(t *testing.T) {
	for values, want := range map[string]bool{
		"": false, "policy: {output: {aws: true}}": false,
		"policy: {output: {soperator: true}}": true, "policy: {output: {soperator: false}}": true,
	} {
		text, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, "nodes/status\n  verbs:\n  - patch"); got != want {
			t.Errorf("%q: the remediator may patch nodes/status: %v", values, got)
		}
	}
}

func TestTheAdmissionPolicyKnowsTheNamesOfTheCode(t *testing.T) {
	spec := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, ""), "ValidatingAdmissionPolicy", "pitcrew-remediator-nodes").Spec
	i := slices.IndexFunc(spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "ourReasons" })
	if want := "['" + handoff.Suspected + "', '" + handoff.Cleared + "']"; spec.Variables[i].Expression != want {
		t.Errorf("ourReasons is %s, want %s", spec.Variables[i].Expression, want)
	}
	i = slices.IndexFunc(spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "suspicionsAfter" })
	if !strings.Contains(spec.Variables[i].Expression, "c.type == '"+policy.SoperatorCondition+"'") {
		t.Errorf("suspicionsAfter is %s", spec.Variables[i].Expression)
	}
}
