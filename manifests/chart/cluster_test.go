package chart_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// everything enables every feature, as in a cluster with the Prometheus operator.
const everything = `
createNamespace: true
pools:
- {name: nvidia, preset: nvidia}
- {name: roce, preset: nvidia-roce, nodeSelector: {fabric: roce}, checks: {HCAPortDown: {args: {profile: h100, ignore: "mlx5_8,mlx5_9"}}}}
- {name: efa, preset: aws-efa, tag: canary}
- {name: metax, preset: metax, hostNetwork: true}
- {name: ascend, preset: ascend, tolerations: [{operator: Exists}]}
- {name: plain, nodeSelector: {kubernetes.io/os: linux}, checks: {KernelHardwareError: {}, WorkloadGPUError: {args: {namespaces: team-a}}, DCGMDiagFailed: {}, MountReadOnly: {args: {min-free: 5}}}}
image: {pullSecrets: [{name: registry}]}
remediator:
  args: [-topology-label=rack]
  volumes: [{name: key, secret: {secretName: webhook}}]
  volumeMounts: [{name: key, mountPath: /etc/webhook, readOnly: true}]
  nodeSelector: {kubernetes.io/os: linux}
  tolerations: [{operator: Exists, key: node-role.kubernetes.io/control-plane}]
  affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {app.kubernetes.io/name: pitcrew-remediator}}}}]}}
preflight: {namespaces: [team-a], trustedNamespaces: [team-b], inject: {enabled: true}}
networkPolicies: {metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
userRoles: {aggregateToView: true, viewers: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: dev}], operators: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: sre}]}
monitoring: {podMonitor: true, prometheusRule: true, dashboards: true, labels: {release: prometheus}}
repair: {enabled: true, templates: {burn-in: {annotations: {pitcrew.dev/verdict: BurnInFailed}, spec: {containers: [{name: burn, image: ours}]}}}}
`

