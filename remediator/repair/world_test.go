package repair

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const day = 24 * time.Hour

const testPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 100}
  breaker: {maxNodes: 50, window: 1m, coolDown: 30m, pace: 1m}
  repair:
    mode: auto
    maxConcurrent: 1
    maxPerDay: 10
    actions:
      ResetGPU: [{template: reset-gpu, timeout: 10m}, {template: reboot, timeout: 20m}]
      Reboot: [{template: reboot, timeout: 20m}]
    validate: {template: check, args: [-level, "3"], timeout: 45m}
    lemon: {repairs: 4, window: 720h}
  rules:
    xid:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      validate: true
    memory:
      match: {condition: GPUMemoryError, repair: [ResetGPU, Reboot, Replace]}
    slow:
      match: {condition: SlowNode, repair: [Inspect]}
`

const (
	ecc  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	dead = "Replace gpu 0000:4e:00: row remapping failed"
)

func parse(t testing.TB, change ...string) *policy.Policy {
	t.Helper()
	text := testPolicy
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(text, change[i]) {
			t.Fatalf("the policy has no %q", change[i])
		}
		text = strings.Replace(text, change[i], change[i+1], 1)
	}
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// world is a cluster with the real engine of quarantines and the real plan of visits. What is simulated is the hardware, the kubelets,
// the Node Problem Detector and the controller of Jobs.
type world struct {
	testing.TB
	policy    *policy.Policy
	now       time.Time
	nodes     map[string]*machine
	templates map[string]*corev1.PodTemplate
	paused    string
	breaker   bool
	tries     *breaker.State // nil: nothing is remembered
	// starts are remembered as each Job is created.
	starts  starts.Ring
	events  []string
	created map[string]int
	evicted int
	// onCreate sees each Job when it is created.
	onCreate func(m *machine, job *batchv1.Job)
}

// machine is a node of the world.
type machine struct {
	*corev1.Node
	pods   []corev1.Pod
	jobs   map[string]*batchv1.Job
	ended  map[string]corev1.Pod
	silent bool
	boots  int
	// run is what the program of a Job does: it ends the Job by world.end, or leaves it running.
	run     func(job *batchv1.Job)
	waiting *Waiting
	// selected and awaited are those of [Facts].
	selected *Selection
	awaited  string
	// tooLarge is that of [Facts].
	tooLarge string
	// stalled: nothing writes Jobs, as if the process had died after its patch.
	stalled bool
}

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func newWorld(t testing.TB, p *policy.Policy, names ...string) *world {
	w := &world{TB: t, policy: p, now: start, nodes: map[string]*machine{}, created: map[string]int{}, templates: map[string]*corev1.PodTemplate{
		"reset-gpu": template("reset-gpu", "reset-gpu", "-gpu=$(GPUS)"),
		"reboot":    template("reboot", "reboot", "-boot-id=$(BOOT_ID)"),
		"check":     template("check", "check"),
	}}
	w.templates["check"].Annotations = map[string]string{conditions.AnnotationVerdict: "GPUXidError"}
	for _, name := range names {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start.Add(-day))}}
		n.Status.NodeInfo.BootID = name + "-boot-0"
		m := &machine{Node: n, jobs: map[string]*batchv1.Job{}, ended: map[string]corev1.Pod{}}
		w.nodes[name] = m
		w.set(m, string(corev1.NodeReady), corev1.ConditionTrue, "")
		w.set(m, "GPUXidError", corev1.ConditionFalse, "")
		w.set(m, "GPUMemoryError", corev1.ConditionFalse, "")
	}
	return w
}

func template(name string, args ...string) *corev1.PodTemplate {
	return &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "repair", Image: "npd-plugins", Args: args}}}},
	}
}

// set sets a condition, as the Node Problem Detector or the kubelet does.
func (w *world) set(m *machine, name string, status corev1.ConditionStatus, message string) {
	i := slices.IndexFunc(m.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == name })
	if i < 0 {
		m.Status.Conditions = append(m.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(name)})
		i = len(m.Status.Conditions) - 1
	}
	c := &m.Status.Conditions[i]
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(w.now)
	}
	c.Status, c.Message, c.LastHeartbeatTime = status, message, metav1.NewTime(w.now)
}

// fault makes a condition True with a message of the grammar; an empty message clears it.
func (w *world) fault(m *machine, name, message string) {
	status := corev1.ConditionTrue
	if message == "" {
		status = corev1.ConditionFalse
	}
	w.set(m, name, status, message)
}

// step lets time pass and everybody act.
func (w *world) step(after time.Duration) {
	w.now = w.now.Add(after)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		m := w.nodes[name]
		w.kubelet(m)
		w.engine(m)
		w.visit(m)
	}
}

// run lets time pass in steps until a condition holds.
func (w *world) until(what string, most time.Duration, holds func() bool) {
	w.Helper()
	for end := w.now.Add(most); !holds(); {
		if !w.now.Before(end) {
			for name, m := range w.nodes {
				w.Logf("%s: %s\n%s\nwaits %+v", name, m.Annotations[conditions.AnnotationQuarantine], m.Annotations[conditions.AnnotationRepair], m.waiting)
			}
			w.Fatalf("after %s: not %s; events:\n%s", most, what, strings.Join(w.events, "\n"))
		}
		w.step(10 * time.Second)
	}
}

// kubelet sends heartbeats and runs Jobs.
func (w *world) kubelet(m *machine) {
	if !node.IsReady(m.Node) {
		return
	}
	for i := range m.Status.Conditions {
		if c := &m.Status.Conditions[i]; !m.silent || c.Type == corev1.NodeReady {
			c.LastHeartbeatTime = metav1.NewTime(w.now)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.jobs)) {
		if job := m.jobs[name]; m.run != nil && job.DeletionTimestamp == nil && job.Status.Succeeded+job.Status.Failed == 0 {
			m.run(job)
		}
	}
}

func (w *world) engine(m *machine) {
	r, err := causes.RecordOf(m.Node)
	if err != nil {
		w.Fatal(err)
	}
	d := quarantine.Decide(w.policy, quarantine.Observation{
		Node: m.Node, Record: r, Visits: visit.Of(m.Node, r, w.now), Paused: w.paused, Seen: seen.AssumeDecided(m.Node, r),
	}, w.now)
	if d.State != nil {
		d.State.Apply(m.Node)
	}
}

// visit takes steps until there is nothing more to do at once.
func (w *world) visit(m *machine) {
	for range 10 {
		if !w.visitOnce(m) {
			return
		}
	}
	w.Fatalf("node %s has a new step again and again: %s", m.Name, m.Annotations[conditions.AnnotationRepair])
}

func (w *world) facts(m *machine) Facts {
	f := Facts{Node: m.Node, Paused: w.paused, Namespace: conditions.RepairNamespace}
	f.Record, f.RecordErr = visit.RecordOf(m.Node)
	f.Quarantine, f.QuarantineErr = causes.RecordOf(m.Node)
	f.Job = m.jobs[f.Record.JobName(m.Node)]
	f.Selected, f.Awaited, f.TooLarge = m.selected, m.awaited, m.tooLarge
	f.Earlier = w.starts.Unknown(m.Name, func(quarantine string, at time.Time) bool {
		return f.Record != nil && slices.ContainsFunc(f.Record.Repairs, func(a visit.Action) bool { return a.Quarantine == quarantine && a.At.Equal(at) })
	})
	return f
}

func (w *world) live(m *machine, f Facts) *Live {
	l := &Live{Pods: m.pods, Templates: w.templates, BreakerOpen: w.breaker}
	if f.Job != nil {
		l.JobPods = []corev1.Pod{m.ended[f.Job.Name]}
	}
	if w.tries != nil {
		l.Held = w.tries.Held(w.policy.Repair.MaxFailures, w.exists)
	}
	for name, other := range w.nodes {
		if name != m.Name {
			l.Peers = append(l.Peers, peers.Of(w.policy, other.Node, w.now))
		}
	}
	if w.policy.Repair != nil {
		of := map[string]bool{}
		for _, s := range f.Earlier.Today(w.policy.Repair, m.Node, w.now) {
			of[s.Quarantine] = true
		}
		l.Peers = append(l.Peers, peers.Peer{Scope: m.Labels[w.policy.Repair.Scope], Repairs: len(of), HasName: true})
	}
	return l
}

func (w *world) visitOnce(m *machine) (more bool) {
	f := w.facts(m)
	s := Next(w.policy, f, w.now)
	if s.NeedsLive {
		f.Live = w.live(m, f)
		if s = Next(w.policy, f, w.now); s.NeedsLive {
			w.Fatal("a step still needs live facts")
		}
	}
	m.waiting = s.Waits
	for range 2 { // a process that dies before the patch notes it once more
		for _, n := range s.Notes {
			if w.tries != nil {
				w.tries.Note(n.Action, breaker.Node{UID: m.UID, Name: m.Name}, n.Outcome, w.now)
			}
		}
	}
	before := m.DeepCopy()
	s.Apply(m.Node)
	if f.Record != nil && s.Record != nil && len(s.Record.Repairs) < len(f.Record.Repairs) {
		undone := f.Record.Repairs[len(f.Record.Repairs)-1]
		w.starts = w.starts.Without(starts.Of(nil, m.Node, undone.Quarantine, undone.Template, undone.At))
	}
	for _, e := range s.Events {
		w.events = append(w.events, fmt.Sprintf("%s %s: %s", m.Name, e.Reason, e.Message))
	}
	if before.Annotations[conditions.AnnotationRepair] != m.Annotations[conditions.AnnotationRepair] || len(before.Spec.Taints) != len(m.Spec.Taints) {
		if _, err := visit.RecordOf(m.Node); err != nil {
			w.Fatalf("what was written cannot be read: %v", err)
		}
		return true
	}
	if m.stalled {
		return false
	}
	if s.Create != nil && m.jobs[s.Create.Name] == nil {
		w.create(m, s.Create)
	}
	maps.DeleteFunc(m.jobs, func(name string, _ *batchv1.Job) bool { return name != s.KeepJob })
	w.evicted += len(s.Evict)
	for _, pod := range s.Evict {
		m.pods = slices.DeleteFunc(m.pods, func(p corev1.Pod) bool { return p.Name == pod.Name })
	}
	return s.Create != nil
}

func (w *world) exists(uid types.UID) bool {
	for _, m := range w.nodes {
		if m.UID == uid {
			return true
		}
	}
	return false
}

func (w *world) create(m *machine, job *batchv1.Job) {
	w.created[job.Name]++
	if w.created[job.Name] > 1 {
		w.Fatalf("Job %s was created %d times", job.Name, w.created[job.Name])
	}
	if r := m.record(); r.Current != nil && r.Current.Kind == visit.Repair && len(r.Repairs) > 0 {
		last := r.Repairs[len(r.Repairs)-1]
		w.starts = w.starts.With(starts.Of(w.policy.Repair, m.Node, last.Quarantine, last.Template, last.At), w.policy.Repair, w.now)
	}
	job = job.DeepCopy()
	job.UID = types.UID("uid-" + job.Name)
	job.CreationTimestamp = metav1.NewTime(w.now)
	ready := int32(1)
	job.Status.Ready = &ready
	m.jobs[job.Name] = job
	m.ended[job.Name] = corev1.Pod{Spec: job.Spec.Template.Spec, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if w.onCreate != nil {
		w.onCreate(m, job)
	}
}

// end ends a Job with an exit code and a termination message.
func (w *world) end(m *machine, job *batchv1.Job, exit int32, message string) {
	condition := batchv1.JobComplete
	if job.Status.Succeeded = 1; exit != 0 {
		condition, job.Status.Succeeded, job.Status.Failed = batchv1.JobFailed, 0, 1
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue}}
	pod := m.ended[job.Name]
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "repair", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, Message: message},
	}}}
	m.ended[job.Name] = pod
}

// reboot is a new boot of the machine, with all conditions False, as NPD writes them when it starts.
func (w *world) reboot(m *machine) {
	m.boots++
	m.Status.NodeInfo.BootID = fmt.Sprintf("%s-boot-%d", m.Name, m.boots)
	for _, c := range slices.Clone(m.Status.Conditions) {
		if c.Type != corev1.NodeReady {
			w.set(m, string(c.Type), corev1.ConditionUnknown, "") // so that there is a transition
			w.fault(m, string(c.Type), "")
		}
	}
	w.set(m, string(corev1.NodeReady), corev1.ConditionTrue, "")
}

// cures is a program that does what its Job asks for, and that helps.
func (w *world) cures(m *machine) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		switch job.Labels[conditions.LabelTemplate] {
		case "reset-gpu":
			w.fault(m, "GPUXidError", "")
			w.end(m, job, 0, `{"result":"done","message":"reset 1 GPU"}`)
		case "reboot":
			w.reboot(m)
			w.end(m, job, 137, "")
		case "check":
			w.end(m, job, 0, `{"result":"healthy","message":"level 3 has passed"}`)
		}
	}
}

func (m *machine) record() *visit.Record {
	r, err := visit.RecordOf(m.Node)
	if err != nil {
		panic(err)
	}
	return cmp.Or(r, &visit.Record{})
}

func (m *machine) quarantine() *causes.Record {
	r, err := causes.RecordOf(m.Node)
	if err != nil {
		panic(err)
	}
	return r
}

func (m *machine) isQuarantined() bool {
	q := m.quarantine()
	return q != nil && q.Phase == causes.Quarantined
}

// last is the last closed visit.
func (m *machine) last() visit.Visit {
	if r := m.record(); len(r.Last) > 0 {
		return r.Last[0]
	}
	return visit.Visit{}
}

func (m *machine) phase() visit.Phase {
	if v := m.record().Current; v != nil {
		return v.Phase
	}
	return ""
}

// gpuPod is a pod with an accelerator; owner is the kind of its controller, empty for none.
func gpuPod(name, owner string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}}
	return owned(pod, owner)
}

// cpuPod is a pod without one.
func cpuPod(name, owner string) corev1.Pod {
	pod := gpuPod(name, owner)
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	return pod
}

func owned(pod corev1.Pod, owner string) corev1.Pod {
	if controller := true; owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "owner", Controller: &controller}}
	}
	return pod
}

// happened tells whether an Event with all texts was written, in the order "NODE REASON: MESSAGE".
func (w *world) happened(texts ...string) bool {
	return slices.ContainsFunc(w.events, func(e string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e, text) })
	})
}

// requests makes a list of one of each resource.
func requests(names ...corev1.ResourceName) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range names {
		list[name] = resource.MustParse("1")
	}
	return list
}
