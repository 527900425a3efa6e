package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

var recorded, causeOn = jobstest.Recorded, jobstest.CauseOn

// labelled is a batch Job under restart, as the API server has it.
func labelled(t *testing.T, name string, cur restart.Restart) *batchv1.Job {
	t.Helper()
	uid := types.UID(name + "-uid")
	text, err := json.Marshal(restart.Record{V: 1, JobUID: uid, Current: &cur})
	if err != nil {
		t.Fatal(err)
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid, Labels: map[string]string{conditions.LabelRestarting: "true"},
			Annotations: map[string]string{conditions.AnnotationRestart: string(text)}},
		Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": name}}},
	}
}

// rankOf is an active pod of such a Job.
func rankOf(job string, i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("%s-%d", job, i), Labels: map[string]string{"job": job},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID(job + "-uid"), Controller: ptr.To(true)}}}}
}

// slimCache is the cache of the jobs under restart: what [slimJob] leaves of them.
type slimCache struct {
	cache.Cache
	t    *testing.T
	live client.Client
}

func (c slimCache) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	into := list.(*metav1.PartialObjectMetadataList)
	if err := c.live.List(ctx, into, client.MatchingLabels{conditions.LabelRestarting: "true"}); err != nil {
		return err
	}
	for i := range into.Items {
		slim, err := slimJob(&into.Items[i])
		if err != nil {
			c.t.Error(err)
		}
		into.Items[i] = *slim.(*metav1.PartialObjectMetadata)
	}
	return nil
}

// offline is a controller that has these objects and a cache of the jobs among them, without an API server.
func offline(t *testing.T, p *policy.Policy, objects ...client.Object) (*Controller, *clocktesting.FakePassiveClock) {
	t.Helper()
	nodeOf := func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
	byField := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", nodeOf).Build()
	live := interceptor.NewClient(byField, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var asked client.ListOptions
			asked.ApplyOptions(opts)
			if asked.FieldSelector != nil {
				// The fake client knows no other.
				if node, byNode := asked.FieldSelector.RequiresExactMatch("spec.nodeName"); byNode {
					asked.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node)
				} else {
					asked.FieldSelector = nil
				}
			}
			return c.List(ctx, list, &asked)
		},
	})
	now := clocktesting.NewFakePassiveClock(noon)
	c := newController(live, live, Options{Clock: now, Policy: policy.Fixed(p)})
	w := c.reconciler.watcher
	w.Watcher = watches(t, live, batchJob.GVK)
	w.Clock = now
	w.tried.Store(true)
	w.Cache = slimCache{t: t, live: live}
	return c, now
}

func TestWhatARecordSaysTakesAPlaceOnlyIfANodeConfirmsIt(t *testing.T) {
	bogus := restart.Cause{ID: "q-good", Node: "good", NodeUID: "bogus"}
	tests := map[string]struct {
		cur    restart.Restart
		pods   int
		places int
		claims int
	}{
		"a node's record has the cause": {restart.Restart{Phase: restart.Stopping, Moving: 2, Quarantines: []restart.Cause{causeOn("bad")}}, 4, 1, 2},
		"more ranks move than there are": {
			restart.Restart{Phase: restart.Stopping, Moving: 1 << 40, Quarantines: []restart.Cause{causeOn("bad")}}, 3, 1, 3},
		"no node":               {restart.Restart{Phase: restart.Starting, Moving: 1, Quarantines: []restart.Cause{{ID: "q", Node: "gone", NodeUID: "u"}}}, 1, 0, 0},
		"a node of another UID": {restart.Restart{Phase: restart.Checkpointing, CheckpointBy: noon.AddDate(100, 0, 0), Quarantines: []restart.Cause{bogus}}, 1, 0, 0},
		"a node without it":     {restart.Restart{Phase: restart.Stopping, Quarantines: []restart.Cause{{ID: "q", Node: "bad", NodeUID: "bad-uid"}}}, 1, 0, 0},
		"a pod that failed":     {restart.Restart{Phase: restart.Starting, Quarantines: []restart.Cause{{ID: "job-uid-failure-0", Node: "bad", NodeUID: "bad-uid"}}}, 1, 0, 0},
		"no cause":              {restart.Restart{Phase: restart.Stopping}, 1, 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			good := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "good-uid"}}
			objects := []client.Object{recorded("bad"), good, labelled(t, "forged", test.cur)}
			for i := range test.pods {
				objects = append(objects, rankOf("forged", i))
			}
			c, now := offline(t, &policy.Policy{}, objects...)
			others, err := c.admission.others(t.Context(), request{})
			if err != nil {
				t.Fatal(err)
			}
			claimed := 0
			for _, c := range ratelimit.Claims(restart.Trigger{Kind: restart.NodeQuarantined}, others) {
				claimed += c.Ranks
			}
			if len(others) != test.places || claimed != test.claims {
				t.Errorf("%d places, %d ranks: %+v", len(others), claimed, others)
			}
			// Whatever its times say, it ends.
			now.SetTime(noon.Add(restart.DefaultStopTimeout + restart.DefaultStartTimeout + time.Second))
			if others, err = c.admission.others(t.Context(), request{}); err != nil || len(others) != 0 {
				t.Errorf("after all timeouts: %+v, %v", others, err)
			}
		})
	}
}

