package repair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const checkPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  sweeps:
    weekly: {every: 168h, template: check, args: [-level, "2"]}
  firstCheck: {%s}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
    diag:
      match: {condition: DCGMDiagFailed, repair: [Reboot, Replace]}
    kernel:
      match: {condition: KernelDeadlock, repair: [Reboot]}
    disk:
      match: {condition: DiskFailing, repair: [Replace]}
      alertOnly: true
    dead:
      match: {condition: Ready, status: "False", repair: [Inspect]}
      alertOnly: true
    slow:
      match: {condition: SlowNode, repair: [Inspect]}
    ascend:
      match: {condition: AscendNPUUnhealthy, repair: [Reboot], nodeSelector: {vendor: huawei}}
`

// play is a node that is visited, with a clock. Its API is real objects in memory: what Next decides is applied to them.
type play struct {
	*testing.T
	policy *policy.Policy
	facts  Facts
	live   Live
	now    time.Time
	// events are the reasons of Events so far; texts are what they say.
	events, texts []string
	results       []string
}

func newPlay(t *testing.T, firstCheck string) *play {
	t.Helper()
	p, err := policy.Parse(fmt.Appendf(nil, checkPolicy, firstCheck))
	if err != nil {
		t.Fatal(err)
	}
	created := start.Add(-30 * day)
	pl := &play{T: t, policy: p, now: start}
	pl.facts.Namespace = conditions.RepairNamespace
	pl.facts.Node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", CreationTimestamp: metav1.NewTime(created), Labels: map[string]string{}},
		Status: corev1.NodeStatus{
			Allocatable: requests("cpu", "nvidia.com/gpu"),
			NodeInfo:    corev1.NodeSystemInfo{BootID: "boot-1"},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created)}},
		},
	}
	pl.report("GPUXidError", corev1.ConditionFalse)
	pl.report("DCGMDiagFailed", corev1.ConditionFalse)
	pl.report("KernelDeadlock", corev1.ConditionFalse)
	return pl
}

// report sets a condition with a heartbeat of now. Its last change was an hour ago unless the status changes.
func (p *play) report(name string, status corev1.ConditionStatus) {
	c := corev1.NodeCondition{Type: corev1.NodeConditionType(name), Status: status, LastHeartbeatTime: metav1.NewTime(p.now), LastTransitionTime: metav1.NewTime(p.now)}
	if status == corev1.ConditionTrue {
		c.Message = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	}
	all := &p.facts.Node.Status.Conditions
	i := slices.IndexFunc(*all, func(c corev1.NodeCondition) bool { return string(c.Type) == name })
	if i < 0 {
		c.LastTransitionTime = metav1.NewTime(p.now.Add(-time.Hour))
		*all = append(*all, c)
		return
	}
	if (*all)[i].Status == status {
		c.LastTransitionTime = (*all)[i].LastTransitionTime
	}
	(*all)[i] = c
}

// step decides until nothing more follows at this time, as the controller does, and returns the last step.
func (p *play) step() Step {
	p.Helper()
	for range 10 {
		var err error
		if p.facts.Record, err = visit.RecordOf(p.facts.Node); err != nil {
			p.Fatal(err)
		}
		p.facts.Live = nil
		s := Next(p.policy, p.facts, p.now)
		if s.NeedsLive {
			p.facts.Live = &p.live
			s = Next(p.policy, p.facts, p.now)
		}
		before := p.facts.Node.DeepCopy()
		s.Apply(p.facts.Node)
		changed := before.Annotations[conditions.AnnotationRepair] != p.facts.Node.Annotations[conditions.AnnotationRepair]
		if changed {
			for _, e := range s.Events {
				p.events, p.texts = append(p.events, e.Reason), append(p.texts, e.Message)
			}
			for _, r := range s.Results {
				p.results = append(p.results, r.Result)
			}
			continue
		}
		if s.Create != nil {
			if p.facts.Job != nil {
				p.Fatal("a second Job")
			}
			p.facts.Job = s.Create
			p.facts.Job.UID = "job"
			continue
		}
		if p.facts.Job != nil && s.KeepJob != p.facts.Job.Name {
			p.facts.Job, p.live.JobPods = nil, nil
		}
		return s
	}
	p.Fatal("no end of steps")
	return Step{}
}

func (p *play) pass(d time.Duration) Step {
	p.Helper()
	p.now = p.now.Add(d)
	return p.step()
}

// answer ends the Job with a result.
func (p *play) answer(result string, exit int32) {
	p.facts.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	p.live.JobPods = []corev1.Pod{{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "check", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, Message: fmt.Sprintf(`{"result":%q,"message":"it is %s"}`, result, result)},
		}}}},
	}}
}

func (p *play) record() *visit.Record {
	r, err := visit.RecordOf(p.facts.Node)
	if err != nil || r == nil {
		p.Fatal(r, err)
	}
	return r
}

func (p *play) taints() string {
	var taints []string
	for _, t := range p.facts.Node.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	return strings.Join(taints, " ")
}

func (p *play) expect(what string, got, want any) {
	p.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.Errorf("%s: %v, want %v", what, got, want)
	}
}

var checkTemplate = &corev1.PodTemplate{
	ObjectMeta: metav1.ObjectMeta{Name: "check", Annotations: map[string]string{conditions.AnnotationVerdict: "DCGMDiagFailed"}},
	Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Args: []string{"check"}}}}},
}

// swept plays a sweep until its Job runs.
func swept(t *testing.T) *play {
	t.Helper()
	p := newPlay(t, "conditions: [all]")
	p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
	p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
	p.step()
	p.expect("taint", p.taints(), "pitcrew.dev/maintenance=sweep:NoSchedule")
	if p.facts.Job != nil {
		t.Fatal("a Job before the scheduler can have seen the taint")
	}
	p.pass(settleTaint)
	if p.facts.Job == nil {
		t.Fatal("no Job")
	}
	p.expect("args", p.facts.Job.Spec.Template.Spec.Containers[0].Args, []string{"check", "-level", "2"})
	return p
}

func TestASweepPasses(t *testing.T) {
	p := swept(t)
	p.now = p.now.Add(20 * time.Minute)
	p.answer("healthy", 0)
	p.step()
	p.expect("taint after the Job", p.taints(), "")
	p.expect("phase", p.record().Current.Phase, visit.Proving)
	p.now = p.now.Add(time.Minute)
	for _, c := range []string{"GPUXidError", "DCGMDiagFailed"} {
		p.report(c, corev1.ConditionFalse)
	}
	p.step()
	r := p.record()
	if r.Current != nil || r.Checked == nil || r.Checked.Template != "check" || !r.Swept["weekly"].Equal(p.now) || r.Last[0].Phase != visit.Passed {
		t.Errorf("%s", r)
	}
	p.expect("Events", p.events, []string{SweepStarted, NodeChecked})
	p.expect("results", p.results, []string{ResultHealthy})
	p.pass(time.Second) // the selection is still there
	p.expect("a second check", p.record().Current == nil, true)
}

func TestASweepThatFindsAFault(t *testing.T) {
	for name, find := range map[string]func(*play){
		"the Job says so": func(p *play) { p.answer("problem", 0) },
		"a condition does": func(p *play) {
			p.answer("healthy", 0)
			p.step()
			p.report("DCGMDiagFailed", corev1.ConditionTrue)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := swept(t)
			find(p)
			p.step()
			r := p.record()
			if r.Current != nil || r.Checked != nil || r.Last[0].Phase != visit.Failed || !r.Swept["weekly"].Equal(p.now) {
				t.Errorf("%s", r)
			}
			p.expect("taint", p.taints(), "")
			p.expect("results", p.results, []string{ResultProblem})
		})
	}
}

// What was known more than a day ago decides nothing: the remediator was away, see the test of the same in package visits.
func TestAVisitThatWasAbandonedEnds(t *testing.T) {
	for late, want := range map[time.Duration]visit.Phase{24*time.Hour - time.Second: visit.Failed, 24 * time.Hour: visit.Yielded} {
		p := swept(t)
		p.now = p.record().Current.Deadline.Add(late)
		p.step()
		p.pass(time.Minute)
		p.expect("a Job that ran", p.record().Last[0].Phase, want)
		p.expect("taint", p.taints(), "")

		p = swept(t)
		p.answer("healthy", 0)
		p.step()
		p.now = p.record().Current.PhaseSince.Add(3*policy.DefaultProofTimeout + late)
		p.step()
		p.expect("what was to be proven", p.record().Last[0].Phase, want)
		p.expect("swept", len(p.record().Swept), 0)
	}
}

func TestASweepThatCannotRun(t *testing.T) {
	for name, tt := range map[string]struct {
		end   func(*play)
		phase visit.Phase
		event string
	}{
		"refused":          {func(p *play) { p.answer("refused", 2) }, visit.Refused, RepairRefused},
		"failed":           {func(p *play) { p.answer("failed", 1) }, visit.Failed, NodeChecked},
		"not started":      {func(p *play) { p.now = p.now.Add(job.StartTimeout) }, visit.Failed, NodeChecked},
		"the Job is gone":  {func(p *play) { p.facts.Job = nil }, visit.Failed, NodeChecked},
		"the node reboots": {func(p *play) { p.facts.Node.Status.NodeInfo.BootID = "boot-2" }, visit.Failed, NodeChecked},
		"cordoned":         {func(p *play) { p.facts.Node.Spec.Unschedulable = true }, visit.Failed, NodeChecked},
		"skipped":          {func(p *play) { p.facts.Node.Labels[conditions.LabelSkip] = "true" }, visit.Failed, NodeChecked},
		"untainted":        {func(p *play) { p.facts.Node.Spec.Taints = nil }, visit.Failed, NodeChecked},
	} {
		t.Run(name, func(t *testing.T) {
			p := swept(t)
			tt.end(p)
			p.step()
			p.pass(endPoll)
			r := p.record()
			if r.Current != nil || r.Checked != nil || len(r.Swept) > 0 || r.Last[0].Phase != tt.phase {
				t.Errorf("%s", r)
			}
			p.expect("taint", p.taints(), "")
			p.expect("Job", p.facts.Job == nil, true)
			p.expect("Events", p.events, []string{SweepStarted, tt.event})
			if at := p.facts.Node; tt.phase == visit.Failed && p.now.Sub(sweep.NodeOf(p.policy, at, r, nil, sweep.Idle{}, p.now).Record.Last[0].EndedAt) > endPoll {
				t.Error("the next try cannot be told")
			}
		})
	}
}

// The gate is asked once more between the record of an attempt and its Job, of checks as of repairs.
func TestASweepThatIsPausedBeforeItsJobMakesWay(t *testing.T) {
	p := newPlay(t, "conditions: [all]")
	p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
	p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
	p.step()
	p.facts.Paused = "upgrade"
	p.pass(settleTaint)
	if r := p.record(); p.facts.Job != nil || r.Current != nil || r.Last[0].Outcome != "yielded: paused (upgrade)" {
		t.Errorf("Job %v, record %s", p.facts.Job != nil, r)
	}
}

func TestASweepMakesWay(t *testing.T) {
	held := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "rank-0"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("nvidia.com/gpu")}}}}}
	own := *held.DeepCopy()
	own.Namespace = conditions.RepairNamespace
	for name, tt := range map[string]struct {
		change func(*play)
		yields bool
	}{
		"a pod waits":              {func(p *play) { p.facts.Awaited = "team/rank-0" }, true},
		"a pod has come":           {func(p *play) { p.live.Pods = []corev1.Pod{held} }, true},
		"the pod of the Job":       {func(p *play) { p.live.Pods = []corev1.Pod{own} }, false},
		"a pod without a GPU":      {func(p *play) { p.live.Pods = []corev1.Pod{{}} }, false},
		"paused: it goes on":       {func(p *play) { p.facts.Paused = "upgrade" }, false},
		"quarantined by a person":  {func(p *play) { p.quarantine() }, true},
		"nothing happens":          {func(*play) {}, false},
		"the sweep is not there":   {func(p *play) { p.policy.Sweeps = nil }, false},
		"a pod waits while proven": {func(p *play) { p.answer("healthy", 0); p.step(); p.facts.Awaited = "team/rank-0" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := swept(t)
			tt.change(p)
			p.step()
			p.pass(endPoll)
			r := p.record()
			if yielded := r.Current == nil && r.Last[0].Phase == visit.Yielded; yielded != tt.yields {
				t.Fatalf("%s", r)
			}
			if tt.yields {
				p.expect("taint", strings.Contains(p.taints(), conditions.TaintMaintenance), false)
				p.expect("Job", p.facts.Job == nil, true)
				p.expect("Events", p.events, []string{SweepStarted, SweepYielded})
				p.expect("results", p.results, []string{ResultYielded})
				p.expect("swept", len(r.Swept), 0)
				p.expect("the next try", r.RetryAt(visit.Sweep, "weekly", sweep.Retry, p.now).IsZero(), true)
			}
		})
	}
}

func (p *play) quarantine() {
	taint := corev1.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}
	p.facts.Node.Spec.Taints = append(p.facts.Node.Spec.Taints, taint)
	p.facts.Quarantine = &causes.Record{V: 1, NodeUID: p.facts.Node.UID, Quarantine: causes.Quarantine{
		ID: "q", Phase: causes.Quarantined, Taint: &causes.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect},
	}}
	p.facts.Node.Annotations[conditions.AnnotationQuarantine] = p.facts.Quarantine.String()
}

func TestASweepDoesNotBegin(t *testing.T) {
	busy := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("nvidia.com/gpu")}}}}}
	taint := func(key string) func(*play) {
		return func(p *play) {
			p.facts.Node.Spec.Taints = append(p.facts.Node.Spec.Taints, corev1.Taint{Key: key, Value: "x", Effect: corev1.TaintEffectNoSchedule})
		}
	}
	for name, change := range map[string]func(*play){
		"not selected":            func(p *play) { p.facts.Selected = nil },
		"of a sweep that is gone": func(p *play) { p.facts.Selected.Sweep = "daily" },
		"busy":                    func(p *play) { p.live.Pods = []corev1.Pod{busy} },
		"no template":             func(p *play) { p.live.Templates = nil },
		"paused":                  func(p *play) { p.facts.Paused = "upgrade" },
		"breaker open":            func(p *play) { p.policy.Breaker, p.live.BreakerOpen = &policy.Breaker{}, true },
		"no accelerator":          func(p *play) { p.facts.Node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0") },
		"not Ready":               func(p *play) { p.facts.Node.Status.Conditions[0].Status = corev1.ConditionUnknown },
		"cordoned":                func(p *play) { p.facts.Node.Spec.Unschedulable = true },
		"skipped":                 func(p *play) { p.facts.Node.Labels[conditions.LabelSkip] = "true" },
		"quarantined":             taint(conditions.TaintUnhealthy),
		"a GPU is isolated": func(p *play) {
			p.facts.Node.Annotations = map[string]string{}
			p.quarantine()
			p.facts.Node.Spec.Taints = nil
			p.facts.Quarantine.Isolation = &causes.Isolation{GPUs: []causes.IsolatedGPU{{Address: "0000:1b:00"}}}
		},
		"unchecked":                func(p *play) { p.policy.FirstCheck = nil; taint(conditions.TaintUnchecked)(p) },
		"waits for a first check":  func(p *play) { taint(conditions.TaintUnchecked)(p); p.report("GPUXidError", corev1.ConditionTrue) },
		"maintained by others":     taint(conditions.TaintMaintenance),
		"removed by an autoscaler": taint("ToBeDeletedByClusterAutoscaler"),
		"driver upgrade": func(p *play) {
			p.facts.Node.Labels["nvidia.com/gpu-driver-upgrade-state"] = "drain-required"
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, "conditions: [all]")
			p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
			p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
			change(p)
			p.step()
			if text := p.facts.Node.Annotations[conditions.AnnotationRepair]; text != "" || p.facts.Job != nil {
				t.Errorf("%s", text)
			}
		})
	}
}

// A taint of others may look like that of the isolation, which is on devices only.
func TestAnIsolatedGPUIsNoQuarantineOfTheNode(t *testing.T) {
	p := newPlay(t, "conditions: [all]")
	p.facts.Node.Annotations = map[string]string{}
	p.quarantine()
	if proof.Standing(p.facts.Node, p.facts.Quarantine) == nil {
		t.Fatal("the node is not quarantined")
	}
	p.facts.Quarantine.Isolation = &causes.Isolation{}
	if proof.Standing(p.facts.Node, p.facts.Quarantine) != nil {
		t.Error("a repair of the whole node would begin")
	}
}

func TestAPersonHasANodeChecked(t *testing.T) {
	p := newPlay(t, "conditions: [all]")
	p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
	p.facts.Node.Annotations = map[string]string{conditions.AnnotationRepair: (&visit.Record{V: 1, NodeUID: "n", Request: &visit.Request{Kind: visit.RequestCheck, At: p.now, User: "jo"}}).String()}
	if s := p.step(); s.Waits == nil {
		t.Error("nobody is told that the check waits for an idle node")
	}
	p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
	p.step()
	if r := p.record(); r.Current == nil || r.Request != nil {
		t.Errorf("%s", r)
	}

	p = newPlay(t, "conditions: [all]")
	p.policy.Sweeps = nil
	p.facts.Node.Annotations = map[string]string{conditions.AnnotationRepair: (&visit.Record{V: 1, NodeUID: "n", Request: &visit.Request{Kind: visit.RequestCheck, At: p.now, User: "jo"}}).String()}
	p.step()
	p.expect("Events without a sweep", p.events, []string{RepairRefused})
}

// unchecked is a node that was registered a minute ago with the taint of new nodes.
func registered(t *testing.T, firstCheck string) *play {
	t.Helper()
	p := newPlay(t, firstCheck)
	p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
	p.facts.Node.CreationTimestamp = metav1.NewTime(p.now.Add(-time.Minute))
	p.facts.Node.Status.Conditions[0].LastTransitionTime = metav1.NewTime(p.now.Add(-30 * time.Second))
	p.facts.Node.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	for i, c := range p.facts.Node.Status.Conditions[1:] {
		c.LastTransitionTime = metav1.NewTime(p.now.Add(-25 * time.Second))
		p.facts.Node.Status.Conditions[1+i] = c
	}
	return p
}

const uncheckedTaint = "pitcrew.dev/unchecked:NoSchedule"

func TestFirstCheckByConditions(t *testing.T) {
	at := func(p *play, name string) *corev1.NodeCondition {
		i := slices.IndexFunc(p.facts.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == name })
		return &p.facts.Node.Status.Conditions[i]
	}
	const ours = "conditions: [GPUXidError, DCGMDiagFailed]"
	for name, tt := range map[string]struct {
		policy string
		change func(*play)
		passes bool
	}{
		"healthy":         {change: func(*play) {}, passes: true},
		"a fault":         {change: func(p *play) { p.report("GPUXidError", corev1.ConditionTrue) }},
		"Unknown":         {change: func(p *play) { p.report("GPUXidError", corev1.ConditionUnknown) }},
		"missing":         {change: func(p *play) { p.facts.Node.Status.Conditions = p.facts.Node.Status.Conditions[:1] }},
		"before the boot": {change: func(p *play) { at(p, "GPUXidError").LastHeartbeatTime = metav1.NewTime(p.now.Add(-31 * time.Second)) }},
		"as old as the boot": {change: func(p *play) {
			at(p, "GPUXidError").LastHeartbeatTime = metav1.NewTime(p.now.Add(-30 * time.Second))
			at(p, "GPUXidError").LastTransitionTime = at(p, "GPUXidError").LastHeartbeatTime
		}, passes: true},
		"heartbeats have whole seconds": {change: func(p *play) {
			at(p, "GPUXidError").LastHeartbeatTime = metav1.NewTime(p.now.Add(-30 * time.Second))
			at(p, "GPUXidError").LastTransitionTime = at(p, "GPUXidError").LastHeartbeatTime
			at(p, "Ready").LastTransitionTime = metav1.NewTime(p.now.Add(-30*time.Second + time.Millisecond))
		}, passes: true},
		"stale": {change: func(p *play) {
			at(p, "Ready").LastTransitionTime, p.now = metav1.NewTime(p.now.Add(-time.Hour)), p.now.Add(time.Hour)
		}},
		"from the future":               {change: func(p *play) { at(p, "GPUXidError").LastHeartbeatTime = metav1.NewTime(p.now.Add(time.Hour)) }},
		"not Ready":                     {change: func(p *play) { at(p, "Ready").Status = corev1.ConditionFalse }},
		"paused":                        {change: func(p *play) { p.facts.Paused = "upgrade" }},
		"driver upgrade":                {change: func(p *play) { p.facts.Node.Labels["nvidia.com/gpu-driver-upgrade-state"] = "drain-required" }},
		"not selected":                  {policy: ours + ", nodeSelector: {pool: gpu}", change: func(*play) {}},
		"selected":                      {policy: ours + ", nodeSelector: {pool: gpu}", change: func(p *play) { p.facts.Node.Labels["pool"] = "gpu" }, passes: true},
		"another taint":                 {policy: ours + ", taint: example.com/new", change: func(*play) {}},
		"all, of others too soon":       {policy: "conditions: [all]", change: func(*play) {}},
		"all, of others a minute later": {policy: "conditions: [all]", change: func(p *play) { p.now = p.now.Add(40 * time.Second); p.report("KernelDeadlock", corev1.ConditionFalse) }, passes: true},
		"all, of this vendor": {policy: "conditions: [all]", change: func(p *play) {
			p.now = p.now.Add(40 * time.Second)
			p.report("KernelDeadlock", corev1.ConditionFalse)
			p.facts.Node.Labels["vendor"] = "huawei"
		}},
		"all that its pool reports":   {policy: "conditions: [all]}\n  pools: {a: {conditions: [GPUXidError, Odd]}, b: {nodeSelector: {x: y}, conditions: [KernelDeadlock]}", change: func(*play) {}, passes: true},
		"all, of no pool that has it": {policy: "conditions: [all]}\n  pools: {b: {nodeSelector: {x: y}, conditions: [GPUXidError]}", change: func(*play) {}},
		"all, one of its pool missing": {policy: "conditions: [all]}\n  pools: {a: {conditions: [GPUXidError, DCGMDiagFailed]}", change: func(p *play) {
			p.facts.Node.Status.Conditions = p.facts.Node.Status.Conditions[:2]
		}},
		"one of others is False at once": {policy: "conditions: [KernelDeadlock]", change: func(*play) {}},
		"one without a rule is True":     {policy: "conditions: [Odd]", change: func(p *play) { p.report("Odd", corev1.ConditionTrue) }},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.policy == "" {
				tt.policy = ours
			}
			p := registered(t, tt.policy)
			tt.change(p)
			s := p.step()
			if passed := p.taints() == ""; passed != tt.passes {
				t.Errorf("taints %q, waits %+v", p.taints(), s.Waits)
			}
			if tt.passes {
				p.expect("Events", p.events, []string{NodeChecked})
				p.expect("boot", p.record().Checked.BootID, "boot-1")
			}
		})
	}
}

func TestFirstCheckUnderLoad(t *testing.T) {
	begin := func(t *testing.T) *play {
		p := registered(t, "conditions: [GPUXidError, DCGMDiagFailed], template: check, args: [-level, '2']")
		p.step()
		p.expect("taints", p.taints(), uncheckedTaint+" pitcrew.dev/maintenance=first-check:NoSchedule")
		if p.facts.Job == nil {
			t.Fatal("no Job")
		}
		return p
	}
	t.Run("passes", func(t *testing.T) {
		p := begin(t)
		p.now = p.now.Add(time.Minute)
		p.answer("healthy", 0)
		p.step()
		p.expect("taints before the proof", p.taints(), uncheckedTaint)
		p.now = p.now.Add(time.Minute)
		for _, c := range []string{"GPUXidError", "DCGMDiagFailed", "KernelDeadlock"} {
			p.report(c, corev1.ConditionFalse)
		}
		p.step()
		p.expect("taints", p.taints(), "")
		p.expect("Events", p.events, []string{SweepStarted, NodeChecked})
	})
	t.Run("finds a fault", func(t *testing.T) {
		p := begin(t)
		p.answer("problem", 0)
		p.report("DCGMDiagFailed", corev1.ConditionTrue)
		p.step()
		p.pass(day)
		p.expect("taints", p.taints(), uncheckedTaint)
		p.expect("visit", p.record().Current == nil, true)
	})
	t.Run("could not run, and does an hour later", func(t *testing.T) {
		p := begin(t)
		p.answer("failed", 1)
		p.step()
		again := func(d time.Duration) bool {
			p.now = p.now.Add(d)
			for _, c := range []string{"GPUXidError", "DCGMDiagFailed"} {
				p.report(c, corev1.ConditionFalse)
			}
			p.step()
			return p.record().Current != nil
		}
		p.expect("soon", again(sweep.Retry-time.Second), false)
		p.expect("later", again(time.Second), true)
	})
	t.Run("too many nodes are checked", func(t *testing.T) {
		p := registered(t, "conditions: [GPUXidError], template: check, maxNodes: 2")
		p.live.Peers = []peers.Peer{{FirstCheck: true}, {Active: true}, {FirstCheck: true}}
		if s := p.step(); s.Waits == nil || s.Waits.Reason != "limits" || p.taints() != uncheckedTaint {
			t.Errorf("%+v", s.Waits)
		}
		p.live.Peers = p.live.Peers[:2]
		p.step()
		p.expect("taints", p.taints(), uncheckedTaint+" pitcrew.dev/maintenance=first-check:NoSchedule")
		self := peers.Of(p.policy, p.facts.Node, p.now)
		p.expect("counts", self.FirstCheck, true)
		p.facts.Node.Spec.Taints = nil
		p.expect("counts when its taints are gone, as of a forged record", peers.Of(p.policy, p.facts.Node, p.now).FirstCheck, false)
	})
	t.Run("a pod is in the way", func(t *testing.T) {
		p := registered(t, "conditions: [GPUXidError], template: check")
		p.live.Pods = []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("nvidia.com/gpu")}}}}}}
		s := p.step()
		p.expect("taints", p.taints(), uncheckedTaint)
		if s.Waits == nil || s.Waits.Reason != "pods" {
			t.Errorf("%+v", s.Waits)
		}
	})
}

// A check whose result nobody reports can never pass, so none begins unless the node has the condition, or a pool of it reports that.
func TestASweepNeedsTheNodeToReportWhatProvesIt(t *testing.T) {
	for pools, begins := range map[string]bool{
		"a: {conditions: [GPUXidError, DCGMDiagFailed]}":                       true,
		"a: {conditions: [GPUXidError]}":                                       false,
		"b: {nodeSelector: {x: y}, conditions: [GPUXidError, DCGMDiagFailed]}": false,
		"a: {conditions: [has, GPUXidError]}":                                  true,
	} {
		p := newPlay(t, "conditions: [all]}\n  pools: {"+pools)
		if !strings.Contains(pools, "has") {
			p.facts.Node.Status.Conditions = slices.DeleteFunc(p.facts.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "DCGMDiagFailed" })
		}
		p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
		p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
		s := p.step()
		if got := p.taints() != ""; got != begins || !begins && (s.Waits == nil || s.Waits.Reason != "proof") {
			t.Errorf("%s: taints %q, waits %+v", pools, p.taints(), s.Waits)
		}
	}
}

func TestASweepNamesThePodOfAnOldCheck(t *testing.T) {
	p := newPlay(t, "conditions: [all]")
	p.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
	p.facts.Selected = &Selection{Sweep: "weekly", At: p.now}
	p.live.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: p.facts.Namespace, Name: "hung"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
	if s := p.step(); s.Waits == nil || !strings.Contains(s.Waits.Message, "hung has not ended") {
		t.Errorf("%+v", s.Waits)
	}
}
