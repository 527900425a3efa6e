package kinds

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// gangKind is a kind that is not built in.
var gangKind = jobkind.Kind{
	APIVersion: "example.com/v1", Kind: "Gang", ActivePath: "spec.run.active", PodLabel: "example.com/gang",
}

// facts is what an adapter reads of a job, comparable.
type facts struct {
	Suspended, SuspendObserved, ReplacingPods bool
	FailsIfOldPodsRemain                      bool
	FinishedReason, ManagedBy, Unsupported    string
	SuspendField, Pods                        string
	Ranks                                     int
	Templates                                 []string
	Retries                                   int64
	GangNeeds                                 int
}

func factsOf(j restart.Job) facts {
	f := facts{
		Suspended: j.Suspended, SuspendObserved: j.SuspendObserved, ReplacingPods: j.ReplacingPods, FailsIfOldPodsRemain: j.FailsIfOldPodsRemain,
		FinishedReason: j.FinishedReason, ManagedBy: j.ManagedBy, Unsupported: j.Unsupported.Reason,
		SuspendField: j.SuspendField.Path, Pods: j.Pods.String(), Ranks: j.Ranks, Retries: j.Retries,
		GangNeeds: j.GangNeeds,
	}
	for _, t := range j.Templates {
		f.Templates = append(f.Templates, t.Of)
	}
	return f
}

