package attacks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var optedIn = map[string]string{conditions.LabelRestartOnNodeFault: "true"}

// gpus is a whole node of the scene.
var gpus = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}

// podSpec is that of a rank that takes a whole node of the scene.
func (s *scene) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		NodeSelector:  map[string]string{cluster.LabelPool: s.pool},
		Containers:    []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
	}
}

// job has a tenant create a Job of one rank, and returns it and the node of the rank.
func (s *scene) job(as client.Client, namespace, name string) (*batchv1.Job, string) {
	s.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: optedIn},
		Spec:       batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: s.podSpec()}},
	}
	if err := as.Create(s.Context(), job); err != nil {
		s.Fatal(err)
	}
	return job, s.ranks(namespace, 1)[0].Spec.NodeName
}

// ranks waits until n pods of a namespace run, beside those that are being deleted.
func (s *scene) ranks(namespace string, n int) (running []corev1.Pod) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods run in %s", n, namespace), func() error {
		var list corev1.PodList
		if err := s.admin.List(s.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		running = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning })
		if len(running) != n {
			return fmt.Errorf("%d run of %d", len(running), len(list.Items))
		}
		return nil
	})
	return running
}

// restartOf reads the record of a job.
func (s *scene) restartOf(gvk schema.GroupVersionKind, key client.ObjectKey) (restart.Record, error) {
	job := &metav1.PartialObjectMetadata{}
	job.SetGroupVersionKind(gvk)
	if err := s.admin.Get(s.Context(), key, job); err != nil {
		return restart.Record{}, err
	}
	return restart.ReadRecord(job)
}

// restarted waits until a job was restarted once and runs again.
func (s *scene) restarted(gvk schema.GroupVersionKind, key client.ObjectKey) {
	s.Helper()
	s.until(fmt.Sprintf("%s %s is restarted", gvk.Kind, key), func() error {
		rec, err := s.restartOf(gvk, key)
		if err != nil {
			return err
		}
		if rec.Current != nil || rec.Total != 1 || len(rec.Last) == 0 || rec.Last[0].Phase != restart.Done {
			return fmt.Errorf("record %+v; events %q", rec, s.events(key.Name))
		}
		return nil
	})
}

// forgeRestart writes a record of a restart under way on a job: as the attacker, whom an admission policy may refuse, and then by an
// admin, as if that policy were switched off.
func (s *scene) forgeRestart(attacker client.Client, job client.Object, rec restart.Record) {
	s.Helper()
	rec.V, rec.JobUID = 1, job.GetUID()
	text, err := json.Marshal(rec)
	if err != nil {
		s.Fatal(err)
	}
	labels := map[string]any{}
	if rec.Current != nil {
		labels[conditions.LabelRestarting] = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": map[string]string{conditions.AnnotationRestart: string(text)}}})
	if err != nil {
		s.Fatal(err)
	}
	target := job.DeepCopyObject().(client.Object)
	if err := attacker.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, patch)); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		s.Fatal(err)
	}
	if err := s.admin.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

// events are the notes of all Events about objects of a name.
func (s *scene) events(name string) (notes []string) {
	s.Helper()
	var list eventsv1.EventList
	if err := s.admin.List(s.Context(), &list); err != nil {
		s.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			notes = append(notes, e.Reason+" "+e.Action+": "+e.Note)
		}
	}
	return notes
}

// reports waits for an Event about an object of a name.
func (s *scene) reports(name, text string) {
	s.Helper()
	s.until(fmt.Sprintf("an Event about %s says %q", name, text), func() error {
		notes := s.events(name)
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, text) }) {
			return fmt.Errorf("events %q", notes)
		}
		return nil
	})
}

// bogus are causes that no node has.
func bogus(n int, node string) (causes []restart.Cause) {
	for i := range n {
		name := node
		if i > 0 {
			name = fmt.Sprintf("%s-%d", node, i)
		}
		causes = append(causes, restart.Cause{ID: fmt.Sprintf("forged-%d", i), Node: name, NodeUID: "bogus", Reason: "forged", Since: time.Now()})
	}
	return causes
}
