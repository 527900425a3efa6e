package visits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	clustertest.Main(m, cluster.Options{})
}

// patience is how long a test waits for what takes a second or two.
const patience = 3 * time.Minute

const (
	ecc  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
)

// templates are what the chart ships, as far as the controller is concerned. The role is all that the remediator's account gets in the
// namespace, beside what its own role has.
const templates = `
apiVersion: v1
kind: PodTemplate
metadata: {name: reset-gpu, namespace: %[1]s}
template: {spec: {automountServiceAccountToken: false, containers: [{name: repair, image: npd-plugins, args: [reset-gpu, -gpu=$(GPUS)]}]}}
---
apiVersion: v1
kind: PodTemplate
metadata: {name: reboot, namespace: %[1]s}
template: {spec: {automountServiceAccountToken: false, containers: [{name: repair, image: npd-plugins, args: [reboot, -boot-id=$(BOOT_ID)]}]}}
---
apiVersion: v1
kind: PodTemplate
metadata: {name: check, namespace: %[1]s, annotations: {pitcrew.dev/verdict: GPUXidError}}
template: {spec: {automountServiceAccountToken: false, containers: [{name: repair, image: npd-plugins, args: [check]}]}}
---
apiVersion: v1
kind: PodTemplate
metadata: {name: collect, namespace: %[1]s}
template: {spec: {automountServiceAccountToken: false, containers: [{name: collect, image: npd-plugins, args: [collect, -node=$(NODE)]}]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: visits, namespace: %[1]s}
rules:
- {apiGroups: [batch], resources: [jobs], verbs: [create, delete]}
- {apiGroups: [""], resources: [podtemplates], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: visits, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: visits}
subjects: [{kind: ServiceAccount, name: pitcrew-remediator, namespace: pitcrew}]
`

// site is a node with a namespace for the Jobs of its visits. The clock is the test's; the engine of quarantines is the real one, and
// what the hardware and the Node Problem Detector do is played.
type site struct {
	*testing.T
	c      *cluster.Cluster
	cfg    *rest.Config
	name   string // of the namespace and the pool
	node   string
	nodes  []string
	policy *policy.Policy
	clock  *clocktesting.FakePassiveClock
	// controllers run beside that of visits.
	controllers []func(context.Context, ctrl.Manager) error
}

func newSite(t *testing.T, name string, change ...string) *site {
	t.Helper()
	return newSiteOf(t, name, 1, change...)
}

func newSiteOf(t *testing.T, name string, count int, change ...string) *site {
	t.Helper()
	c := clustertest.Get(t)
	s := &site{T: t, c: c, cfg: jobstest.Config(t, c), name: name, clock: clocktesting.NewFakePassiveClock(time.Now())}
	text := fmt.Sprintf(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 10}
  breaker: {maxNodes: 50, window: 1m, coolDown: 30m, pace: 1m}
  repair:
    mode: auto
    actions:
      ResetGPU: [{template: reset-gpu, timeout: 10m}, {template: reboot, timeout: 20m}]
      Reboot: [{template: reboot, timeout: 20m}]
    validate: {template: check, args: [-level, "3"], timeout: 45m}
    drain: {mode: wait}
  rules:
    xid:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace], nodeSelector: {%s: %s}}
      validate: true
