package jobs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	clustertest.Main(m, cluster.Options{JobSet: true, WithoutPodGC: true})
}

// patience is how long a test waits for what takes a second or two.
const patience = 3 * time.Minute

// run starts a controller, as one process of the remediator would. The returned function ends it.
func run(t *testing.T, cfg *rest.Config, writes interceptor.Funcs, change func(*Options)) (*Controller, func()) {
	t.Helper()
	return jobstest.Run(t, cfg, writes, func(ctx context.Context, mgr ctrl.Manager) (*Controller, error) {
		o := Options{Recorder: mgr.GetEventRecorder("pitcrew"), Clock: clock.RealClock{}}
		if change != nil {
			change(&o)
		}
		return SetupWithManager(ctx, mgr, prometheus.NewRegistry(), o)
	})
}

// movedClock is the real clock, which a test can move on: what it waits for then is due, however long the test took until now.
type movedClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *movedClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

func (c *movedClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }

func (c *movedClock) move(d time.Duration) { c.ahead.Add(int64(d)) }

// on gives a controller this clock.
func (c *movedClock) on(o *Options) { o.Clock = c }

var (
	batchJob = jobstest.Kind("batch/v1", "Job")
	jobSet   = jobstest.Kind("jobset.x-k8s.io/v1alpha2", "JobSet")
)

// team is a namespace and a pool of nodes of one test.
type team struct {
	*testing.T
	c     *cluster.Cluster
	name  string
	nodes []string
}

var teams atomic.Int32

// newTeam makes a namespace with the given labels and n nodes; a node holds one rank.
func newTeam(t *testing.T, n int, labels map[string]string) team {
	t.Helper()
	return newTeamIn(t, clustertest.Get(t), n, labels)
}

func newTeamIn(t *testing.T, c *cluster.Cluster, n int, labels map[string]string) team {
	t.Helper()
	name := fmt.Sprintf("team-%d", teams.Add(1))
	if err := c.AddNamespace(t.Context(), name, labels); err != nil {
		t.Fatal(err)
	}
	nodes, err := c.AddNodes(t.Context(), name, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		if err := c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Error(err)
		}
		if err := c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(name), client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNodes(ctx, nodes...); err != nil {
			t.Error(err)
		}
	})
	return team{t, c, name, nodes}
}

// config is that of a remediator that leaves the jobs of other teams alone.
func (tm team) config() *rest.Config {
	tm.Helper()
	return jobstest.OneNamespace(jobstest.Config(tm.T, tm.c), tm.name)
}

var optedIn = map[string]string{conditions.LabelRestartOnNodeFault: "true"}

// jobSpec is a gang of n ranks, one on each node of the team.
func (tm team) jobSpec(n int32, change ...func(*batchv1.JobSpec)) batchv1.JobSpec {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	spec := batchv1.JobSpec{
		Parallelism:    &n,
		Completions:    &n,
		CompletionMode: ptr.To(batchv1.IndexedCompletion),
		BackoffLimit:   ptr.To[int32](0),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			NodeSelector:  map[string]string{cluster.LabelPool: tm.name},
			Containers:    []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
		}},
	}
	for _, f := range change {
		f(&spec)
	}
	return spec
}

func plain(spec *batchv1.JobSpec) { spec.CompletionMode = nil }

// dying makes pods run for a while after their deletion, and stay listed as ended for another while.
func dying(running, ended time.Duration) func(*batchv1.JobSpec) {
	return func(spec *batchv1.JobSpec) {
		spec.Template.Annotations = map[string]string{
			"e2e.pitcrew.dev/term-delay": running.String(), "e2e.pitcrew.dev/delete-delay": ended.String(),
		}
	}
}

// createJob creates a batch Job and waits until its ranks run.
func (tm team) createJob(name string, labels map[string]string, spec batchv1.JobSpec) gang {
	tm.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: name, Labels: labels}, Spec: spec}
	if err := tm.c.Client.Create(tm.Context(), job); err != nil {
		tm.Fatal(err)
	}
	return tm.gang(batchJob, name, int(*spec.Parallelism))
}

