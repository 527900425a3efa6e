package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	outOfService = "node.kubernetes.io/out-of-service"
	shutdown     = "node.cloudprovider.kubernetes.io/shutdown"
)

// taintNode adds a taint that has no effect on pods that run. With NoExecute Kubernetes would evict them at the same time.
func (tm team) taintNode(node, key string) {
	tm.Helper()
	tm.eventually("taint node "+node, func() error {
		var n corev1.Node
		if err := tm.c.Client.Get(tm.Context(), client.ObjectKey{Name: node}, &n); err != nil {
			return err
		}
		before := n.DeepCopy()
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		return tm.c.Client.Patch(tm.Context(), &n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// loseRank makes the node of a rank unreachable, and the rank stay there until its object is deleted by force.
func (tm team) loseRank(rank corev1.Pod) {
	tm.Helper()
	tm.annotatePod(&rank, dying(time.Hour, 0)) // KWOK ends the pods of nodes, too, that it has stopped to report
	tm.lose(rank.Spec.NodeName)
}

// waitsForDeadNode waits until the record of a restart says that it waits for a node that does not answer, and checks that there are
// no pods but so many.
func (g gang) waitsForDeadNode(node string, pods int) {
	g.Helper()
	g.eventually("wait for the restart to be held", func() error {
		rec := g.record()
		if rec.Current == nil || !strings.Contains(rec.Current.Held, "on node "+node+" may still run") {
			return fmt.Errorf("record %+v", rec)
		}
		return nil
	})
	if lives := g.pods.Lives(); len(lives) != pods {
		g.Errorf("pods %+v, want %d", lives, pods)
	}
}

func TestAJobWaitsForADeadNodeAndSaysSoUntilAProofEndsTheWait(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		before, prove func(tm team, node string) // the stop, and after it was held
		want          string
	}{
		"the Node is deleted": {nil, func(tm team, node string) {
			if err := tm.c.Client.Delete(tm.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
				tm.Fatal(err)
			}
		}, "its Node was deleted, so its processes are gone"},
		"the provider says that it is shut down": {nil, func(tm team, node string) { tm.taintNode(node, shutdown) }, "as shut down, by taint " + shutdown},
		"the provider said so before the stop":   {func(tm team, node string) { tm.taintNode(node, shutdown) }, nil, "as shut down, by taint " + shutdown},
		"a person fenced it before the stop":     {func(tm team, node string) { tm.taintNode(node, outOfService) }, nil, "has taint " + outOfService},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, nil) // no forceDelete, and the default StopTimeout
			g := tm.createJob("train", optedIn, tm.jobSpec(4, func(spec *batchv1.JobSpec) { spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3) }))
			rank := g.runs()[0]
			q := tm.quarantineOf(rank.Spec.NodeName)
			tm.loseRank(rank)
			if test.before != nil {
				test.before(tm, q.Node)
			}
			restartJobs(t, r, q)
			uid := g.read().Object.GetUID()
			if test.prove != nil {
				g.waitsForDeadNode(q.Node, 4)
				tm.event("JobRestartBlocked", uid, "its Node is deleted, it gets taint "+outOfService)
				test.prove(tm, q.Node)
			}
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("record %+v", closed)
			}
			if held := len(tm.notes("JobRestartBlocked", uid)); held != 0 && test.prove == nil {
				t.Errorf("reported as held %d times, though a proof was there", held)
			}
			g.restartedOnce(q.Node)
			tm.event("JobRestarting", uid, test.want)
			if n := gauge(t, r.reporter.Metrics.ForceDeleted); n != 0 {
				t.Errorf("%v pods count as deleted at a risk", n)
			}
		})
	}
}