`, cluster.LabelPool, name)
	for i := 0; i < len(change); i += 2 {
		text = strings.Replace(text, change[i], change[i+1], 1)
	}
	var err error
	if s.policy, err = policy.Parse([]byte(text)); err != nil {
		t.Fatal(err)
	}
	s.must(c.AddNamespace(t.Context(), name, nil))
	s.must(c.Apply(t.Context(), fmt.Appendf(nil, templates, name)))
	names, err := c.AddNodes(t.Context(), name, count, nil)
	s.must(err)
	s.node, s.nodes = names[0], names
	s.clock.SetTime(time.Now().Truncate(time.Second).Add(10 * time.Second)) // no heartbeat is from before the node became Ready
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		if err := c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNodes(ctx, names...); err != nil {
			t.Error(err)
		}
	})
	s.each(func() {
		s.patchStatus(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-0" })
		s.report("False", "")
	})
	return s
}

// each does something with every node of the site, and leaves the first as the one of the other methods.
func (s *site) each(do func()) {
	s.Helper()
	for _, s.node = range s.nodes {
		do()
	}
	s.node = s.nodes[0]
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// process runs the controller as one process of the remediator would, until the test ends or it is stopped.
func (s *site) process(writes interceptor.Funcs, change ...func(*Options)) (stop func()) {
	s.Helper()
	mgr, err := ctrl.NewManager(s.cfg, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{
			ReaderFailOnMissingInformer: true,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: nodes.Slim},
				&batchv1.Job{}: {Namespaces: map[string]cache.Config{s.name: {}, s.name + "-b": {}}},
				&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
					"pitcrew": {FieldSelector: fields.OneTermEqualSelector("metadata.name", conditions.PauseConfigMap)},
				}},
			},
		},
		NewClient: func(cfg *rest.Config, o client.Options) (client.Client, error) {
			cached, err := client.New(cfg, o)
			if err != nil {
				return nil, err
			}
			return interceptor.NewClient(noWatch{cached}, writes), nil
		},
	})
	s.must(err)
	ctx, cancel := context.WithCancel(s.Context())
	o := Options{
		Policy: policy.Fixed(s.policy), Namespace: "pitcrew", RepairNamespace: s.name, Recorder: mgr.GetEventRecorder(quarantine.ControllerName),
		Clock: s.clock, RecheckEvery: 200 * time.Millisecond,
	}
	for _, f := range change {
		f(&o)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &corev1.ConfigMap{}); err != nil { // as package nodes does
		cancel()
		s.Fatal(err)
	}
	if err := SetupWithManager(ctx, mgr, prometheus.NewRegistry(), o); err != nil {
		cancel()
		s.Fatal(err)
	}
	for _, add := range s.controllers {
		if err := add(ctx, mgr); err != nil {
			cancel()
			s.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("the manager ended: %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

// noWatch is a client that watches nothing, for an interceptor.
type noWatch struct{ client.Client }

func (noWatch) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	return nil, errors.New("not watched")
}

func (s *site) read() *corev1.Node {
	s.Helper()
	var n corev1.Node
	s.must(s.c.Client.Get(s.Context(), client.ObjectKey{Name: s.node}, &n))
	return &n
}

func (s *site) record() *visit.Record {
	s.Helper()
	r, err := visit.RecordOf(s.read())
	s.must(err)
	if r == nil {
		return &visit.Record{}
	}
	return r
}

// last is the last closed visit, while none is under way.
func (s *site) last() visit.Visit {
	if r := s.record(); r.Current == nil && len(r.Last) > 0 {
		return r.Last[0]
	}
	return visit.Visit{}
}

func (s *site) patchStatus(change func(*corev1.Node)) {
	s.Helper()
	n := s.read()
	before := n.DeepCopy()
	change(n)
	s.must(s.c.Client.Status().Patch(s.Context(), n, client.StrategicMergeFrom(before)))
}

// report writes the condition as the Node Problem Detector does; an empty status repeats what it was.
func (s *site) report(status corev1.ConditionStatus, message string) {
	s.Helper()
	now := metav1.NewTime(s.clock.Now())
	s.patchStatus(func(n *corev1.Node) {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == conditions.GPUXidError })
		if i < 0 {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: conditions.GPUXidError, Status: status, Message: message, LastTransitionTime: now})
			i = len(n.Status.Conditions) - 1
		}
		c := &n.Status.Conditions[i]
		if status != "" && c.Status != status {
			c.Status, c.Message, c.LastTransitionTime = status, message, now
		}
		c.Reason, c.LastHeartbeatTime = "x", now
	})
}

// engine decides about the quarantine as the controller of nodes does.
func (s *site) engine() {
	s.Helper()
	n := s.read()
	r, err := causes.RecordOf(n)
	s.must(err)
	d := quarantine.Decide(s.policy, quarantine.Observation{
		Node: n, Record: r, Visits: visit.Of(n, r, s.clock.Now()), Seen: seen.AssumeDecided(n, r),
	}, s.clock.Now())
	if !d.Changes(n) {
		return
	}
	before := n.DeepCopy()
	d.State.Apply(n)
	if err := s.c.Client.Patch(s.Context(), n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		s.Log(err) // a conflict; it decides again
	}
}

// tick lets time pass.
func (s *site) tick(after time.Duration) {
	s.Helper()
	s.clock.SetTime(s.clock.Now().Add(after))
	s.report("", "")
	s.engine()
}

func (s *site) until(what string, check func() error) {
	s.Helper()
	clustertest.Until(s.T, patience, what, check)
}

func (s *site) untilPhase(phase visit.Phase) *visit.Visit {
	s.Helper()
	var v *visit.Visit
	s.until("phase "+string(phase), func() error {
		r := s.record()
		if v = r.Current; v == nil || v.Phase != phase {
			return fmt.Errorf("record %s", r)
		}
		return nil
	})
	return v
}

// untilPassed lets time pass until a visit has passed.
func (s *site) untilPassed(kind visit.Kind) {
	s.Helper()
	s.until(string(kind)+" has passed", func() error {
		r := s.record()
		if i := slices.IndexFunc(r.Last, func(v visit.Visit) bool { return v.Kind == kind }); i >= 0 && r.Last[i].Phase == visit.Passed {
			return nil
		}
		if r.Current == nil || r.Current.Phase == visit.Proving {
			s.tick(20 * time.Second)
		}
		return fmt.Errorf("record %s", r)
	})
}

// pods are the pods of the Jobs in the namespace.
func (s *site) pods() []corev1.Pod {
	s.Helper()
	var pods corev1.PodList
	s.must(s.c.Client.List(s.Context(), &pods, client.InNamespace(s.name)))
	return pods.Items
}

// runs waits until the Job of a template runs, and returns its pod.
func (s *site) runs(template string) corev1.Pod {
	s.Helper()
	var found corev1.Pod
	s.until("the Job of "+template+" runs", func() error {
		var jobs batchv1.JobList
		s.must(s.c.Client.List(s.Context(), &jobs, client.InNamespace(s.name), client.MatchingLabels{conditions.LabelTemplate: template}))
		for _, pod := range s.pods() {
			for _, job := range jobs.Items {
				if pod.Status.Phase == corev1.PodRunning && metav1.IsControlledBy(&pod, &job) {
					found = pod
					return nil
				}
			}
		}
		return fmt.Errorf("%d Jobs, %d pods; record %s", len(jobs.Items), len(s.pods()), s.record())
	})
	return found
}

// ends ends the pod of a Job with an exit code and a termination message, as a kubelet reports it.
func (s *site) ends(pod corev1.Pod, code int32, message string) {
	s.Helper()
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	now := metav1.Now()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: "npd-plugins", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Message: message, StartedAt: now, FinishedAt: now, ContainerID: "x://1",
		}},
	}}
	s.must(s.c.Client.Status().Patch(s.Context(), &pod, client.MergeFrom(before)))
}

// hasEvent waits for an Event on the node.
func (s *site) hasEvent(reason, text string) {
	s.Helper()
	s.until("Event "+reason, func() error {
		var list eventsv1.EventList
		s.must(s.c.Client.List(s.Context(), &list, client.InNamespace("default"), client.MatchingFields{"regarding.name": s.node}))
		var all []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
			all = append(all, e.Reason+": "+e.Note)
		}
		return fmt.Errorf("there is none with %q among %q", text, all)
	})
}

// noJobs waits until all Jobs are gone.
func (s *site) noJobs() {
	s.Helper()
	s.until("the Jobs are gone", func() error {
		var jobs batchv1.JobList
		s.must(s.c.Client.List(s.Context(), &jobs, client.InNamespace(s.name)))
		if n := len(jobs.Items); n > 0 {
			return fmt.Errorf("%d Jobs", n)
		}
		return nil
	})
}

func hasMaintenance(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
}

const (
	reset   = `{"result":"done","message":"reset 1 GPU"}`
	healthy = `{"result":"healthy","message":"level 3 has passed"}`
)

func TestANodeIsEmptiedResetProvenAndValidated(t *testing.T) {
	s := newSite(t, "whole")
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	train := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "train"}, Spec: corev1.PodSpec{
		NodeName: s.node, Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
	}}
	s.must(s.c.Client.Create(t.Context(), train))
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.untilPhase(visit.Emptying)
	s.hasEvent(repair.RepairWaiting, "whole/train has not ended")
	if hasMaintenance(s.read()) {
		t.Error("the node has the taint before it is empty")
	}
	s.must(s.c.Client.Delete(t.Context(), train))
	s.until("the pod is gone", func() error {
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		return client.IgnoreNotFound(s.c.Client.Get(t.Context(), client.ObjectKeyFromObject(train), train))
	})
	s.untilPhase(visit.Working)
	pod := s.runs("reset-gpu")
	if got := pod.Spec.Containers[0].Args; !slices.Equal(got, []string{"reset-gpu", "-gpu=0000:1b:00"}) || pod.Spec.NodeName != s.node {
		t.Errorf("args %q on node %s", got, pod.Spec.NodeName)
	}
	if n := s.read(); !hasMaintenance(n) {
		t.Errorf("taints %v", n.Spec.Taints)
	}
	s.engine() // it ignores the conditions meanwhile
	s.ends(pod, 0, reset)
	s.untilPhase(visit.Proving)
	if hasMaintenance(s.read()) {
		t.Error("the taint stays after the Job")
	}
	s.noJobs()
	s.report("False", "")
	s.untilPassed(visit.Repair)
	s.hasEvent(repair.RepairSucceeded, "reset-gpu has helped")
	s.until("the validation begins", func() error {
		if v := s.record().Current; v == nil || v.Phase != visit.Working {
			s.tick(20 * time.Second)
			return errors.New("not yet")
		}
		return nil
	})
	pod = s.runs("check")
	s.ends(pod, 0, healthy)
	s.untilPassed(visit.Validation)
	s.hasEvent(repair.NodeChecked, "validation has passed")
	q, err := causes.RecordOf(s.read())
	s.must(err)
	if r := s.record(); !r.ValidatedFor(q.ID, "boot-0") || len(r.Repairs) != 1 || !r.Repairs[0].Proven {
		t.Errorf("record %s", r)
	}
	s.noJobs()
}

func TestARebootIsFollowedByTheBootID(t *testing.T) {
	s := newSite(t, "reboot")
	s.process(interceptor.Funcs{})
	s.report("True", lost)
	s.engine()
	pod := s.runs("reboot")
	if got := pod.Spec.Containers[0].Args; !slices.Equal(got, []string{"reboot", "-boot-id=boot-0"}) {
		t.Errorf("args %q", got)
	}
	s.ends(pod, 137, "")
	s.until("the Job has failed", func() error {
		var jobs batchv1.JobList
		s.must(s.c.Client.List(t.Context(), &jobs, client.InNamespace(s.name)))
		if len(jobs.Items) != 1 || jobs.Items[0].Status.Failed != 1 {
			return fmt.Errorf("Jobs %v", jobs.Items)
		}
		return nil
	})
	s.tick(time.Minute)
	if v := s.untilPhase(visit.Working); v.Attempt != 1 {
		t.Errorf("attempt %d", v.Attempt)
	}
	s.patchStatus(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-1" })
	s.untilPhase(visit.Proving)
	s.noJobs() // before it has passed: the validation begins at once
	s.report("False", "")
	s.untilPassed(visit.Repair)
}

// Every process of the remediator dies after one write, so that each pair of writes has a crash between.
func TestARepairSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	for name, late := range map[string]bool{"after the write": false, "before the next": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "crash-"+strings.ReplaceAll(name, " ", "-"))
			jobs := s.countJobs()
			s.report("True", ecc)
			s.engine()
			deaths := 0
			for passed := false; !passed; deaths++ {
				m := clustertest.NewMortal(1, late)
				stop := s.process(m.Funcs())
				s.until(fmt.Sprintf("process %d dies", deaths+1), func() error {
					select {
					case <-m.Dead:
						return nil
					default:
					}
					v := s.last()
					if passed = v.Kind == visit.Validation && v.Phase == visit.Passed; passed {
						return nil
					}
					s.play()
					return fmt.Errorf("record %s", s.record())
				})
				stop()
			}
			if deaths < 12 {
				t.Errorf("%d processes: too few writes", deaths)
			}
			s.process(interceptor.Funcs{})
			s.noJobs()
			r := s.record()
			if len(r.Last) != 2 || len(r.Repairs) != 1 || r.Last[0].Attempt != 1 || r.Last[1].Attempt != 1 {
				t.Errorf("record %s", r)
			}
			if got := jobs(); len(got) != 2 {
				t.Errorf("Jobs %q, want one for each attempt", got)
			}
		})
	}
}

// play is the hardware: Jobs end well, and faults clear. Time passes only while conditions are waited for, so that a slow machine is not a
// slow Job.
func (s *site) play() {
	s.Helper()
	r := s.record()
	if r.Current == nil || r.Current.Phase == visit.Proving {
		s.tick(20 * time.Second)
		return
	}
	for _, pod := range s.pods() {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || pod.Spec.NodeName != s.node {
			continue
		}
		if pod.Spec.Containers[0].Args[0] == "check" {
			s.ends(pod, 0, healthy)
			continue
		}
		s.report("False", "")
		s.ends(pod, 0, reset)
	}
}

// countJobs follows the Jobs in the namespace, and returns the UIDs of all that ever were.
func (s *site) countJobs() func() []string {
	s.Helper()
	w, err := s.c.Client.Watch(s.Context(), &batchv1.JobList{}, client.InNamespace(s.name))
	s.must(err)
	var mu sync.Mutex
	seen := map[string]bool{}
	go func() {
		for e := range w.ResultChan() {
			if job, ok := e.Object.(*batchv1.Job); ok {
				mu.Lock()
				seen[job.Name+"/"+string(job.UID)] = true
				mu.Unlock()
			}
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		var all []string
		for uid := range seen {
			all = append(all, uid)
		}
		return all
	}
}

func TestNodesShareThePlacesOfTheLimit(t *testing.T) {
	s := newSiteOf(t, "places", 4)
	s.process(interceptor.Funcs{})
	s.each(func() {
		s.report("True", ecc)
		s.engine()
	})
	s.until("all nodes are repaired and validated", func() error {
		s.clock.SetTime(s.clock.Now().Add(5 * time.Second))
		// One list: between two reads one visit may end and the next one begin.
		var all corev1.NodeList
		s.must(s.c.Client.List(t.Context(), &all, client.MatchingLabels{cluster.LabelPool: s.name}))
		active, left := 0, ""
		for i := range all.Items {
			if r, err := visit.RecordOf(&all.Items[i]); err != nil {
				t.Fatal(err)
			} else if r != nil && r.Current != nil {
				active++
			}
		}
		s.each(func() {
			r := s.record()
			if len(r.Last) == 0 || r.Last[0].Kind != visit.Validation {
				left += " " + r.String()
			}
			if r.Current == nil && len(r.Last) == 0 {
				s.report("", "") // it waits
				return
			}
			s.play()
		})
		if active > 1 {
			t.Fatalf("%d nodes are visited at the same time", active)
		}
		if left != "" {
			return errors.New(left)
		}
		return nil
	})
}

func TestADryRunWritesNothing(t *testing.T) {
	s := newSite(t, "dry")
	s.process(interceptor.Funcs{}, func(o *Options) { o.DryRun = true })
	s.report("True", ecc)
	s.engine()
	s.hasEvent(repair.RepairWaiting, "dry run, would begin a repair")
	s.tick(10 * time.Minute)
	if n := s.read(); n.Annotations[conditions.AnnotationRepair] != "" || hasMaintenance(n) || len(s.pods()) > 0 {
		t.Errorf("annotations %v, taints %v, %d pods", n.Annotations, n.Spec.Taints, len(s.pods()))
	}
}

func TestOffRegistersNothing(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := SetupWithManager(t.Context(), nil, registry, Options{}); err != nil {
		t.Fatal(err)
	}
	if got, err := registry.Gather(); err != nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTheJobOfADeletedNodeIsDeleted(t *testing.T) {
	s := newSite(t, "deleted")
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.runs("reset-gpu")
	s.must(s.c.DeleteNodes(t.Context(), s.node))
	s.noJobs()
}

func TestAPersonWhoRemovesTheTaintStopsTheJob(t *testing.T) {
	s := newSite(t, "person")
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.runs("reset-gpu")
	if out, err := s.c.Kubectl(t.Context(), "taint", "node", s.node, conditions.TaintMaintenance+"-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.noJobs()
	s.until("the visit is closed", func() error {
		if r := s.record(); r.Current != nil {
			s.tick(time.Second) // until its pod has ended
			return fmt.Errorf("record %s", r)
		}
		return nil
	})
	if v := s.last(); v.Phase != visit.Failed || !strings.Contains(v.Outcome, "was removed") {
		t.Errorf("visit %+v", v)
	}
	s.hasEvent(repair.RepairFailed, "was removed")
}

func TestAJobThatIsNotAllowedIsReported(t *testing.T) {
	s := newSite(t, "forbidden")
	s.must(s.c.Client.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}},
	}))
	s.until("the quota holds", func() error {
		var q corev1.ResourceQuota
		s.must(s.c.Client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: "none"}, &q))
		if len(q.Status.Hard) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.untilPhase(visit.Working)
	s.until("the visit is given up", func() error {
		if v := s.last(); v.Phase == visit.Failed && strings.Contains(v.Outcome, "exceeded quota") {
			return nil
		}
		s.tick(20 * time.Second)
		return fmt.Errorf("record %s", s.record())
	})
}

func TestEvictionLeavesTheJobsThatAreRestarted(t *testing.T) {
	s := newSite(t, "evict", "drain: {mode: wait}", "drain: {mode: evict}", "validate: true", "restartJobs: true")
	work := s.name + "-work"
	s.must(s.c.AddNamespace(t.Context(), work, nil))
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.c.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: work}}); err != nil {
			t.Error(err)
		}
	})
	const container = `{name: main, image: none, resources: {limits: {nvidia.com/gpu: 1}}}`
	s.must(s.c.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[4]s}
spec: {replicas: 1, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {nodeSelector: {%[2]s: %[1]s}, containers: [%[3]s]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: %[4]s, labels: {pitcrew.dev/restart-on-node-fault: "true"}}
spec: {template: {metadata: {labels: {app: train}}, spec: {restartPolicy: Never, nodeSelector: {%[2]s: %[1]s}, containers: [%[3]s]}}}
`, s.name, cluster.LabelPool, container, work)))
	running := func() (names []string) {
		var pods corev1.PodList
		s.must(s.c.Client.List(t.Context(), &pods, client.InNamespace(work)))
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == s.node && pod.Status.Phase == corev1.PodRunning {
				names = append(names, pod.Labels["app"])
			}
		}
		slices.Sort(names)
		return names
	}
	s.until("both run", func() error {
		if got := running(); len(got) != 2 {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	s.process(interceptor.Funcs{})
	s.report("True", ecc)
	s.engine()
	s.until("the pod of the Deployment is evicted", func() error {
		if got := running(); !slices.Equal(got, []string{"train"}) {
			return fmt.Errorf("%q; record %s", got, s.record())
		}
		return nil
	})
	s.clock.SetTime(s.clock.Now().Add(time.Minute))
	s.untilPhase(visit.Emptying)
	if got := running(); !slices.Equal(got, []string{"train"}) {
		t.Errorf("%q run", got)
	}
}
