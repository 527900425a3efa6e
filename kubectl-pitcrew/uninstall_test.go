package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	commands "github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cluster"
)

// What install.yaml put into the cluster is all gone in the end, and nothing is before the last restart is through.
func TestUninstallOfADeploymentWaitsForRestarts(t *testing.T) {
	p := NewPerson(t)
	nodes, err := p.AddNodes(t.Context(), "uninstall", 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := os.ReadFile(filepath.Join(p.Root, "manifests", "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), manifests); err != nil {
		t.Fatal(err)
	}
	// The policy adds a kind of jobs.
	policy, err := os.ReadFile(filepath.Join(p.Root, "manifests", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "pitcrew-policy"},
		Data:       map[string]string{"policy.yaml": strings.Replace(string(policy), "\nspec:\n", "\nspec:\n  jobKinds: [{apiVersion: example.com/v1, kind: Gang, suspendPath: spec.suspend, podLabel: gang}]\n", 1)},
	}); err != nil {
		t.Fatal(err)
	}
	past := p.jobsWithPastRestarts()
	deployed := client.ObjectKey{Namespace: "pitcrew", Name: "pitcrew-remediator"}
	p.until("the remediator is deployed", func() error {
		var d appsv1.Deployment
		if err := p.Client.Get(t.Context(), deployed, &d); err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 2 {
			return fmt.Errorf("status %+v", d.Status)
		}
		return nil
	})
	// A job that the remediator has stopped and not started again.
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stopped", Labels: map[string]string{conditions.LabelRestarting: "true"}},
		Spec: batchv1.JobSpec{
			Suspend: ptr.To(true),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{cluster.LabelPool: "uninstall"},
				Containers: []corev1.Container{{Name: "main", Image: "none"}},
			}},
		},
	}
	if err := p.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	p.gone(job)
	p.reports(nodes[0], "True", clitest.Lost)

	p.awaitsKind("Gang")
	for _, object := range past {
		if !strings.Contains(p.run("uninstall", "--dry-run"), "Clean "+object.GetKind()+" default/past: remove annotation pitcrew.dev/") {
			t.Errorf("what is cleaned does not include the %s", object.GetKind())
		}
	}

	ended := make(chan error, 1)
	go func() {
		out, err := p.exec("uninstall", "-y")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		ended <- err
	}()
	p.until("it is paused", func() error {
		return p.Client.Get(t.Context(), client.ObjectKey{Namespace: "pitcrew", Name: conditions.PauseConfigMap}, &corev1.ConfigMap{})
	})
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the job: %v", err)
	default:
	}
	if err := p.Client.Get(t.Context(), deployed, &appsv1.Deployment{}); err != nil {
		t.Errorf("the remediator is gone before the job was started again: %v", err)
	}
	started := job.DeepCopy()
	delete(started.Labels, conditions.LabelRestarting)
	if err := p.Client.Patch(t.Context(), started, client.MergeFrom(job)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: conditions.EvidenceNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-remediator"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-remediator"}},
	} {
		if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s is still there: %v", object, object.GetName(), err)
		}
	}
	for _, object := range past {
		if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"example.com/theirs": "kept"}
		if diff := cmp.Diff(want, object.GetAnnotations()); diff != "" {
			t.Errorf("annotations of the %s: %s", object.GetKind(), diff)
		}
		if diff := cmp.Diff(map[string]string{conditions.LabelRestartOnNodeFault: "true"}, object.GetLabels()); diff != "" {
			t.Errorf("labels of the %s: %s", object.GetKind(), diff)
		}
	}
	for _, c := range p.get(nodes[0]).Status.Conditions {
		if conditions.Ours(string(c.Type)) {
			t.Errorf("node %s still has condition %s", nodes[0], c.Type)
		}
	}
	if out, err := p.exec("uninstall", "--dry-run"); err != nil || !strings.Contains(out, "There is nothing to do") {
		t.Errorf("%v: %s", errors.Join(err), out)
	}
}