// The API server takes every object as it is, without a field that it does not know and without a warning.
func TestTheAPIServerTakesEveryObject(t *testing.T) {
	c := clustertest.Get(t)
	module, err := components.PrometheusOperator.ModuleDir(t.Context(), c.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"podmonitors", "prometheusrules"} {
		crd := filepath.Join(module, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml")
		kubectl(t, c, "apply", "--server-side", "-f", crd)
		kubectl(t, c, "wait", "--for=condition=Established", "crd/"+kind+".monitoring.coreos.com")
	}
	for _, name := range []string{"team-a", "team-b"} {
		if err := c.AddNamespace(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	all := everything
	if older := os.Getenv(components.VariableKubernetes); older == "1.34" || older == "1.35" { // the chart refuses to inject there
		all = strings.Replace(all, "inject: {enabled: true}", "inject: {enabled: false}", 1)
	}
	for name, values := range map[string]string{
		"everything": all,
		"bare":       "createNamespace: true\nremediator: {enabled: false}\nadmissionPolicies: false\nnetworkPolicies: {enabled: false}\nuserRoles: {enabled: false}",
		"pools only": "remediator: {enabled: false}\npools: [{name: p, preset: nvidia}]\nmonitoring: {podMonitor: true, prometheusRule: true}",
		"defaults":   "{}",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			// All but the namespaces are only checked: most of the time went into deleting them.
			spaces, others := "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: pitcrew}\n", ""
			for _, document := range strings.SplitAfter(out, "\n---\n") {
				if strings.Contains(document, "\nkind: Namespace\n") {
					spaces += "---\n" + document
				} else {
					others += document
				}
			}
			apply(t, c, spaces)
			if strings.Contains(others, "\nkind: ") {
				apply(t, c, others, "--dry-run=server")
			}
		})
	}
	kubectl(t, c, "delete", "--wait", "--ignore-not-found", "namespace", namespace, conditions.RepairNamespace, conditions.EvidenceNamespace)
}

// apply has the API server take a text as it is.
func apply(t *testing.T, c *cluster.Cluster, text string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output := kubectl(t, c, append([]string{"apply", "--server-side", "--validate=strict", "-f", file}, args...)...)
	if strings.Contains(output, "Warning") {
		t.Error(output)
	}
}

// The steps of an operator over months: install, a newer remediator beside older plugins, upgrade all, roll back, and
// uninstall. Nothing is left: no objects, and no taints, labels or conditions on Nodes.
func TestInstallUpgradeRollbackUninstall(t *testing.T) {
	c := clustertest.Get(t)
	nodes, err := c.AddNodes(t.Context(), "upgrade", 2, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddNamespace(t.Context(), "upgrade", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.AddNamespace(t.Context(), namespace, nil); err != nil {
		t.Fatal(err)
	}
	const values = "policy: {mode: enforce}\npools: [{name: gpu, preset: nvidia}]\n"
	release(t, c, "install", olderChart(t), values)
	installed := owned(t, c)
	first := daemonSet(t, c)
	if first.Status.NumberReady != int32(len(nodes)) {
		t.Errorf("%d pods are ready, want one on each of %s", first.Status.NumberReady, nodes)
	}

	release(t, c, "upgrade", ".", "policy: {mode: enforce}\npools: [{name: gpu, preset: nvidia, tag: 0.0.9}]\n")
	if second := daemonSet(t, c); second.Generation != first.Generation {
		t.Error("the newer remediator restarts the plugins:", cmp.Diff(first.Spec, second.Spec))
	}
	if got := remediatorImage(t, c); got != "ghcr.io/pitcrew-dev/remediator:0.1.0" {
		t.Errorf("the remediator is %s", got)
	}

	release(t, c, "upgrade", ".", `pools: [{name: gpu, preset: nvidia, checks: {HCAPortDown: {}}}, {name: metax, preset: metax}]
preflight: {namespaces: [upgrade]}
`)
	if third := daemonSet(t, c); third.Spec.Template.Spec.Containers[0].Image != "ghcr.io/pitcrew-dev/npd-plugins:0.1.0" {
		t.Errorf("the plugins are %s", third.Spec.Template.Spec.Containers[0].Image)
	}

	mustHelm(t, c, "rollback", "pitcrew", "1", "--wait", "--timeout=5m")
	if diff := cmp.Diff(installed, owned(t, c)); diff != "" {
		t.Error("after the rollback:", diff)
	}
	if diff := cmp.Diff(first.Spec.Template.Spec, daemonSet(t, c).Spec.Template.Spec); diff != "" {
		t.Error("after the rollback:", diff)
	}

	addMarks(t, c, nodes[0])
	job := jobWithPastRestart(t, c, "upgrade")
	uninstall(t, c)
	clustertest.Until(t, 3*time.Minute, "uninstall", func() error { return nothing(owned(t, c)) })
	isClean(t, c, nodes[0])
	if out := kubectl(t, c, "get", "job", job, "--namespace=upgrade", "--output=jsonpath={.metadata.annotations}{.metadata.labels}"); strings.Contains(out, "pitcrew.dev/restart\"") || strings.Contains(out, conditions.LabelRestarting) {
		t.Errorf("left on the job: %s", out)
	}
	if out := kubectl(t, c, "get", "configmaps,leases,jobs", "--namespace="+namespace, "--output=name"); strings.TrimSpace(out) != "configmap/kube-root-ca.crt" {
		t.Errorf("left in the namespace: %s", out)
	}
	pitcrew(t, c, "uninstall", "--yes") // the namespace
}

// uninstall runs helm uninstall. No container runs on the nodes here: the command of the hook's Job runs on this machine instead, with
// a token of the Job's account. e2e/node runs the Job on a real kubelet.
func uninstall(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := tryHelm(t, c, "uninstall", "pitcrew", "--wait", "--timeout=5m")
		ended <- err
	}()
	var job batchv1.Job
	clustertest.Until(t, 3*time.Minute, "the hook's Job runs", func() error {
		select {
		case err := <-ended:
			t.Fatalf("helm uninstall ended without it: %v", err)
		default:
		}
		if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-uninstall"}, &job); err != nil {
			return err
		}
		if job.Status.Active != 1 {
			return fmt.Errorf("status %+v", job.Status)
		}
		return nil
	})
	pod := job.Spec.Template.Spec
	config, err := c.ServiceAccountConfig(t.Context(), namespace, pod.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.WriteKubeconfig("uninstall", config)
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.Containers[0].Command; !slices.Equal(got, []string{"/kubectl-pitcrew"}) {
		t.Errorf("the hook runs %q", got)
	}
	if err := plugin(t, c, kubeconfig, pod.Containers[0].Args...); err != nil {
		t.Error(err)
	}
	kubectl(t, c, "label", "pods", "--namespace="+namespace, "--selector=job-name="+job.Name, "e2e.pitcrew.dev/complete=true")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// jobWithPastRestart makes a job that the remediator has restarted.
func jobWithPastRestart(t *testing.T, c *cluster.Cluster, in string) string {
	t.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "restarted", Annotations: map[string]string{conditions.AnnotationRestart: "{}"}},
		Spec: batchv1.JobSpec{Suspend: new(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none"}},
		}}},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	return job.Name
}

// Whoever applies the output of helm template must not uninstall Pitcrew by that.
func TestNoHookIsRenderedWithoutACluster(t *testing.T) {
	for _, o := range mustRender(t, "{}") {
		if hook := o.GetAnnotations()["helm.sh/hook"]; hook != "" || o.GetName() == "pitcrew-uninstall" {
			t.Errorf("%s %s, hook %q", o.GetKind(), o.GetName(), hook)
		}
	}
}

// The Job of the hook has no right that the remediator has not, but to remove programs and what they keep in the namespace, and the
// Jobs on nodes where there may be any.
func TestTheUninstallHookMayOnlyCleanUp(t *testing.T) {
	c := clustertest.Get(t)
	hook := func(values string) []*unstructured.Unstructured {
		out, err := tryHelm(t, c, "template", "pitcrew", ".", "--dry-run=server", "--set", "npd.refuseOtherWriters=false,"+values, "--show-only", "templates/uninstall.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, out)
	}
	for _, o := range there(hook("repair.enabled=false")) {
		t.Errorf("without repair.enabled: %s %s", o.GetKind(), o.GetName())
	}
	objects := hook("repair.enabled=true")
	want := []rbacv1.PolicyRule{{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "list", "delete"}}}
	if diff := cmp.Diff(want, find[rbacv1.Role](t, there(objects), "Role", "pitcrew-uninstall").Rules); diff != "" {
		t.Error(diff)
	}
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "pitcrew-uninstall", Namespace: namespace}}
	binding := find[rbacv1.RoleBinding](t, there(objects), "RoleBinding", "pitcrew-uninstall")
	if diff := cmp.Diff(account, binding.Subjects); diff != "" || binding.RoleRef.Kind != "Role" || binding.RoleRef.Name != "pitcrew-uninstall" {
		t.Errorf("%+v: %s", binding.RoleRef, diff)
	}
	theirs := find[rbacv1.ClusterRole](t, mustRender(t, "{}"), "ClusterRole", "pitcrew-remediator")
	for _, rule := range find[rbacv1.ClusterRole](t, objects, "ClusterRole", "pitcrew-uninstall").Rules {
		if !slices.ContainsFunc(theirs.Rules, func(r rbacv1.PolicyRule) bool { return cmp.Equal(r, rule) }) {
			t.Errorf("the remediator may not %+v", rule)
		}
		for _, resource := range []string{"pods", "pods/eviction", "events", "namespaces"} {
			if slices.Contains(rule.Resources, resource) {
				t.Errorf("it may %s %s in all namespaces", rule.Verbs, resource)
			}
		}
	}
	for _, o := range objects {
		if o.GetAnnotations()["helm.sh/hook"] != "pre-delete" {
			t.Errorf("%s %s is not only for the uninstall", o.GetKind(), o.GetName())
		}
	}
}