// The objects follow the samples and types of the operators' own repositories; they are synthetic.
func TestRead(t *testing.T) {
	const (
		template  = "template: {spec: {containers: [{name: c, image: none, resources: {limits: {cpu: 1}}}]}}"
		batch     = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: team}\nspec: {parallelism: 4, completions: 4, selector: {matchLabels: {job-name: train}}, " + template + "}\n"
		pytorch   = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train, namespace: team}\nspec:\n  pytorchReplicaSpecs: {Master: {" + template + "}, Worker: {replicas: 3, " + template + "}}\n"
		mpi       = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: train, namespace: team}\nspec:\n  mpiReplicaSpecs: {Launcher: {replicas: 1, " + template + "}, Worker: {replicas: 2, " + template + "}}\n"
		rayPods   = "headGroupSpec: {" + template + "}, workerGroupSpecs: [{groupName: gpu, replicas: 2, numOfHosts: 2, " + template + "}, {groupName: idle, replicas: 5, suspend: true, " + template + "}]"
		rayC      = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: train-x7x2q, namespace: team, labels: {ray.io/originated-from-cr-name: train, ray.io/originated-from-crd: RayJob}}\nspec: {" + rayPods + "}\n"
		rayJ      = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: train, namespace: team}\nspec: {shutdownAfterJobFinishes: true, rayClusterSpec: {" + rayPods + "}}\n"
		vcjob     = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: train, namespace: team}\nspec: {minAvailable: 3, maxRetry: 3, tasks: [{name: master, replicas: 1, " + template + "}, {name: worker, replicas: 2, " + template + "}]}\n"
		groups    = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: train, namespace: team}\nspec: {replicas: 2, leaderWorkerTemplate: {size: 4, restartPolicy: RecreateGroupOnPodRestart, workerTemplate: {spec: {containers: [{name: c, image: none}]}}}}\n"
		trainjob  = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: train, namespace: team, uid: train-uid}\nspec: {suspend: true, runtimeRef: {name: torch-distributed}}\nstatus: {conditions: [{type: Suspended, status: 'True'}]}\n"
		itsJobSet = "---\napiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: train, namespace: team, ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: train, uid: train-uid, controller: true}]}\n" +
			"spec: {suspend: true, replicatedJobs: [{name: node, replicas: 1, template: {spec: {parallelism: 4, completions: 4, template: {spec: {containers: [{name: c}]}}}}}]}\n"
		app      = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: serve, namespace: team}\nspec: {replicas: 3, selector: {matchLabels: {app: serve}}, template: {metadata: {labels: {app: serve}}, spec: {containers: [{name: c}]}}}\n"
		gang     = "apiVersion: example.com/v1\nkind: Gang\nmetadata: {name: train, namespace: team}\n"
		operated = ",training.kubeflow.org/operator-name="
		named    = "training.kubeflow.org/job-name=train" + operated
	)
	set := strings.NewReplacer("---\n", "", "suspend: true, ", "", "namespace: team, ", "namespace: team, uid: set-uid, ").Replace(itsJobSet)
	const restarting = "status: {restarts: 1, conditions: [{type: RestartingJobSet, status: 'True'}]}\n"
	child := func(attempt, deleted string) string {
		labels := "labels: {jobset.sigs.k8s.io/jobset-name: train, jobset.sigs.k8s.io/replicatedjob-name: node, jobset.sigs.k8s.io/restart-attempt: '" + attempt + "'}"
		if deleted != "" {
			labels += ", finalizers: [foregroundDeletion], deletionTimestamp: " + deleted
		}
		return "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: train-node-0, namespace: team, " + labels +
			", ownerReferences: [{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, name: train, uid: set-uid, controller: true}]}\n" +
			"spec: {parallelism: 4, completions: 4, template: {spec: {containers: [{name: c}]}}}\n"
	}
	sole := facts{SuspendField: "spec.suspend", Pods: "jobset.sigs.k8s.io/jobset-name=train", Ranks: 4, Templates: []string{"Job train-node-0"}}
	plain := facts{SuspendField: "spec.suspend", Pods: "job-name=train", Ranks: 4, Templates: []string{"Job train"}}
	gangC := strings.Replace(rayC, "labels: {", "labels: {ray.io/gang-scheduling-enabled: '', ", 1)
	const rayGroup = "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: train-x7x2q, namespace: team}\nspec: {minMember: 6}\n"
	ray := facts{SuspendField: "spec.suspend", Pods: "ray.io/cluster in (train-x7x2q)", Ranks: 5, Templates: []string{"the head", "worker group gpu"}}
	with := func(f facts, change func(*facts)) facts {
		change(&f)
		return f
	}
	torch := facts{FailsIfOldPodsRemain: true, SuspendField: "spec.runPolicy.suspend", Pods: named + "pytorchjob-controller", Ranks: 4, Templates: []string{"Master", "Worker"}}
	volcano := facts{Pods: "volcano.sh/job-name=train", Ranks: 3, Templates: []string{"task master", "task worker"}}
	sets := facts{Pods: "leaderworkerset.sigs.k8s.io/name=train", Ranks: 8, Templates: []string{"the leader", "the workers"}}
	tests := map[string]struct {
		kind    Kind
		objects string
		want    facts
	}{
		"a Job":                   {batchJob, batch, plain},
		"a suspended Job":         {batchJob, strings.Replace(batch, "spec: {", "spec: {suspend: true, ", 1) + "status: {conditions: [{type: Suspended, status: 'True'}]}", with(plain, func(f *facts) { f.Suspended, f.SuspendObserved = true, true })},
		"a Job that failed":       {batchJob, batch + "status: {conditions: [{type: Failed, status: 'True'}]}", with(plain, func(f *facts) { f.FinishedReason = "Failed" })},
		"a Job about to fail":     {batchJob, batch + "status: {conditions: [{type: FailureTarget, status: 'True'}]}", with(plain, func(f *facts) { f.FinishedReason = "Failed" })},
		"a Job that completed":    {batchJob, batch + "status: {conditions: [{type: Complete, status: 'True'}]}", with(plain, func(f *facts) { f.FinishedReason = "Complete" })},
		"a Job about to complete": {batchJob, batch + "status: {conditions: [{type: SuccessCriteriaMet, status: 'True'}]}", with(plain, func(f *facts) { f.FinishedReason = "Complete" })},
		"a Job of MultiKueue":     {batchJob, strings.Replace(batch, "spec: {", "spec: {managedBy: kueue.x-k8s.io/multikueue, ", 1), with(plain, func(f *facts) { f.ManagedBy = "kueue.x-k8s.io/multikueue" })},
		"a Job of its controller": {batchJob, strings.Replace(batch, "spec: {", "spec: {managedBy: kubernetes.io/job-controller, ", 1), plain},
		"a PyTorchJob":            {pyTorchJob, pytorch, torch},
		"a suspended PyTorchJob": {pyTorchJob, pytorch + "  runPolicy: {suspend: true, managedBy: kubeflow.org/training-operator}\nstatus: {conditions: [{type: Suspended, status: 'True'}]}",
			with(torch, func(f *facts) { f.Suspended, f.SuspendObserved = true, true })},
		"a PyTorchJob that was resumed": {pyTorchJob, pytorch + "status: {conditions: [{type: Suspended, status: 'False'}]}", torch},
		"a PyTorchJob that failed": {pyTorchJob, pytorch + "status: {conditions: [{type: Failed, status: 'True'}]}",
			with(torch, func(f *facts) { f.FinishedReason = "Failed" })},
		"a PyTorchJob that succeeded": {pyTorchJob, pytorch + "status: {conditions: [{type: Failed, status: 'False'}, {type: Succeeded, status: 'True'}]}",
			with(torch, func(f *facts) { f.FinishedReason = "Succeeded" })},
		"a PyTorchJob of MultiKueue": {pyTorchJob, pytorch + "  runPolicy: {managedBy: kueue.x-k8s.io/multikueue}",
			with(torch, func(f *facts) { f.ManagedBy = "kueue.x-k8s.io/multikueue" })},
		"a TFJob": {tfJob, strings.NewReplacer("PyTorchJob", "TFJob", "pytorchReplicaSpecs", "tfReplicaSpecs", "Master", "PS").Replace(pytorch),
			with(torch, func(f *facts) { f.Pods, f.Templates = named+"tfjob-controller", []string{"PS", "Worker"} })},
		"an XGBoostJob": {xgboostJob, strings.NewReplacer("PyTorchJob", "XGBoostJob", "pytorchReplicaSpecs", "xgbReplicaSpecs").Replace(pytorch),
			with(torch, func(f *facts) { f.Pods = named + "xgboostjob-controller" })},
		"a PaddleJob": {paddleJob, strings.NewReplacer("PyTorchJob", "PaddleJob", "pytorchReplicaSpecs", "paddleReplicaSpecs").Replace(pytorch),
			with(torch, func(f *facts) { f.Pods = named + "paddlejob-controller" })},
		"a JAXJob": {jaxJob, strings.NewReplacer("PyTorchJob", "JAXJob", "pytorchReplicaSpecs", "jaxReplicaSpecs").Replace(pytorch),
			with(torch, func(f *facts) { f.Pods = named + "jaxjob-controller" })},
		"an MPIJob of the training-operator": {mpiJobV1, strings.Replace(mpi, "v2beta1", "v1", 1),
			facts{FailsIfOldPodsRemain: true, SuspendField: "spec.runPolicy.suspend", Pods: named + "mpijob-controller", Ranks: 3, Templates: []string{"Launcher", "Worker"}}},
		"an MPIJob of the mpi-operator": {mpiJob, mpi + "  runPolicy: {managedBy: kubeflow.org/mpi-operator}",
			facts{SuspendField: "spec.runPolicy.suspend", Pods: named + "mpi-operator", Ranks: 3, Templates: []string{"Launcher", "Worker"}}},
		"a TrainJob whose JobSet has not said that it stopped": {trainJob, trainjob + itsJobSet,
			facts{Suspended: true, SuspendField: "spec.suspend", Pods: "jobset.sigs.k8s.io/jobset-name=train", Ranks: 4}},
		"a TrainJob that is stopped": {trainJob, trainjob + itsJobSet + "status: {conditions: [{type: Suspended, status: 'True'}]}",
			facts{Suspended: true, SuspendObserved: true, SuspendField: "spec.suspend", Pods: "jobset.sigs.k8s.io/jobset-name=train", Ranks: 4}},
		"a TrainJob beside a JobSet of its name": {trainJob, trainjob + strings.Replace(itsJobSet, "uid: train-uid", "uid: other", 1),
			facts{Suspended: true, SuspendObserved: true, SuspendField: "spec.suspend", Pods: "jobset.sigs.k8s.io/jobset-name=train"}},
		"a TrainJob before its JobSet": {trainJob, strings.Replace(trainjob, "spec: {suspend: true", "spec: {managedBy: kueue.x-k8s.io/multikueue, suspend: true", 1),
			facts{Suspended: true, SuspendObserved: true, ManagedBy: "kueue.x-k8s.io/multikueue", SuspendField: "spec.suspend", Pods: "jobset.sigs.k8s.io/jobset-name=train"}},
		"a JobSet":                        {jobSet, set + child("0", ""), sole},
		"a JobSet that restarts":          {jobSet, set + restarting + child("0", ""), with(sole, func(f *facts) { f.ReplacingPods = true })},
		"a JobSet that deletes its Jobs":  {jobSet, set + restarting + child("1", "2026-11-20T12:00:00Z"), with(sole, func(f *facts) { f.ReplacingPods = true })},
		"a JobSet that waits for its new": {jobSet, set + restarting + child("1", ""), sole},
		"a JobSet that has restarted":     {jobSet, set + strings.Replace(restarting, "True", "False", 1) + child("0", ""), sole},
		"a TrainJob whose JobSet restarts": {trainJob, strings.Replace(trainjob, "suspend: true, ", "", 1) + "---\n" + set + restarting + child("0", ""),
			with(sole, func(f *facts) { f.ReplacingPods = true })},
		"a RayCluster": {rayCluster, rayC, with(ray, func(f *facts) { f.Pods = "ray.io/cluster=train-x7x2q" })},
		"a suspended RayCluster": {rayCluster, strings.Replace(rayC, "spec: {", "spec: {suspend: true, managedBy: ray.io/kuberay-operator, ", 1) + "status: {conditions: [{type: RayClusterSuspended, status: 'True'}]}",
			with(ray, func(f *facts) { f.Pods, f.Suspended, f.SuspendObserved = "ray.io/cluster=train-x7x2q", true, true })},
		"a RayCluster that is being suspended": {rayCluster, strings.Replace(rayC, "spec: {", "spec: {suspend: true, ", 1) + "status: {conditions: [{type: RayClusterSuspending, status: 'True'}]}",
			with(ray, func(f *facts) { f.Pods, f.Suspended = "ray.io/cluster=train-x7x2q", true })},
		"a RayCluster without conditions":           {rayCluster, rayC + "status: {state: suspended}", with(ray, func(f *facts) { f.Pods, f.SuspendObserved = "ray.io/cluster=train-x7x2q", true })},
		"a RayCluster in a gang":                    {rayCluster, gangC + "---\n" + rayGroup, with(ray, func(f *facts) { f.Pods, f.GangNeeds = "ray.io/cluster=train-x7x2q", 6 })},
		"a RayCluster in a gang without a PodGroup": {rayCluster, gangC, with(ray, func(f *facts) { f.Pods = "ray.io/cluster=train-x7x2q" })},
		"a PodGroup that is not a RayCluster's":     {rayCluster, rayC + "---\n" + rayGroup, with(ray, func(f *facts) { f.Pods = "ray.io/cluster=train-x7x2q" })},
		"a RayJob":                                  {rayJob, rayJ + "status: {jobDeploymentStatus: Running}\n---\n" + rayC, ray},
		"a RayJob that begins":                      {rayJob, rayJ + "status: {jobDeploymentStatus: Initializing}\n---\n" + rayC, ray},
		"a RayJob that tries again":                 {rayJob, rayJ + "status: {jobDeploymentStatus: Retrying}\n---\n" + rayC, with(ray, func(f *facts) { f.ReplacingPods = true })},
		"a RayJob that waits for a job ID":          {rayJob, rayJ + "status: {jobDeploymentStatus: Waiting}\n---\n" + rayC, with(ray, func(f *facts) { f.ReplacingPods = true })},
		"an invalid RayJob":                         {rayJob, rayJ + "status: {jobDeploymentStatus: ValidationFailed}\n---\n" + rayC, with(ray, func(f *facts) { f.FinishedReason = "Failed" })},
		"a RayJob that failed":                      {rayJob, rayJ + "status: {jobDeploymentStatus: Failed}\n---\n" + rayC, with(ray, func(f *facts) { f.FinishedReason = "Failed" })},
		"a RayJob without a shutdown":               {rayJob, strings.Replace(rayJ, "shutdownAfterJobFinishes: true, ", "", 1) + "status: {jobDeploymentStatus: Running}\n---\n" + rayC, with(ray, func(f *facts) { f.Unsupported = "RayShutdown" })},
		"a RayJob on somebody's cluster":            {rayJob, strings.Replace(rayJ, "spec: {", "spec: {clusterSelector: {ray.io/cluster: shared}, ", 1) + "status: {jobDeploymentStatus: Running}\n---\n" + rayC, with(ray, func(f *facts) { f.Unsupported = "RayClusterShared" })},
		"a suspended RayJob": {rayJob, strings.Replace(rayJ, "spec: {", "spec: {suspend: true, ", 1) + "status: {jobDeploymentStatus: Suspended}", with(ray, func(f *facts) {
			f.Suspended, f.SuspendObserved, f.ReplacingPods, f.Pods = true, true, true, "ray.io/cluster="
		})},
		"a Volcano job":                      {volcanoJob, vcjob + "status: {state: {phase: Running}}", volcano},
		"a Volcano job with one retry":       {volcanoJob, vcjob + "status: {retryCount: 1, state: {phase: Running}}", with(volcano, func(f *facts) { f.Retries = 1 })},
		"a Volcano job on its last try":      {volcanoJob, vcjob + "status: {retryCount: 2, state: {phase: Running}}", with(volcano, func(f *facts) { f.Retries, f.Unsupported = 2, "MaxRetry" })},
		"a Volcano job without maxRetry":     {volcanoJob, strings.Replace(vcjob, "maxRetry: 3, ", "", 1), with(volcano, func(f *facts) { f.Unsupported = "MaxRetry" })},
		"a Volcano job that restarts":        {volcanoJob, vcjob + "status: {state: {phase: Restarting}}", with(volcano, func(f *facts) { f.ReplacingPods = true })},
		"a Volcano job that was aborted":     {volcanoJob, vcjob + "status: {state: {phase: Aborted}}", with(volcano, func(f *facts) { f.Suspended = true })},
		"a Volcano job that failed":          {volcanoJob, vcjob + "status: {state: {phase: Failed}}", with(volcano, func(f *facts) { f.FinishedReason = "Failed" })},
		"a LeaderWorkerSet":                  {leaderWorkerSet, groups, sets},
		"a LeaderWorkerSet of lone ranks":    {leaderWorkerSet, strings.Replace(groups, "RecreateGroupOnPodRestart", "None", 1), with(sets, func(f *facts) { f.Unsupported = "RestartPolicy" })},
		"a LeaderWorkerSet that has started": {leaderWorkerSet, strings.Replace(groups, "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", 1), sets},
		"a StatefulSet":                      {statefulSet, app, facts{Pods: "app=serve", Ranks: 3, Templates: []string{"StatefulSet serve"}}},
		"a configured kind that is active":   {configured(gangKind), gang + "spec: {run: {active: true}}", facts{SuspendObserved: true, FailsIfOldPodsRemain: true, SuspendField: "spec.run.active", Pods: "example.com/gang=train"}},
		"a configured kind by default":       {configured(gangKind), gang, facts{SuspendObserved: true, FailsIfOldPodsRemain: true, SuspendField: "spec.run.active", Pods: "example.com/gang=train"}},
		"a configured kind that is not":      {configured(gangKind), gang + "spec: {run: {active: false}}", facts{Suspended: true, SuspendObserved: true, FailsIfOldPodsRemain: true, SuspendField: "spec.run.active", Pods: "example.com/gang=train"}},
		"a configured kind that completed":   {configured(gangKind), gang + "status: {conditions: [{type: Complete, status: 'True'}]}", facts{SuspendObserved: true, FailsIfOldPodsRemain: true, FinishedReason: "Complete", SuspendField: "spec.run.active", Pods: "example.com/gang=train"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reader, first := readerOf(t, test.objects)
			job, err := test.kind.Read(t.Context(), reader, first)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, factsOf(job)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// readerOf serves the objects of a YAML stream, and tells the key of the first.
func readerOf(t *testing.T, stream string) (client.Reader, client.ObjectKey) {
	t.Helper()
	var objects []client.Object
	for document := range strings.SplitSeq(stream, "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build(), client.ObjectKeyFromObject(objects[0])
}

func TestFind(t *testing.T) {
	kinds := All([]jobkind.Kind{gangKind})
	tests := map[string]struct {
		apiVersion, kind string
		want             schema.GroupVersionKind
	}{
		"an MPIJob of the training-operator": {"kubeflow.org/v1", "MPIJob", mpiJobV1.GVK},
		"an MPIJob of the mpi-operator":      {"kubeflow.org/v2beta1", "MPIJob", mpiJobGVK},
		"a version that is not known":        {"ray.io/v1alpha1", "RayJob", rayJobGVK},
		"a Job of Volcano":                   {"batch.volcano.sh/v1alpha1", "Job", volcanoJobGVK},
		"a kind of the policy":               {"example.com/v1", "Gang", gangKind.GVK()},
		"a kind that is not known":           {"batch/v1", "CronJob", schema.GroupVersionKind{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, known := Find(kinds, test.apiVersion, test.kind)
			if got.GVK != test.want || known == test.want.Empty() {
				t.Errorf("got %v, %t, want %v", got.GVK, known, test.want)
			}
		})
	}
}

// Under Kueue, the Workload of the job decides whether it is stopped, and not the job.
func TestKueue(t *testing.T) {
	const (
		job      = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train, namespace: team, uid: job-uid, labels: {kueue.x-k8s.io/queue-name: gpus}}\nspec: {runPolicy: {suspend: true}}\n"
		vcjob    = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: train, namespace: team, uid: job-uid}\nspec: {maxRetry: 3}\n"
		workload = "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: Workload\nmetadata: {name: pytorchjob-train, namespace: team, labels: {kueue.x-k8s.io/job-uid: job-uid}, ownerReferences: [{kind: PyTorchJob, name: train, uid: job-uid, controller: true}]}\nspec: {active: true}\n"
	)
	tests := map[string]struct {
		kind             Kind
		objects          string
		suspended        bool
		field, on        string
		unsupported, why string
	}{
		"an active Workload":    {kind: pyTorchJob, objects: job + workload, field: "spec.active", on: "pytorchjob-train"},
		"an inactive Workload":  {kind: pyTorchJob, objects: job + strings.Replace(workload, "active: true", "active: false", 1), suspended: true, field: "spec.active", on: "pytorchjob-train"},
		"a job without a queue": {kind: pyTorchJob, objects: strings.Replace(job, "kueue.x-k8s.io/queue-name", "a", 1) + workload, field: "spec.active", on: "pytorchjob-train"},
		"a Workload made by hand": {kind: pyTorchJob, field: "spec.active", on: "mine",
			objects: strings.Replace(job, "labels: {", "labels: {kueue.x-k8s.io/prebuilt-workload-name: mine, ", 1) + strings.NewReplacer("pytorchjob-train", "mine", "job-uid: job-uid", "a: b").Replace(workload)},
		"another job's Workload": {kind: pyTorchJob, objects: job + strings.Replace(workload, "job-uid: job-uid", "job-uid: other", 1),
			field: "spec.active", on: "train", unsupported: "Kueue", why: "queued by Kueue in gpus, but it has no Workload"},
		"a Workload that names the job and belongs to another": {kind: pyTorchJob, objects: job + strings.Replace(workload, ", uid: job-uid", ", uid: other", 1),
			field: "spec.active", on: "train", unsupported: "Kueue", why: "queued by Kueue in gpus, but it has no Workload"},
		"no Kueue at all":            {kind: pyTorchJob, objects: strings.Replace(job, "kueue.x-k8s.io/queue-name", "a", 1), suspended: true, field: "spec.runPolicy.suspend"},
		"a kind that has no suspend": {kind: volcanoJob, objects: vcjob + workload, unsupported: "Kueue", why: "managed by Kueue"},
	}
	for name, test := range tests {
		check := func(t *testing.T, reader client.Reader, key client.ObjectKey) {
			t.Helper()
			job, err := test.kind.Read(t.Context(), reader, key)
			if err != nil {
				t.Fatal(err)
			}
			on := ""
			if job.SuspendField.Elsewhere != nil {
				on = job.SuspendField.Elsewhere.GetName()
			}
			if job.Suspended != test.suspended || job.SuspendField.Path != test.field || on != test.on {
				t.Errorf("suspended %t by %q of %q, want %t by %q of %q", job.Suspended, job.SuspendField.Path, on, test.suspended, test.field, test.on)
			}
			if job.Unsupported.Reason != test.unsupported || !strings.Contains(job.Unsupported.Text, test.why) {
				t.Errorf("unsupported %+v", job.Unsupported)
			}
		}
		t.Run(name, func(t *testing.T) {
			reader, key := readerOf(t, test.objects)
			check(t, reader, key)
		})
		t.Run(name+", with a Kueue that serves only v1beta1", func(t *testing.T) {
			reader, key := readerOf(t, strings.ReplaceAll(test.objects, "kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1"))
			check(t, withoutVersion{reader, schema.GroupVersion{Group: "kueue.x-k8s.io", Version: "v1beta2"}}, key)
		})
	}
}

func TestKueueSaysByWhichLabelsItPlacedTheJob(t *testing.T) {
	const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: team, uid: job-uid}\nspec: {parallelism: 4, template: {spec: {}}}\n---\n" +
		"apiVersion: kueue.x-k8s.io/v1beta2\nkind: Workload\nmetadata: {name: train, namespace: team, labels: {kueue.x-k8s.io/job-uid: job-uid}, ownerReferences: [{kind: Job, name: train, uid: job-uid, controller: true}]}\n"
	for status, want := range map[string][]string{
		"": nil,
		"status: {admission: {podSetAssignments: [{name: main}]}}":                                                   nil,
		"status: {admission: {podSetAssignments: [{topologyAssignment: {levels: [rack, kubernetes.io/hostname]}}]}}": {"rack", "kubernetes.io/hostname"},
		"status: {admission: {podSetAssignments: [{name: launcher}, {topologyAssignment: {levels: [rack]}}]}}":       {"rack"},
		"status: {admission: {podSetAssignments: [broken]}}":                                                         nil,
	} {
		reader, key := readerOf(t, job+status)
		got, err := batchJob.Read(t.Context(), reader, key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.PlacedBy); diff != "" {
			t.Errorf("%s: %s", status, diff)
		}
	}
}

// withoutVersion is a reader of an API server that does not serve a version, which the fake one does not mind.
type withoutVersion struct {
	client.Reader
	version schema.GroupVersion
}

func (r withoutVersion) served(o runtime.Object) error {
	gvk := o.GetObjectKind().GroupVersionKind()
	if gvk.GroupVersion() == r.version {
		return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	}
	return nil
}

func (r withoutVersion) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := r.served(o); err != nil {
		return err
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

func (r withoutVersion) List(ctx context.Context, o client.ObjectList, opts ...client.ListOption) error {
	if err := r.served(o); err != nil {
		return err
	}
	return r.Reader.List(ctx, o, opts...)
}

// A record that somebody else has written may name any pod.
func TestOnlyTheJobsOwnPodsAreReplaced(t *testing.T) {
	own := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: map[string]string{"app": "serve"}}}
	other := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"app": "store"}}}
	var got []string
	job := restart.Job{Pods: labels.SelectorFromSet(labels.Set{"app": "serve"})}
	kind := Kind{replace: func(_ context.Context, _ client.Client, _ restart.Job, _ *restart.Restart, remaining []metav1.PartialObjectMetadata) (string, error) {
		for _, pod := range remaining {
			got = append(got, pod.Name)
		}
		return "", nil
	}}
	if _, err := kind.Replace(t.Context(), nil, job, &restart.Restart{Phase: restart.Stopping}, []metav1.PartialObjectMetadata{other, own}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"own"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestKindsThatReplaceOneRank(t *testing.T) {
	var got []string
	for _, k := range BuiltIn() {
		if k.ReplacesFailedRank {
			got = append(got, k.GVK.Kind+"."+k.GVK.Version)
		}
	}
	want := []string{"Job.v1", "PyTorchJob.v1", "TFJob.v1", "XGBoostJob.v1", "PaddleJob.v1", "JAXJob.v1", "MPIJob.v1", "MPIJob.v2beta1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
