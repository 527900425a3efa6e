//go:build operators

package operators

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// run starts a controller, as one process of the remediator would. The returned function ends it.
func run(t *testing.T, cfg *rest.Config, writes interceptor.Funcs, change func(*jobs.Options)) (*jobs.Controller, func()) {
	t.Helper()
	return jobstest.Run(t, cfg, writes, func(ctx context.Context, mgr ctrl.Manager) (*jobs.Controller, error) {
		o := jobs.Options{Recorder: mgr.GetEventRecorder("pitcrew"), Clock: clock.RealClock{}}
		if change != nil {
			change(&o)
		}
		return jobs.SetupWithManager(ctx, mgr, prometheus.NewRegistry(), o)
	})
}

// gang is one job under test, in a namespace and on nodes of its own; a node holds one rank.
type gang struct {
	*testing.T
	job
	c         *cluster.Cluster
	namespace string
	nodes     []string
	pods      *clustertest.Pods
}

var gangs atomic.Int32

// start creates a job and waits until its ranks run. There are two nodes more than it needs.
func start(t *testing.T, j job) gang {
	t.Helper()
	c := j.operator.in(t)
	g := gang{T: t, job: j, c: c, namespace: fmt.Sprintf("gang-%d", gangs.Add(1))}
	if err := c.AddNamespace(t.Context(), g.namespace, nil); err != nil {
		t.Fatal(err)
	}
	var err error
	if g.nodes, err = c.AddNodes(t.Context(), g.namespace, j.ranks+2, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		if err := c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}}); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNodes(ctx, g.nodes...); err != nil {
			t.Error(err)
		}
	})
	g.pods = clustertest.WatchPods(t, c, g.namespace)
	if j.before != nil {
		j.before(g)
	}
	g.apply(j.manifest)
	g.runs()
	return g
}

// apply applies a manifest in which NAMESPACE stands for the gang's namespace, POOL for the label of its nodes and RANK
// for the spec of a rank's pod.
func (g gang) apply(manifest string) {
	g.Helper()
	pool := cluster.LabelPool + ": " + g.namespace
	manifest = strings.NewReplacer("NAMESPACE", g.namespace, "POOL", pool, "RANK", fmt.Sprintf(
		"nodeSelector: {%s}, containers: [{name: %s, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]",
		pool, g.container)).Replace(manifest)
	if err := g.c.Apply(g.Context(), []byte(manifest)); err != nil {
		g.Fatal(err)
	}
}

// config is that of a remediator that leaves the jobs of other tests alone.
func (g gang) config() *rest.Config {
	g.Helper()
	return jobstest.OneNamespace(jobstest.Config(g.T, g.c), g.namespace)
}

func (g gang) get() *unstructured.Unstructured {
	g.Helper()
	return g.object(g.kind.GVK.GroupVersion().String(), g.kind.GVK.Kind, "train")
}

func (g gang) object(apiVersion, kind, name string) *unstructured.Unstructured {
	g.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	if err := g.c.Client.Get(g.Context(), client.ObjectKey{Namespace: g.namespace, Name: name}, o); err != nil {
		g.Fatal(err)
	}
	return o
}

func (g gang) record() restart.Record {
	g.Helper()
	rec, err := restart.ReadRecord(g.get())
	if err != nil {
		g.Fatal(err)
	}
	return rec
}

// closes waits until a restart is closed and returns it.
func (g gang) closes() restart.Restart {
	g.Helper()
	var closed restart.Restart
	clustertest.Until(g, patience, "wait for the restart to be closed", func() error {
		r := g.record()
		if r.Current != nil || len(r.Last) == 0 {
			return fmt.Errorf("current %+v, closed %+v, pods %+v", r.Current, r.Last, g.pods.Lives())
		}
		closed = r.Last[0]
		return nil
	})
	return closed
}

