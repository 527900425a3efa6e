package chart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const injectTemplate = "--show-only=templates/preflight-inject.yaml"

func TestPreflightIsInjectedOnlyIfItIsSwitchedOn(t *testing.T) {
	for _, values := range []string{"{}", "preflight: {namespaces: [team-a]}", "preflight: {namespaces: [team-a], inject: {enabled: true}}\nremediator: {enabled: false}"} {
		for _, o := range mustRender(t, values) {
			if strings.HasPrefix(o.GetKind(), "Mutating") || o.GetName() == "pitcrew-preflight-inject" {
				t.Errorf("%s: %s %s", values, o.GetKind(), o.GetName())
			}
		}
	}
	for want, args := range map[string][]string{
		"needs preflight.namespaces":                  {"preflight: {inject: {enabled: true}}"},
		"-storage=/data: the container has no volume": {"preflight: {namespaces: [team-a], inject: {enabled: true, args: [-unit=GB/s, -storage=/data]}}"},
		"--out=/data: the container has no volume":    {"preflight: {namespaces: [team-a], inject: {enabled: true, args: [--out=/data]}}"},
		"needs Kubernetes 1.36":                       {"preflight: {namespaces: [team-a], inject: {enabled: true}}", "--kube-version=1.35.9"},
	} {
		if _, err := render(t, args[0], args[1:]...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// The policy is for the namespaces whose reports count, and their accounts may report.
func TestTheInjectedPreflightMayReport(t *testing.T) {
	objects := mustRender(t, "preflight: {namespaces: [team-a], trustedNamespaces: [team-b], inject: {enabled: true, serviceAccounts: [default, train]}}", injectTemplate)
	binding := find[admissionv1.MutatingAdmissionPolicyBinding](t, objects, "MutatingAdmissionPolicyBinding", "pitcrew-preflight-inject")
	if e := binding.Spec.MatchResources.NamespaceSelector.MatchExpressions; len(e) != 1 || !slices.Equal(e[0].Values, []string{"team-a", "team-b"}) {
		t.Errorf("namespaces %+v", e)
	}
	policy := find[admissionv1.MutatingAdmissionPolicy](t, objects, "MutatingAdmissionPolicy", binding.Spec.PolicyName)
	if *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Errorf("failurePolicy %s", *policy.Spec.FailurePolicy)
	}
	var accounts []string
	for _, o := range objects {
		if o.GetKind() != "RoleBinding" {
			continue
		}
		role := find[rbacv1.RoleBinding](t, objects[slices.Index(objects, o):], "RoleBinding", o.GetName())
		there := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetNamespace() != role.Namespace })
		find[rbacv1.Role](t, there, "Role", role.RoleRef.Name)
		for _, s := range role.Subjects {
			if s.Namespace != role.Namespace || role.RoleRef.Name != "pitcrew-preflight-inject" {
				t.Errorf("%+v", role)
			}
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	if want := []string{"team-a/default", "team-a/train", "team-b/default", "team-b/train"}; !slices.Equal(accounts, want) {
		t.Errorf("accounts %s, want %s", accounts, want)
	}
}

// helm upgrade --reuse-values takes the values of the last release, which may not have the list; null stands for that. An empty list stays.
func TestTheDefaultAccountMayReportAfterReuseValues(t *testing.T) {
	for accounts, want := range map[string]bool{"null": true, "[]": false} {
		objects := mustRender(t, "preflight: {namespaces: [team-a], inject: {enabled: true, serviceAccounts: "+accounts+"}}", injectTemplate)
		bound := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "RoleBinding" })
		if bound != want {
			t.Errorf("serviceAccounts: %s: an account has the role: %t", accounts, bound)
		}
	}
}

// A name may look like a number or a boolean.
func TestTheNamesOfTheInjectedPreflightAreStrings(t *testing.T) {
	objects := mustRender(t, `preflight: {namespaces: ["123"], inject: {enabled: true, serviceAccounts: ["007", "true"]}}`, injectTemplate)
	role := find[rbacv1.RoleBinding](t, objects, "RoleBinding", "pitcrew-preflight-inject")
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "007", Namespace: "123"}, {Kind: "ServiceAccount", Name: "true", Namespace: "123"}}
	if role.Namespace != "123" || !slices.Equal(role.Subjects, want) {
		t.Errorf("%+v", role)
	}
}

// What stands in the values arrives in the pod, whatever characters it has: the policy is an expression.
func TestTheValuesArriveInTheInjectedContainer(t *testing.T) {
	c := clustertest.Get(t)
	if err := c.AddNamespace(t.Context(), "injected", nil); err != nil {
		t.Fatal(err)
	}
	args := []string{`-figure=a=awk '/^SUM/ {print "x\n", $NF}' < /tmp/a && echo é\\`, "-unit=GB/s"}
	out, err := render(t, fmt.Sprintf("image: {pullPolicy: Always}\npreflight: {namespaces: [injected], inject: {enabled: true, image: 'registry/x:1', args: [%q, %q]}}", args[0], args[1]), injectTemplate)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "inject.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "apply", "--server-side", "-f", file)
	clustertest.Until(t, time.Minute, "wait for the policy", func() error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "injected", Name: "rank", Labels: map[string]string{conditions.LabelPreflight: "true"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "train", Image: "train"}}},
		}
		if err := c.Client.Create(t.Context(), pod, client.DryRunAll); err != nil || len(pod.Spec.InitContainers) != 1 {
			return fmt.Errorf("init containers %+v: %w", pod.Spec.InitContainers, err)
		}
		got := pod.Spec.InitContainers[0]
		if want := append([]string{"-best-effort", "-from-pod"}, args...); !slices.Equal(got.Args, want) || got.Image != "registry/x:1" || got.ImagePullPolicy != corev1.PullAlways {
			t.Errorf("%s with %q (%s), want %q", got.Image, got.Args, got.ImagePullPolicy, want)
		}
		return nil
	})
}