// olderChart is the chart in a version before this one.
func olderChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pitcrew")
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "Chart.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	older := regexp.MustCompile(`(?m)^(version|appVersion): .*$`).ReplaceAll(text, []byte("$1: 0.0.9"))
	if err := os.WriteFile(path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Without Helm: one file installs everything, one command removes it.
func TestApplyAndUninstall(t *testing.T) {
	c := clustertest.Get(t)
	nodes, err := c.AddNodes(t.Context(), "apply", 2, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" })
	if err != nil {
		t.Fatal(err)
	}
	// As docs/install.md has it. A newer install.yaml neither conflicts with a policy that was edited, nor sets it back.
	kubectl(t, c, "apply", "--server-side", "--validate=strict", "-f", "../install.yaml")
	kubectl(t, c, "create", "configmap", "pitcrew-policy", "--namespace", namespace, "--from-file=../policy.yaml")
	editor := "sed -i 's/^      mode: observe$/      mode: enforce/;s/^    mode: observe$/    mode: enforce/'"
	edit := exec.CommandContext(t.Context(), components.Kube.Path(c.Root), "kubectl", "--kubeconfig", c.Kubeconfig, "edit", "configmap", "pitcrew-policy", "--namespace", namespace)
	edit.Env = append(os.Environ(), "KUBE_EDITOR="+editor)
	if out, err := edit.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	newer, err := os.ReadFile("../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "install.yaml")
	if err := os.WriteFile(file, bytes.ReplaceAll(newer, []byte(":0.1.0"), []byte(":0.1.1")), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "apply", "--server-side", "--validate=strict", "-f", file)
	if out := kubectl(t, c, "get", "configmap", "pitcrew-policy", "--namespace", namespace, "--output=yaml"); !strings.Contains(out, "mode: enforce\n") {
		t.Error("the policy was set back")
	}
	kubectl(t, c, "rollout", "status", "--namespace", namespace, "--timeout=5m", "deployment/pitcrew-remediator")
	kubectl(t, c, "rollout", "status", "--namespace", namespace, "--timeout=5m", "daemonset/pitcrew-npd-nvidia")
	writesItsOwnNodeOnly(t, c, nodes[0], nodes[1])
	addMarks(t, c, nodes[0])
	clean(t, c, nodes[0])
	if err := nothing(owned(t, c)); err != nil {
		t.Error(err)
	}
}

// writesItsOwnNodeOnly tests that the Node Problem Detector on a node may do its work there, and not on another one.
func writesItsOwnNodeOnly(t *testing.T, c *cluster.Cluster, own, other string) {
	t.Helper()
	var pods corev1.PodList
	if err := c.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": own},
		client.MatchingLabels{"app.kubernetes.io/name": "pitcrew-node-problem-detector"}); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods on %s, %v", len(pods.Items), own, err)
	}
	pod := pods.Items[0]
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Spec.ServiceAccountName}}
	if err := c.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Admin)
	config.BearerToken = request.Status.Token
	npd, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(node, message string) error {
		text := fmt.Sprintf(`{"status":{"conditions":[{"type":"GPUXidError","status":"False","reason":"GPUKernelLogChecked","message":%q}]}}`, message)
		_, err := npd.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "status")
		return err
	}
	if err := write(own, "by itself"); err != nil {
		t.Error(err)
	}
	tries := 0
	clustertest.Until(t, 3*time.Minute, "the admission policy is in force", func() error {
		tries++ // another message each time, for a patch that changes nothing is not admitted either way
		err := write(other, fmt.Sprint(tries))
		if err == nil {
			return fmt.Errorf("%s writes to %s", own, other)
		}
		if !strings.Contains(err.Error(), "its own node only") {
			return err
		}
		return nil
	})
}