// jobsWithPastRestarts makes objects with all that restarts leave behind: of a built-in kind, of a kind of the policy, and a Workload
// of Kueue.
func (p person) jobsWithPastRestarts() []*unstructured.Unstructured {
	p.Helper()
	crd := func(group, version, kind string) string {
		plural := strings.ToLower(kind) + "s"
		return fmt.Sprintf(`
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.%s}
spec:
  group: %s
  scope: Namespaced
  names: {kind: %s, listKind: %sList, plural: %s, singular: %s}
  versions: [{name: %s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, plural, group, group, kind, kind, plural, strings.ToLower(kind), version)
	}
	if err := p.Apply(p.Context(), []byte(crd("example.com", "v1", "Gang")+crd("kueue.x-k8s.io", "v1beta1", "Workload"))); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		for _, name := range []string{"gangs.example.com", "workloads.kueue.x-k8s.io"} {
			crd := &unstructured.Unstructured{}
			crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
			crd.SetName(name)
			if err := p.Client.Delete(p.Cluster.Context(), crd); err != nil {
				p.Error(err)
			}
		}
	})
	var all []*unstructured.Unstructured
	for kind, text := range map[string]string{
		"Job":      "{apiVersion: batch/v1, kind: Job, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}}}",
		"Gang":     "{apiVersion: example.com/v1, kind: Gang, spec: {suspend: false}}",
		"Workload": "{apiVersion: kueue.x-k8s.io/v1beta1, kind: Workload, spec: {active: true}}",
	} {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
			p.Fatal(err)
		}
		object.SetNamespace("default")
		object.SetName("past")
		object.SetLabels(map[string]string{conditions.LabelRestartOnNodeFault: "true"})
		annotations := map[string]string{"example.com/theirs": "kept"}
		for _, key := range commands.JobAnnotations {
			annotations[key] = "x"
		}
		object.SetAnnotations(annotations)
		p.until("a "+kind+" can be made", func() error { return p.Client.Create(p.Context(), object) })
		all = append(all, object)
	}
	p.gone(all[slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Job" })])
	return all
}

// awaitsKind checks that uninstall knows a kind of jobs from the policy that the remediator's pods mount, and waits for its jobs.
func (p person) awaitsKind(kind string) {
	p.Helper()
	c := &cli.Target{Namespace: "pitcrew", Now: time.Now}
	kinds, unknown, err := commands.JobKinds(p.Context(), c, p.Client, "")
	i := slices.IndexFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Kind == kind })
	if err != nil || unknown != "" || i < 0 {
		p.Fatalf("kinds %v, unknown: %q, %v", kinds, unknown, err)
	}
	job := &unstructured.Unstructured{}
	job.SetGroupVersionKind(kinds[i])
	job.SetNamespace("default")
	job.SetName("stopping")
	job.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
	if err := p.Client.Create(p.Context(), job); err != nil {
		p.Fatal(err)
	}
	underWay, err := cli.Restarting(p.Context(), p.Client, kinds)
	if err != nil || !slices.ContainsFunc(underWay, func(j *metav1.PartialObjectMetadata) bool { return cli.JobName(j) == kind+" default/stopping" }) {
		p.Errorf("jobs under restart: %v, %v", underWay, err)
	}
	if err := p.Client.Delete(p.Context(), job); err != nil {
		p.Fatal(err)
	}
}

// While paused, a restart that waits for the job's checkpoint goes on waiting. Nothing of the job was stopped, and nothing is.
func TestUninstallAbortsARestartThatWaitsForACheckpoint(t *testing.T) {
	p := NewPerson(t)
	if _, err := p.AddNodes(t.Context(), "saving", 2, nil); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 2}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Inspect]}, restartJobs: true, checkpointGrace: 30m}}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	remediator, err := p.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "saving", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{cluster.LabelPool: "saving"},
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		}}},
	}
	if err := p.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	p.gone(job)
	var pods corev1.PodList
	p.until("the job runs", func() error {
		err := p.Client.List(t.Context(), &pods, client.InNamespace("default"), client.MatchingLabels{batchv1.JobNameLabel: job.Name})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		return nil
	})
	p.reports(pods.Items[0].Spec.NodeName, "True", inspect)
	annotated := func(key string, want bool) {
		t.Helper()
		p.until(fmt.Sprintf("the job has annotation %s: %t", key, want), func() error {
			if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				return err
			}
			if _, has := job.Annotations[key]; has != want {
				return fmt.Errorf("annotations %v", job.Annotations)
			}
			return nil
		})
	}
	annotated(conditions.AnnotationCheckpointBy, true)
	p.says("uninstall --dry-run", "Abort the restart of Job default/saving: it waits for a checkpoint")
	p.says("describe job/saving -n default -f "+policy, "Next:     the restart under way goes on: waits until the job has saved its state")

	ended := make(chan error, 1)
	go func() {
		out, err := p.exec("uninstall", "-y")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		ended <- err
	}()
	annotated(conditions.AnnotationCheckpointBy, false)
	// Outside the cluster it has no Deployment that could be deleted before its work is undone.
	remediator.Stop(10 * time.Second)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		t.Fatal(err)
	}
	metadata := &metav1.PartialObjectMetadata{ObjectMeta: job.ObjectMeta}
	if left := commands.KeysOn(metadata); len(left) > 0 || ptr.Deref(job.Spec.Suspend, false) {
		t.Errorf("suspend %v, left on the job: %v", job.Spec.Suspend, left)
	}
	if job.Labels[conditions.LabelRestartOnNodeFault] != "true" {
		t.Errorf("the opt-in of the user is gone: %v", job.Labels)
	}
	pod := pods.Items[0].DeepCopy()
	if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.UID != pods.Items[0].UID || pod.DeletionTimestamp != nil {
		t.Errorf("the job was stopped: %v, %v", pod.DeletionTimestamp, err)
	}
}