// createJobSet creates a JobSet of two replicated jobs, the spec each, and waits until their ranks run.
func (tm team) createJobSet(name string, labels map[string]string, spec batchv1.JobSpec, change ...func(set map[string]any)) gang {
	tm.Helper()
	job, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		tm.Fatal(err)
	}
	fields := map[string]any{"replicatedJobs": []any{
		map[string]any{"name": "leader", "replicas": int64(1), "template": map[string]any{"spec": job}},
		map[string]any{"name": "worker", "replicas": int64(1), "template": map[string]any{"spec": runtime.DeepCopyJSON(job)}},
	}}
	for _, f := range change {
		f(fields)
	}
	set := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	set.SetGroupVersionKind(jobSet.GVK)
	set.SetNamespace(tm.name)
	set.SetName(name)
	set.SetLabels(labels)
	if err := tm.c.Client.Create(tm.Context(), set); err != nil {
		tm.Fatal(err)
	}
	return tm.gang(jobSet, name, 2*int(*spec.Parallelism))
}

// gang is one job under test.
type gang struct {
	team
	kind  kinds.Kind
	name  string
	ranks int
	pods  *clustertest.Pods
}

func (tm team) gang(k kinds.Kind, name string, ranks int) gang {
	tm.Helper()
	g := gang{tm, k, name, ranks, clustertest.WatchPods(tm, tm.c, tm.name)}
	g.runs()
	return g
}

func (g gang) read() restart.Job {
	g.Helper()
	job, err := g.kind.Read(g.Context(), g.c.Client, client.ObjectKey{Namespace: g.team.name, Name: g.name})
	if err != nil {
		g.Fatal(err)
	}
	return job
}

// object is the job itself.
func (g gang) object() client.Object {
	g.Helper()
	object, ok := g.read().Object.(client.Object)
	if !ok {
		g.Fatalf("the job is a %T", g.read().Object)
	}
	return object
}

func (g gang) record() restart.Record {
	g.Helper()
	rec, err := restart.ReadRecord(g.read().Object)
	if err != nil {
		g.Fatal(err)
	}
	return rec
}

// eventually waits until check returns nil.
func (tm team) eventually(what string, check func() error) {
	tm.Helper()
	clustertest.Until(tm.T, patience, what, check)
}

// pods lists the team's pods.
func (tm team) pods() []corev1.Pod {
	tm.Helper()
	var list corev1.PodList
	if err := tm.c.Client.List(tm.Context(), &list, client.InNamespace(tm.name)); err != nil {
		tm.Fatal(err)
	}
	return list.Items
}

