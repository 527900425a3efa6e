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

const admissionFile = "../../../manifests/remediator/admission.yaml"

// A kind that the admission policy does not name lets its users write the records of restarts.
func TestTheAdmissionPolicyCoversEveryKind(t *testing.T) {
	rules := reservedOnJobs(t)
	for _, k := range BuiltIn() {
		if !reserves(rules, k.GVK.Group, k.Resource) {
			t.Errorf("anyone may write restart records on %s of API group %q: add them to resourceRules of pitcrew-job-records in manifests/remediator/admission.yaml, then make generate",
				k.Resource, k.GVK.Group)
		}
		// Their status is a subresource through which annotations can be written. That of a custom resource is not.
		if (k.GVK.Group == "batch" || k.GVK.Group == "apps") && !reserves(rules, k.GVK.Group, k.Resource+"/status") {
			t.Errorf("anyone who may write the status of %s of API group %q may write restart records", k.Resource, k.GVK.Group)
		}
	}
	// It has the step of a restart in place of the job.
	if !reserves(rules, workloadGroup, "workloads") {
		t.Error("anyone may write the step of a restart on a Workload of Kueue")
	}
	if reserves(rules, "batch", "cronjobs") || reserves(rules, "example.com", "jobs") || reserves(nil, "batch", "jobs") {
		t.Error("the rules are not read well")
	}
}

// reservedOnJobs are the rules of the policy that reserves the records of restarts.
func reservedOnJobs(t *testing.T) []admissionv1.NamedRuleWithOperations {
	t.Helper()
	data, err := os.ReadFile(admissionFile)
	if err != nil {
		t.Fatal(err)
	}
	for documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		document := make([]byte, len(data))
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s has no policy pitcrew-job-records", admissionFile)
		}
		if err != nil {
			t.Fatal(err)
		}
		var policy admissionv1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal(document[:n], &policy); err != nil {
			t.Fatal(err)
		}
		if policy.Kind == "ValidatingAdmissionPolicy" && policy.Name == "pitcrew-job-records" {
			return policy.Spec.MatchConstraints.ResourceRules
		}
	}
}

func reserves(rules []admissionv1.NamedRuleWithOperations, group, resource string) bool {
	return slices.ContainsFunc(rules, func(r admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.APIVersions, "*") && len(r.ResourceNames) == 0 &&
			slices.Contains(r.Operations, admissionv1.Create) && slices.Contains(r.Operations, admissionv1.Update)
	})
}
