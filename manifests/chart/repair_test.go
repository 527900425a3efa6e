package chart_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const repairEnabled = "repair: {enabled: true}\n"

func TestNothingRunsOnNodesByDefault(t *testing.T) {
	text, err := render(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	// The name of the label and the annotation is in admission policies.
	if text = strings.ReplaceAll(text, conditions.AnnotationRepair, ""); strings.Contains(text, "repair-") || strings.Contains(text, "-repair") || strings.Contains(text, "PodTemplate") {
		t.Error("without values there is something about repairs")
	}
	objects := mustRender(t, repairEnabled)
	namespace := find[corev1.Namespace](t, objects, "Namespace", conditions.RepairNamespace)
	if namespace.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Errorf("labels %v", namespace.Labels)
	}
	args := find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "-repair-namespace="+conditions.RepairNamespace) {
		t.Errorf("args %q", args)
	}
	policy := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-repair")
	closed := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
	if diff := cmp.Diff(closed, policy.Spec); diff != "" || policy.Namespace != conditions.RepairNamespace {
		t.Errorf("in %s: %s", policy.Namespace, diff)
	}
}

// podTemplates are the rendered templates by name.
func podTemplates(t *testing.T, objects []*unstructured.Unstructured) map[string]corev1.PodTemplate {
	t.Helper()
	all := map[string]corev1.PodTemplate{}
	for _, o := range objects {
		if o.GetKind() == "PodTemplate" {
			if o.GetNamespace() != conditions.RepairNamespace {
				t.Errorf("%s is in %s", o.GetName(), o.GetNamespace())
			}
			all[o.GetName()] = find[corev1.PodTemplate](t, objects, "PodTemplate", o.GetName())
		}
	}
	return all
}

// What runs on a node has what its program needs there, and no rights in the cluster.
func TestRepairTemplates(t *testing.T) {
	const shared = "/run/pitcrew, /var/lib/kubelet/pod-resources ro, /var/log/pods ro, /run/systemd ro, /->/host"
	wanted := map[string]struct{ args, privileges, verdict string }{
		"check":     {"check", "privileged, the host's processes: " + shared + " ro", "DCGMDiagFailed"},
		"reset-gpu": {"reset-gpu -gpu=$(GPUS)", "privileged, the host's processes: " + shared, ""},
		"reboot":    {"reboot -boot-id=$(BOOT_ID)", "drop [ALL] add [DAC_READ_SEARCH SYS_PTRACE], the host's processes: /run/dbus ro, /var/lib/kubelet/pod-resources ro, /var/log/pods ro", ""},
	}
	templates := podTemplates(t, mustRender(t, repairEnabled))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(wanted)), slices.Sorted(maps.Keys(templates))); diff != "" {
		t.Fatal(diff)
	}
	for name, want := range wanted {
		template := templates[name]
		pod := template.Template.Spec
		first := pod.Containers[0]
		if got := strings.Join(first.Args, " "); got != want.args || !slices.Equal(first.Command, []string{"/opt/pitcrew/bin/repair"}) {
			t.Errorf("%s: %q %q", name, first.Command, got)
		}
		// The mount of the state has another name in other pods: privileges leaves it out.
		for i := range first.VolumeMounts {
			first.VolumeMounts[i].Name += "-"
			pod.Volumes[i].Name += "-"
		}
		got := privileges(pod)
		if pod.HostPID {
			got = strings.Replace(got, ":", ", the host's processes:", 1)
		}
		if got != want.privileges || pod.HostNetwork || pod.HostIPC || !*first.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("%s: %s", name, got)
		}
		if verdict := template.Annotations[conditions.AnnotationVerdict]; verdict != want.verdict || verdict != "" && !conditions.Ours(verdict) {
			t.Errorf("%s: the verdict is %q", name, verdict)
		}
		if pauses := template.Annotations[conditions.AnnotationPauses]; (name == "reset-gpu") != (pauses == conditions.PausesGPUOperator) {
			t.Errorf("%s: it pauses %q", name, pauses)
		}
		if pod.ServiceAccountName != "pitcrew-repair" || !cmp.Equal(pod.AutomountServiceAccountToken, ptr.To(false)) || pod.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("%s: account %s, token %v, restart %s", name, pod.ServiceAccountName, pod.AutomountServiceAccountToken, pod.RestartPolicy)
		}
		onlyWorkers(t, name, &template.Template)
	}
}