// livePods lists the team's pods that have not ended and are not being deleted.
func (tm team) livePods() []corev1.Pod {
	tm.Helper()
	return slices.DeleteFunc(tm.pods(), func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// runs waits until all ranks run, and returns them.
func (g gang) runs() []corev1.Pod {
	g.Helper()
	var running []corev1.Pod
	g.eventually("wait for all ranks to run", func() error {
		running = slices.DeleteFunc(g.livePods(), func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
		if len(running) != g.ranks {
			return fmt.Errorf("%d of %d ranks run", len(running), g.ranks)
		}
		return nil
	})
	return running
}

// closes waits until a restart is closed and returns its record.
func (g gang) closes() restart.Restart {
	g.Helper()
	var closed restart.Restart
	g.eventually("wait for the restart to be closed", func() error {
		rec := g.record()
		if rec.Current != nil || len(rec.Last) == 0 {
			return fmt.Errorf("record %+v", rec)
		}
		closed = rec.Last[0]
		return nil
	})
	if labels := g.read().Object.GetLabels(); labels[conditions.LabelRestarting] != "" {
		g.Errorf("a closed restart leaves the labels %v", labels)
	}
	return closed
}

func (g gang) inPhase(p restart.Phase) {
	g.Helper()
	g.eventually("wait for phase "+string(p), func() error {
		if rec := g.record(); rec.Current == nil || rec.Current.Phase != p {
			return fmt.Errorf("record %+v", rec)
		}
		return nil
	})
}

// quarantineOf taints a node and returns the quarantine, as the node controller would.
func (tm team) quarantineOf(node string) restart.Trigger {
	tm.Helper()
	return jobstest.Quarantine(tm, tm.c, node, time.Now())
}

// untaint undoes [team.quarantineOf].
func (tm team) untaint(node string) {
	tm.Helper()
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := tm.c.Client.Patch(tm.Context(), &n, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))); err != nil {
		tm.Fatal(err)
	}
}

// restartJobs is what the node controller does, again and again.
func restartJobs(t testing.TB, c *Controller, q restart.Trigger) {
	t.Helper()
	if err := tryRestart(t, c, q); err != nil {
		t.Fatal(err)
	}
}

// tryRestart calls again, as the node controller does, if the job's own controller has written it meanwhile.
func tryRestart(t testing.TB, c *Controller, q restart.Trigger) error {
	_, err := c.RestartJobsOnNode(t.Context(), q)
	for apierrors.IsConflict(err) {
		_, err = c.RestartJobsOnNode(t.Context(), q)
	}
	return err
}

// restartedOnce checks that the job has had exactly two incarnations of all its ranks, the second of which began when
// nothing was left of the first, and that no rank is on one of the bad nodes.
func (g gang) restartedOnce(bad ...string) { g.Helper(); g.incarnations(2, bad...) }

func (g gang) incarnations(n int, bad ...string) {
	g.Helper()
	for _, pod := range g.runs() {
		if slices.Contains(bad, pod.Spec.NodeName) {
			g.Errorf("rank %s runs on %s", pod.Name, pod.Spec.NodeName)
		}
	}
	var lives []clustertest.Life
	g.eventually("wait for the watch to show all incarnations", func() error {
		if lives = g.pods.Lives(); len(lives) < n*g.ranks {
			return fmt.Errorf("%d pods so far", len(lives))
		}
		return nil
	})
	if len(lives) != n*g.ranks {
		g.Fatalf("%d pods were created, want %d incarnations of %d: %v", len(lives), n, g.ranks, lives)
	}
	for i := g.ranks; i < len(lives); i++ {
		for _, old := range lives[:i/g.ranks*g.ranks] {
			if old.Gone == 0 || old.Gone > lives[i].Created {
				g.Errorf("pod %v was created before old pod %v was gone", lives[i], old)
			}
		}
	}
}

// event waits for an Event of the reason about an object and returns its notes.
func (tm team) event(reason string, about types.UID, want string) {
	tm.Helper()
	tm.eventually(fmt.Sprintf("wait for Event %s with %q", reason, want), func() error {
		notes := tm.notes(reason, about)
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, want) }) {
			return fmt.Errorf("notes %q", notes)
		}
		return nil
	})
}

// severity is that of the last Event of the reason about an object.
func (tm team) severity(reason string, about types.UID) (severity string) {
	tm.Helper()
	var list eventsv1.EventList
	if err := tm.c.Client.List(tm.Context(), &list); err != nil {
		tm.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == reason && e.Regarding.UID == about {
			severity = e.Type
		}
	}
	return severity
}

func (tm team) notes(reason string, about types.UID) []string {
	tm.Helper()
	var list eventsv1.EventList
	if err := tm.c.Client.List(tm.Context(), &list); err != nil {
		tm.Fatal(err)
	}
	var notes []string
	for _, e := range list.Items {
		if e.Reason == reason && e.Regarding.UID == about {
			notes = append(notes, e.Note)
			if e.Series != nil {
				notes = append(notes, fmt.Sprintf("said %d times", e.Series.Count))
			}
		}
	}
	return notes
}

// unharmed checks that a job runs as before.
func (g gang) unharmed(before []corev1.Pod) {
	g.Helper()
	sameRanks(g, before, g.runs())
	job := g.read()
	_, recorded := job.Object.GetAnnotations()[conditions.AnnotationRestart]
	_, labelled := job.Object.GetLabels()[conditions.LabelRestarting]
	if job.Suspended || job.FinishedReason != "" || recorded || labelled {
		g.Errorf("suspended %t, finished %q, recorded %t, labelled %t", job.Suspended, job.FinishedReason, recorded, labelled)
	}
}

func sameRanks(t testing.TB, before, after []corev1.Pod) {
	t.Helper()
	uids := func(pods []corev1.Pod) []types.UID {
		var all []types.UID
		for _, p := range pods {
			all = append(all, p.UID)
		}
		slices.Sort(all)
		return all
	}
	if !slices.Equal(uids(before), uids(after)) {
		t.Error("the ranks are not the same as before")
	}
}
