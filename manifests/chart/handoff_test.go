package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// The remediator may write a condition for others only under a policy that asks for it.
func TestTheAdmissionPolicyFollowsTheHandOff(t *testing.T) {
	for values, want := range map[string]string{
		"": "", "policy: {output: {aws: true}}": "", "policy: {handOff: {cordon: true}}": "", "policy: {output: {soperator: false, maintenance: false}}": "",
		"policy: {output: {soperator: true}}": " maySuspect", "policy: {output: {maintenance: true}}": " mayMaintain",
	} {
		spec := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, values), "ValidatingAdmissionPolicy", "pitcrew-remediator-nodes").Spec
		got, found := "", 0
		for _, v := range spec.Variables {
			if strings.HasPrefix(v.Name, "may") {
				found++
				if v.Expression != "false" {
					got += " " + v.Name
				}
			}
		}
		if got != want || found != 2 {
			t.Errorf("%q:%s, want%s, of %d variables", values, got, want, found)
		}
	}
}

// Without output.soperator in the values, the remediator may still take back what it has set.
func TestTheRemediatorMayAlwaysTakeConditionsBack(t *testing.T) {
	role := find[rbacv1.ClusterRole](t, mustRender(t, ""), "ClusterRole", "pitcrew-remediator")
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.Resources, []string{"nodes/status"}) && slices.Equal(r.Verbs, []string{"patch"})
	}) {
		t.Errorf("the rules are %v", role.Rules)
	}
}

// The rights to taint devices come with a policy that does so.
func TestTheRightsForDevicesFollowThePolicy(t *testing.T) {
	const rule = "policy: {rules: {gpu-xid: {isolate: %s}}}"
	for values, want := range map[string]bool{"": false, fmt.Sprintf(rule, "node"): false, fmt.Sprintf(rule, "device"): true} {
		got := slices.ContainsFunc(mustRender(t, values), func(o *unstructured.Unstructured) bool { return o.GetName() == "pitcrew-remediator-devices" })
		if got != want {
			t.Errorf("%q: %v", values, got)
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
	for _, name := range []string{"'" + conditions.ReasonRepair + "'", "'" + conditions.TaintMaintenance + "'", "'" + conditions.MaintenanceRepair + "'"} {
		if !slices.ContainsFunc(spec.Validations, func(v admissionv1.Validation) bool { return strings.Contains(v.Expression, name) }) {
			t.Errorf("no validation names %s", name)
		}
	}
}
