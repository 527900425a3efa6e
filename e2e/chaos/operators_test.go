//go:build operators

package chaos

import (
	"context"
	"strings"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// The operators take long to build, so their kinds are behind a build tag:
//
//	make chaos TAGS=operators
//
// Only the MPIJob of the mpi-operator is not among them: its CRD has the name of that of the training-operator.
func init() {
	gpus = 2
	runPolicy := []string{"spec", "runPolicy", "suspend"}
	kubeflow := func(name, specs, container, masters string) job {
		replica := `{restartPolicy: OnFailure, template: ` + template + `, replicas: `
		j := job{
			kind: kind("kubeflow.org", "v1", name), name: strings.ToLower(name), suspend: runPolicy, container: container, failsBesideOld: true,
			ranks: [][]string{{"spec", specs, "Worker", "replicas"}},
			spec:  `{runPolicy: {cleanPodPolicy: None, backoffLimit: 1000}, ` + specs + `: {Worker: ` + replica + `2}`,
		}
		if masters != "" {
			j.spec, j.pods = j.spec+`, `+masters+`: `+replica+`1}`, 1
		}
		j.spec += `}}`
		return j
	}
	jobs = []job{
		kubeflow("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "Master"),
		kubeflow("TFJob", "tfReplicaSpecs", "tensorflow", ""),
		kubeflow("XGBoostJob", "xgbReplicaSpecs", "xgboost", "Master"),
		kubeflow("PaddleJob", "paddleReplicaSpecs", "paddle", ""),
		kubeflow("JAXJob", "jaxReplicaSpecs", "jax", ""),
		kubeflow("MPIJob", "mpiReplicaSpecs", "mpi", "Launcher"),
		{
			kind: kind("trainer.kubeflow.org", "v1alpha1", "TrainJob"), name: "trainjob", suspend: suspend, pods: 2,
			spec: `{runtimeRef: {name: torch-distributed}, trainer: {numNodes: 2, image: none, resourcesPerNode: {limits: {nvidia.com/gpu: GPUS}}},
  runtimePatches: [{manager: e2e.pitcrew.dev/test, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {
    metadata: ` + podMeta + `, spec: {nodeSelector: {` + cluster.LabelPool + `: POOL}}}}}}]}}}}]}`,
		},
		{kind: kind("ray.io", "v1", "RayCluster"), name: "raycluster", suspend: suspend, pods: 3, spec: rayCluster},
		{
			kind: kind("ray.io", "v1", "RayJob"), name: "rayjob", suspend: suspend, pods: 4,
			spec: `{entrypoint: python train.py, shutdownAfterJobFinishes: true, submitterPodTemplate: ` + strings.Replace(once, "labels: {", "labels: {"+onlyWaits+`: "true", `, 1) + `, rayClusterSpec: ` + rayCluster + `}`,
		},
		{
			kind: kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"), name: "lws", ranks: replicas, groups: 2,
			spec: `{replicas: 2, leaderWorkerTemplate: {size: 2, restartPolicy: RecreateGroupOnPodRestart, workerTemplate: ` + template + `}}`,
		},
		{
			kind: kind("batch.volcano.sh", "v1alpha1", "Job"), name: "volcano", pods: 3,
			spec: `{minAvailable: 3, maxRetry: 1000, schedulerName: volcano, tasks: [{name: w, replicas: 3, template: ` + once + `}]}`,
		},
		{kind: batch, name: "job", suspend: suspend, ranks: parallelism, spec: batchJob},
	}
	startOperators = func(ctx context.Context, c *cluster.Cluster) error {
		for _, start := range []func(*cluster.Cluster, context.Context) error{
			(*cluster.Cluster).StartTrainingOperator, (*cluster.Cluster).StartTrainer, (*cluster.Cluster).StartKubeRay,
			(*cluster.Cluster).StartLWS, (*cluster.Cluster).StartVolcano,
		} {
			if err := start(c, ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

const rayCluster = `{rayVersion: "2.46.0", headGroupSpec: {rayStartParams: {}, template: ` + template + `},
  workerGroupSpecs: [{groupName: g, replicas: 2, minReplicas: 1, maxReplicas: 5, rayStartParams: {}, template: ` + template + `}]}`
