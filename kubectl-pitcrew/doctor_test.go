package main

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/node"
)

// The doctor finds what is wrong on a real control plane, and says what to do.
func TestTheDoctorFindsWhatIsWrong(t *testing.T) {
	p := NewPerson(t)
	names, err := p.AddNodes(t.Context(), "ward", 3, func(n *corev1.Node) {
		if n.Name == "ward-0" {
			n.Annotations[conditions.AnnotationQuarantine] = "{"
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeleteNodes(p.Cluster.Context(), names...); err != nil {
			t.Error(err)
		}
	})
	p.wants(2, "doctor", "problem  pitcrew", "not installed in namespace pitcrew", "problem  detectors", "nothing is checked", "helm upgrade --reuse-values --set 'pools[0].name=gpu,pools[0].preset=nvidia'",
		"ok       your rights", "person may look at everything, quarantine, release, clear and pause",
		"problem  records", "annotation pitcrew.dev/quarantine cannot be read, so the remediator leaves the node alone: ward-0",
		"warning  opt-in", "no job and no namespace is opted in")

	p.namespace()
	p.wants(2, "doctor", "problem  remediator's rights", "system:serviceaccount:pitcrew:pitcrew-remediator has none of its rights")
	if err := p.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "doctor", "ok       remediator's rights", "ok       job kinds", "served: Job, ", "warning  admission policies", "missing: pitcrew-job-records, pitcrew-node-records")
	p.shipped("ValidatingAdmissionPolicy pitcrew-job-records")
	p.wants(2, "doctor", "no binding with Deny: pitcrew-job-records")
	p.gone(policyOf("pitcrew-job-records"))

	// A role that lacks something, as after an upgrade without the roles.
	var role rbacv1.ClusterRole
	if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "pitcrew-remediator"}, &role); err != nil {
		t.Fatal(err)
	}
	for i, rule := range role.Rules {
		for j, name := range rule.Resources {
			if name == "pods/eviction" || name == "jobs" {
				role.Rules[i].Resources[j] = "nothing"
			}
		}
	}
	if err := p.Client.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "doctor", "system:serviceaccount:pitcrew:pitcrew-remediator may not create pods/eviction", "kubectl apply -f manifests/remediator/rbac.yaml",
		"problem  job kinds", "jobs of kind Job are not restarted: the remediator may not get jobs.batch, list jobs.batch, watch jobs.batch, patch jobs.batch")
	if err := p.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "doctor", "ok       remediator's rights")
	p.unrestricted()

	// Detectors: no node, then a node whose pod is not ready, then ready.
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "pitcrew-npd-gpu", Labels: map[string]string{cli.LabelName: cli.OwnNPD, cli.LabelPool: "gpu"}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{cli.LabelPool: "gpu"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{cli.LabelName: cli.OwnNPD, cli.LabelPool: "gpu"}},
				Spec: corev1.PodSpec{
					Containers:   []corev1.Container{{Name: node.ContainerNPD, Image: "none"}},
					NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "nvidia.com/gpu.present", Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}},
					}}}}},
				},
			},
		},
	}
	if err := p.Client.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	p.gone(set)
	p.wants(2, "doctor", "problem  detectors", "pool gpu: 0 of 0 ready: no node matches: no node has label nvidia.com/gpu.present in (true)", "docs/install.md")
	p.patch("ward-1", `{"metadata":{"labels":{"nvidia.com/gpu.present":"true","kubernetes.io/os":"linux"}}}`)
	p.wants(2, "doctor", "ok       detectors", "pool gpu: 1 of 1 ready")

	// Nodes with GPUs, and conditions that are not renewed.
	p.wants(2, "doctor", "warning  GPU nodes", "3 of 3 nodes with GPUs have no condition of Pitcrew, nothing checks them: ward-0, ward-1, ward-2")
	for _, name := range names {
		p.reports(name, "False", "no fault")
	}
	p.wants(2, "doctor", "ok       GPU nodes", "all 3 are checked", "ok       stale conditions")
	n := p.get("ward-2")
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == conditions.GPUXidError {
			n.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(metav1.Now().Add(-3600e9))
		}
	}
	n.ResourceVersion = "" // the control plane writes nodes too
	if err := p.Client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "doctor", "warning  stale conditions", "GPUXidError: no heartbeat on 1 nodes: ward-2 (6")
	p.patch("ward-2", `{"metadata":{"labels":{"pitcrew.dev/skip":"true"}}}`)
	p.wants(2, "doctor", "label pitcrew.dev/skip=true makes the remediator leave them alone: ward-2")

	// Opt-ins.
	if err := p.AddNamespace(t.Context(), "optin", map[string]string{"pitcrew.dev/restart-on-node-failure": "true"}); err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "optin", Name: "train", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "yes"}},
		Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a", Image: "none"}},
		}}},
	}
	if err := p.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	p.gone(job)
	p.wants(2, "doctor", "Namespace optin has label pitcrew.dev/restart-on-node-failure=true, which opts nothing in",
		"-> kubectl label --overwrite namespace optin pitcrew.dev/restart-on-node-fault=true pitcrew.dev/restart-on-node-failure-",
		"Job optin/train has label pitcrew.dev/restart-on-node-fault=yes, which opts nothing in", "-> kubectl label --overwrite job train -n optin pitcrew.dev/restart-on-node-fault=true")
	p.wants(2, "doctor -o json", `"level": "warning",`)

	// Who may see nothing is told so; what is wrong is not known then.
	config, err := p.Config("stranger")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := p.WriteKubeconfig("stranger", config)
	if err != nil {
		t.Fatal(err)
	}
	person{t, p.Cluster, kubeconfig}.wants(0, "doctor", "warning  your rights", "stranger may not list nodes, list pods, ", "unknown  remediator's rights", "unknown  admission policies", "unknown  detectors",
		"unknown  GPU nodes", "unknown  opt-in")
}

func policyOf(name string) client.Object {
	return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// patch merges into a node.
func (p person) patch(name, patch string) {
	p.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := p.Client.Patch(p.Context(), n, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		p.Fatal(err)
	}
}

// unrestricted lets any pod into Pitcrew's namespace, as the chart does where it runs detectors.
func (p person) unrestricted() {
	p.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew"}}
	if err := p.Client.Patch(p.Context(), ns, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`))); err != nil {
		p.Fatal(err)
	}
}
