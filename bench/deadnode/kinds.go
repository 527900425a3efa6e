package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

type operator struct {
	start   func(*cluster.Cluster, context.Context) error
	started bool
}

var (
	kueue            = &operator{start: (*cluster.Cluster).StartKueue}
	trainer          = &operator{start: (*cluster.Cluster).StartTrainer}
	trainingOperator = &operator{start: (*cluster.Cluster).StartTrainingOperator}
	kubeRay          = &operator{start: (*cluster.Cluster).StartKubeRay}
	volcano          = &operator{start: (*cluster.Cluster).StartVolcano}
	lws              = &operator{start: (*cluster.Cluster).StartLWS}
)

// kind is a kind of job.
type kind struct {
	name string
	// operator is its operator, which is started once; nil: it is part of every cluster.
	operator *operator
	// container is the name that its operator wants for the container of a rank.
	container string
	// ranks is how many pods it has.
	ranks int
	// manifest has META for the job's metadata, RANK for the spec of a pod and HEAD for that of one that must not be on the node
	// that is switched off, so that the lost pod has the same role in every run.
	manifest string
}

// in returns the manifest of a job in a namespace.
func (k kind) in(namespace string, optedIn bool) string {
	spec := "nodeSelector: {" + cluster.LabelPool + ": " + namespace + "%}, containers: [{name: " + k.container +
		", image: none, resources: {limits: {nvidia.com/gpu: 8}}}]"
	labels := conditions.LabelRestartOnNodeFault + `: "` + strconv.FormatBool(optedIn) + `"`
	return strings.NewReplacer(
		"META", "{name: train, namespace: "+namespace+", labels: {"+labels+"}}",
		"QUEUED", "{name: train, namespace: "+namespace+", labels: {"+labels+", kueue.x-k8s.io/queue-name: queue}}",
		"NAMESPACE", namespace,
		"RANK", strings.Replace(spec, "%", "", 1), "HEAD", strings.Replace(spec, "%", ", "+labelLive+`: "true"`, 1),
	).Replace(k.manifest)
}

const rayClusterSpec = `{
  rayVersion: "2.46.0",
  headGroupSpec: {rayStartParams: {}, template: {spec: {HEAD}}},
  workerGroupSpecs: [{groupName: g, replicas: 2, minReplicas: 1, maxReplicas: 5, rayStartParams: {}, template: {spec: {RANK}}}]}
`

// allKinds have no settings beside the defaults that change what happens after a fault.
var allKinds = []kind{
	{name: "Job", container: "main", ranks: 3, manifest: `
apiVersion: batch/v1
kind: Job
metadata: META
spec: {completions: 3, parallelism: 3, completionMode: Indexed, template: {spec: {restartPolicy: Never, RANK}}}
`},
	{name: "Job in a queue of Kueue", operator: kueue, container: "main", ranks: 3, manifest: `
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: gpu}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: NAMESPACE}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: gpu, resources: [{name: nvidia.com/gpu, nominalQuota: 24}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: queue, namespace: NAMESPACE}
spec: {clusterQueue: NAMESPACE}
---
apiVersion: batch/v1
kind: Job
metadata: QUEUED
spec: {completions: 3, parallelism: 3, completionMode: Indexed, template: {spec: {restartPolicy: Never, RANK}}}
`},
	{name: "JobSet", container: "main", ranks: 3, manifest: `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: META
spec:
  replicatedJobs:
  - name: rank
    template: {spec: {completions: 3, parallelism: 3, template: {spec: {restartPolicy: Never, RANK}}}}
`},
	{name: "TrainJob", operator: trainer, ranks: 3, manifest: `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: META
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 3, image: none, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}
  runtimePatches:
  - manager: e2e.pitcrew.dev/bench
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {nodeSelector: {` + cluster.LabelPool + `: NAMESPACE}}}}}}]}}}
`},
	{name: "PyTorchJob", operator: trainingOperator, container: "pytorch", ranks: 3, manifest: `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: META
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: OnFailure, template: {spec: {HEAD}}}
    Worker: {replicas: 2, restartPolicy: OnFailure, template: {spec: {RANK}}}
`},
	{name: "MPIJob", operator: trainingOperator, container: "mpi", ranks: 3, manifest: `
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: META
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {HEAD}}}
    Worker: {replicas: 2, template: {spec: {RANK}}}
`},
	{name: "RayJob", operator: kubeRay, container: "ray", ranks: 4, manifest: `
apiVersion: ray.io/v1
kind: RayJob
metadata: META
spec:
  entrypoint: python train.py
  shutdownAfterJobFinishes: true
  submitterPodTemplate: {spec: {restartPolicy: Never, HEAD}}
  rayClusterSpec: ` + rayClusterSpec},
	{name: "RayCluster", operator: kubeRay, container: "ray", ranks: 3, manifest: `
apiVersion: ray.io/v1
kind: RayCluster
metadata: META
spec: ` + rayClusterSpec},
	{name: "Volcano Job", operator: volcano, container: "main", ranks: 3, manifest: `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: META
spec:
  minAvailable: 3
  schedulerName: volcano
  tasks: [{name: w, replicas: 3, template: {spec: {restartPolicy: Never, RANK}}}]
`},
	{name: "LeaderWorkerSet", operator: lws, container: "main", ranks: 3, manifest: `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: META
spec:
  replicas: 1
  leaderWorkerTemplate: {size: 3, restartPolicy: RecreateGroupOnPodRestart, leaderTemplate: {spec: {HEAD}}, workerTemplate: {spec: {RANK}}}
`},
	{name: "StatefulSet", container: "main", ranks: 3, manifest: `
apiVersion: apps/v1
kind: StatefulSet
metadata: META
spec:
  replicas: 3
  serviceName: train
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: train}}
  template: {metadata: {labels: {app: train}}, spec: {RANK}}
`},
}
