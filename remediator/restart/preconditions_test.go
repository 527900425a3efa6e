package restart

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var quarantine = Trigger{
	Kind: NodeQuarantined, ID: "q1", Node: "bad", NodeUID: "node-uid", Reason: "GPUXidError",
	Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
}

// trainer returns a batch Job of four ranks, changed by the given functions.
func trainer(change ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job-uid"},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](4),
			Completions: ptr.To[int32](4),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main"}, {Name: "sidecar"}},
			}},
		},
	}
	for _, f := range change {
		f(job)
	}
	return job
}

var suspendField = SuspendField{Path: "spec.suspend", StopValue: true}

// jobOf is what package kinds would read.
func jobOf(job *batchv1.Job) Job {
	j := Job{
		Object: job, SuspendField: suspendField, Suspended: ptr.Deref(job.Spec.Suspend, false),
		Templates: []Template{{Of: "Job " + job.Name, Spec: job.Spec.Template.Spec}}, Jobs: []batchv1.Job{*job},
	}
	for _, c := range job.Status.Conditions {
		j.FinishedReason = string(c.Type)
	}
	if by := ptr.Deref(job.Spec.ManagedBy, batchv1.JobControllerName); by != batchv1.JobControllerName {
		j.ManagedBy = by
	}
	return j
}

// rank is an active pod on the bad node.
func rank(spec corev1.PodSpec, created time.Time) corev1.Pod {
	spec.NodeName = quarantine.Node
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "train-0", CreationTimestamp: metav1.NewTime(created)}, Spec: spec}
}

func TestEvaluate(t *testing.T) {
	under := func(p Phase, id string) Record {
		return Record{Current: &Restart{Phase: p, PhaseSince: noon.Add(900 * time.Millisecond), Quarantines: []Cause{{ID: id}}}}
	}
	old, young := rank(corev1.PodSpec{}, noon.Add(-time.Hour)), rank(corev1.PodSpec{}, noon)
	tests := map[string]struct {
		job       *batchv1.Job
		rec       Record
		pod       corev1.Pod
		notOpted  bool
		grace     time.Duration
		want      Verdict
		wantBlock string
	}{
		"an opted-in running job":       {job: trainer(), pod: old, want: StartRestart},
		"a job that is not opted in":    {job: trainer(), pod: old, notOpted: true, want: LeaveAlone},
		"a job that somebody suspended": {job: trainer(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }), pod: old, want: LeaveAlone},
		"a job that is being deleted":   {job: trainer(func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: noon} }), pod: old, want: LeaveAlone},
		"a job that has failed": {job: trainer(func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		}), pod: old, want: LeaveAlone},
		"a job that is about to fail": {job: trainer(func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}}
		}), pod: old, want: LeaveAlone},
		"stopping for this quarantine":                       {job: trainer(), rec: under(Stopping, "q1"), pod: old, want: LeaveAlone},
		"stopping for another quarantine":                    {job: trainer(), rec: under(Stopping, "q2"), pod: old, want: JoinRestart},
		"starting for another quarantine":                    {job: trainer(), rec: under(Starting, "q2"), pod: young, want: StartRestart},
		"starting for another quarantine, an old clock":      {job: trainer(), rec: under(Starting, "q2"), pod: old, want: StartRestart},
		"starting for this quarantine, seen an old pod":      {job: trainer(), rec: under(Starting, "q1"), pod: old, want: LeaveAlone},
		"starting for this quarantine, a new pod came back":  {job: trainer(), rec: under(Starting, "q1"), pod: young, want: ReportBlocked, wantBlock: "AlreadyRestarted"},
		"restarted for this quarantine, two restarts ago":    {job: trainer(), rec: Record{Last: []Restart{{}, {Quarantines: []Cause{{ID: "q2"}, {ID: "q1"}}}}}, pod: young, want: ReportBlocked, wantBlock: "AlreadyRestarted"},
		"restarted for another quarantine":                   {job: trainer(), rec: Record{Last: []Restart{{Quarantines: []Cause{{ID: "q2"}}}}}, pod: young, want: StartRestart},
		"restarted for this one, starting again for another": {job: trainer(), rec: Record{Current: under(Starting, "q2").Current, Last: []Restart{{Quarantines: []Cause{{ID: "q1"}}}}}, pod: young, want: ReportBlocked, wantBlock: "AlreadyRestarted"},
		"a person suspended it while it started":             {job: trainer(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }), rec: under(Starting, "q2"), pod: young, want: LeaveAlone},
		"saving for this quarantine":                         {job: trainer(), rec: under(Checkpointing, "q1"), pod: old, grace: time.Minute, want: LeaveAlone},
		"saving for this quarantine, which can wait no more": {job: trainer(), rec: under(Checkpointing, "q1"), pod: old, want: StartRestart},
		"saving for another, this one can wait too":          {job: trainer(), rec: under(Checkpointing, "q2"), pod: old, grace: time.Minute, want: JoinRestart},
		"saving for another, this one cannot wait":           {job: trainer(), rec: under(Checkpointing, "q2"), pod: old, want: StartRestart},
		"a person suspended it while it saved its state":     {job: trainer(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }), rec: under(Checkpointing, "q2"), pod: old, want: LeaveAlone},
		"a gate is shut while starting for another quarantine": {job: trainer(func(j *batchv1.Job) { j.Spec.Template.Spec.NodeName = "bad" }),
			rec: under(Starting, "q2"), pod: young, want: ReportBlocked, wantBlock: "ComesBack"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q := quarantine
			q.CheckpointGrace = test.grace
			do, list := Evaluate(q, jobOf(test.job), test.rec, !test.notOpted, []corev1.Pod{test.pod})
			failed, found := FirstFailed(list)
			if do != test.want || failed.Reason != test.wantBlock {
				t.Errorf("got %s %+v, want %s %s", do, failed, test.want, test.wantBlock)
			}
			if found == (do == StartRestart) || found && failed.Text == "" {
				t.Errorf("%s, but the first precondition that fails is %+v", do, failed)
			}
		})
	}
}

