//go:build operators

package operators

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

// job is a job of some kind, called train.
type job struct {
	operator *operator
	kind     kinds.Kind
	// manifest makes it; see [gang.apply].
	manifest string
	// before runs before the manifest is applied; nil: nothing does.
	before func(gang)
	// container is the name that its operator wants for the container of a rank.
	container string
	// ranks is how many pods it has.
	ranks int
	// counted sums up what its owners have counted of restarts and failures; nil: they count nothing.
	counted func(gang) int64
	// adds is what a restart adds to that.
	adds int64
}

const (
	optedIn = `{name: train, namespace: NAMESPACE, labels: {pitcrew.dev/restart-on-node-fault: "true"}}`
	// dying makes ranks run for a while after their deletion, so that a start that comes too early is seen. They do not
	// stay listed after that: KWOK deletes by name, and could hit the next pod of the name.
	dying = `metadata: {annotations: {e2e.pitcrew.dev/term-delay: 1s}}`
)

// sum adds up fields of an object; one that is not there is 0.
func (g gang) sum(o *unstructured.Unstructured, fields ...string) int64 {
	g.Helper()
	var total int64
	for _, field := range fields {
		n, _, err := unstructured.NestedInt64(o.Object, strings.Split(field, ".")...)
		if err != nil {
			g.Fatal(err)
		}
		total += n
	}
	return total
}

// trainingJob is a job of the training-operator with four ranks, one of which is the master if that kind has one.
func trainingJob(kind kinds.Kind, replicaSpecs, container, restartPolicy string, masters int) job {
	return job{
		operator: trainingOperator, kind: kind, container: container, ranks: 4,
		manifest: strings.NewReplacer("KIND", kind.GVK.Kind, "SPECS", replicaSpecs, "POLICY", restartPolicy,
			"WORKERS", strconv.Itoa(4-masters)).Replace(`
apiVersion: kubeflow.org/v1
kind: KIND
metadata: ` + optedIn + `
spec:
  runPolicy: {cleanPodPolicy: None, backoffLimit: 0}
  SPECS:
    Worker: {replicas: WORKERS, restartPolicy: POLICY, template: {` + dying + `, spec: {RANK}}}
` + strings.Repeat(`    Master: {replicas: 1, restartPolicy: POLICY, template: {`+dying+`, spec: {RANK}}}
`, masters)),
		counted: func(g gang) int64 {
			return g.sum(g.get(), "status.replicaStatuses.Master.failed", "status.replicaStatuses.Worker.failed")
		},
	}
}

func pyTorchJob(restartPolicy string) job {
	return trainingJob(jobstest.Kind("kubeflow.org/v1", "PyTorchJob"), "pytorchReplicaSpecs", "pytorch", restartPolicy, 1)
}

func jaxJob() job {
	return trainingJob(jobstest.Kind("kubeflow.org/v1", "JAXJob"), "jaxReplicaSpecs", "jax", "Never", 0)
}

// mpiSpec is the same in both versions of MPIJob.
const mpiSpec = `
spec:
  slotsPerWorker: 8
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 0}
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {` + dying + `, spec: {RANK}}}
    Worker: {replicas: 3, template: {` + dying + `, spec: {RANK}}}
`

var mpiJobV1 = job{
	operator: trainingOperator, kind: jobstest.Kind("kubeflow.org/v1", "MPIJob"), container: "mpi", ranks: 4,
	manifest: `
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: ` + optedIn + mpiSpec,
	counted: func(g gang) int64 {
		return g.sum(g.get(), "status.replicaStatuses.Launcher.failed", "status.replicaStatuses.Worker.failed")
	},
}

var mpiJob = job{
	operator: mpiOperator, kind: jobstest.Kind("kubeflow.org/v2beta1", "MPIJob"), container: "mpi", ranks: 4,
	manifest: `
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: ` + optedIn + mpiSpec,
	counted: func(g gang) int64 { return g.sum(g.object("batch/v1", "Job", "train-launcher"), "status.failed") },
}

var trainJob = job{
	operator: trainer, kind: jobstest.Kind("trainer.kubeflow.org/v1alpha1", "TrainJob"), ranks: 4,
	manifest: `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: ` + optedIn + `
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 4, image: none, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}
  runtimePatches:
  - manager: e2e.pitcrew.dev/test
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {` + dying + `, spec: {nodeSelector: {POOL}}}}}}]}}}
`,
	counted: jobSetCounts("train-node-0"),
}

