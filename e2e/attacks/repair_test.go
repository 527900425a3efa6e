package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The admission policies on the namespace in which nodes are repaired.
const (
	onRepairChanges   = "pitcrew-repair-changes"
	onRepairJobs      = "pitcrew-repair-jobs"
	onRepairPods      = "pitcrew-repair-pods"
	onRepairTemplates = "pitcrew-repair-templates"
)

// repair is the namespace in which nodes are repaired, with what is shipped for it.
type repair struct {
	*scene
	node string
}

func newRepair(t *testing.T, pool string) repair {
	s := newScene(t, pool, 1, nil)
	for _, file := range []string{"rbac.yaml", "admission.yaml", "templates.yaml"} {
		text, err := os.ReadFile(filepath.Join(s.cluster.Root, "manifests", "repair", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.cluster.Apply(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	r := repair{s, s.nodes[0]}
	r.enforced(onRepairPods, func() error { return s.admin.Create(t.Context(), r.pod(), client.DryRunAll) })
	// Until the API server has read the templates it refuses every Job.
	for _, template := range []string{"check", "reset-gpu", "reboot"} {
		r.until("a Job of "+template+" is admitted", func() error { return s.admin.Create(t.Context(), r.job(s.admin, template), client.DryRunAll) })
		attack := r.job(s.admin, template)
		attack.Spec.Template.Spec.HostIPC = true
		r.enforced(onRepairTemplates, func() error { return s.admin.Create(t.Context(), attack.DeepCopy(), client.DryRunAll) })
	}
	return r
}

// job is the Job that the remediator makes from a template, with further arguments that a policy has.
func (r repair) job(by client.Client, template string, args ...string) *batchv1.Job {
	r.Helper()
	var from corev1.PodTemplate
	if err := by.Get(r.Context(), client.ObjectKey{Namespace: conditions.RepairNamespace, Name: template}, &from); err != nil {
		r.Fatal(err)
	}
	pod := from.Template
	pod.Spec.NodeName = r.node
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	first := &pod.Spec.Containers[0]
	first.Args = append(first.Args, args...)
	for i := range first.Args {
		first.Args[i] = strings.NewReplacer("$(NODE)", r.node, "$(GPUS)", "0000:4e:00,0000:1b:00", "$(BOOT_ID)", "6e3f4a62-0b71-4c2e-9a4f-1d2c3b4a5968").Replace(first.Args[i])
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: conditions.RepairNamespace, GenerateName: template + "-",
			Labels:      map[string]string{conditions.LabelTemplate: template, conditions.LabelVisit: "v1"},
			Annotations: map[string]string{conditions.AnnotationNode: r.node},
		},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: ptr.To[int32](0), ActiveDeadlineSeconds: ptr.To[int64](600),
			Template: pod,
		},
	}
}

// pod is one of the attacker's own.
func (r repair) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "own"},
		Spec:       corev1.PodSpec{NodeName: r.node, Containers: []corev1.Container{{Name: "main", Image: "evil"}}},
	}
}