// The remediator's pods are allowed where the restricted pod security standard is enforced.
func TestTheRemediatorIsRestricted(t *testing.T) {
	c := clustertest.Get(t)
	if _, err := c.AddNodes(t.Context(), "restricted", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.AddNamespace(t.Context(), namespace, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}); err != nil {
		t.Fatal(err)
	}
	release(t, c, "install", ".", "{}") // waits for both replicas
	// It removes what Helm has installed, and Helm's record of it.
	pitcrew(t, c, "uninstall", "--yes")
	if err := nothing(owned(t, c)); err != nil {
		t.Error(err)
	}
	if out, err := tryHelm(t, c, "list", "--short"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("helm list: %s, %v", out, err)
	}
}

func TestOtherWritersAreRefused(t *testing.T) {
	c := clustertest.Get(t)
	if err := c.AddNamespace(t.Context(), namespace, nil); err != nil {
		t.Fatal(err)
	}
	const pool = "pools: [{name: p, nodeSelector: {fabric: a}, checks: {GPUXidError: {}}}]"
	const theirs, ours = "XidErrorsFound", "GPUKernelLogChecked"
	for name, test := range map[string]struct {
		reason, fabric, values string
		age                    time.Duration
		refused                bool
	}{
		"another writer":                {theirs, "a", pool, 0, true},
		"our monitor in another NPD":    {ours, "a", pool, 0, true},
		"by expression":                 {theirs, "a", "pools: [{name: p, matchExpressions: [{key: fabric, operator: In, values: [a]}], checks: {GPUXidError: {}}}]", 0, true},
		"a leftover":                    {theirs, "a", pool, time.Hour, false},
		"on another node":               {theirs, "b", pool, 0, false},
		"of another type":               {theirs, "a", "pools: [{name: p, nodeSelector: {fabric: a}, checks: {NVLinkDown: {}}}]", 0, false},
		"by expression on another node": {theirs, "b", "pools: [{name: p, matchExpressions: [{key: fabric, operator: NotIn, values: [b]}, {key: fabric, operator: Exists}], checks: {GPUXidError: {}}}]", 0, false},
		"known to be fine":              {theirs, "a", pool + "\nnpd: {refuseOtherWriters: false}", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			writes(t, c, test.reason, test.fabric, test.age)
			_, err := tryHelm(t, c, "install", "pitcrew", ".", "--dry-run=server", "--values", valuesFile(t, test.values))
			refused := err != nil && strings.Contains(err.Error(), "another component already writes condition GPUXidError of node writer (reason "+test.reason)
			if refused != test.refused || !refused && err != nil {
				t.Errorf("refused %v (%v), want %v", refused, err, test.refused)
			}
		})
	}
	writes(t, c, theirs, "a", 0) // the last of the tests above, which run in any order, may have moved the node
	_, err := tryHelm(t, c, "install", "pitcrew", ".", "--dry-run=server", "--values", valuesFile(t,
		"pools: [{name: p, nodeSelector: {fabric: a}, checks: {NVLinkDown: {}}}, {name: q, matchExpressions: [{key: fabric, operator: Exists}], checks: {NVLinkDown: {}}}]"))
	if err == nil || !strings.Contains(err.Error(), "node writer is in the pools p and q, which both write NVLinkDown") {
		t.Errorf("two pools with one node: %v", err)
	}
	// After the installation Pitcrew's own NPD writes the condition. Another writer may still be added.
	mustHelm(t, c, "install", "pitcrew", ".", "--values", valuesFile(t, "remediator: {enabled: false}"))
	writes(t, c, ours, "a", 0)
	mustHelm(t, c, "upgrade", "pitcrew", ".", "--dry-run=server", "--values", valuesFile(t, pool))
	writes(t, c, theirs, "a", 0)
	if _, err := tryHelm(t, c, "upgrade", "pitcrew", ".", "--dry-run=server", "--values", valuesFile(t, pool)); err == nil {
		t.Error("an upgrade does not check for other writers")
	}
	mustHelm(t, c, "uninstall", "pitcrew", "--no-hooks", "--wait", "--timeout=5m")
	pitcrew(t, c, "uninstall", "--yes")
}

