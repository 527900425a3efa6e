package gang

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func job(completions, parallelism *int32) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.JobSpec{Completions: completions, Parallelism: parallelism}}
}

// What the operators really set is tested with them, in remediator/jobs/operators.
func TestOf(t *testing.T) {
	byName := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	}
	byLabels := func(labels string) metav1.ListOptions { return metav1.ListOptions{LabelSelector: labels} }
	four := job(ptr.To[int32](4), ptr.To[int32](4))
	indexed := map[string]string{"batch.kubernetes.io/job-name": "train", jobIndex: "3"}
	inJobSet := map[string]string{
		"batch.kubernetes.io/job-name": "train-rank-2", jobIndex: "3",
		jobSetName: "train", jobSetReplicated: "rank", jobSetReplicas: "5", jobSetIndex: "2", jobSetRestart: "1",
	}
	paddle := map[string]string{kubeflowJob: "train", kubeflowType: "worker", kubeflowIndex: "2"}
	task := map[string]string{volcanoJob: "train", volcanoTask: "gpu-rank", volcanoIndex: "2"}
	const tf = `{"cluster": {"chief": ["train-chief-0.team.svc:2222"], "ps": ["train-ps-0.team.svc:2222"], "worker": ["a:1", "b:1"]}, "task": {"type": "TYPE", "index": 1}}`
	for name, tt := range map[string]struct {
		labels map[string]string
		job    *batchv1.Job
		env    map[string]string
		want   Place
		wrong  string
	}{
		"Job": {labels: indexed, job: four, want: Place{Rank: 3, Size: 4, Leader: byLabels("batch.kubernetes.io/job-completion-index=0,batch.kubernetes.io/job-name=train")}},
		// A user may count GPUs.
		"Job with an environment":  {labels: indexed, job: four, env: map[string]string{"RANK": "24", "WORLD_SIZE": "32"}, want: Place{Rank: 3, Size: 4, Leader: byLabels("batch.kubernetes.io/job-completion-index=0,batch.kubernetes.io/job-name=train")}},
		"Job that is not indexed":  {job: four, wrong: "job-completion-index"},
		"Job of a queue":           {labels: indexed, job: job(nil, ptr.To[int32](4)), wrong: "at the same time"},
		"Job of one pod at a time": {labels: indexed, job: job(ptr.To[int32](4), ptr.To[int32](3)), wrong: "at the same time"},
		"Job of fewer pods now":    {labels: indexed, job: job(ptr.To[int32](3), ptr.To[int32](3)), wrong: "rank 3 of 3"},
		"JobSet": {labels: inJobSet, job: four, want: Place{Rank: 11, Size: 20, Leader: byLabels(
			"batch.kubernetes.io/job-completion-index=0,jobset.sigs.k8s.io/job-index=0,jobset.sigs.k8s.io/jobset-name=train,jobset.sigs.k8s.io/replicatedjob-name=rank,jobset.sigs.k8s.io/restart-attempt=1")}},
		"JobSet of this UID": {labels: with(inJobSet, jobSetUID, "u"), job: four, want: Place{Rank: 11, Size: 20, Leader: byLabels(
			"batch.kubernetes.io/job-completion-index=0,jobset.sigs.k8s.io/job-index=0,jobset.sigs.k8s.io/jobset-name=train,jobset.sigs.k8s.io/jobset-uid=u,jobset.sigs.k8s.io/replicatedjob-name=rank,jobset.sigs.k8s.io/restart-attempt=1")}},
		"JobSet without its index": {labels: map[string]string{jobIndex: "0", jobSetName: "train", jobSetReplicas: "1"}, job: four, wrong: jobSetIndex},
		"PyTorchJob": {labels: map[string]string{kubeflowJob: "train"}, env: map[string]string{"RANK": "8", "WORLD_SIZE": "32", "PET_NODE_RANK": "1", "PET_NNODES": "4", "MASTER_ADDR": "train-master-0"},
			want: Place{Rank: 1, Size: 4, Leader: byName("train-master-0"), Host: "train-master-0"}},
		"PyTorchJob, elastic":   {labels: map[string]string{kubeflowJob: "train"}, env: map[string]string{"PET_NNODES": "1:4", "PET_NODE_RANK": "1"}, wrong: `"1:4" is not a number`},
		"MPIJob":                {labels: map[string]string{kubeflowJob: "train", kubeflowIndex: "1"}, wrong: "no rank"},
		"LeaderWorkerSet":       {env: map[string]string{"LWS_WORKER_INDEX": "2", "LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "train-0.train.team"}, want: Place{Rank: 2, Size: 3, Leader: byName("train-0"), Host: "train-0.train.team"}},
		"TFJob, worker":         {labels: map[string]string{kubeflowJob: "train"}, env: map[string]string{tfConfig: strings.Replace(tf, "TYPE", "worker", 1)}, want: Place{Rank: 2, Size: 3, Leader: byName("train-chief-0"), Host: "train-chief-0.team.svc"}},
		"TFJob, a ps":           {labels: map[string]string{kubeflowJob: "train"}, env: map[string]string{tfConfig: strings.Replace(tf, "TYPE", "ps", 1)}, wrong: `"ps" has no rank`},
		"TFJob, sparse":         {labels: map[string]string{kubeflowJob: "train"}, env: map[string]string{tfConfig: `{"cluster": {"worker": {"1": "a:1"}}}`}, wrong: tfConfig},
		"PaddleJob":             {labels: paddle, env: map[string]string{paddleSize: "4"}, want: Place{Rank: 2, Size: 4, Leader: byLabels("training.kubeflow.org/job-name=train,training.kubeflow.org/replica-index=0,training.kubeflow.org/replica-type=worker")}},
		"PaddleJob with a ps":   {labels: paddle, env: map[string]string{paddleSize: "4", paddleTrainers: "1"}, wrong: "no ranks"},
		"Volcano":               {labels: task, env: map[string]string{"VC_GPU_RANK_NUM": "3"}, want: Place{Rank: 2, Size: 3, Leader: byLabels("volcano.sh/job-name=train,volcano.sh/task-index=0,volcano.sh/task-spec=gpu-rank")}},
		"Volcano without svc":   {labels: task, wrong: "svc"},
		"Volcano with pytorch":  {labels: task, env: map[string]string{"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "train-master-0.train"}, want: Place{Rank: 3, Size: 4, Leader: byName("train-master-0"), Host: "train-master-0.train"}},
		"an address of its own": {env: map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "fd00::1"}, want: Place{Rank: 1, Size: 2, Host: "fd00::1"}},
		"no leader":             {env: map[string]string{"RANK": "1", "WORLD_SIZE": "2"}, wrong: "MASTER_ADDR"},
		"a host of a variable":  {env: map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "$(NAME)-0.train"}, wrong: "$(NAME)-0.train"},
		"a rank too many":       {env: map[string]string{"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, wrong: "rank 2 of 2"},
		"a negative rank":       {env: map[string]string{"RANK": "-1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, wrong: "rank -1 of 2"},
		"nothing":               {wrong: "no rank"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels}}, tt.job, func(name string) string { return tt.env[name] })
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%+v, %v, want an error with %q", got, err, tt.wrong)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func with(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	labels[key] = value
	return labels
}

// An earlier job of the same name, or a pod that only has the labels, has another owner.
func TestRank0HasTheOwnerOfTheGang(t *testing.T) {
	ownedBy := func(uid string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels, OwnerReferences: []metav1.OwnerReference{{UID: types.UID(uid), Controller: ptr.To(true)}}}}
	}
	index := map[string]string{jobIndex: "3"}
	ranks := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-0"}
	for name, tt := range map[string]struct {
		labels map[string]string
		job    *batchv1.Job
		one    bool
	}{
		"Job":             {index, job(ptr.To[int32](4), ptr.To[int32](4)), true},
		"JobSet":          {with(with(with(index, jobSetName, "a"), jobSetIndex, "1"), jobSetReplicas, "2"), job(ptr.To[int32](4), ptr.To[int32](4)), false},
		"PyTorchJob":      {map[string]string{kubeflowJob: "train"}, nil, true},
		"Volcano":         {map[string]string{volcanoJob: "train"}, nil, true},
		"LeaderWorkerSet": {nil, nil, false},
	} {
		p, err := Of(ownedBy("a", tt.labels), tt.job, func(name string) string { return ranks[name] })
		if err != nil {
			t.Fatal(name, err)
		}
		if !p.Owns(ownedBy("a", nil)) || p.Owns(ownedBy("b", nil)) == tt.one || p.Owns(&corev1.Pod{}) == tt.one {
			t.Errorf("%s: one owner %t, want %t", name, p.Owner != "", tt.one)
		}
	}
}

func TestJobOf(t *testing.T) {
	for name, owner := range map[string]metav1.OwnerReference{
		"train": {APIVersion: "batch/v1", Kind: "Job", Name: "train", Controller: ptr.To(true)},
		"":      {APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Name: "train", Controller: ptr.To(true)},
	} {
		if got := JobOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner}}}); got != name {
			t.Errorf("%+v: %q", owner, got)
		}
	}
	if got := JobOf(&corev1.Pod{}); got != "" {
		t.Errorf("a pod without an owner: %q", got)
	}
}
