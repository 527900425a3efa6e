package kinds

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// A look at a node keeps the jobs on it: of each what is decided on, the whole record of its restart among it.
func TestOfAJobIsKeptWhatIsDecidedOn(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "train", UID: "u", Labels: map[string]string{"a": "b"},
		Annotations:     map[string]string{"long": long, "short": "kept", conditions.AnnotationRestart: long},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Gang", Name: "g", UID: "g"}},
	}}
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	job.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector: map[string]string{"pool": "gpu"}, Volumes: []corev1.Volume{{Name: long}},
		Containers: []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "E", Value: long}}}},
	}
	workload := "apiVersion: kueue.x-k8s.io/v1beta2\nkind: Workload\nmetadata: {name: train, namespace: team, resourceVersion: '5', annotations: {long: " + long + ", " + conditions.AnnotationRestartStep + ": step}, " +
		"labels: {kueue.x-k8s.io/job-uid: u}, ownerReferences: [{kind: Job, name: train, uid: u, controller: true}]}\nspec: {active: false}\n"
	reader, _ := readerOf(t, workload)
	if err := reader.(client.Client).Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	got, err := batchJob.Read(t.Context(), reader, client.ObjectKeyFromObject(job))
	if err != nil {
		t.Fatal(err)
	}
	o, annotations := got.Object, got.Object.GetAnnotations()
	if o.GetUID() != "u" || o.GetLabels()["a"] != "b" || o.GetResourceVersion() == "" || len(o.GetOwnerReferences()) != 1 ||
		len(annotations) != 2 || annotations["short"] != "kept" || annotations[conditions.AnnotationRestart] != long {
		t.Errorf("%+v", o)
	}
	for _, spec := range []corev1.PodSpec{got.Templates[0].Spec, got.Jobs[0].Spec.Template.Spec} {
		if spec.NodeSelector["pool"] != "gpu" || spec.Volumes != nil || spec.Containers[0].Env != nil {
			t.Errorf("%+v", spec)
		}
	}
	on := got.SuspendField.Elsewhere
	if !got.Suspended || on.GetName() != "train" || on.GetNamespace() != "team" || on.GetKind() != "Workload" || on.GetResourceVersion() != "5" ||
		len(on.GetAnnotations()) != 1 || on.GetAnnotations()[conditions.AnnotationRestartStep] != "step" {
		t.Errorf("%+v", on)
	}
	if size := slim.HeapOf(&got); size > 110_000 {
		t.Errorf("%d bytes are kept of a job with a record of 100,000", size)
	}
}

// A tenant's many large jobs, each with a pod on the node, take so much memory and no more, and hide no job of others.
func TestLargeJobsOfANamespaceHideNoJobOfOthers(t *testing.T) {
	const large = 40
	objects := []client.Object{jobOf("others", "train", 1)}
	for i := range large {
		objects = append(objects, jobOf("mallory", fmt.Sprint(i), 10_000))
	}
	r := NewOwnerResolver(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build(), BuiltIn())
	find := func(namespace, name string) error {
		w, err := r.OfOwner(t.Context(), namespace, metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID(namespace + name)})
		if err == nil && w.Job == nil {
			t.Errorf("%s/%s is not found", namespace, name)
		}
		return err
	}
	refused := 0
	for i := range large {
		for range 2 { // and remembered
			if err := find("mallory", fmt.Sprint(i)); err != nil {
				refused++
				if !errors.Is(err, slim.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint("Job mallory/", i)) {
					t.Error(err)
				}
			}
		}
	}
	if refused < large || r.kept[""] > maxOfNamespace {
		t.Errorf("%d are refused, %d bytes are kept", refused, r.kept[""])
	}
	if err := find("others", "train"); err != nil {
		t.Error(err)
	}
}

// jobOf is a Job whose template takes some memory.
func jobOf(namespace, name string, terms int) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": name}}
	job.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, terms)},
	}}
	return job
}