// Off, nothing of it is rendered. On, one template reads all of the node and writes only bundles, and the other one reads only these.
func TestTemplatesOfEvidence(t *testing.T) {
	const on = "repair: {enabled: true, collect: {enabled: true, keep: 5%s}}\n"
	if templates := podTemplates(t, mustRender(t, repairEnabled)); len(templates) != 3 {
		t.Errorf("off: %v", slices.Sorted(maps.Keys(templates)))
	}
	for name, test := range map[string]struct{ values, volume string }{
		"a folder": {"", "/var/lib/pitcrew/evidence->/evidence"}, "a claim": {", claim: evidence", "claim evidence->/evidence"},
	} {
		objects := mustRender(t, fmt.Sprintf(on, test.values))
		templates := podTemplates(t, objects)
		admitsOnly(t, objects, []string{"check", "collect", "print-bundle", "reboot", "reset-gpu"})
		collect, reader := templates["collect"].Template.Spec, templates["print-bundle"].Template.Spec
		args := strings.Join(collect.Containers[0].Args, " ")
		if args != "collect -node=$(NODE) -keep=5 -max-size=64 -min-free=15 -timeout=2m" || !*collect.Containers[0].SecurityContext.Privileged {
			t.Errorf("%s: collect %q", name, args)
		}
		for _, m := range collect.Containers[0].VolumeMounts {
			if m.MountPath == "/host" && !m.ReadOnly {
				t.Errorf("%s: collect may write to the node: %+v", name, m)
			}
		}
		container := reader.Containers[0]
		if !slices.Equal(container.Args, []string{"print-bundle", "-node=$(NODE)"}) || reader.HostPID || container.SecurityContext.Privileged != nil ||
			len(reader.Volumes) != 1 || len(container.VolumeMounts) != 1 || !container.VolumeMounts[0].ReadOnly {
			t.Errorf("%s: print-bundle %+v", name, reader)
		}
		for _, pod := range []corev1.PodSpec{collect, reader} {
			volume, at := pod.Volumes[len(pod.Volumes)-1], pod.Containers[0].VolumeMounts[len(pod.Volumes)-1]
			got := "claim "
			if volume.HostPath != nil {
				got = volume.HostPath.Path
			} else {
				got += volume.PersistentVolumeClaim.ClaimName
			}
			if got+"->"+at.MountPath != test.volume {
				t.Errorf("%s: the bundles are in %s at %s", name, got, at.MountPath)
			}
		}
		for _, template := range templates {
			onlyWorkers(t, name, &template.Template)
		}
	}
}

// onlyWorkers tests that the kubelet of a node that is never repaired refuses a pod of the template.
func onlyWorkers(t *testing.T, name string, template *corev1.PodTemplateSpec) {
	t.Helper()
	affinity := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: template.Spec})
	for text, want := range map[string]bool{
		`{}`:                            true,
		`{"pitcrew.dev/skip": "false"}`: true,
		`{"pitcrew.dev/skip": "true"}`:  false,
		`{"node-role.kubernetes.io/control-plane": ""}`: false,
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if err := json.Unmarshal([]byte(text), &node.Labels); err != nil {
			t.Fatal(err)
		}
		if got, err := affinity.Match(node); err != nil || got != want {
			t.Errorf("%s on a node with %s: %t, %v", name, text, got, err)
		}
	}
}

// The kubelet of some distributions has another folder. Without its socket nothing knows which pods have a GPU.
func TestAKubeletElsewhere(t *testing.T) {
	const pool = "pools: [{name: a, nodeSelector: {a: b}, checks: {ContainersBroken: {}}}]\n"
	for values, want := range map[string]string{
		"": "/var/lib/kubelet/pod-resources", "npd: {kubeletDir: /var/lib/k0s/kubelet/}": "/var/lib/k0s/kubelet/pod-resources",
	} {
		objects := mustRender(t, repairEnabled+pool+values)
		pods := map[string]corev1.PodSpec{"pool": find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-a").Spec.Template.Spec}
		for name, template := range podTemplates(t, objects) {
			pods[name] = template.Template.Spec
		}
		for name, pod := range pods {
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == want }) {
				t.Errorf("%s has no %s: %v", name, want, pod.Volumes)
			}
		}
	}
}

