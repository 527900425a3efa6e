package main

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestARestartIsAborted(t *testing.T) {
	p := newPerson(t)
	c := p.Cluster
	if err := c.AddNamespace(t.Context(), "team-a", nil); err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"},
		Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "fake"}},
		}}},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	p.gone(job) // it would hold up an uninstall
	asked := func() bool {
		t.Helper()
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			t.Fatal(err)
		}
		_, asked := job.Annotations[conditions.AnnotationAbortRestart]
		return asked
	}
	p.fails("abort -y train", "not KIND/NAME")
	p.fails("abort -y gang/train", `find the kind "gang"`)
	p.fails("abort -y job/train", "not found") // in namespace default
	p.says("abort --dry-run job/train --job-namespace team-a", "not being restarted")
	if asked() {
		t.Error("a dry run aborted")
	}
	before := job.DeepCopy()
	metav1.SetMetaDataLabel(&job.ObjectMeta, conditions.LabelRestarting, "true")
	if err := c.Client.Patch(t.Context(), job, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	p.refused("abort jobs.batch/train --job-namespace team-a")
	p.says("abort -y jobs.batch/train --job-namespace team-a", "Abort the restart of Job team-a/train")
	if !asked() {
		t.Error("nobody was asked to abort")
	}
}