func TestARestartForAFailedPodTakesAPlaceInTheProcessThatBeganIt(t *testing.T) {
	cause := restart.Cause{ID: "train-uid-failure-0", Node: "good", NodeUID: "good-uid"}
	c, _ := offline(t, &policy.Policy{}, labelled(t, "train", restart.Restart{Phase: restart.Starting, Quarantines: []restart.Cause{cause}}))
	c.admission.causes.Remember(cause)
	if others, err := c.admission.others(t.Context(), request{}); err != nil || len(others) != 1 || others[0].NodeFault || others[0].Namespace != "team" {
		t.Errorf("others %+v, %v", others, err)
	}
}

// A tenant's own restart must not hold up one for the fault of a node, whatever its record adds.
func TestWhichRestartsOfOthersAreForTheFaultOfANode(t *testing.T) {
	failure := restart.Cause{ID: "train-uid-failure-0", Node: "good", NodeUID: "good-uid"}
	forged := restart.Cause{ID: "q-good", Node: "good", NodeUID: "good-uid", Taint: corev1.Taint{Key: conditions.TaintUnhealthy}}
	for name, test := range map[string]struct {
		causes []restart.Cause
		want   bool
	}{
		"a failed pod":                       {[]restart.Cause{failure}, false},
		"a failed pod with a taint":          {[]restart.Cause{{ID: failure.ID, Node: failure.Node, NodeUID: failure.NodeUID, Taint: forged.Taint}}, false},
		"a failed pod and a forged fault":    {[]restart.Cause{failure, forged}, false},
		"a failed pod and a fault":           {[]restart.Cause{failure, causeOn("bad")}, true},
		"the fault of a node, and forgeries": {[]restart.Cause{causeOn("bad"), forged}, true},
	} {
		good := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "good-uid"}}
		job := labelled(t, "train", restart.Restart{Phase: restart.Starting, Quarantines: test.causes})
		c, _ := offline(t, &policy.Policy{}, recorded("bad"), good, job)
		c.admission.causes.Remember(failure)
		if others, err := c.admission.others(t.Context(), request{}); err != nil || len(others) != 1 || others[0].NodeFault != test.want {
			t.Errorf("%s: others %+v, %v", name, others, err)
		}
	}
}

// counting counts the requests of a reader.
func counting(reader client.WithWatch, n *int) client.WithWatch {
	return interceptor.NewClient(reader, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			*n++
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			*n++
			return nil
		},
	})
}

func TestALookCostsFewRequestsWhateverTheRecordSays(t *testing.T) {
	var objects []client.Object
	cur := restart.Restart{Phase: restart.Checkpointing, StartedAt: noon, CheckpointBy: noon.Add(time.Minute)}
	for i := range 500 {
		name := fmt.Sprintf("bad-%d", i)
		if i < 100 { // those are even true
			objects = append(objects, recorded(name))
		}
		cur.Quarantines = append(cur.Quarantines, causeOn(name))
	}
	job := labelled(t, "train", cur)
	nodes := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
	live := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(append(objects, job)...).Build()
	requests := 0
	c := newController(nodes, counting(live, &requests), Options{Clock: clocktesting.NewFakePassiveClock(noon), Policy: policy.Fixed(&policy.Policy{
		Rules: []policy.Rule{{CheckpointGrace: time.Minute}},
	})})
	read, err := batchJob.Read(t.Context(), live, client.ObjectKeyFromObject(job))
	if err != nil {
		t.Fatal(err)
	}
	rec, err := restart.ReadRecord(read.Object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconciler.observe(t.Context(), read, rec); err != nil {
		t.Fatal(err)
	}
	if requests == 0 || requests > 2*podreader.MaxNodes {
		t.Errorf("%d requests", requests)
	}
}

// A Deployment with a label and as many annotations as an object can have.
func TestTheCacheOfJobsKeepsWhatIsRead(t *testing.T) {
	huge := strings.Repeat("x", 250<<10)
	cur := restart.Restart{ID: "r1", Phase: restart.Stopping, Held: huge[:100<<10], Quarantines: []restart.Cause{causeOn("bad")}}
	job := labelled(t, "train", cur)
	tests := map[string]struct {
		record string
		known  bool
	}{
		"a record":           {job.Annotations[conditions.AnnotationRestart], true},
		"a record too large": {`{"v":1,"jobUID":"train-uid","current":{"phase":"Stopping","held":"` + huge + `"}}`, false},
		"no record":          {huge, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: "train", UID: "train-uid", ResourceVersion: "7",
				Labels:      map[string]string{conditions.LabelRestarting: "true", "x": huge},
				Annotations: map[string]string{conditions.AnnotationRestart: test.record, "x": huge},
				Finalizers:  []string{huge}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: huge}},
				OwnerReferences: []metav1.OwnerReference{{Name: huge}},
			}}
			slim, err := slimJob(object)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(slim)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > 2<<10 {
				t.Errorf("%d bytes: %.300s", len(text), text)
			}
			kept := slim.(*metav1.PartialObjectMetadata)
			rec, err := restart.ReadRecord(kept)
			if err != nil || (rec.Current != nil) != test.known || kept.Labels[conditions.LabelRestarting] != "true" || kept.ResourceVersion != "7" {
				t.Errorf("kept %s: %v", text, err)
			}
		})
	}
}