// Pods of a Deployment are replaced at once, so the scheduler may bind the new ones before it has seen the taint.
func TestPodsThatWereBoundLateAreReplacedAgain(t *testing.T) {
	q := quarantine
	q.Since = noon
	early, late := rank(corev1.PodSpec{}, noon.Add(29*time.Second)), rank(corev1.PodSpec{}, noon.Add(31*time.Second))
	done := Record{Last: []Restart{{Quarantines: []Cause{{ID: "q1", Since: noon}}}}}
	starting := Record{Current: &Restart{Phase: Starting, PhaseSince: noon, Quarantines: []Cause{{ID: "q1", Since: noon}}}}
	one := func(metav1.Object) string { return "" }
	for name, test := range map[string]struct {
		gang func(metav1.Object) string
		rec  Record
		pod  corev1.Pod
		want Verdict
	}{
		"replaced, and bound late":                     {one, done, early, StartRestart},
		"being replaced, and bound late":               {one, starting, early, StartRestart},
		"the scheduler has seen the taint by now":      {one, done, late, ReportBlocked},
		"the same while its pods start":                {one, starting, late, ReportBlocked},
		"a job that was stopped as a whole":            {nil, done, early, ReportBlocked},
		"a job that is starting after a stop as whole": {nil, starting, early, ReportBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobOf(trainer())
			job.Gang = test.gang
			if got, list := Evaluate(q, job, test.rec, true, []corev1.Pod{test.pod}); got != test.want {
				t.Errorf("got %s %+v", got, list)
			}
		})
	}
}

// A restart under way is left to itself by a stalled job, which is restarted once, wherever its pods are pinned to.
func TestAJobThatStandsStill(t *testing.T) {
	q := Trigger{Kind: JobStalled, ID: "s1", Since: noon}
	pinned := rank(corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "bad"}}, noon.Add(-time.Hour))
	for name, test := range map[string]struct {
		rec      Record
		notOpted bool
		want     Verdict
	}{
		"never restarted":           {want: StartRestart},
		"not opted in":              {notOpted: true, want: LeaveAlone},
		"stopping":                  {rec: Record{Current: &Restart{Phase: Stopping}}, want: LeaveAlone},
		"starting":                  {rec: Record{Current: &Restart{Phase: Starting}}, want: LeaveAlone},
		"saving its state":          {rec: Record{Current: &Restart{Phase: Checkpointing}}, want: LeaveAlone},
		"these pods were restarted": {rec: Record{Last: []Restart{{Quarantines: []Cause{{ID: "s1"}}}}}, want: ReportBlocked},
		"those before them were":    {rec: Record{Last: []Restart{{Quarantines: []Cause{{ID: "s0"}}}}}, want: StartRestart},
	} {
		t.Run(name, func(t *testing.T) {
			if got, list := Evaluate(q, jobOf(trainer()), test.rec, !test.notOpted, []corev1.Pod{pinned}); got != test.want {
				t.Errorf("got %s %+v", got, list)
			}
		})
	}
}