// Each program asks who holds a GPU, and the driver's own pods of an operator in another namespace must not count.
func TestTheDriversNamespaces(t *testing.T) {
	const elsewhere = "repair: {enabled: true, driverNamespaces: [nvidia-gpu-operator, gpu]}"
	for values, want := range map[string]string{repairEnabled: "", elsewhere: "-driver-namespaces=nvidia-gpu-operator,gpu"} {
		for name, template := range podTemplates(t, mustRender(t, values)) {
			args := template.Template.Spec.Containers[0].Args
			if flag := args[len(args)-1]; want != "" && flag != want || want == "" && strings.Contains(flag, "namespaces") {
				t.Errorf("%s runs with %q", name, args)
			}
		}
	}
}

func TestTemplatesOfTheValues(t *testing.T) {
	objects := mustRender(t, `
image: {registry: r, tag: '1', pullSecrets: [{name: registry}]}
npd: {stateDir: /var/pitcrew}
repair:
  enabled: true
  tag: '2'
  templates:
    burn-in:
      annotations: {pitcrew.dev/verdict: BurnInFailed}
      spec: {hostNetwork: true, containers: [{name: burn, image: ours, args: [-node, $(NODE)]}]}
    reboot:
      spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}, containers: [{name: ipmi, image: ipmi}]}
`)
	templates := podTemplates(t, objects)
	own := templates["burn-in"]
	if pod := own.Template.Spec; own.Annotations[conditions.AnnotationVerdict] != "BurnInFailed" || !pod.HostNetwork || pod.ServiceAccountName != "pitcrew-repair" || pod.RestartPolicy != corev1.RestartPolicyNever || len(pod.ImagePullSecrets) != 1 {
		t.Errorf("%+v", own)
	}
	onlyWorkers(t, "burn-in", &own.Template)
	if pod := templates["reboot"].Template.Spec; pod.Containers[0].Image != "ipmi" || len(pod.Volumes) > 0 ||
		pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key != "a" {
		t.Errorf("in place of the shipped one: %+v", pod)
	}
	if pod := templates["check"].Template.Spec; pod.Containers[0].Image != "r/npd-plugins:2" || pod.Volumes[0].HostPath.Path != "/var/pitcrew" || len(pod.ImagePullSecrets) != 1 {
		t.Errorf("check: %+v", pod)
	}
	admitsOnly(t, objects, slices.Sorted(maps.Keys(templates)))
	admitsOnly(t, mustRender(t, repairEnabled), []string{"check", "reboot", "reset-gpu"})
	if names := policies(t, repairEnabled+"admissionPolicies: false"); len(names) > 0 {
		t.Errorf("switched off, there are %s", names)
	}
}

// admitsOnly tests that the admission policies know the templates that there are: a Job of one that they do not compare would be
// refused, and one without its binding would not be compared.
func admitsOnly(t *testing.T, objects []*unstructured.Unstructured, templates []string) {
	t.Helper()
	var bound []string
	for _, o := range objects {
		if !strings.HasPrefix(o.GetName(), "pitcrew-repair-templates-") {
			continue
		}
		binding := find[admissionv1.ValidatingAdmissionPolicyBinding](t, objects, "ValidatingAdmissionPolicyBinding", o.GetName())
		name := strings.TrimPrefix(o.GetName(), "pitcrew-repair-templates-")
		want := admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "pitcrew-repair-templates", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			ParamRef:       &admissionv1.ParamRef{Name: name, Namespace: conditions.RepairNamespace, ParameterNotFoundAction: ptr.To(admissionv1.DenyAction)},
			MatchResources: &admissionv1.MatchResources{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{conditions.LabelTemplate: name}}},
		}
		if diff := cmp.Diff(want, binding.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		bound = append(bound, name)
	}
	if slices.Sort(bound); !slices.Equal(bound, templates) {
		t.Errorf("templates %q, bindings %q", templates, bound)
	}
	spec := find[admissionv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy", "pitcrew-repair-jobs").Spec
	var known []string
	if err := json.Unmarshal([]byte(strings.ReplaceAll(spec.Variables[0].Expression, "'", `"`)), &known); err != nil || spec.Variables[0].Name != "templates" {
		t.Fatal(spec.Variables[0], err)
	}
	if slices.Sort(known); !slices.Equal(known, templates) {
		t.Errorf("templates %q, the policy knows %q", templates, known)
	}
}