// Kubernetes evicts pods from a node that does not answer, and a Job replaces them beside the ranks that run on. The eviction may come
// before the restart.
func TestAJobWhoseRankKubernetesEvictsIsRestartedOnceAndAsAWhole(t *testing.T) {
	t.Parallel()
	soon := []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](1)}}
	tolerates := func(spec *batchv1.JobSpec) {
		spec.BackoffLimit, spec.Template.Spec.Tolerations = ptr.To[int32](6), soon
	}
	tm := newTeam(t, 6, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4, tolerates))
	lost := g.runs()[0]
	tm.loseRank(lost)
	tm.eventually("wait for the eviction and the successor", func() error {
		lives := g.pods.Lives()
		if len(lives) != 5 || lives[4].Running == 0 {
			return fmt.Errorf("pods %+v", lives)
		}
		return nil
	})
	q := tm.quarantineOf(lost.Spec.NodeName)
	for range 3 {
		restartJobs(t, r, q)
	}
	g.waitsForDeadNode(q.Node, 5)
	restartJobs(t, r, q)
	tm.taintNode(q.Node, shutdown)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	restartJobs(t, r, q)
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 {
		t.Errorf("%d restarts, want 1", len(rec.Last))
	}
	g.runs()
	lives := g.pods.Lives()
	if len(lives) != 9 {
		t.Fatalf("pods %+v, want 4, a successor and 4", lives)
	}
	for _, fresh := range lives[5:] {
		for _, old := range lives[:5] {
			if old.Gone == 0 || old.Gone > fresh.Created {
				t.Errorf("pod %+v was created before old pod %+v was gone", fresh, old)
			}
		}
		if fresh.Node == q.Node {
			t.Errorf("pod %+v is on the dead node", fresh)
		}
	}
}

// Such a Job takes its finalizer off a rank that was evicted only once the rank's status is Failed, which the garbage collector of
// Kubernetes writes for a Node that was deleted or is out of service, but not for one that is shut down.
func TestAnEvictedRankThatMustFailKeepsItsFinalizerAfterAForcedDeletion(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(2, func(spec *batchv1.JobSpec) {
		spec.BackoffLimit, spec.PodReplacementPolicy = ptr.To[int32](6), ptr.To(batchv1.Failed)
	}))
	lost := g.runs()[0]
	tm.loseRank(lost)
	if err := tm.c.Client.Delete(t.Context(), lost.DeepCopy()); err != nil { // as the eviction does
		t.Fatal(err)
	}
	q := tm.quarantineOf(lost.Spec.NodeName)
	restartJobs(t, r, q)
	g.waitsForDeadNode(q.Node, 2)
	tm.taintNode(q.Node, shutdown)
	tm.event("JobRestarting", g.read().Object.GetUID(), "force-deleted pod "+lost.Name)
	if err := tm.c.Client.Get(t.Context(), client.ObjectKeyFromObject(&lost), &lost); err != nil || len(lost.Finalizers) == 0 || *lost.DeletionGracePeriodSeconds != 0 {
		t.Fatalf("the pod has finalizers %v, %v", lost.Finalizers, err)
	}
	if rec := g.record(); rec.Current == nil || rec.Current.Phase != restart.Stopping {
		t.Errorf("record %+v", rec)
	}
	g.fail(lost)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
}

// Every process dies after one write; the proof comes while no process runs.
func TestARestartAfterADeadNodeSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	t.Parallel()
	for when, late := range map[string]bool{"dies as soon as it has written": false, "dies before its next write": true} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			cfg := tm.config()
			g := tm.createJob("train", optedIn, tm.jobSpec(4))
			rank := g.runs()[0]
			q := tm.quarantineOf(rank.Spec.NodeName)
			tm.loseRank(rank)
			// A process that dies before its next write has none after the last, nor while the job waits.
			for _, write := range []string{"stop", "hold", "delete", "start", "close"} {
				if late && (write == "hold" || write == "close") {
					continue
				}
				writes := 1
				if late && write == "stop" {
					writes = 2 // hold, and then it waits
				}
				m := clustertest.NewMortal(writes, late)
				r, stop := run(t, cfg, m.Funcs(), nil)
				if err := tryRestart(t, r, q); err != nil && !errors.Is(err, clustertest.ErrCrashed) {
					t.Fatal(err)
				}
				if late && write == "stop" {
					g.waitsForDeadNode(q.Node, 4)
				} else {
					select {
					case <-m.Dead:
					case <-time.After(patience):
						t.Fatalf("the process did not write: %q; record %+v", write, g.record())
					}
				}
				stop()
				if write == "hold" || late && write == "stop" {
					g.waitsForDeadNode(q.Node, 4)
					tm.taintNode(q.Node, shutdown)
				}
			}
			r, _ := run(t, cfg, interceptor.Funcs{}, nil)
			restartJobs(t, r, q)
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("record %+v", closed)
			}
			if n := len(g.record().Last); n != 1 {
				t.Errorf("%d restarts, want 1", n)
			}
			g.restartedOnce(q.Node)
		})
	}
}

// silentNode does not answer since an hour before noon.
func silentNode(name string, taints ...string) *corev1.Node {
	node := recorded(name)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key})
	}
	return node
}