// Whoever has the remediator's token may create Jobs that are root on a node. They are those that an admin has made PodTemplates for,
// on a node, and nothing else.
func TestAttack23AStolenTokenRunsNoProgramOfItsOwnOnANode(t *testing.T) {
	r := newRepair(t, "stolen-repair")
	token := r.stolen()
	r.until("the remediator's Role is in force", func() error {
		return token.Get(t.Context(), client.ObjectKey{Namespace: conditions.RepairNamespace, Name: "check"}, &corev1.PodTemplate{})
	})
	for template, args := range map[string][]string{"check": {"-level", "3"}, "reset-gpu": {"-timeout=8m"}, "reboot": nil} {
		job := r.job(token, template, args...)
		r.may(token.Create(t.Context(), job), "a Job of "+template)
		r.until("its pod is created", func() error {
			var pods corev1.PodList
			if err := r.admin.List(t.Context(), &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
				return err
			}
			if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != r.node {
				return fmt.Errorf("%d pods", len(pods.Items))
			}
			return nil
		})
		r.may(token.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)), "delete it")
	}

	spec := func(change func(*corev1.PodSpec)) func(*batchv1.Job) {
		return func(job *batchv1.Job) { change(&job.Spec.Template.Spec) }
	}
	args := func(all ...string) func(*batchv1.Job) {
		return spec(func(p *corev1.PodSpec) { p.Containers[0].Args = all })
	}
	for name, attack := range map[string]struct {
		template, policy string
		change           func(*batchv1.Job)
	}{
		"another image":   {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Containers[0].Image = "evil" })},
		"another command": {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"sh"} })},
		"no command":      {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Containers[0].Command = nil })},
		"privileged": {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext.Privileged = ptr.To(true)
			p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		})},
		"the environment": {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) {
			p.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/run/evil.so"}}
		})},
		"writable root":    {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.ReadOnlyRootFilesystem = nil })},
		"a writable mount": {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { last(p.Containers[0].VolumeMounts).ReadOnly = false })},
		"a hook": {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) {
			p.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}}
		})},
		"a hostPath": {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Volumes[0].HostPath.Path = "/" })},
		"a further volume": {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		})},
		"the host's IPC":              {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.HostIPC = true })},
		"another view of processes":   {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.HostPID = false })},
		"the host's network":          {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.HostNetwork = true })},
		"another account":             {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.ServiceAccountName = "default" })},
		"a token":                     {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = ptr.To(true) })},
		"a node of the control plane": {"reboot", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Affinity = nil })},
		"a second container": {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) {
			p.Containers = append(p.Containers, corev1.Container{Name: "x", Image: "evil"})
		})},
		"an init container":   {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{{Name: "x", Image: "evil"}} })},
		"no end":              {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.RestartPolicy = corev1.RestartPolicyOnFailure })},
		"no toleration":       {"check", onRepairTemplates, spec(func(p *corev1.PodSpec) { p.Tolerations = nil })},
		"a label of the pod":  {"check", onRepairTemplates, func(job *batchv1.Job) { job.Spec.Template.Labels["sidecar.istio.io/inject"] = "true" }},
		"no label of the pod": {"check", onRepairTemplates, func(job *batchv1.Job) { delete(job.Spec.Template.Labels, "app.kubernetes.io/name") }},
		"an annotation of the pod": {"check", onRepairTemplates, func(job *batchv1.Job) {
			job.Spec.Template.Annotations["inject.example.com/sidecar"] = "evil"
		}},
		"no annotation of the pod":     {"check", onRepairTemplates, func(job *batchv1.Job) { job.Spec.Template.Annotations = nil }},
		"another action":               {"check", onRepairTemplates, args("reboot")},
		"no action":                    {"check", onRepairTemplates, args()},
		"an action in one argument":    {"reset-gpu", onRepairTemplates, args("reset-gpu\x00-gpu=")},
		"the action as a beginning":    {"check", onRepairTemplates, args("checks")},
		"a path":                       {"check", onRepairTemplates, args("check", "-dcgmi=/run/evil")},
		"a program":                    {"check", onRepairTemplates, args("check", "-command", "sh")},
		"a number with a path":         {"check", onRepairTemplates, args("check", "-level", "3/x")},
		"a program of a flag":          {"check", onRepairTemplates, args("check", "-dcgm=sh")},
		"the end of the flags":         {"check", onRepairTemplates, args("check", "--", "-command")},
		"a blank":                      {"check", onRepairTemplates, args("check", "-x y")},
		"a line":                       {"check", onRepairTemplates, args("check", "-x\n/y")},
		"a GPU with a path":            {"reset-gpu", onRepairTemplates, args("reset-gpu", "-gpu=0000:4e:00/../x")},
		"a GPU that ends the quote":    {"reset-gpu", onRepairTemplates, args("reset-gpu", `-gpu=\E.*`)},
		"no boot id":                   {"reboot", onRepairTemplates, args("reboot", "-boot-id=$(BOOT_ID)")},
		"no GPU":                       {"reset-gpu", onRepairTemplates, args("reset-gpu")},
		"the template of another":      {"check", onRepairTemplates, func(job *batchv1.Job) { job.Labels[conditions.LabelTemplate] = "reboot" }},
		"a template that is not there": {"check", onRepairJobs, func(job *batchv1.Job) { job.Labels[conditions.LabelTemplate] = "other" }},
		"no template":                  {"check", onRepairJobs, func(job *batchv1.Job) { job.Labels = nil }},
		"another node than it says":    {"check", onRepairJobs, spec(func(p *corev1.PodSpec) { p.NodeName = "other" })},
		"a node of the scheduler's":    {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.Template.Spec.NodeName, job.Annotations = "", nil }},
		"many pods":                    {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.Parallelism = ptr.To[int32](9) }},
		"many runs":                    {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.Completions = ptr.To[int32](9) }},
		"again and again":              {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.BackoffLimit = nil }},
		"no deadline":                  {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.ActiveDeadlineSeconds = nil }},
		"suspended":                    {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.Suspend = ptr.To(true) }},
		"failures that do not count": {"reboot", onRepairJobs, func(job *batchv1.Job) {
			job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:      batchv1.PodFailurePolicyActionIgnore,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}},
			}}}
		}},
		"another controller": {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.ManagedBy = ptr.To("example.com/own") }},
		"pods of others": {"check", onRepairJobs, func(job *batchv1.Job) {
			job.Spec.ManualSelector, job.Spec.Selector = ptr.To(true), &metav1.LabelSelector{MatchLabels: job.Spec.Template.Labels}
		}},
		"an index": {"check", onRepairJobs, func(job *batchv1.Job) { job.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion) }},
	} {
		job := r.job(token, attack.template)
		attack.change(job)
		r.reasoned(token.Create(t.Context(), job), attack.policy, name)
	}

	// A template that an admin has removed, and whose name the policies know.
	if err := r.admin.Delete(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "reboot"}}); err != nil {
		t.Fatal(err)
	}
	job := r.job(token, "check")
	job.Labels[conditions.LabelTemplate] = "reboot"
	job.Spec.Template.Spec.Containers[0].Image = "evil"
	r.until("the API server knows that the template is gone", func() error {
		err := token.Create(t.Context(), job.DeepCopy(), client.DryRunAll)
		if err == nil {
			t.Fatal("a Job of a template that is gone is admitted")
		}
		if !strings.Contains(err.Error(), "no params found") {
			return err
		}
		return nil
	})

	for name, err := range map[string]error{
		"a Job elsewhere": token.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "x"}, Spec: job.Spec}),
		"a pod":           token.Create(t.Context(), r.pod()),
		"a template":      token.Create(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "x"}, Template: job.Spec.Template}),
		"a template's image": token.Patch(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "check"}},
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))),
	} {
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("%s: %v, want that RBAC forbids it", name, err)
		}
	}
}

