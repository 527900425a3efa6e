package kinds

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// mpiJob is the MPIJob of github.com/kubeflow/mpi-operator. It shares its group and kind, and so its CRD, with that of
// the training-operator: a cluster serves one version or the other. Suspending suspends the launcher's Job and deletes
// the workers, but with cleanPodPolicy Running a worker that had failed before is left, and taken for the new rank of
// its name after the resume: the job would run with a dead rank permanently (measured on v0.6.0).
var (
	mpiJob = Kind{
		GVK: mpiJobGVK, Resource: "mpijobs", ExtraRules: []rbacv1.PolicyRule{rule("", "pods", "delete"), rule("batch", "jobs", "get"), kueueRule}, ReplacesFailedRank: true, read: readMPIJob,
	}
	mpiJobGVK = schema.GroupVersionKind{Group: "kubeflow.org", Version: "v2beta1", Kind: "MPIJob"}
)

func readMPIJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	const operator = "mpi-operator"
	j, err := readKubeflow(ctx, reader, mpiJobGVK, key, "mpiReplicaSpecs", operator, "kubeflow.org/mpi-operator")
	if err != nil {
		return j, err
	}
	j.TerminalPodsToDelete = labels.SelectorFromSet(labels.Set{
		kubeflowJobNameLabel: key.Name, kubeflowOperatorLabel: operator, kubeflowRoleLabel: "worker",
	})
	return j, addChildJob(ctx, reader, &j, key.Name+"-launcher")
}