// A viewer sees everything and changes nothing; an operator does what `kubectl pitcrew` does, and no more.
func TestUserRoles(t *testing.T) {
	c := clustertest.Get(t)
	if _, err := c.AddNodes(t.Context(), "roles", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.AddNamespace(t.Context(), namespace, nil); err != nil {
		t.Fatal(err)
	}
	release(t, c, "install", ".", `userRoles:
  viewers: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: dev}]
  operators: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: sre}]
`)
	for _, test := range []struct {
		command          string
		viewer, operator bool
	}{
		{"status", true, true},
		{"describe roles-0", true, true},
		{"quarantine roles-0 --yes --timeout 1s", false, true}, // as release, repair and check, it writes a request
		{"pause --yes", false, true},
		{"resume --yes", false, true},
	} {
		for i, group := range []string{"dev", "sre"} {
			allowed := []bool{test.viewer, test.operator}[i]
			err := asUser(t, c, group, strings.Fields(test.command)...)
			if err != nil && (strings.Contains(err.Error(), "no leader: there is no Lease") || strings.Contains(err.Error(), "no remediator has answered")) {
				err = nil // which is so: nothing runs in the pods here
			}
			if allowed && err != nil || !allowed && (err == nil || !strings.Contains(err.Error(), "forbidden")) {
				t.Errorf("kubectl pitcrew %s by %s: %v, allowed %v", test.command, group, err, allowed)
			}
		}
	}
	for _, question := range []string{"delete nodes", "get secrets -n pitcrew", "create pods -n pitcrew", "update configmaps -n pitcrew", "create pods/exec -n default"} {
		args := append([]string{"auth", "can-i", "--as=one", "--as-group=sre"}, strings.Fields(question)...)
		if out, err := c.Kubectl(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "no") {
			t.Errorf("an operator can %s: %s%v", question, out, err)
		}
	}
	mustHelm(t, c, "uninstall", "pitcrew", "--no-hooks", "--wait", "--timeout=5m")
	pitcrew(t, c, "uninstall", "--yes")
}

// asUser runs the kubectl plugin as a user of a group.
func asUser(t *testing.T, c *cluster.Cluster, group string, args ...string) error {
	t.Helper()
	config, err := c.Config("one-of-"+group, group)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.WriteKubeconfig(group, config)
	if err != nil {
		t.Fatal(err)
	}
	return plugin(t, c, kubeconfig, args...)
}

// writes gives node writer the condition GPUXidError, as another component wrote it some time ago.
func writes(t *testing.T, c *cluster.Cluster, reason, fabric string, age time.Duration) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "writer"}}
	if err := client.IgnoreAlreadyExists(c.Client.Create(t.Context(), node.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	patch(t, c, "", node.Name, fmt.Sprintf(`{"metadata":{"labels":{"fabric":%q}}}`, fabric))
	patch(t, c, "status", node.Name, fmt.Sprintf(`{"status":{"conditions":[{"type":"GPUXidError","status":"False","reason":%q,"lastHeartbeatTime":%q}]}}`,
		reason, time.Now().Add(-age).UTC().Format(time.RFC3339)))
}

// addMarks writes on a node what plugins and remediator write.
func addMarks(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	patch(t, c, "", name, fmt.Sprintf(`{"metadata":{"labels":{%q:"quarantined"}},"spec":{"taints":[{"key":%q,"value":"GPUXidError","effect":"NoSchedule"}]}}`,
		conditions.LabelStatus, conditions.TaintUnhealthy))
	patch(t, c, "status", name, `{"status":{"conditions":[{"type":"GPUXidError","status":"True","reason":"GPUXidSeen"}]}}`)
}

// clean runs `kubectl pitcrew uninstall` and tests that the node is as it was before the installation, and that the namespace is gone.
func clean(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	pitcrew(t, c, "uninstall", "--yes")
	isClean(t, c, name)
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
}

// isClean tests that a node is as it was before the installation.
func isClean(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	var node corev1.Node
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	if len(node.Spec.Taints) > 0 || node.Labels[conditions.LabelStatus] != "" ||
		slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return conditions.Ours(string(c.Type)) }) {
		t.Errorf("taints %v, labels %v, conditions %v", node.Spec.Taints, node.Labels, node.Status.Conditions)
	}
}