func TestPreconditions(t *testing.T) {
	tolerate := func(tol corev1.Toleration) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Spec.Template.Spec.Tolerations = []corev1.Toleration{tol} }
	}
	tests := map[string]struct {
		change func(*batchv1.Job)
		pod    corev1.PodSpec
		want   Blocked
	}{
		"nothing stands against it": {change: func(*batchv1.Job) {}},
		"a template tolerates exactly our taint": {
			change: tolerate(corev1.Toleration{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError"}),
			want:   Blocked{"ComesBack", "the pod template of Job train tolerates the taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule"},
		},
		"a template tolerates everything": {
			change: tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists}),
			want:   Blocked{"ComesBack", "the pod template of Job train tolerates the taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule"},
		},
		"a template tolerates our taint with another value":  {change: tolerate(corev1.Toleration{Key: "pitcrew.dev/unhealthy", Value: "HCAPortDown"})},
		"a template tolerates our taint with another effect": {change: tolerate(corev1.Toleration{Key: "pitcrew.dev/unhealthy", Operator: "Exists", Effect: "NoExecute"})},
		"a template tolerates the GPU taint":                 {change: tolerate(corev1.Toleration{Key: "nvidia.com/gpu", Operator: "Exists"})},
		"admission let the pod tolerate our taint": {
			pod:  corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: "Exists"}}},
			want: Blocked{"ComesBack", "pod train-0 tolerates the taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule"},
		},
		"a template names the node": {
			change: func(j *batchv1.Job) { j.Spec.Template.Spec.NodeName = "bad" },
			want:   Blocked{"ComesBack", "the pod template of Job train sets nodeName, which bypasses every taint"},
		},
		"a template names another node": {change: func(j *batchv1.Job) { j.Spec.Template.Spec.NodeName = "good" }},
		"a template selects the host": {
			change: func(j *batchv1.Job) {
				j.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "bad"}
			},
			want: Blocked{"ComesBack", "the pod template of Job train is pinned to this node by nodeSelector"},
		},
		"the pod on the node selects its host, whatever the host's name is": {
			pod:  corev1.PodSpec{NodeSelector: map[string]string{"kubernetes.io/hostname": "bad.example"}},
			want: Blocked{"ComesBack", "pod train-0 is pinned to this node by nodeSelector"},
		},
		"a template requires the host by affinity": {
			change: func(j *batchv1.Job) { j.Spec.Template.Spec.Affinity = onlyOn("bad") },
			want:   Blocked{"ComesBack", "the pod template of Job train is pinned to this node by node affinity"},
		},
		"a template requires this host or another": {change: func(j *batchv1.Job) { j.Spec.Template.Spec.Affinity = onlyOn("bad", "good") }},
		"the pod on the node requires its host by affinity": {
			pod:  corev1.PodSpec{Affinity: onlyOn("bad.example")},
			want: Blocked{"ComesBack", "pod train-0 is pinned to this node by node affinity"},
		},
		"a template selects a pool": {change: func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "h100"} }},
		"a pod failure policy fails the job when it is stopped": {
			change: func(j *batchv1.Job) { j.Spec.PodFailurePolicy = failurePolicy(exit("FailJob", "In", "", 143)) },
			want: Blocked{"PodFailurePolicy", "podFailurePolicy rule 0 of Job train is FailJob for exit code 143 or 137, with which stopped ranks exit: " +
				"stopping would fail the Job for good"},
		},
		"a work queue with a success": {
			change: func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = nil, 1 },
			want:   Blocked{"WorkQueue", "Job train has no completions and a pod succeeded: without active pods it counts as complete"},
		},
		"a work queue without a success": {change: func(j *batchv1.Job) { j.Spec.Completions = nil }},
		"a counted job with a success":   {change: func(j *batchv1.Job) { j.Status.Succeeded = 1 }},
		"a gang of which an index has ended": {
			change: func(j *batchv1.Job) {
				j.Spec.Scheduling, j.Status.Succeeded = nativeGang(nil), 1
				j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](4), ptr.To[int32](4)
			},
			want: Blocked{"GangIncomplete", "Job train is a gang of 4 pods and only 3 are left, because indexes have ended: once stopped, it would never be scheduled"},
		},
		"a gang of which an index has failed": {
			change: func(j *batchv1.Job) {
				j.Spec.Scheduling, j.Status.FailedIndexes = nativeGang(nil), ptr.To("2")
				j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](4), ptr.To[int32](4)
			},
			want: Blocked{"GangIncomplete", "Job train is a gang of 4 pods and only 3 are left, because indexes have ended: once stopped, it would never be scheduled"},
		},
		"a gang of fewer pods than are left": {change: func(j *batchv1.Job) {
			j.Spec.Scheduling, j.Status.Succeeded = nativeGang(ptr.To[int32](3)), 1
			j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](4), ptr.To[int32](4)
		}},
		"a whole gang": {change: func(j *batchv1.Job) {
			j.Spec.Scheduling, j.Spec.Parallelism, j.Spec.Completions = nativeGang(nil), ptr.To[int32](4), ptr.To[int32](4)
		}},
		"another controller manages it": {
			change: func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("kueue.x-k8s.io/multikueue") },
			want:   Blocked{"ManagedBy", "it is managed by kueue.x-k8s.io/multikueue"},
		},
		"the default controller manages it": {change: func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("kubernetes.io/job-controller") }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			job := trainer()
			if test.change != nil {
				test.change(job)
			}
			failed, _ := FirstFailed(preconditions(quarantine, jobOf(job), []corev1.Pod{rank(test.pod, noon)}))
			if diff := cmp.Diff(test.want, Blocked{failed.Reason, failed.Text}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAGangIsStoppedOnlyIfItsPodGroupIsNotLarger(t *testing.T) {
	job := jobOf(trainer())
	for needs, want := range map[int]string{0: "", job.Ranks: "", job.Ranks + 1: "GangIncomplete"} {
		job.GangNeeds = needs
		if failed, _ := FirstFailed(preconditions(quarantine, job, []corev1.Pod{rank(corev1.PodSpec{}, noon)})); failed.Reason != want {
			t.Errorf("a PodGroup of %d for %d ranks: %+v", needs, job.Ranks, failed)
		}
	}
}

// What the job's queue has chosen, it chooses again.
func TestAPodThatTheQueuePlacedDoesNotComeBack(t *testing.T) {
	hostname := map[string]string{"kubernetes.io/hostname": "bad", "rack": "r1", "pool": "h100"}
	for name, test := range map[string]struct {
		placedBy []string
		template map[string]string
		want     string
	}{
		"placed by nobody":                   {nil, nil, "ComesBack"},
		"placed by its queue":                {[]string{"kubernetes.io/hostname"}, nil, ""},
		"placed by its queue in a rack":      {[]string{"rack"}, nil, "ComesBack"},
		"placed where its template is bound": {[]string{"kubernetes.io/hostname"}, map[string]string{"kubernetes.io/hostname": "bad"}, "ComesBack"},
	} {
		t.Run(name, func(t *testing.T) {
			batch := trainer()
			batch.Spec.Template.Spec.NodeSelector = test.template
			job := jobOf(batch)
			job.PlacedBy = test.placedBy
			pods := []corev1.Pod{rank(corev1.PodSpec{NodeSelector: hostname}, noon)}
			if failed, _ := FirstFailed(preconditions(quarantine, job, pods)); failed.Reason != test.want {
				t.Errorf("%+v, want %q", failed, test.want)
			}
			if len(pods[0].Spec.NodeSelector) != 3 {
				t.Errorf("the pod itself was changed: %v", pods[0].Spec.NodeSelector)
			}
		})
	}
}

func failurePolicy(rules ...batchv1.PodFailurePolicyRule) *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: rules}
}