// jobSetCounts counts what a JobSet called train and one of its Jobs have counted.
func jobSetCounts(child string) func(gang) int64 {
	return func(g gang) int64 {
		return g.sum(g.object("jobset.x-k8s.io/v1alpha2", "JobSet", "train"), "status.restarts", "status.restartsCountTowardsMax") +
			g.sum(g.object("batch/v1", "Job", child), "status.failed")
	}
}

const rayClusterSpec = `{
  rayVersion: "2.46.0",
  headGroupSpec: {rayStartParams: {}, template: {` + dying + `, spec: {RANK}}},
  workerGroupSpecs: [{groupName: g, replicas: 3, minReplicas: 1, maxReplicas: 5, rayStartParams: {}, template: {` + dying + `, spec: {RANK}}}]}
`

var rayCluster = job{
	operator: kubeRay, kind: jobstest.Kind("ray.io/v1", "RayCluster"), container: "ray", ranks: 4,
	manifest: `
apiVersion: ray.io/v1
kind: RayCluster
metadata: ` + optedIn + `
spec: ` + rayClusterSpec,
}

// The fifth pod of a RayJob submits it.
var rayJob = job{
	operator: kubeRay, kind: jobstest.Kind("ray.io/v1", "RayJob"), container: "ray", ranks: 5,
	manifest: `
apiVersion: ray.io/v1
kind: RayJob
metadata: ` + optedIn + `
spec:
  entrypoint: python train.py
  backoffLimit: 0
  shutdownAfterJobFinishes: true
  submitterPodTemplate: {` + dying + `, spec: {restartPolicy: Never, RANK}}
  rayClusterSpec: ` + rayClusterSpec,
	counted: func(g gang) int64 { return g.sum(g.get(), "status.failed") },
}

// leaderWorkerSet has some groups of four ranks.
func leaderWorkerSet(groups string, ranks int) job {
	return job{
		operator: lws, kind: jobstest.Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), container: "main", ranks: ranks,
		manifest: `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: ` + optedIn + `
spec:
  replicas: ` + groups + `
  leaderWorkerTemplate: {size: 4, restartPolicy: RecreateGroupOnPodRestart, workerTemplate: {` + dying + `, spec: {RANK}}}
`,
	}
}

// queue is a queue of Kueue with room for the job.
const queue = `
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: gpu}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: NAMESPACE}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: gpu, resources: [{name: nvidia.com/gpu, nominalQuota: 32}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue, namespace: NAMESPACE}
spec: {clusterQueue: NAMESPACE}
---`

// topology has Kueue choose the nodes of what it admits, each node being a domain.
const topology = `
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: NAMESPACE}
spec: {levels: [{nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: NAMESPACE}
spec: {nodeLabels: {POOL}, topologyName: NAMESPACE}
---`

// placed is a queued job whose nodes Kueue chooses.
func (j job) placed() job {
	return j.with(queue, topology+queue).with("flavors: [{name: gpu,", "flavors: [{name: NAMESPACE,")
}

const queued = `{name: train, namespace: NAMESPACE, labels: {pitcrew.dev/restart-on-node-fault: "true", kueue.x-k8s.io/queue-name: queue}}`

var queuedJob = job{
	operator: kueue, kind: jobstest.Kind("batch/v1", "Job"), container: "main", ranks: 4,
	manifest: queue + `
apiVersion: batch/v1
kind: Job
metadata: ` + queued + `
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 0
  template: {` + dying + `, spec: {restartPolicy: Never, RANK}}
`,
	counted: func(g gang) int64 { return g.sum(g.get(), "status.failed") },
}

var queuedJobSet = job{
	operator: kueue, kind: jobstest.Kind("jobset.x-k8s.io/v1alpha2", "JobSet"), container: "main", ranks: 4,
	manifest: queue + `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: ` + queued + `
spec:
  replicatedJobs:
  - name: rank
    template: {spec: {completions: 4, parallelism: 4, backoffLimit: 0, template: {` + dying + `, spec: {restartPolicy: Never, RANK}}}}
`,
	counted: jobSetCounts("train-rank-0"),
}

var volcanoJob = job{
	operator: volcano, kind: jobstest.Kind("batch.volcano.sh/v1alpha1", "Job"), container: "main", ranks: 4,
	manifest: `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: ` + optedIn + `
spec:
  minAvailable: 4
  schedulerName: volcano
  tasks: [{name: w, replicas: 4, template: {` + dying + `, spec: {restartPolicy: Never, RANK}}}]
`,
	counted: func(g gang) int64 { return g.sum(g.get(), "status.retryCount") },
	adds:    1,
}