// pitcrew runs the kubectl plugin as admin.
func pitcrew(t *testing.T, c *cluster.Cluster, args ...string) {
	t.Helper()
	if err := plugin(t, c, c.Kubeconfig, args...); err != nil {
		t.Fatal(err)
	}
}

func plugin(t *testing.T, c *cluster.Cluster, kubeconfig string, args ...string) error {
	t.Helper()
	if err := components.BuildOurs(t.Context(), c.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Root, "bin", "kubectl-pitcrew"), append(args, "--kubeconfig", kubeconfig)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl pitcrew %q: %w: %s", args, err, out)
	}
	return nil
}

// patch patches a Node or its status.
func patch(t *testing.T, c *cluster.Cluster, subresource, name, text string) {
	t.Helper()
	kubectl(t, c, "patch", "node", name, "--subresource="+subresource, "--patch", text)
}

// owned lists all objects in the cluster that have our label, except those that exist only with pods, and those that the API server
// warns about.
func owned(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	kinds := strings.Fields(kubectl(t, c, "api-resources", "--verbs=list", "--output=name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool {
		return slices.Contains([]string{"pods", "replicasets.apps", "controllerrevisions.apps", "componentstatuses", "endpoints"}, kind)
	})
	out := kubectl(t, c, "get", strings.Join(kinds, ","), "--all-namespaces", "--selector=app.kubernetes.io/part-of=pitcrew",
		"--output=jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

func nothing(left []string) error {
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return nil
}

func daemonSet(t *testing.T, c *cluster.Cluster) *appsv1.DaemonSet {
	t.Helper()
	var ds appsv1.DaemonSet
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-npd-gpu"}, &ds); err != nil {
		t.Fatal(err)
	}
	return &ds
}

func remediatorImage(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	var d appsv1.Deployment
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-remediator"}, &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0].Image
}

// release installs or upgrades the release and waits until its pods are ready.
func release(t *testing.T, c *cluster.Cluster, verb, chart, values string) {
	t.Helper()
	mustHelm(t, c, verb, "pitcrew", chart, "--wait", "--timeout=5m", "--values", valuesFile(t, values))
}

func valuesFile(t *testing.T, values string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func tryHelm(t *testing.T, c *cluster.Cluster, args ...string) (string, error) {
	return helm(t.Context(), append(args, "--kubeconfig", c.Kubeconfig, "--namespace", namespace)...)
}

func mustHelm(t *testing.T, c *cluster.Cluster, args ...string) {
	t.Helper()
	if _, err := tryHelm(t, c, args...); err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
