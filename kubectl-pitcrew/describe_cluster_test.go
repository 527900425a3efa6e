package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// The same questions to a real API server, with what its controllers make of a job.
func TestDescribeOfJobsOfTheCluster(t *testing.T) {
	p := NewPerson(t)
	nodes, err := p.AddNodes(t.Context(), "why", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(clitest.JobPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	p.namespace()
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "why"}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{cluster.LabelPool: "why"},
			Containers:   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "why"}, Spec: batchv1.JobSpec{Template: *pods.DeepCopy()}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	served := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "why", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pods.Labels}, Template: pods},
	}
	for _, object := range []client.Object{job, served} {
		if err := p.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		p.gone(object)
	}
	var pod string
	p.until("both run", func() error {
		var list corev1.PodList
		if err := p.Client.List(t.Context(), &list, client.InNamespace("default"), client.MatchingLabels(pods.Labels)); err != nil {
			return err
		}
		for _, found := range list.Items {
			if found.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", found.Name, found.Status.Phase)
			}
			if strings.HasPrefix(found.GenerateName, "why-") && metav1.GetControllerOf(&found).Kind == "ReplicaSet" {
				pod = found.Name
			}
		}
		if len(list.Items) != 2 {
			return fmt.Errorf("%d pods", len(list.Items))
		}
		return nil
	})
	described := func(args, want string) {
		t.Helper()
		p.says("describe -f "+policy+" -n default "+args, want)
	}
	described("job/why", "nothing: the job is not opted in; to opt in: kubectl label -n default job.batch/why pitcrew.dev/restart-on-node-fault=true")
	if out, err := p.Kubectl(t.Context(), "label", "-n", "default", "job.batch/why", "pitcrew.dev/restart-on-node-fault=true"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	described("jobs.batch why", "if "+nodes[0]+" were quarantined by a rule with restartJobs: the remediator restarts the job\n")
	described("deploy/why", "Stop:     its controller replaces the pods on the node")
	described("pod/"+pod, " < Deployment why; Deployment default/why counts")
	p.fails("describe job/why -n pitcrew", `jobs.batch "why" not found`)
	p.fails("describe gang/why -n default", `find the kind "gang"`)
	p.says("__complete describe -n default job/", "job/why\n")
	p.says("__complete describe -n default job w", "why\n")
	p.says("__complete describe "+nodes[0][:2], nodes[0]+"\n")
	p.says("__complete describe pytorch", "pytorchjob/\n")
	p.carries(nodes[0], request.Quarantine, "")
	described("job/why", "Next:     node "+nodes[0]+": a user quarantined the node; jobs on it are left alone\n")
	p.says("describe "+nodes[0]+" -n pitcrew", "Node:     "+nodes[0]+",")
	if err := p.DeleteNodes(t.Context(), nodes...); err != nil {
		t.Fatal(err)
	}
}
