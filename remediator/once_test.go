package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// A Deployment is the kind whose pods may be replaced once more, see restart.boundLate: not after the taint was put back.
func TestAJobThatComesBackWhileTheTaintIsGoneIsNotRestartedAgain(t *testing.T) {
	tm := newTeam(t, "once", 2, nil)
	if err := tm.AddNamespace(t.Context(), tm.pool, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := tm.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tm.pool}}); err != nil {
			t.Error(err)
		}
	})
	of := map[string]string{"app": "train"}
	if err := tm.Client.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: "train", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: of},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: of},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{cluster.LabelPool: tm.pool},
					Containers:   []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	pod := tm.runs("train", nil)
	bad := pod.Spec.NodeName
	policy := tm.policy(1, "restartJobs: true")
	leader := tm.start(policy, alone)
	tm.report(bad, "True", lost)
	_, r := tm.becomes(bad, causes.Quarantined)
	restarts := func() (rec restart.Record) {
		job := &appsv1.Deployment{}
		if err := tm.Client.Get(t.Context(), client.ObjectKey{Namespace: tm.pool, Name: "train"}, job); err != nil {
			t.Fatal(err)
		}
		rec, err := restart.ReadRecord(job)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	tm.until("the restart is closed", func() error {
		if rec := restarts(); rec.Current != nil || len(rec.Last) != 1 {
			return fmt.Errorf("the record is %+v", rec)
		}
		return nil
	})
	pod = tm.runs("train", pod)

	leader.Kill()
	tm.patch(bad, `{"spec":{"taints":null}}`)
	tm.patch(pod.Spec.NodeName, `{"spec":{"unschedulable":true}}`)
	if err := tm.Client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if pod = tm.runs("train", pod); pod.Spec.NodeName != bad {
		t.Fatalf("it runs on node %s", pod.Spec.NodeName)
	}
	tm.start(policy, alone)
	tm.until("the node is tainted anew in the same quarantine", func() error {
		n := tm.get(bad)
		if after, err := causes.RecordOf(n); err != nil || taints(n) != ourTaint || after.ID != r.ID {
			return fmt.Errorf("taints %s, record %+v, %w", taints(n), after, err)
		}
		return nil
	})
	tm.until("the job says why it is not restarted", func() error {
		var list eventsv1.EventList
		if err := tm.Client.List(t.Context(), &list, client.InNamespace(tm.pool)); err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			if all = append(all, e.Reason+": "+e.Note); strings.Contains(e.Note, "this quarantine has already restarted the job once") {
				return nil
			}
		}
		return fmt.Errorf("Events %q", all)
	})
	if rec := restarts(); rec.Current != nil || len(rec.Last) != 1 {
		t.Errorf("restarted again: %+v", rec)
	}
}
