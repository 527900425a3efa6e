package main

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

func TestARestartIsAborted(t *testing.T) {
	p := NewPerson(t)
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
	for _, flags := range []string{"-y -n team-a", "--dry-run -n team-a", "-y --namespace team-a --pitcrew-namespace pitcrew"} {
		p.fails("abort job/train "+flags, "Job team-a/train is not being restarted, so there is nothing to abort. Next: nothing: the job is not opted in")
	}
	if asked() {
		t.Error("the next restart was disarmed")
	}
	label := func(key, value string) {
		t.Helper()
		before := job.DeepCopy()
		metav1.SetMetaDataLabel(&job.ObjectMeta, key, value)
		if err := c.Client.Patch(t.Context(), job, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	label(conditions.LabelRestartOnNodeFault, "true")
	p.fails("abort -y job/train -n team-a", "To keep it from being restarted, opt it out: kubectl label --overwrite -n team-a job.batch/train pitcrew.dev/restart-on-node-fault=false")
	label(conditions.LabelRestarting, "true")
	p.refused("abort jobs.batch/train -n team-a")
	p.says("abort -y jobs.batch/train --job-namespace team-a", "Abort the restart of Job team-a/train") // the name of the flag until now
	if !asked() {
		t.Error("nobody was asked to abort")
	}
	p.wrote(client.ObjectKeyFromObject(job), cli.EventAbortWanted, "abort of the restart requested by person: no reason given")
}

// wrote waits for an Event: the remediator writes it after it has answered.
func (p person) wrote(about client.ObjectKey, reason, note string) {
	p.Helper()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	p.until("Event "+reason, func() error {
		var events eventsv1.EventList
		if err := p.Client.List(p.Context(), &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name == about.Name && e.Reason == reason && e.Regarding.UID != "" {
				notes = append(notes, e.Note)
			}
		}
		if !slices.Contains(notes, note) {
			return fmt.Errorf("Events of %s: %q, want %q", about, notes, note)
		}
		return nil
	})
}
