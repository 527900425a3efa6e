package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// What install.yaml put into the cluster is all gone in the end, and nothing is before the last restart is through.
func TestUninstallOfADeploymentWaitsForRestarts(t *testing.T) {
	p := newPerson(t)
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
	p.reports(nodes[0], "True", lost)

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
	for _, c := range p.get(nodes[0]).Status.Conditions {
		if conditions.Ours(string(c.Type)) {
			t.Errorf("node %s still has condition %s", nodes[0], c.Type)
		}
	}
	if out, err := p.exec("uninstall", "--dry-run"); err != nil || !strings.Contains(out, "There is nothing to do") {
		t.Errorf("%v: %s", errors.Join(err), out)
	}
}