// Attack 7: a checkpoint that was to begin and to end in 100 years begins now and ends in its time, and that is written.
func TestAForgedDeadlineEndsWithItsRestart(t *testing.T) {
	far := noon.AddDate(100, 0, 0)
	cur := restart.Restart{Phase: restart.Checkpointing, StartedAt: far, PhaseSince: far, CheckpointBy: far, Quarantines: []restart.Cause{causeOn("bad")}}
	job := labelled(t, "train", cur)
	c, _ := offline(t, &policy.Policy{Rules: []policy.Rule{{CheckpointGrace: time.Minute}}}, recorded("bad"), job)
	req := request{Kind: batchJob.GVK, NamespacedName: client.ObjectKeyFromObject(job)}
	if _, err := c.reconciler.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	read, err := batchJob.Read(t.Context(), c.reconciler.apiReader, req.NamespacedName)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := restart.ReadRecord(read.Object)
	if err != nil || rec.Current == nil || !rec.Current.StartedAt.Equal(noon) || !rec.Current.CheckpointBy.Equal(noon.Add(time.Minute)) {
		t.Errorf("record %+v, %v", rec.Current, err)
	}
}

// Attack 24: from the stop of a job on, and from the first look at one that another process has stopped, its kind is known, so that a
// policy which drops it leaves no job stopped.
func TestTheKindOfAStoppedJobIsRemembered(t *testing.T) {
	job := labelled(t, "train", restart.Restart{Phase: restart.Stopping, StartedAt: noon, PhaseSince: noon, Quarantines: []restart.Cause{causeOn("bad")}})
	req := request{Kind: batchJob.GVK, NamespacedName: client.ObjectKeyFromObject(job)}
	for name, step := range map[string]func(c *Controller, read restart.Job, rec restart.Record) error{
		"stopped": func(c *Controller, read restart.Job, rec restart.Record) error {
			return c.reconciler.stop(t.Context(), batchJob, read, rec, nil, rec.Current.Quarantines)
		},
		"found": func(c *Controller, _ restart.Job, _ restart.Record) error {
			_, err := c.reconciler.Reconcile(t.Context(), req)
			return err
		},
	} {
		c, _ := offline(t, &policy.Policy{}, recorded("bad"), job.DeepCopy(), rankOf("train", 0))
		c.reconciler.reporter.Recorder = events.NewFakeRecorder(10)
		read, err := batchJob.Read(t.Context(), c.reconciler.apiReader, req.NamespacedName)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := restart.ReadRecord(read.Object)
		if err != nil {
			t.Fatal(err)
		}
		if err := step(c, read, rec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.reconciler.memory.of(req).kind == nil {
			t.Errorf("%s: the kind is not known", name)
		}
	}
}

func TestAKindIsKnownUntilTheRestartOfItsJobIsOver(t *testing.T) {
	named := jobkind.Kind{APIVersion: "example.com/v1", Kind: "Gang", SuspendPath: "spec.suspend", PodLabel: "gang"}
	s := &settings{file: policy.Fixed(&policy.Policy{JobKinds: []jobkind.Kind{named}})}
	k := newMemory(s)
	req := request{Kind: named.GVK(), NamespacedName: types.NamespacedName{Namespace: "team", Name: "train"}}
	kind, err := k.kindOf(req)
	if err != nil {
		t.Fatal(err)
	}
	k.rememberKind(req, kind)
	s.file = policy.Fixed(&policy.Policy{})
	if _, err := k.kindOf(req); err != nil {
		t.Errorf("in mid-restart: %v", err)
	}
	if _, known := kinds.Get(s.kinds(), req.Kind); known {
		t.Error("a new restart would begin")
	}
	k.forget(req)
	if _, err := k.kindOf(req); err == nil {
		t.Error("the kind is never forgotten")
	}
}
