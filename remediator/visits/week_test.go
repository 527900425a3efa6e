package visits

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// The defaults are what everybody has time for. `make nightly` has a week of 50 nodes, bench/results/repair.md the result of 500.
var (
	weekNodes = flag.Int("week.nodes", 10, "how many nodes TestAWeekOfSweeps has")
	weekDays  = flag.Int("week.days", 1, "how many days its week has; sweeps, jobs and gangs come as many times sooner")
)

// ofWeek is a time of a week of seven days in that of the test.
func ofWeek(d time.Duration) time.Duration { return d * time.Duration(*weekDays) / 7 }

const (
	weekStep    = 10 * time.Minute
	maxTick     = 5 * time.Minute
	weekEvery   = 120 * time.Hour
	sweepTakes  = 30 * time.Minute
	sweeperUser = "sweeper"
	team        = "team"
)

const weekPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 10}
  sweeps:
    all: {every: %s, idleFor: 10m, maxNodes: %d, template: check, args: [-level, "2"]}
  rules:
    diag:
      match: {condition: DCGMDiagFailed, repair: [Replace]}
`

const weekTemplate = `
apiVersion: v1
kind: PodTemplate
metadata: {name: check, namespace: pitcrew-repair, annotations: {pitcrew.dev/verdict: DCGMDiagFailed}}
template: {spec: {automountServiceAccountToken: false, containers: [{name: check, image: npd-plugins, args: [check]}]}}
`

// sweepEvery is the time between two sweeps of a node.
func sweepEvery() time.Duration { return ofWeek(weekEvery).Truncate(time.Minute) }

// weekAtOnce is the limit of the sweep, maxNodes.
func weekAtOnce() int { return 1 + *weekNodes/100 }

// week is a cluster whose week takes minutes: the clock of the sweeps is the test's, and steps. Control plane, scheduler and node objects
// are real; the Jobs, the pods of the nodes and what plugins report are played.
type week struct {
	*testing.T
	c          *cluster.Cluster
	controller *Controller
	clock      *clocktesting.FakePassiveClock
	// due are nodes to be reconciled.
	due []string
	// swept has the times at which a sweep of the node ended well.
	swept map[string][]time.Time
	// yielded has the times at which a sweep of the node ended for a gang. The next one follows, and takes its time again.
	yielded map[string][]time.Time
	// under are the nodes with a sweep under way.
	under map[string]bool
}

func newWeek(t *testing.T) *week {
	t.Helper()
	log.SetLogger(logr.Discard())
	c, err := cluster.Start(t.Context(), cluster.Options{Audit: true, WithoutJobs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &week{T: t, c: c, clock: clocktesting.NewFakePassiveClock(time.Now().Truncate(time.Second)), swept: map[string][]time.Time{}, yielded: map[string][]time.Time{}, under: map[string]bool{}}
	for _, namespace := range []string{"pitcrew", conditions.RepairNamespace, team} {
		w.must(c.AddNamespace(t.Context(), namespace, nil))
	}
	w.must(c.Apply(t.Context(), []byte(weekTemplate)))
	cfg, err := c.Config(sweeperUser, "system:masters")
	w.must(err)
	cfg.QPS = -1
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: nodes.Slim},
			&batchv1.Job{}: {Namespaces: map[string]cache.Config{conditions.RepairNamespace: {}}},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				"pitcrew": {FieldSelector: fields.OneTermEqualSelector("metadata.name", conditions.PauseConfigMap)},
			}},
		}},
	})
	w.must(err)
	p, err := policy.Parse(fmt.Appendf(nil, weekPolicy, sweepEvery(), weekAtOnce()))
	w.must(err)
	w.controller = newController(mgr, Options{
		Policy: policy.Fixed(p), Namespace: "pitcrew", RepairNamespace: conditions.RepairNamespace, Clock: w.clock, Recorder: mgr.GetEventRecorder(quarantine.ControllerName),
	})
	// The test takes the place of the queue, so that the clock stands still while a node is decided.
	w.controller.sweeper = newSweeper(w.controller, func(_ context.Context, node string) { w.due = append(w.due, node) }, 0)
	w.must(index(t.Context(), mgr.GetFieldIndexer()))
	for _, kind := range []client.Object{&corev1.Node{}, &corev1.ConfigMap{}} {
		_, err := mgr.GetCache().GetInformer(t.Context(), kind, cache.BlockUntilSynced(false))
		w.must(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache does not fill")
	}
	return w
}

func (w *week) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *week) until(what string, check func() error) {
	w.Helper()
	clustertest.Until(w, time.Minute, what, check)
}

// cached is the node once the cache is as new as the API server.
func (w *week) cached(name string) *corev1.Node {
	w.Helper()
	var live, cached corev1.Node
	key := client.ObjectKey{Name: name}
	w.must(w.c.Client.Get(w.Context(), key, &live))
	w.until("the cache to show node "+name, func() error {
		if err := w.controller.client.Get(w.Context(), key, &cached); err != nil {
			return err
		}
		order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, live.ResourceVersion)
		if err == nil && order < 0 {
			err = fmt.Errorf("%s is older than %s", cached.ResourceVersion, live.ResourceVersion)
		}
		return err
	})
	return &cached
}

func (w *week) visit(name string) *visit.Visit {
	w.Helper()
	r, err := visit.RecordOf(w.cached(name))
	w.must(err)
	if r == nil {
		return nil
	}
	return r.Current
}

// reconcile decides about a node until nothing follows.
func (w *week) reconcile(name string) {
	w.Helper()
	for range 20 {
		before := w.cached(name).Annotations[conditions.AnnotationRepair]
		_, err := w.controller.Reconcile(w.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
		w.must(err)
		n := w.cached(name)
		r, err := visit.RecordOf(n)
		w.must(err)
		if r == nil {
			return
		}
		if job := r.JobName(n); job != "" && w.clock.Now().Sub(r.Current.PhaseSince) >= 5*time.Second {
			key := client.ObjectKey{Namespace: conditions.RepairNamespace, Name: job}
			w.startJob(key)
		}
		if n.Annotations[conditions.AnnotationRepair] == before {
			break
		}
	}
	var jobs batchv1.JobList
	if w.visit(name) != nil {
		w.under[name] = true
		return
	}
	w.until("the Job of "+name+" to go", func() error {
		_, err := w.controller.Reconcile(w.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
		w.must(err)
		w.must(w.controller.client.List(w.Context(), &jobs, client.MatchingFields{indexNode: name}))
		if len(jobs.Items) > 0 {
			return fmt.Errorf("%d Jobs", len(jobs.Items))
		}
		return nil
	})
	if w.under[name] {
		r, err := visit.RecordOf(w.cached(name))
		w.must(err)
		if v := r.Last[0]; v.Phase == visit.Passed {
			w.swept[name] = append(w.swept[name], w.clock.Now())
		} else if v.Phase == visit.Yielded {
			w.yielded[name] = append(w.yielded[name], w.clock.Now())
		} else {
			w.Fatalf("%s: %s", name, r)
		}
	}
	delete(w.under, name)
}

// pass lets time pass, and decides about the nodes that are due.
func (w *week) pass(d time.Duration) {
	w.Helper()
	for ; d > maxTick; d -= maxTick { // a longer time without looks would say nothing about the nodes
		w.pass(maxTick)
	}
	before := len(w.under)
	w.clock.SetTime(w.clock.Now().Add(d))
	w.must(w.controller.sweeper.tick(w.Context()))
	due := w.due
	w.due = nil
	for name := range w.under {
		due = append(due, name)
	}
	slices.Sort(due)
	for _, name := range slices.Compact(due) {
		w.reconcile(name)
	}
	if len(w.under) > before {
		w.pass(5 * time.Second) // the Jobs of the sweeps that have begun are created now
	}
}

// play has Jobs end, and plugins report, where it is time.
func (w *week) play() {
	w.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.under)) {
		switch v := w.visit(name); {
		case v.Phase == visit.Working && w.clock.Now().Sub(v.StartedAt) >= sweepTakes:
			w.endJob(name)
		case v.Phase == visit.Proving:
			w.report(name)
		default:
			continue
		}
		w.reconcile(name)
	}
}

// startJob has the pod of a Job run.
func (w *week) startJob(key client.ObjectKey) {
	w.Helper()
	var job batchv1.Job
	w.must(w.c.Client.Get(w.Context(), key, &job))
	if job.Status.StartTime != nil {
		return
	}
	now, one := metav1.Now(), int32(1)
	job.Status = batchv1.JobStatus{Active: 1, Ready: &one, StartTime: &now, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}}
	w.must(w.c.Client.Status().Update(w.Context(), &job))
	w.until("the cache to show Job "+key.Name, func() error {
		var cached batchv1.Job
		if err := w.controller.client.Get(w.Context(), key, &cached); err != nil {
			return err
		}
		if cached.Status.StartTime == nil {
			return fmt.Errorf("%+v", cached.Status)
		}
		return nil
	})
}

func (w *week) endJob(name string) {
	w.Helper()
	n := w.cached(name)
	r, err := visit.RecordOf(n)
	w.must(err)
	var job batchv1.Job
	key := client.ObjectKey{Namespace: conditions.RepairNamespace, Name: r.JobName(n)}
	w.must(w.c.Client.Get(w.Context(), key, &job))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name, Labels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: job.Spec.Template.Spec,
	}
	w.must(w.c.Client.Create(w.Context(), pod))
	status := map[string]any{"status": map[string]any{"phase": corev1.PodSucceeded, "containerStatuses": []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: "none", ImageID: "none", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"result":"healthy","message":"all passed"}`}},
	}}}}
	w.must(w.c.Client.Status().Patch(w.Context(), pod, jsonPatch(types.StrategicMergePatchType, status)))
	now := metav1.Now()
	condition := func(t batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now}
	}
	job.Status = batchv1.JobStatus{
		Succeeded: 1, StartTime: job.Status.StartTime, CompletionTime: &now, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{},
		Conditions: []batchv1.JobCondition{condition(batchv1.JobSuccessCriteriaMet), condition(batchv1.JobComplete)},
	}
	w.must(w.c.Client.Status().Update(w.Context(), &job))
	w.until("the cache to show the end of the Job", func() error {
		var cached batchv1.Job
		if err := w.controller.client.Get(w.Context(), key, &cached); err != nil {
			return err
		}
		if cached.Status.CompletionTime == nil {
			return fmt.Errorf("%+v", cached.Status)
		}
		return nil
	})
}

