package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// policies are the names of the admission policies that are rendered, each with its binding.
func policies(t *testing.T, values string) []string {
	t.Helper()
	var names, bindings []string
	for _, o := range mustRender(t, values) {
		switch o.GetKind() {
		case "ValidatingAdmissionPolicy":
			names = append(names, o.GetName())
		case "ValidatingAdmissionPolicyBinding":
			bindings = append(bindings, o.GetName())
		}
	}
	if slices.Sort(names); !slices.Equal(names, slices.Sorted(slices.Values(bindings))) {
		t.Errorf("policies %s, bindings %s", names, bindings)
	}
	return names
}

func TestOneSwitchForTheAdmissionPolicies(t *testing.T) {
	const records = "pitcrew-job-records pitcrew-node-records"
	has := func(values string) bool {
		found := slices.DeleteFunc(policies(t, values), func(name string) bool { return !strings.HasSuffix(name, "-records") })
		return strings.Join(found, " ") == records
	}
	if !has("{}") {
		t.Errorf("the defaults have not %s", records)
	}
	if all := policies(t, "admissionPolicies: false"); len(all) > 0 {
		t.Errorf("switched off, there are %s", all)
	}
	// Without the remediator nobody has the verb, and nothing reads the records.
	if has("remediator: {enabled: false}") {
		t.Error("records are reserved without a remediator")
	}
}

// Who may write the records is the same everywhere: the policies name no account.
func TestTheWritersOfRecordsHaveTheVerb(t *testing.T) {
	objects := mustRender(t, "{}")
	for _, name := range []string{"pitcrew-remediator", "pitcrew-operate"} {
		role := find[rbacv1.ClusterRole](t, objects, "ClusterRole", name)
		for _, resource := range []string{"noderecords", "jobrecords"} {
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, conditions.Domain) && slices.Contains(r.Resources, resource) && slices.Equal(r.Verbs, []string{"write"})
			}) {
				t.Errorf("ClusterRole %s may not write %s", name, resource)
			}
		}
	}
	for _, r := range find[rbacv1.ClusterRole](t, objects, "ClusterRole", "pitcrew-view").Rules {
		if slices.Contains(r.APIGroups, conditions.Domain) {
			t.Errorf("a viewer has %+v", r)
		}
	}
}

func TestJobKindsOfThePolicyAreReserved(t *testing.T) {
	groups := func(values string) (all []string) {
		policy := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, values), "ValidatingAdmissionPolicy", "pitcrew-job-records")
		for _, r := range policy.Spec.MatchConstraints.ResourceRules {
			if !slices.Contains(r.Operations, admissionv1.Create) || !slices.Contains(r.Operations, admissionv1.Update) {
				t.Errorf("%s: a rule for %v only", values, r.Operations)
			}
			if r.APIGroups[0] == "" {
				t.Errorf("%s: a rule for the core group", values)
			}
			if slices.Contains(r.Resources, "*") {
				all = append(all, r.APIGroups...)
			}
		}
		return all
	}
	if all := groups("{}"); len(all) > 0 {
		t.Errorf("without jobKinds the policy is for everything of %s", all)
	}
	const kinds = `policy: {jobKinds: [{apiVersion: example.com/v1, kind: Gang, suspendPath: spec.suspend, podLabel: a},
  {apiVersion: v1, kind: Core, suspendPath: spec.suspend, podLabel: a}]}`
	if all := groups(kinds); !slices.Equal(all, []string{"example.com"}) {
		t.Errorf("jobKinds of example.com: %s", all)
	}
}

// What the policies repeat of the code is as it is there.
func TestTheAdmissionPoliciesAreAsTheCode(t *testing.T) {
	objects := mustRender(t, repairEnabled)
	text := func(name string) string {
		spec := find[admissionv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy", name).Spec
		if spec.FailurePolicy == nil || *spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("%s does not fail closed", name)
		}
		var all strings.Builder
		for _, v := range spec.Variables {
			fmt.Fprintln(&all, v.Expression)
		}
		for _, v := range spec.Validations {
			fmt.Fprintln(&all, v.Expression)
		}
		return all.String()
	}
	quoted := func(s string) string { return "'" + s + "'" }
	for name, wanted := range map[string][]string{
		"pitcrew-node-records": {
			quoted(conditions.Domain + "/"), quoted(conditions.AnnotationGPUs), quoted(conditions.TaintUnchecked + "="),
			quoted(conditions.Verdicts[0].Type), quoted(conditions.Verdicts[1].Type), quoted(conditions.Verdicts[2].Type),
		},
		"pitcrew-job-records": {
			quoted(conditions.AnnotationRestart), quoted(conditions.AnnotationCheckpointBy), quoted(conditions.AnnotationRestartStep),
			quoted(conditions.LabelRestarting), quoted(conditions.LabelRestartOnNodeFault),
		},
		"pitcrew-repair-jobs":      {quoted(conditions.LabelTemplate), quoted(conditions.AnnotationNode)},
		"pitcrew-repair-templates": {quoted(conditions.LabelTemplate), quoted(conditions.LabelVisit), quoted(conditions.AnnotationNode)},
		"pitcrew-preflight-report": {fmt.Sprintf("<= %d ", report.MaxBytes)},
	} {
		expressions := text(name)
		for _, want := range wanted {
			if !strings.Contains(expressions, want) {
				t.Errorf("%s has no %s", name, want)
			}
		}
	}
	if len(conditions.Verdicts) != 3 {
		t.Errorf("%d verdicts; pitcrew-node-records reserves three", len(conditions.Verdicts))
	}
}