// reasoned is [scene.denied], for a reason that the policy gives: an expression that fails denies everything.
func (r repair) reasoned(err error, policy, attack string) {
	r.Helper()
	r.denied(err, policy, attack)
	if err != nil && (strings.Contains(err.Error(), "resulted in error") || strings.Contains(err.Error(), "failed expression")) {
		r.Errorf("%s: denied without a reason: %v", attack, err)
	}
}

func last[T any](all []T) *T { return &all[len(all)-1] }

// Who may create Jobs and pods in every namespace, as an account of continuous integration, makes none where they are root on a node,
// not even one as the remediator makes it. Neither does a kubelet.
func TestAttack23NobodyElseCreatesJobsWhereNodesAreRepaired(t *testing.T) {
	t.Parallel()
	r := newRepair(t, "repair-tenant")
	editor := r.client(r.account("editor", "edit"))
	r.until("the editor's role is in force", func() error {
		return editor.List(t.Context(), &batchv1.JobList{}, client.InNamespace(conditions.RepairNamespace))
	})
	r.reasoned(editor.Create(t.Context(), r.job(r.admin, "check")), onRepairJobs, "a Job of a template")
	r.reasoned(editor.Create(t.Context(), r.pod()), onRepairPods, "a pod")
	owned := r.pod()
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "x", UID: "x", Controller: ptr.To(true)}}
	r.reasoned(editor.Create(t.Context(), owned), onRepairPods, "a pod as of a Job")
	// Where the controller manager runs all controllers with one account, its others may not either.
	cfg, err := r.cluster.Config("system:kube-controller-manager", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	controllers := r.client(cfg)
	r.reasoned(controllers.Create(t.Context(), r.pod()), onRepairPods, "a pod of another controller")
	r.may(controllers.Create(t.Context(), owned, client.DryRunAll), "a pod of the Job controller")
	if err := editor.Create(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "x"}}); !apierrors.IsForbidden(err) {
		t.Errorf("a template: %v", err)
	}
	mirror := r.pod()
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.node, UID: r.get(r.node).UID, Controller: ptr.To(true)}}
	r.reasoned(r.kubelet(r.node).Create(t.Context(), mirror), onRepairPods, "a static pod")

	labels := map[string]string{"app": "x"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "x"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: r.pod().Spec},
	}}
	r.may(editor.Create(t.Context(), deployment), "a Deployment, which has no effect")
	r.until("the Deployment's pods are refused", func() error {
		var sets appsv1.ReplicaSetList
		if err := r.admin.List(t.Context(), &sets, client.InNamespace(conditions.RepairNamespace)); err != nil {
			return err
		}
		for _, set := range sets.Items {
			for _, c := range set.Status.Conditions {
				if c.Type == appsv1.ReplicaSetReplicaFailure && strings.Contains(c.Message, onRepairPods) {
					return nil
				}
			}
		}
		return fmt.Errorf("%d ReplicaSets", len(sets.Items))
	})
	r.may(r.admin.Delete(t.Context(), deployment, client.PropagationPolicy(metav1.DeletePropagationBackground)), "delete it")
}

