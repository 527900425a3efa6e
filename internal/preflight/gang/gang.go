// Package gang finds a pod's rank, the number of ranks and the pod of rank 0, by what the job's operator puts into the pod.
package gang

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Container is the name of the init container of preflight.
const Container = "preflight"

// The environment variables by which operators tell a container its place, the most specific one first. A process of torchrun has its
// own RANK and WORLD_SIZE, so those of its node come first.
var (
	Rank   = []string{"LWS_WORKER_INDEX", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK", "PROCESS_ID"}
	Size   = []string{"LWS_GROUP_SIZE", "PET_NNODES", "WORLD_SIZE", "NUM_PROCESSES"}
	Leader = []string{"LWS_LEADER_ADDRESS", "PET_MASTER_ADDR", "MASTER_ADDR", "COORDINATOR_ADDRESS"}
)

// Further variables that [Of] reads.
const (
	tfConfig       = "TF_CONFIG"
	paddleSize     = "PADDLE_NNODES"
	paddleTrainers = "PADDLE_TRAINER_NUM"
)

// Variables are the names of all environment variables that [Of] reads, but for Volcano's, one for each task: VC_<TASK>_NUM.
func Variables() []string {
	return slices.Concat(Rank, Size, Leader, []string{tfConfig, paddleSize, paddleTrainers})
}

// Labels that operators give their pods.
const (
	jobIndex = batchv1.JobCompletionIndexAnnotation // also a label

	jobSetName       = "jobset.sigs.k8s.io/jobset-name"
	jobSetReplicated = "jobset.sigs.k8s.io/replicatedjob-name"
	jobSetReplicas   = "jobset.sigs.k8s.io/replicatedjob-replicas"
	jobSetIndex      = "jobset.sigs.k8s.io/job-index"
	jobSetRestart    = "jobset.sigs.k8s.io/restart-attempt"
	jobSetUID        = "jobset.sigs.k8s.io/jobset-uid"

	kubeflowJob   = "training.kubeflow.org/job-name"
	kubeflowType  = "training.kubeflow.org/replica-type"
	kubeflowIndex = "training.kubeflow.org/replica-index"

	volcanoJob   = "volcano.sh/job-name"
	volcanoTask  = "volcano.sh/task-spec"
	volcanoIndex = "volcano.sh/task-index"
)

// Place is where a pod is in its gang, the pods that run a job together.
type Place struct {
	Rank, Size int
	// Leader selects the pod of rank 0 in the namespace of the pod. It may select nothing.
	Leader metav1.ListOptions
	// Host is the name that the operator gives rank 0; empty: it gives none. For some operators DNS knows it only when the pod is ready,
	// which it is not while its init containers run.
	Host string
	// Owner is the UID of the controller of all pods of the gang; empty: they have several.
	Owner types.UID
}

// Owns reports whether a pod that Leader selects is of this gang, and not of an earlier job of the same name.
func (p Place) Owns(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return p.Owner == "" || owner != nil && owner.UID == p.Owner
}

// JobOf returns the name of the batch Job that controls the pod; empty: it is not of a Job. [Of] needs that Job.
func JobOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Job" || owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return ""
	}
	return owner.Name
}

// Of returns the place of a pod, by its labels, its Job (nil: it has none) and the environment of its container.
func Of(pod *corev1.Pod, job *batchv1.Job, env func(string) string) (Place, error) {
	var p Place
	var err error
	switch {
	case job != nil:
		p, err = inJob(pod, job)
	case pod.Labels[kubeflowJob] != "" && env(tfConfig) != "":
		p, err = inTFJob(env(tfConfig))
	case pod.Labels[kubeflowJob] != "" && env(paddleSize) != "":
		p, err = inPaddleJob(pod, env)
	case pod.Labels[volcanoJob] != "" && First(env, Rank) == "": // without Volcano's plugin pytorch, which sets it
		p, err = inVolcanoTask(pod, env)
	default:
		p, err = inEnvironment(env)
	}
	if err != nil {
		return Place{}, err
	}
	if p.Rank < 0 || p.Size < 1 || p.Rank >= p.Size {
		return Place{}, fmt.Errorf("rank %d of %d", p.Rank, p.Size)
	}
	// The gang of a JobSet has several Jobs, and that of a LeaderWorkerSet two StatefulSets.
	if owner := metav1.GetControllerOf(pod); owner != nil && pod.Labels[jobSetName] == "" &&
		(job != nil || pod.Labels[kubeflowJob] != "" || pod.Labels[volcanoJob] != "") {
		p.Owner = owner.UID
	}
	return p, nil
}

// First returns the first of the variables that is set; empty: none is.
func First(env func(string) string, names []string) string {
	for _, name := range names {
		if v := env(name); v != "" {
			return v
		}
	}
	return ""
}

