package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
)

// playedKind is a kind that is not built in.
var playedKind = jobkind.Kind{
	APIVersion: "example.com/v1", Kind: "Gang", ActivePath: "spec.run.active", PodLabel: "example.com/gang",
}

// serve installs a CRD of the kind that takes every field, once.
func (tm team) serve(gvk schema.GroupVersionKind) {
	tm.Helper()
	singular := strings.ToLower(gvk.Kind)
	crd := fmt.Appendf(nil, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[1]ss.%[2]s
  annotations: {api-approved.kubernetes.io: "unapproved, a test plays it"}
spec:
  group: %[2]s
  names: {kind: %[3]s, singular: %[1]s, plural: %[1]ss}
  scope: Namespaced
  versions:
  - name: %[4]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, singular, gvk.Group, gvk.Kind, gvk.Version)
	if err := tm.c.Apply(tm.Context(), crd); err != nil {
		tm.Fatal(err)
	}
	tm.eventually("wait for "+gvk.Kind+" to be served", func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		return tm.c.Client.List(tm.Context(), list, client.InNamespace(tm.name))
	})
}

// object creates an object of a kind that [team.serve] installed.
func (tm team) object(gvk schema.GroupVersionKind, name string, labels map[string]string, spec map[string]any) *unstructured.Unstructured {
	tm.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(tm.name)
	object.SetName(name)
	object.SetLabels(labels)
	if err := tm.c.Client.Create(tm.Context(), object); err != nil {
		tm.Fatal(err)
	}
	return object
}

// play does again and again what a controller would, until the test ends. What it is refused because somebody else
// wrote or deleted meanwhile it does the next time.
func (tm team) play(step func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(tm.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := step(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				tm.Error(err)
			}
		}, 20*time.Millisecond)
	}()
	tm.Cleanup(func() { cancel(); <-ended })
}

// pod creates a rank of a job that [team.play] plays. It takes a second to die.
func (tm team) pod(ctx context.Context, owner client.Object, labels map[string]string) error {
	template := tm.jobSpec(1, dying(time.Second, 0)).Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: tm.name, GenerateName: owner.GetName() + "-", Labels: labels, Annotations: template.Annotations,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GetObjectKind().GroupVersionKind())},
	}, Spec: template.Spec}
	return tm.c.Client.Create(ctx, pod)
}

// podsOf lists the pods with the labels.
func (tm team) podsOf(ctx context.Context, labels map[string]string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := tm.c.Client.List(ctx, &list, client.InNamespace(tm.name), client.MatchingLabels(labels))
	return list.Items, err
}

func (tm team) deletePods(ctx context.Context, pods []corev1.Pod) error {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if err := tm.c.Client.Delete(ctx, &pod); err != nil {
			return err
		}
	}
	return nil
}

func over(pod corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// setStatus merges fields into the status if they are not there yet.
func (tm team) setStatus(ctx context.Context, object *unstructured.Unstructured, fields map[string]any) error {
	status, _, err := unstructured.NestedMap(object.Object, "status")
	if err != nil {
		return err
	}
	want := map[string]any{}
	maps.Copy(want, status)
	maps.Copy(want, fields)
	if fmt.Sprint(want) == fmt.Sprint(status) {
		return nil
	}
	before := object.DeepCopy()
	if err := unstructured.SetNestedMap(object.Object, want, "status"); err != nil {
		return err
	}
	return tm.c.Client.Patch(ctx, object, client.MergeFrom(before))
}

// suspendedCondition is the status of a job whose controller reports that it has stopped, or has not.
func suspendedCondition(stopped bool) map[string]any {
	status := "False"
	if stopped {
		status = "True"
	}
	return map[string]any{"conditions": []any{map[string]any{
		"type": "Suspended", "status": status, "reason": "Played", "message": "", "lastTransitionTime": "2026-11-20T12:00:00Z",
	}}}
}

// playSuspend plays the controller of a kind with a suspend field, at its worst: it reports that it has stopped before the pods are
// gone, and creates new ones beside old ones that are dying. dead: pods that have ended are neither deleted nor replaced.
func (tm team) playSuspend(k kinds.Kind, spec map[string]any, labels map[string]string, dead bool) gang {
	tm.Helper()
	const ranks = 4
	tm.serve(k.GVK)
	job := tm.object(k.GVK, "train", optedIn, spec)
	tm.play(func(ctx context.Context) error {
		if err := tm.c.Client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		pods, err := tm.podsOf(ctx, labels)
		if err != nil {
			return err
		}
		found, err := k.Read(ctx, tm.c.Client, client.ObjectKeyFromObject(job))
		if err != nil {
			return err
		}
		if found.Suspended {
			if err := tm.deletePods(ctx, slices.DeleteFunc(pods, func(p corev1.Pod) bool { return dead && over(p) })); err != nil {
				return err
			}
			return tm.setStatus(ctx, job, suspendedCondition(true))
		}
		alive := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !dead && over(p) })
		for range ranks - len(alive) {
			if err := tm.pod(ctx, job, labels); err != nil {
				return err
			}
		}
		return tm.setStatus(ctx, job, suspendedCondition(false))
	})
	return tm.gang(k, "train", ranks)
}