// Who may change what there is, as an editor or an admin who was tricked, makes nothing else of a Job or a pod that is root on a node.
func TestAttack23WhatRunsWhereNodesAreRepairedDoesNotChange(t *testing.T) {
	t.Parallel()
	r := newRepair(t, "repair-changes")
	job := r.job(r.admin, "check")
	r.may(r.admin.Create(t.Context(), job), "the Job")
	var pod corev1.Pod
	r.until("the Job has a pod", func() error {
		var pods corev1.PodList
		if err := r.admin.List(t.Context(), &pods, client.InNamespace(conditions.RepairNamespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		pod = pods.Items[0]
		return nil
	})
	patch := func(object client.Object, patch string) error {
		return r.admin.Patch(t.Context(), object, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
	name := pod.Spec.Containers[0].Name
	r.enforced(onRepairChanges, func() error {
		return patch(pod.DeepCopy(), fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"image":"evil"}]}}`, name))
	})
	for attack, try := range map[string]func() error{
		"another image": func() error {
			return patch(pod.DeepCopy(), fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"image":"evil"}]}}`, name))
		},
		"a longer deadline": func() error { return patch(pod.DeepCopy(), `{"spec":{"activeDeadlineSeconds":1}}`) },
		"a debug container": func() error {
			debugged := pod.DeepCopy()
			debugged.ResourceVersion = "" // its status may have changed
			debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", Image: "evil", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullAlways,
			}}}
			return r.admin.SubResource("ephemeralcontainers").Update(t.Context(), debugged)
		},
		"a suspended Job": func() error { return patch(job.DeepCopy(), `{"spec":{"suspend":true}}`) },
		"more pods":       func() error { return patch(job.DeepCopy(), `{"spec":{"parallelism":2}}`) },
	} {
		r.reasoned(try(), onRepairChanges, attack)
	}
	for _, args := range [][]string{{"exec", pod.Name, "--", "sh"}, {"attach", pod.Name}, {"port-forward", pod.Name, "0:80"}} {
		if out, err := r.cluster.Kubectl(t.Context(), append([]string{"--namespace", conditions.RepairNamespace}, args...)...); err == nil || !strings.Contains(out+err.Error(), onRepairChanges) {
			t.Errorf("kubectl %s: %v\n%s", args[0], err, out)
		}
	}
	r.may(patch(pod.DeepCopy(), `{"metadata":{"labels":{"team":"a"}}}`), "a label")
	r.may(r.admin.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationForeground)), "delete the Job")
	r.until("the pod is gone: its finalizer was removed", func() error {
		err := r.admin.Get(t.Context(), client.ObjectKeyFromObject(&pod), &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}