// inJob is a pod of an indexed Job. The pods of all Jobs that a JobSet makes of one replicated job are one gang; those of its other
// replicated jobs do something else.
func inJob(pod *corev1.Pod, job *batchv1.Job) (p Place, err error) {
	if job.Spec.Completions == nil || job.Spec.Parallelism == nil || *job.Spec.Parallelism < *job.Spec.Completions {
		return p, fmt.Errorf("job %s does not run all of its pods at the same time", job.Name)
	}
	if p.Rank, err = number("label "+jobIndex, pod.Labels[jobIndex]); err != nil {
		return p, err
	}
	p.Size = int(*job.Spec.Completions)
	if pod.Labels[jobSetName] == "" {
		p.Leader = same(pod, map[string]string{jobIndex: "0"}, batchv1.JobNameLabel)
		return p, nil
	}
	index, err := number("label "+jobSetIndex, pod.Labels[jobSetIndex])
	if err != nil {
		return p, err
	}
	jobs, err := number("label "+jobSetReplicas, pod.Labels[jobSetReplicas])
	if err != nil {
		return p, err
	}
	p.Rank, p.Size = index*p.Size+p.Rank, jobs*p.Size
	names := []string{jobSetName, jobSetReplicated, jobSetRestart}
	if pod.Labels[jobSetUID] != "" { // old releases do not set it
		names = append(names, jobSetUID)
	}
	p.Leader = same(pod, map[string]string{jobIndex: "0", jobSetIndex: "0"}, names...)
	return p, nil
}

// inVolcanoTask is a pod of a Volcano Job with the plugin svc. The pods of a task are one gang.
func inVolcanoTask(pod *corev1.Pod, env func(string) string) (p Place, err error) {
	task := pod.Labels[volcanoTask]
	if p.Rank, err = number("label "+volcanoIndex, pod.Labels[volcanoIndex]); err != nil {
		return p, err
	}
	size := "VC_" + strings.ToUpper(strings.ReplaceAll(task, "-", "_")) + "_NUM"
	if env(size) == "" {
		return p, fmt.Errorf("there is no %s: the Volcano Job needs the plugin svc or pytorch", size)
	}
	if p.Size, err = number(size, env(size)); err != nil {
		return p, err
	}
	p.Leader = same(pod, map[string]string{volcanoIndex: "0"}, volcanoJob, volcanoTask)
	return p, nil
}

// inPaddleJob is a worker of a PaddleJob in collective mode.
func inPaddleJob(pod *corev1.Pod, env func(string) string) (p Place, err error) {
	if pod.Labels[kubeflowType] != "worker" || env(paddleTrainers) != "" {
		return p, errors.New("the pods of a PaddleJob with masters have no ranks")
	}
	if p.Rank, err = number("label "+kubeflowIndex, pod.Labels[kubeflowIndex]); err != nil {
		return p, err
	}
	if p.Size, err = number(paddleSize, env(paddleSize)); err != nil {
		return p, err
	}
	p.Leader = same(pod, map[string]string{kubeflowIndex: "0"}, kubeflowJob, kubeflowType)
	return p, nil
}

// inTFJob is a chief, master or worker of a TFJob.
func inTFJob(text string) (p Place, err error) {
	var config struct {
		Cluster map[string][]string `json:"cluster"` // host:port, by the type of replica
		Task    struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		} `json:"task"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return p, fmt.Errorf("read %s: %w", tfConfig, err)
	}
	p.Rank = -1
	for _, replicas := range []string{"chief", "master", "worker"} {
		if config.Task.Type == replicas {
			p.Rank = p.Size + config.Task.Index
		}
		for _, address := range config.Cluster[replicas] {
			if p.Size++; p.Host == "" {
				host, _, _ := net.SplitHostPort(address)
				p.Host = host
			}
		}
	}
	if p.Rank < 0 {
		return p, fmt.Errorf("%s: a %q has no rank", tfConfig, config.Task.Type)
	}
	p.Leader = named(p.Host)
	return p, nil
}

// inEnvironment is a pod whose environment has its place. The operators call rank 0 by the name of its pod.
func inEnvironment(env func(string) string) (p Place, err error) {
	if p.Rank, err = number("rank in "+strings.Join(Rank, ", "), First(env, Rank)); err != nil {
		return p, err
	}
	if p.Size, err = number("number of ranks in "+strings.Join(Size, ", "), First(env, Size)); err != nil {
		return p, err
	}
	if p.Host = First(env, Leader); p.Host == "" {
		return p, fmt.Errorf("none of %s is set", strings.Join(Leader, ", "))
	}
	if strings.Contains(p.Host, "$(") {
		return p, fmt.Errorf("the host of rank 0 is %q: the variable in it is not set here", p.Host)
	}
	p.Leader = named(p.Host)
	return p, nil
}

func number(name, text string) (int, error) {
	if text == "" {
		return 0, fmt.Errorf("there is no %s", name)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", name, text)
	}
	return n, nil
}

// same selects pods that have these labels, and others as the pod has them.
func same(pod *corev1.Pod, set map[string]string, names ...string) metav1.ListOptions {
	for _, name := range names {
		set[name] = pod.Labels[name]
	}
	return metav1.ListOptions{LabelSelector: labels.SelectorFromSet(set).String()}
}

// named selects the pod that a host is called after, as in train-master-0 or train-0.train.team.
func named(host string) metav1.ListOptions {
	name, _, _ := strings.Cut(host, ".")
	if len(validation.IsDNS1123Label(name)) > 0 {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}