func (tm team) playMPIJob() gang {
	worker := map[string]any{"replicas": int64(4), "template": map[string]any{}}
	return tm.playSuspend(jobstest.Kind("kubeflow.org/v2beta1", "MPIJob"), map[string]any{"runPolicy": map[string]any{}, "mpiReplicaSpecs": map[string]any{"Worker": worker}},
		map[string]string{"training.kubeflow.org/job-name": "train", "training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": "worker"}, true)
}

func (tm team) playGang() gang {
	tm.Helper()
	// What the manifests cannot grant: they do not know the kind.
	if err := tm.c.Apply(tm.Context(), []byte(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pitcrew-remediator-gangs}
rules:
- {apiGroups: [example.com], resources: [gangs], verbs: [get, list, watch, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pitcrew-remediator-gangs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pitcrew-remediator-gangs}
subjects: [{kind: ServiceAccount, name: pitcrew-remediator, namespace: pitcrew}]
`)); err != nil {
		tm.Fatal(err)
	}
	gang, _ := kinds.Get(kinds.All([]jobkind.Kind{playedKind}), playedKind.GVK())
	return tm.playSuspend(gang, map[string]any{}, map[string]string{playedKind.PodLabel: "train"}, false)
}

var (
	volcanoJob = jobstest.Kind("batch.volcano.sh/v1alpha1", "Job")
	commandGVK = schema.GroupVersionKind{Group: "bus.volcano.sh", Version: "v1alpha1", Kind: "Command"}
)

// playVolcano plays a controller that restarts the job at every Command that has a target. It takes a Command as soon as it is sent,
// and carries it out later, when free is closed, as Volcano does when it is busy. taken counts them.
func (tm team) playVolcano(free <-chan struct{}) (g gang, taken *atomic.Int64) {
	tm.Helper()
	tm.serve(commandGVK)
	tm.serve(volcanoJob.GVK)
	job := tm.object(volcanoJob.GVK, "train", optedIn, map[string]any{"maxRetry": int64(3), "tasks": []any{map[string]any{"name": "w", "replicas": int64(4)}}})
	named := map[string]string{"volcano.sh/job-name": "train"}
	taken = &atomic.Int64{}
	tm.play(func(ctx context.Context) error {
		if err := tm.c.Client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		pods, err := tm.podsOf(ctx, named)
		if err != nil {
			return err
		}
		commands := &unstructured.UnstructuredList{}
		commands.SetGroupVersionKind(commandGVK)
		if err := tm.c.Client.List(ctx, commands, client.InNamespace(tm.name)); err != nil {
			return err
		}
		for _, command := range commands.Items {
			if name, _, _ := unstructured.NestedString(command.Object, "target", "name"); name == "" {
				continue
			}
			if err := tm.c.Client.Delete(ctx, &command); err != nil {
				return err
			}
			taken.Add(1)
			return nil
		}
		retries, _, _ := unstructured.NestedInt64(job.Object, "status", "retryCount")
		if retries < taken.Load() {
			select {
			case <-free:
			default:
				return nil
			}
			if err := tm.deletePods(ctx, pods); err != nil {
				return err
			}
			return tm.setStatus(ctx, job, map[string]any{"retryCount": retries + 1, "state": map[string]any{"phase": "Restarting"}})
		}
		if len(pods) > 0 {
			return nil
		}
		for range 4 {
			if err := tm.pod(ctx, job, named); err != nil {
				return err
			}
		}
		return tm.setStatus(ctx, job, map[string]any{"state": map[string]any{"phase": "Running"}})
	})
	return tm.gang(volcanoJob, "train", 4), taken
}

// playPromptVolcano plays one that carries out a Command at once.
func (tm team) playPromptVolcano() gang {
	free := make(chan struct{})
	close(free)
	g, _ := tm.playVolcano(free)
	return g
}