// runs waits until all ranks run, and returns them.
func (g gang) runs() []corev1.Pod {
	g.Helper()
	var running []corev1.Pod
	clustertest.Until(g, patience, "wait for all ranks to run", func() error {
		var list corev1.PodList
		if err := g.c.Client.List(g.Context(), &list, client.InNamespace(g.namespace)); err != nil {
			return err
		}
		running = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
			return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning
		})
		if len(running) != g.ranks || len(list.Items) != g.ranks {
			return fmt.Errorf("of %d ranks %d run, %d pods are listed", g.ranks, len(running), len(list.Items))
		}
		return nil
	})
	return running
}

// release lets deleted pods end, and go, that would not by their annotations.
func (g gang) release(pods []corev1.Pod) {
	g.Helper()
	for _, pod := range pods {
		// With the UID: by now the name may be that of a successor.
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{"e2e.pitcrew.dev/term-delay":"0s","e2e.pitcrew.dev/delete-delay":"0s"}}}`, pod.UID)
		err := g.c.Client.Patch(g.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsInvalid(err) {
			g.Fatal(err)
		}
	}
}

// quarantine taints a node and returns the quarantine, as the node controller would.
func (g gang) quarantine(node string) restart.Trigger {
	g.Helper()
	return jobstest.Quarantine(g, g.c, node, time.Now())
}

// restartJobs is what the node controller does, again and again.
func restartJobs(t testing.TB, c *jobs.Controller, q restart.Trigger) {
	t.Helper()
	if err := tryRestart(t, c, q); err != nil {
		t.Fatal(err)
	}
}

// tryRestart calls again, as the node controller does, if the job's own controller has written it meanwhile.
func tryRestart(t testing.TB, c *jobs.Controller, q restart.Trigger) error {
	_, err := c.RestartJobsOnNode(t.Context(), q)
	for apierrors.IsConflict(err) {
		_, err = c.RestartJobsOnNode(t.Context(), q)
	}
	return err
}

// restartedOnce checks that the job has had exactly two incarnations of all its ranks, that none of the second ran before
// the last of the first was gone, and that none of it was on the bad node.
func (g gang) restartedOnce(bad string) {
	g.Helper()
	var lives []clustertest.Life
	clustertest.Until(g, patience, "wait for the watch to show the second incarnation run", func() error {
		// Volcano may delete a pod that it has just created, before it is scheduled.
		lives = slices.DeleteFunc(g.pods.Lives(), func(l clustertest.Life) bool { return l.Running == 0 && l.Gone != 0 })
		if n := len(slices.DeleteFunc(slices.Clone(lives), func(l clustertest.Life) bool { return l.Running == 0 || l.Gone != 0 })); n != g.ranks {
			return fmt.Errorf("%d of %d ranks run: %+v", n, g.ranks, lives)
		}
		return nil
	})
	if len(lives) != 2*g.ranks {
		var events eventsv1.EventList // who has restarted it once more
		if err := g.c.Client.List(g.Context(), &events, client.InNamespace(g.namespace)); err != nil {
			g.Error(err)
		}
		for _, e := range events.Items {
			g.Logf("%s %s %s: %s", e.CreationTimestamp.Format(time.TimeOnly), e.Regarding.Name, e.Reason, e.Note)
		}
		g.Fatalf("%d pods ran, want two incarnations of %d: %+v", len(lives), g.ranks, lives)
	}
	for _, fresh := range lives[g.ranks:] {
		if fresh.Node == bad {
			g.Errorf("%s was on %s", fresh.Name, bad)
		}
		for _, old := range lives[:g.ranks] {
			if old.Gone == 0 || old.Gone > fresh.Running {
				g.Errorf("%+v ran before %+v was gone", fresh, old)
			}
		}
	}
}

// says waits for an Event of the reason about an object.
func (g gang) says(reason string, about types.UID, want string) {
	g.Helper()
	clustertest.Until(g, patience, fmt.Sprintf("wait for Event %s with %q", reason, want), func() error {
		var list eventsv1.EventList
		if err := g.c.Client.List(g.Context(), &list); err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Reason == reason && e.Regarding.UID == about {
				notes = append(notes, e.Note)
			}
		}
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, want) }) {
			return fmt.Errorf("notes %q", notes)
		}
		return nil
	})
}