// Of all namespaces the remediator creates Jobs in one, and it changes no template.
func TestTheRemediatorCreatesJobsInOneNamespace(t *testing.T) {
	for _, o := range mustRender(t, everything) {
		if o.GetKind() != "Role" && o.GetKind() != "ClusterRole" {
			continue
		}
		rules := find[rbacv1.ClusterRole](t, []*unstructured.Unstructured{o}, o.GetKind(), o.GetName()).Rules
		for _, r := range rules {
			creates := slices.Contains(r.Verbs, "create") && (slices.Contains(r.Resources, "jobs") || slices.Contains(r.Resources, "repairjobs"))
			if creates && (o.GetKind() != "Role" || o.GetNamespace() != conditions.RepairNamespace || o.GetName() != "pitcrew-remediator") {
				t.Errorf("%s %s/%s creates %s", o.GetKind(), o.GetNamespace(), o.GetName(), r.Resources)
			}
			if slices.Contains(r.Resources, "podtemplates") && slices.ContainsFunc(r.Verbs, func(verb string) bool { return verb != "get" && verb != "list" && verb != "watch" }) {
				t.Errorf("%s %s/%s may %s PodTemplates", o.GetKind(), o.GetNamespace(), o.GetName(), r.Verbs)
			}
		}
	}
}

// Users see what runs on nodes, and change none of it: viewers and operators have the same role there.
func TestUsersOnlyReadTheJobsOnNodes(t *testing.T) {
	const users = "userRoles: {viewers: [{kind: Group, name: dev}], operators: [{kind: Group, name: sre}]}\n"
	objects := there(mustRender(t, repairEnabled+users))
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "podtemplates"}, Verbs: []string{"get", "list"}},
	}
	if diff := cmp.Diff(want, find[rbacv1.Role](t, objects, "Role", "pitcrew-view").Rules); diff != "" {
		t.Error(diff)
	}
	binding := find[rbacv1.RoleBinding](t, objects, "RoleBinding", "pitcrew-view")
	wantBinding := []rbacv1.Subject{{Kind: "Group", Name: "dev"}, {Kind: "Group", Name: "sre"}}
	if diff := cmp.Diff(wantBinding, binding.Subjects); diff != "" || binding.RoleRef.Kind != "Role" || binding.RoleRef.Name != "pitcrew-view" {
		t.Errorf("%+v: %s", binding.RoleRef, diff)
	}
	for _, o := range objects {
		if o.GetName() == "pitcrew-operate" {
			t.Errorf("operators have a %s of their own there", o.GetKind())
		}
	}
	for _, o := range there(mustRender(t, users)) {
		t.Errorf("without repair.enabled: %s %s", o.GetKind(), o.GetName())
	}
}

// there are the objects in the namespace of the Jobs on nodes.
func there(objects []*unstructured.Unstructured) (all []*unstructured.Unstructured) {
	for _, o := range objects {
		if o.GetNamespace() == conditions.RepairNamespace {
			all = append(all, o)
		}
	}
	return all
}

// A policy that needs Jobs on nodes is not installed without them.
func TestThePolicyNeedsWhatRepairInstalls(t *testing.T) {
	const sweep = "{every: 24h, template: check}"
	for values, want := range map[string]string{
		"policy: {repair: {mode: auto}}":                             "policy.repair needs repair.enabled=true",
		"policy: {repair: {}}":                                       "policy.repair needs repair.enabled=true",
		"policy: {sweeps: {daily: " + sweep + "}}":                   "policy.sweeps needs repair.enabled=true",
		"policy: {firstCheck: {}}":                                   "policy.firstCheck needs repair.enabled=true",
		"policy: {rules: {gpu-xid: {validate: true}}}":               "policy.rules.gpu-xid.validate needs repair.enabled=true",
		"repair: {enabled: true}\nremediator: {enabled: false}":      "repair.enabled needs remediator.enabled",
		"repair: {enabled: true, templates: {Mine: {spec: {}}}}":     "does not match pattern",
		"repair: {enabled: true, templates: {mine: {}}}":             "missing property 'spec'",
		"repair: {enabled: true, templates: {mine: {spec: {a: b}}}}": "missing property 'containers'",
		"repair: {enabled: true, templates: {mine: {image: x}}}":     "image",
		"repair: {enabled: yes please}":                              "want boolean",
		"sweeps: {daily: " + sweep + "}":                             "sweeps",
	} {
		if out, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q\n%.200s", values, err, want, out)
		}
	}
	for _, values := range []string{
		"policy: {repair: {mode: off}}", "policy: {repair: {mode: 'off'}}", "policy: {sweeps: {}}", "policy: {rules: {gpu-xid: {validate: false}}}",
		"remediator: {policyConfigMap: own}", repairEnabled + "policy: {repair: {mode: auto}, sweeps: {daily: " + sweep + "}, firstCheck: {}, rules: {gpu-xid: {validate: true}}}",
	} {
		mustRender(t, values)
	}
}