// onlyOn requires one of the hosts, each in a term of its own.
func onlyOn(hosts ...string) *corev1.Affinity {
	required := &corev1.NodeSelector{}
	for _, host := range hosts {
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "pool", Operator: corev1.NodeSelectorOpExists},
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}},
		}})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
}

func exit(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, container string, codes ...int32) batchv1.PodFailurePolicyRule {
	on := &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: codes}
	if container != "" {
		on.ContainerName = &container
	}
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: on}
}

func TestFailsOnStop(t *testing.T) {
	disruption := batchv1.PodFailurePolicyRule{Action: "Ignore", OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
	}}
	tests := map[string]struct {
		policy *batchv1.PodFailurePolicy
		want   int
	}{
		"no policy":                                        {nil, -1},
		"SIGTERM in the list":                              {failurePolicy(exit("FailJob", "In", "", 1, 143)), 0},
		"SIGKILL in the list":                              {failurePolicy(exit("FailJob", "In", "", 137)), 0},
		"other codes":                                      {failurePolicy(exit("FailJob", "In", "", 1, 42)), -1},
		"all codes but one":                                {failurePolicy(exit("FailJob", "NotIn", "", 42)), 0},
		"all codes but both":                               {failurePolicy(exit("FailJob", "NotIn", "", 137, 143)), -1},
		"all codes but one of the two":                     {failurePolicy(exit("FailJob", "NotIn", "", 143)), 0},
		"a container of the pod":                           {failurePolicy(exit("FailJob", "In", "sidecar", 143)), 0},
		"an init container":                                {failurePolicy(exit("FailJob", "In", "preflight", 143)), 0},
		"a container that the pod has not":                 {failurePolicy(exit("FailJob", "In", "other", 143)), -1},
		"Count and FailIndex end no job":                   {failurePolicy(exit("Count", "In", "", 143), exit("FailIndex", "In", "", 137)), -1},
		"an earlier rule takes both codes":                 {failurePolicy(exit("Ignore", "In", "", 137, 143), exit("FailJob", "NotIn", "", 1)), -1},
		"an earlier rule takes one code":                   {failurePolicy(exit("Ignore", "In", "", 143), exit("FailJob", "NotIn", "", 1)), 1},
		"an earlier rule takes another container":          {failurePolicy(exit("Ignore", "In", "main", 137, 143), exit("FailJob", "In", "", 143)), 1},
		"ignoring disruptions does not help (measured)":    {failurePolicy(disruption, exit("FailJob", "In", "", 143)), 1},
		"failing on disruptions is not met by a suspended": {failurePolicy(batchv1.PodFailurePolicyRule{Action: "FailJob", OnPodConditions: disruption.OnPodConditions}), -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			job := trainer(func(j *batchv1.Job) {
				j.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "preflight"}}
				j.Spec.PodFailurePolicy = test.policy
			})
			if got := failsOnStop(job.Spec); got != test.want {
				t.Errorf("got rule %d, want %d", got, test.want)
			}
		})
	}
}

// They are printed one by one, to say why a job was not restarted.
func TestPreconditionsAreInOrder(t *testing.T) {
	var names []string
	_, list := Evaluate(quarantine, jobOf(trainer()), Record{}, true, nil)
	for _, p := range list {
		if !p.Passed {
			t.Errorf("%s has not passed: %s", p.Name, p.Text)
		}
		names = append(names, p.Name)
	}
	want := []string{
		OptedIn, NotFinished, NotDeleted, NoRestartUnderWay, NotSuspended, NotReplacingPods, NotYetRestarted,
		OwnController, Supported, PodsLeaveNode, StopDoesNotFailIt, StopDoesNotFinishIt, GangCanStart,
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func nativeGang(minCount *int32) *batchv1.JobSchedulingConfiguration {
	return &batchv1.JobSchedulingConfiguration{SchedulingPolicy: &schedulingv1alpha3.WorkloadPodGroupSchedulingPolicy{
		Gang: &schedulingv1alpha3.WorkloadPodGroupGangSchedulingPolicy{MinCount: minCount},
	}}
}
