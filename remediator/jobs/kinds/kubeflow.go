package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// The jobs of github.com/kubeflow/training-operator, group kubeflow.org, version v1. Suspending deletes all pods, those
// that have ended too, and counts no restart (pkg/controller.v1/common, ReconcileJobs). A resume that finds an old pod
// takes its end for that of the new rank: with restartPolicy Never, or an exit code below 128 and ExitCode, the job
// fails for good, and with exit code 0 it "succeeds" (measured on v1.8.1).
var (
	pyTorchJob = kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs", "pytorchjob-controller")
	tfJob      = kubeflow("TFJob", "tfjobs", "tfReplicaSpecs", "tfjob-controller")
	xgboostJob = kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs", "xgboostjob-controller")
	paddleJob  = kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs", "paddlejob-controller")
	jaxJob     = kubeflow("JAXJob", "jaxjobs", "jaxReplicaSpecs", "jaxjob-controller")
	mpiJobV1   = kubeflow("MPIJob", "mpijobs", "mpiReplicaSpecs", "mpijob-controller")
)

// Labels of the pods. The operator's name distinguishes the pods of two kinds of jobs that have the same name.
const (
	kubeflowJobNameLabel  = "training.kubeflow.org/job-name"
	kubeflowOperatorLabel = "training.kubeflow.org/operator-name"
	kubeflowRoleLabel     = "training.kubeflow.org/job-role"
)

// kubeflowSuspend is their suspend field.
var kubeflowSuspend = restart.SuspendField{Path: "spec.runPolicy.suspend", StopValue: true}

// kubeflowFields are the fields used here that all of these kinds, and the MPIJob of the mpi-operator, have in common.
type kubeflowFields struct {
	Spec struct {
		RunPolicy struct {
			Suspend   *bool   `json:"suspend"`
			ManagedBy *string `json:"managedBy"`
		} `json:"runPolicy"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type replicaSpec struct {
	Replicas *int32                 `json:"replicas"`
	Template corev1.PodTemplateSpec `json:"template"`
}

func kubeflow(name, resource, replicaSpecs, operator string) Kind {
	gvk := schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: name}
	return Kind{GVK: gvk, Resource: resource, ExtraRules: []rbacv1.PolicyRule{kueueRule}, ReplacesFailedRank: true, read: func(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
		j, err := readKubeflow(ctx, reader, gvk, key, replicaSpecs, operator, "kubeflow.org/training-operator")
		j.FailsIfOldPodsRemain = true
		return j, err
	}}
}

func readKubeflow(ctx context.Context, reader client.Reader, gvk schema.GroupVersionKind, key client.ObjectKey, replicaSpecs, operator, manager string) (restart.Job, error) {
	object, job, err := fetch[kubeflowFields](ctx, reader, gvk, key)
	if err != nil {
		return restart.Job{}, err
	}
	j := restart.Job{
		Object:          object,
		SuspendField:    kubeflowSuspend,
		Suspended:       ptr.Deref(job.Spec.RunPolicy.Suspend, false),
		SuspendObserved: meta.IsStatusConditionTrue(job.Status.Conditions, "Suspended"),
		ManagedBy:       otherManager(job.Spec.RunPolicy.ManagedBy, manager),
		Pods:            labels.SelectorFromSet(labels.Set{kubeflowJobNameLabel: key.Name, kubeflowOperatorLabel: operator}),
	}
	j.Controllers = controlledBy(object, j.Pods)
	for _, ended := range []string{restart.ConditionFailed, "Succeeded"} {
		if meta.IsStatusConditionTrue(job.Status.Conditions, ended) {
			j.FinishedReason = ended
		}
	}
	if err := addReplicas(&j, object, replicaSpecs); err != nil {
		return restart.Job{}, fmt.Errorf("read %s %s: %w", gvk.Kind, key, err)
	}
	return j, nil
}

// addReplicas adds the ranks and templates of the replica types (Master, Worker, ...).
func addReplicas(j *restart.Job, object *unstructured.Unstructured, field string) error {
	raw, _, err := unstructured.NestedMap(object.Object, "spec", field)
	if err != nil {
		return err
	}
	var types map[string]replicaSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &types); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		n := int(ptr.Deref(types[name].Replicas, 1))
		j.Ranks += n
		j.Templates = append(j.Templates, restart.Template{Of: name, Ranks: n, Spec: types[name].Template.Spec})
	}
	return nil
}