// deletingOn is a pod of a Job whose grace period ended half an hour before noon.
func deletingOn(job string, i int, node string) *corev1.Pod {
	pod := rankOf(job, i)
	pod.UID = types.UID(pod.Name)
	pod.Spec.NodeName = node
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: noon.Add(-30 * time.Minute)}, ptr.To[int64](30)
	pod.Finalizers = []string{"example.com/keep"} // without one the fake client refuses it
	return pod
}

func TestAPodIsDeletedByForceOnlyAsItWasJudgedAndAsItsNodeIsNow(t *testing.T) {
	back := silentNode("bad", shutdown)
	back.Status.Conditions[0].Status = corev1.ConditionTrue
	orphan := deletingOn("gone", 0, "bad")
	daemon := deletingOn("agent", 0, "bad")
	daemon.OwnerReferences[0].APIVersion, daemon.OwnerReferences[0].Kind = "apps/v1", "DaemonSet"
	bare := deletingOn("bare", 0, "bad")
	bare.OwnerReferences = nil
	tests := map[string]struct {
		live   *corev1.Node
		pod    *corev1.Pod
		change bool // the pod, after it was judged
		forced bool
		// paused by a person, which the cache does not show yet.
		paused bool
	}{
		"a proof": {silentNode("bad", shutdown), deletingOn("train", 0, "bad"), false, true, false},
		"a proof, the kubelet wrote the pod since": {silentNode("bad", shutdown), deletingOn("train", 0, "bad"), true, false, false},
		"a proof that the live Node does not have": {back, deletingOn("train", 0, "bad"), false, false, false},
		"a proof, the pod of another job":          {silentNode("bad", shutdown), deletingOn("other", 0, "bad"), false, false, false},
		"a proof, a pod whose owner is gone":       {silentNode("bad", shutdown), orphan, false, true, false},
		"a proof, the pod of a DaemonSet":          {silentNode("bad", shutdown), daemon, false, false, false},
		"a deleted node, the pod of another job":   {nil, deletingOn("other", 0, "bad"), false, false, false},
		"a deleted node":                           {nil, deletingOn("train", 0, "bad"), false, true, false},
		"a risk":                                   {silentNode("bad"), deletingOn("train", 0, "bad"), false, true, false},
		"a risk, the kubelet wrote the pod since":  {silentNode("bad"), deletingOn("train", 0, "bad"), true, false, false},
		"a risk, the pod of another job":           {silentNode("bad"), deletingOn("other", 0, "bad"), false, false, false},
		"a risk, a pod whose owner is gone":        {silentNode("bad"), orphan, false, true, false},
		"a risk, the pod of a DaemonSet":           {silentNode("bad"), daemon, false, false, false},
		"a risk, a pod without an owner":           {silentNode("bad"), bare, false, false, false},
		"a risk, a pause":                          {silentNode("bad"), deletingOn("train", 0, "bad"), false, false, true},
		"a proof, a pause":                         {silentNode("bad", shutdown), deletingOn("train", 0, "bad"), false, true, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cur := restart.Restart{ID: "a", Phase: restart.Stopping, Quarantines: []restart.Cause{causeOn("bad")}, Pods: []types.UID{test.pod.UID}}
			job, other := labelled(t, "train", cur), labelled(t, "other", cur)
			limits := policy.Restart{ForceDelete: policy.ForceUnreachable, ForceDeleteAfter: time.Minute}
			objects := []client.Object{test.pod, job, other}
			if test.live != nil {
				objects = append(objects, test.live)
			}
			c, _ := offline(t, &policy.Policy{Restart: limits, Rules: jobstest.Rules}, objects...)
			c.reporter.Recorder = events.NewFakeRecorder(10)
			if test.paused {
				c.reconciler.gate.Live = fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}).Build()
			}
			var pod corev1.Pod
			key := client.ObjectKeyFromObject(test.pod)
			if err := c.apiReader.Get(t.Context(), key, &pod); err != nil {
				t.Fatal(err)
			}
			if test.change {
				if err := c.reconciler.client.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`))); err != nil {
					t.Fatal(err)
				}
			}
			var forced bool
			c.reconciler.client = interceptor.NewClient(c.reconciler.client.(client.WithWatch), interceptor.Funcs{
				Delete: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					var asked client.DeleteOptions
					asked.ApplyOptions(opts)
					if p := asked.Preconditions; p == nil || *p.UID != pod.UID || *asked.GracePeriodSeconds != 0 {
						t.Errorf("asked for %+v", asked)
					}
					// What the API server does with this precondition, and the fake client does not.
					var now corev1.Pod
					if err := api.Get(ctx, key, &now); err != nil {
						return err
					}
					forced = *asked.Preconditions.ResourceVersion == now.ResourceVersion
					if !forced {
						return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, key.Name, nil)
					}
					return nil
				},
			})
			read, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKeyFromObject(job))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.reconciler.forceDelete(t.Context(), read, cur, &pod); err != nil {
				t.Fatal(err)
			}
			said := len(c.reporter.Recorder.(*events.FakeRecorder).Events) > 0
			if forced != test.forced || said != test.forced {
				t.Errorf("deleted by force: %t, reported: %t, want %t", forced, said, test.forced)
			}
		})
	}
}

// A restart whose nodes answer and whose pods end in time looks at no pod and no node beside what it lists anyway.
func TestAHealthyRestartReadsNoNodesAndNoWholePods(t *testing.T) {
	healthy := recorded("bad")
	healthy.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	ending := deletingOn("train", 0, "bad")
	ending.DeletionTimestamp = &metav1.Time{Time: noon.Add(-5 * time.Second)} // it is being killed
	late := deletingOn("train", 0, "bad")
	tests := map[string]struct {
		node  *corev1.Node
		pod   *corev1.Pod
		reads bool
	}{
		"the node answers":                {healthy, ending, false},
		"the node answers, the pod stays": {healthy, late, true},
		"the node does not answer":        {silentNode("bad"), ending, true},
		"the node was deleted":            {nil, ending, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cur := restart.Restart{ID: "a", Phase: restart.Stopping, Quarantines: []restart.Cause{causeOn("bad")}}
			objects := []client.Object{test.pod, labelled(t, "train", cur)}
			if test.node != nil {
				objects = append(objects, test.node)
			}
			c, _ := offline(t, &policy.Policy{}, objects...)
			reads := 0
			count := interceptor.Funcs{
				Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					reads++
					return api.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					reads++
					return api.List(ctx, list, opts...)
				},
			}
			c.reconciler.pods.API = interceptor.NewClient(c.apiReader.(client.WithWatch), count)
			job, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKey{Namespace: "team", Name: "train"})
			if err != nil {
				t.Fatal(err)
			}
			left := []metav1.PartialObjectMetadata{{ObjectMeta: test.pod.ObjectMeta}}
			judged, err := c.reconciler.unconfirmed(t.Context(), job, cur, left)
			if err != nil || (reads > 0) != test.reads || (len(judged) > 0) != test.reads {
				t.Errorf("%d reads, judged %+v, %v", reads, judged, err)
			}
		})
	}
}

// While a job of many ranks waits for a few dead nodes, whole pods are read of those nodes alone, and those that should have ended elsewhere.
func TestAWaitForDeadNodesReadsThePodsOfThoseNodesAlone(t *testing.T) {
	const ranks, perNode = 1000, 8
	cause := func(i int) restart.Cause { return causeOn(fmt.Sprintf("dead-%d", i)) }
	tests := map[string]struct {
		causes, gone int
		late         bool // a rank on a node that answers does not end
		lists, pods  int
	}{
		"one node does not answer":                   {1, 0, false, 1, perNode},
		"one node was deleted":                       {0, 1, false, 1, perNode},
		"two nodes":                                  {1, 1, false, 2, 2 * perNode},
		"more nodes than are looked at":              {podreader.MaxNodes + 2, 0, false, podreader.MaxNodes, podreader.MaxNodes * perNode},
		"another rank does not end on a live node":   {1, 0, true, 1, perNode + 1},
		"no node is silent":                          {0, 0, false, 0, 0},
		"no node is silent, and a rank does not end": {0, 0, true, 0, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			healthy := recorded("bad")
			healthy.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			cur := restart.Restart{ID: "a", Phase: restart.Stopping, Quarantines: []restart.Cause{causeOn("bad")}}
			objects := []client.Object{healthy, labelled(t, "train", cur)}
			dead := test.causes + test.gone
			for i := range dead {
				cur.Quarantines = append(cur.Quarantines, cause(i), cause(i)) // of two rules
				if i < test.causes {
					objects = append(objects, silentNode(fmt.Sprintf("dead-%d", i)))
				}
			}
			var left []metav1.PartialObjectMetadata
			for i := range ranks {
				pod := deletingOn("train", i, "bad")
				switch node := i / perNode; {
				case node < dead:
					pod.Spec.NodeName = fmt.Sprintf("dead-%d", node)
					if node >= podreader.MaxNodes {
						pod.DeletionTimestamp = &metav1.Time{Time: noon}
					}
				case !test.late || i < ranks-1:
					pod.DeletionTimestamp = &metav1.Time{Time: noon}
				}
				objects = append(objects, pod)
				left = append(left, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
			}
			c, _ := offline(t, &policy.Policy{}, objects...)
			lists, pods := 0, 0
			c.reconciler.pods.API = interceptor.NewClient(c.apiReader.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, pod := o.(*corev1.Pod); pod {
						pods++
					}
					return api.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					err := api.List(ctx, list, opts...)
					if found, whole := list.(*corev1.PodList); whole {
						lists, pods = lists+1, pods+len(found.Items)
					}
					return err
				},
			})
			job, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKey{Namespace: "team", Name: "train"})
			if err != nil {
				t.Fatal(err)
			}
			judged, err := c.reconciler.unconfirmed(t.Context(), job, cur, left)
			if err != nil {
				t.Fatal(err)
			}
			if lists != test.lists || pods != test.pods {
				t.Errorf("%d pods in %d lists, want %d in %d", pods, lists, test.pods, test.lists)
			}
			waiting, seen := 0, map[types.UID]bool{}
			for _, u := range judged {
				if u.Waiting != "" || u.Force.Proven {
					waiting++
				}
				seen[u.Pod.UID] = true
			}
			if want := min(dead, podreader.MaxNodes) * perNode; waiting != want || len(seen) != len(judged) {
				t.Errorf("%d pods wait for a dead node, want %d; %d of %d judged are different", waiting, want, len(seen), len(judged))
			}
		})
	}
}

// Of thousands of pods those that the job's selector finds are listed at once, and a few of the others read one by one.
func TestManyDeletedPodsAreReadByFewRequests(t *testing.T) {
	var left []metav1.PartialObjectMetadata
	var objects []client.Object
	for i := range 30 {
		job := "train"
		if i%2 == 1 {
			job = "elsewhere"
		}
		pod := deletingOn(job, i, "bad")
		objects = append(objects, pod)
		left = append(left, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
	}
	left = append(left, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "alive", UID: "alive"}})
	c, _ := offline(t, &policy.Policy{}, append(objects, labelled(t, "train", restart.Restart{Phase: restart.Stopping}))...)
	job, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKey{Namespace: "team", Name: "train"})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := c.reconciler.pods.Deleting(t.Context(), job, left)
	if err != nil {
		t.Fatal(err)
	}
	its := len(slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Labels["job"] != "train" }))
	if its != 15 || len(pods) != 15+podreader.MaxNodes {
		t.Errorf("%d pods, %d of them the job's; want all 15 of those and %d others", len(pods), its, podreader.MaxNodes)
	}
	if few, err := c.reconciler.pods.Deleting(t.Context(), job, left[:3]); err != nil || len(few) != 3 {
		t.Errorf("%d pods, want 3, %v", len(few), err)
	}
}

func TestARankThatIsEvictedWhileItsJobSavesItsStateKeepsTheRestart(t *testing.T) {
	healthy := recorded("bad")
	healthy.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	released := silentNode("bad")
	released.Spec.Taints = nil
	tests := map[string]struct {
		node *corev1.Node
		want int
	}{
		"the node does not answer":              {silentNode("bad"), 1},
		"the node answers, and ends the pod":    {healthy, 0},
		"the node is not quarantined any more":  {released, 0},
		"the node is gone, and its pod with it": {nil, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cur := restart.Restart{Phase: restart.Checkpointing, Quarantines: []restart.Cause{causeOn("bad")}}
			objects := []client.Object{deletingOn("train", 0, "bad"), labelled(t, "train", cur)}
			if test.node != nil {
				objects = append(objects, test.node)
			}
			c, _ := offline(t, &policy.Policy{}, objects...)
			job, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKey{Namespace: "team", Name: "train"})
			if err != nil {
				t.Fatal(err)
			}
			if on, err := c.reconciler.pods.Affected(t.Context(), job, cur.Quarantines, c.reconciler.client); err != nil || len(on) != test.want {
				t.Errorf("%d pods, want %d, %v", len(on), test.want, err)
			}
		})
	}
}