// A check that no detector reports could never pass: the chart adds the detector where the pool has the hardware, or renders nothing.
func TestPoolsReportWhatProvesTheJobsOfThePolicy(t *testing.T) {
	const pools = "pools: [{name: gpu, preset: nvidia}, {name: metax, preset: metax}]\n"
	const sweep = "sweeps: {daily: {every: 24h, template: check}}"
	monitors := func(values, pool string) []string {
		var names []string
		for name := range find[corev1.ConfigMap](t, mustRender(t, values), "ConfigMap", "pitcrew-npd-"+pool).Data {
			names = append(names, strings.TrimSuffix(name, ".json"))
		}
		return names
	}
	for spec, want := range map[string]bool{
		sweep: true, "firstCheck: {template: check}": true,
		"repair: {validate: {template: check}}, rules: {gpu-xid: {validate: true}}": true,
		"firstCheck: {}": false, "repair: {mode: auto}": false,
	} {
		values := repairEnabled + pools + "policy: {" + spec + "}"
		if got := slices.Contains(monitors(values, "gpu"), conditions.DCGMDiagFailed); got != want {
			t.Errorf("%s: the pool reports DCGMDiagFailed: %t", spec, got)
		}
		if slices.Contains(monitors(values, "metax"), conditions.DCGMDiagFailed) {
			t.Errorf("%s: so does that of MetaX", spec)
		}
	}
	for values, want := range map[string]string{
		"pools: [{name: m, preset: metax}]\npolicy: {" + sweep + "}":                                               "policy.sweeps.daily has template check, which is proven by DCGMDiagFailed, and no pool reports that",
		"pools: [{name: g, preset: nvidia, checks: {DCGMDiagFailed: {enabled: false}}}]\npolicy: {" + sweep + "}":  "pool g: DCGMDiagFailed is switched off, and policy.sweeps.daily has template check, which is proven by it",
		"pools: [{name: m, preset: metax}]\npolicy: {pools: {theirs: {conditions: [GPUXidError]}}, " + sweep + "}": "no pool reports that",
	} {
		if _, err := render(t, repairEnabled+values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
	mustRender(t, repairEnabled+"pools: [{name: m, preset: metax}]\npolicy: {pools: {theirs: {conditions: [DCGMDiagFailed]}}, "+sweep+"}")
	mustRender(t, repairEnabled+"policy: {"+sweep+"}")

	// What the policy says of the pools is what their DaemonSets run on, and what they run.
	p := parsePolicy(t, policyText(t, mustRender(t, repairEnabled+pools+"policy: {firstCheck: {}, pools: {theirs: {nodeSelector: {a: b}, conditions: [KernelDeadlock]}}}")))
	for label, want := range map[string][]string{
		"nvidia.com/gpu.present": monitors(pools, "gpu"), "metax-tech.com/gpu.installed": monitors(pools, "metax"), "a": {"KernelDeadlock"}, "b": nil,
	} {
		slices.Sort(want)
		value := map[string]string{"a": "b"}[label]
		if value == "" {
			value = "true"
		}
		if got, known := p.Reported(map[string]string{label: value}); !slices.Equal(got, want) || known != (want != nil) {
			t.Errorf("a node with %s reports %q, %t, want %q", label, got, known, want)
		}
	}
	if len(p.Warnings) > 0 {
		t.Errorf("warnings %q", p.Warnings)
	}
}

func parsePolicy(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNotesSayWhetherAnythingRunsOnNodes(t *testing.T) {
	const nothing = "Nothing runs on nodes."
	for values, want := range map[string]bool{"policy.mode=observe": false, "repair.enabled=true": true, "repair.enabled=true,policy.repair.mode=auto": false, "repair.enabled=true,policy.repair.mode=off": true} {
		notes, err := helm(t.Context(), "install", "pitcrew", ".", "--namespace", namespace, "--dry-run=client", "--set", values)
		if err != nil {
			t.Fatal(err)
		}
		if _, notes, _ = strings.Cut(notes, "\nNOTES:"); strings.Contains(notes, nothing) != want {
			t.Errorf("%s: %s", values, notes)
		}
	}
}
