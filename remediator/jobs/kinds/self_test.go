package kinds

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const selfFile = "../../../manifests/remediator/admission-self.yaml"

// A kind that the remediator may patch and that the policies on its own account do not match could be changed at will by
// whoever has stolen its token. e2e/attacks tests on a real API server that they allow what a restart writes, and no more.
func TestThePoliciesOnTheRemediatorMatchWhatItMayPatch(t *testing.T) {
	var matched []admissionv1.NamedRuleWithOperations
	for _, p := range selfPolicies(t) {
		if len(p.Spec.MatchConditions) != 1 || p.Spec.MatchConditions[0].Expression != "request.userInfo.username.matches('^system:serviceaccount:[^:]+:pitcrew-remediator$')" {
			t.Errorf("%s is not about the remediator's account alone: %+v", p.Name, p.Spec.MatchConditions)
		}
		matched = append(matched, p.Spec.MatchConstraints.ResourceRules...)
	}
	covered := func(group, resource string, operation admissionv1.OperationType) bool {
		return slices.ContainsFunc(matched, func(r admissionv1.NamedRuleWithOperations) bool {
			return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Operations, operation) &&
				(slices.Contains(r.APIVersions, "*") || group == "" && slices.Contains(r.APIVersions, "v1"))
		})
	}
	for _, k := range BuiltIn() {
		if !covered(k.GVK.Group, k.Resource, admissionv1.Update) {
			t.Errorf("%s: no policy of manifests/remediator/admission-self.yaml matches UPDATE of %s in API group %s: add it to the resourceRules, and its suspend field to the variable suspendField of pitcrew-remediator-jobs",
				k.GVK, k.Resource, k.GVK.Group)
		}
	}
	// Events are what it writes everywhere, and say nothing that others act on.
	verbs := map[string]admissionv1.OperationType{"patch": admissionv1.Update, "update": admissionv1.Update}
	for _, r := range clusterRules(t) {
		for _, verb := range r.Verbs {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					if operation, writes := verbs[verb]; writes && resource != "events" && !covered(group, resource, operation) {
						t.Errorf("the remediator may %s %s of API group %q, and no policy limits that", verb, resource, group)
					}
				}
			}
		}
	}
	if !covered(commandGVK.Group, "commands", admissionv1.Create) {
		t.Error("no policy limits the Commands that the remediator creates")
	}
	if !covered("", "nodes/status", admissionv1.Update) {
		t.Error("no policy limits the status of Nodes")
	}
}

func selfPolicies(t *testing.T) (policies []admissionv1.ValidatingAdmissionPolicy) {
	t.Helper()
	data, err := os.ReadFile(selfFile)
	if err != nil {
		t.Fatal(err)
	}
	bound := map[string]bool{}
	for documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		document := make([]byte, len(data))
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var p admissionv1.ValidatingAdmissionPolicy
		var b admissionv1.ValidatingAdmissionPolicyBinding
		if err := errors.Join(yaml.Unmarshal(document[:n], &p), yaml.Unmarshal(document[:n], &b)); err != nil {
			t.Fatal(err)
		}
		if p.Kind == "ValidatingAdmissionPolicy" {
			policies = append(policies, p)
		} else if slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) {
			bound[b.Spec.PolicyName] = true
		}
	}
	for _, p := range policies {
		if !bound[p.Name] {
			t.Errorf("policy %s denies nothing: it has no binding", p.Name)
		}
	}
	if len(policies) == 0 {
		t.Fatal("no policies")
	}
	return policies
}