func jsonPatch(t types.PatchType, object any) client.Patch {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return client.RawPatch(t, text)
}

func (w *week) report(name string) {
	w.Helper()
	now := metav1.NewTime(w.clock.Now())
	status := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: conditions.GPUXidError, Status: corev1.ConditionFalse, LastHeartbeatTime: now, LastTransitionTime: now},
		{Type: conditions.DCGMDiagFailed, Status: corev1.ConditionFalse, LastHeartbeatTime: now, LastTransitionTime: now},
	}}}
	w.must(w.c.Client.Status().Patch(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, jsonPatch(types.StrategicMergePatchType, status)))
}

// pod is a rank that needs a whole node: a certain one, or one with the label gang.
func (w *week) pod(name, node, gang string) *corev1.Pod {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "rank", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus},
		}}},
	}
	if gang != "" {
		pod.Spec.NodeSelector = map[string]string{"gang": gang}
	}
	return pod
}

func (w *week) remove(pods ...*corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		w.must(w.c.Client.Delete(w.Context(), pod, client.GracePeriodSeconds(0)))
		w.until("pod "+pod.Name+" to go", func() error {
			if err := w.c.Client.Get(w.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
}

// gang is a job that needs all nodes with a sweep under way, and some more. It gets them within 15 s of the sweeps' clock.
func (w *week) gang(number int, more []string) {
	w.Helper()
	label := fmt.Sprint(number)
	var pods []*corev1.Pod
	for i, name := range append(slices.Sorted(maps.Keys(w.under)), more...) {
		w.must(w.c.Client.Patch(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"gang":%q}}}`, label))))
		w.cached(name)
		pods = append(pods, w.pod(fmt.Sprintf("gang-%d-%d", number, i), "", label))
	}
	for _, pod := range pods {
		w.must(w.c.Client.Create(w.Context(), pod))
	}
	for _, pod := range pods {
		w.until("the scheduler to answer for pod "+pod.Name, func() error { // by the test's clock the pod is days old
			if err := w.c.Client.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || len(pod.Status.Conditions) == 0 {
				return fmt.Errorf("it is %+v, %w", pod.Status, err)
			}
			return nil
		})
	}
	for range 3 {
		w.pass(yieldEvery)
	}
	for _, pod := range pods {
		w.until("pod "+pod.Name+" to get a node", func() error {
			if err := w.c.Client.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("it is %+v", pod.Status)
			}
			return nil
		})
	}
	w.remove(pods...)
}

// TestAWeekOfSweeps checks nodes for a week.
func TestAWeekOfSweeps(t *testing.T) {
	w := newWeek(t)
	begun := time.Now()
	names, err := w.c.AddNodes(t.Context(), "w", *weekNodes, nil)
	w.must(err)
	for _, name := range names {
		w.report(name)
	}
	// Of five nodes, one is always busy and one runs a job after the other, with a pause in between.
	busy := map[string]*corev1.Pod{}
	toggleAt := map[string]time.Time{}
	start := w.clock.Now()
	run := func(name string) {
		busy[name] = w.pod("job-"+name, name, "")
		w.must(w.c.Client.Create(t.Context(), busy[name]))
	}
	for i, name := range names {
		switch i % 5 {
		case 0:
			run(name)
		case 1:
			toggleAt[name] = start.Add(time.Duration(i) * 10 * time.Minute)
		}
	}
	t.Logf("%d nodes after %s", *weekNodes, time.Since(begun))
	gangs, most := 0, 0
	for nextGang := start.Add(ofWeek(24 * time.Hour)); w.clock.Now().Sub(start) < ofWeek(7*24*time.Hour); {
		w.pass(weekStep)
		w.play()
		most = max(most, len(w.under))
		now := w.clock.Now()
		for _, name := range slices.Sorted(maps.Keys(toggleAt)) {
			if now.Before(toggleAt[name]) {
				continue
			}
			if pod := busy[name]; pod != nil {
				w.remove(pod)
				delete(busy, name)
				toggleAt[name] = now.Add(ofWeek(12 * time.Hour))
			} else if !w.under[name] { // the scheduler would not put it there
				run(name)
				toggleAt[name] = now.Add(ofWeek(40 * time.Hour))
			}
		}
		if len(w.under) > 0 && !now.Before(nextGang) {
			gangs++
			others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return w.under[name] || busy[name] != nil })
			w.gang(gangs, others[:2])
			nextGang = nextGang.Add(ofWeek(24 * time.Hour))
		}
	}
	checks, longest := 0, time.Duration(0)
	for i, name := range names {
		last := start
		for _, at := range append(slices.Clone(w.swept[name]), w.clock.Now()) {
			if waited := at.Sub(last); i%5 > 1 {
				longest = max(longest, waited)
				due := sweepEvery() + sweepTakes + 2*weekStep
				for _, yielded := range w.yielded[name] {
					if yielded.After(last) && !yielded.After(at) {
						due += sweepTakes + 2*weekStep
					}
				}
				if waited > due {
					t.Errorf("%s waited %s for a check, from %s to %s: %s", name, waited, last.Sub(start), at.Sub(start), w.cached(name).Annotations[conditions.AnnotationRepair])
				}
			}
			last = at
		}
		checks += len(w.swept[name])
		if i%5 == 0 && len(w.swept[name]) > 0 {
			t.Errorf("busy node %s was checked", name)
		}
	}
	if gangs < 4 {
		t.Errorf("only %d gangs met sweeps", gangs)
	}
	lists := w.audit()
	t.Logf("%d checks of %d nodes, at most %d at a time, no idle node waited for more than %s; %d gangs; pods were listed %d times; %s in all",
		checks, *weekNodes, most, longest, gangs, lists, time.Since(begun).Round(time.Second))
}

// audit replays what the API server did: a node was tainted and got a Job only while no pod there had a GPU, and never more at a time than
// the limit. It returns how often pods were listed.
func (w *week) audit() (lists int) {
	w.Helper()
	log, err := w.c.AuditLog()
	w.must(err)
	held := map[string]map[string]bool{} // pods by node
	nodeOf := map[string]string{}        // by pod
	tainted, jobs, created := map[string]bool{}, map[string]string{}, 0
	for _, a := range log {
		if a.ResponseStatus.Code >= 300 {
			continue
		}
		ref, pod := a.ObjectRef, a.ObjectRef.Namespace+"/"+a.ObjectRef.Name
		switch a.Verb + " " + strings.TrimSuffix(ref.Resource+"/"+ref.Subresource, "/") {
		case "list pods":
			if a.User.Username == sweeperUser {
				lists++
			}
		case "create pods":
			var p corev1.Pod
			w.must(json.Unmarshal(a.RequestObject.Raw, &p))
			if p.Spec.NodeName != "" && p.Namespace == team {
				nodeOf[p.Namespace+"/"+p.Name] = p.Spec.NodeName
			}
		case "create pods/binding":
			var b corev1.Binding
			w.must(json.Unmarshal(a.RequestObject.Raw, &b))
			nodeOf[pod] = b.Target.Name
		case "delete pods":
			delete(held[nodeOf[pod]], pod)
			delete(nodeOf, pod)
		case "patch nodes":
			if a.User.Username != sweeperUser {
				continue
			}
			var n corev1.Node
			w.must(json.Unmarshal(a.RequestObject.Raw, &n))
			if !strings.Contains(string(a.RequestObject.Raw), `"taints"`) {
				continue
			}
			if delete(tainted, ref.Name); slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
				tainted[ref.Name] = true
				w.unheld(held, ref.Name, "got the taint of a sweep")
			}
		case "create jobs":
			var j batchv1.Job
			w.must(json.Unmarshal(a.RequestObject.Raw, &j))
			node := j.Spec.Template.Spec.NodeName
			jobs[j.Name] = node
			created++
			w.unheld(held, node, "got a Job")
		case "delete jobs":
			delete(jobs, ref.Name)
		}
		if node := nodeOf[pod]; node != "" && ref.Resource == "pods" {
			if held[node] == nil {
				held[node] = map[string]bool{}
			}
			held[node][pod] = true
		}
		if len(tainted) > weekAtOnce() || len(jobs) > weekAtOnce() {
			w.Fatalf("%d nodes with the taint of a sweep and %d Jobs, the limit is %d", len(tainted), len(jobs), weekAtOnce())
		}
	}
	if created == 0 {
		w.Error("the audit log has no Job")
	}
	return lists
}

func (w *week) unheld(held map[string]map[string]bool, node, what string) {
	w.Helper()
	if len(held[node]) > 0 {
		w.Errorf("node %s %s while %v had its GPUs", node, what, slices.Collect(maps.Keys(held[node])))
	}
}
