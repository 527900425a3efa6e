//go:build operators

package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
)

// restarterConfig authenticates as the remediator's service account, with the roles that we ship.
func restarterConfig(t *testing.T, c *cluster.Cluster) *rest.Config {
	t.Helper()
	roles, err := os.ReadFile(filepath.Join(c.Root, "manifests", "remediator", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), roles); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

// run starts a Restarter with a manager of its own, as one process of the remediator would. The returned function ends
// it and returns when nothing of it is left.
func run(t *testing.T, cfg *rest.Config, writes interceptor.Funcs, change func(*jobs.Restarter)) (*jobs.Restarter, func()) {
	t.Helper()
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	direct, err := client.NewWithWatch(cfg, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		t.Fatal(err)
	}
	r := jobs.New(interceptor.NewClient(direct, writes), mgr.GetAPIReader(), mgr.GetEventRecorder("pitcrew"), time.Now)
	if change != nil {
		change(r)
	}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return r, stop
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

func (g gang) get() *unstructured.Unstructured {
	g.Helper()
	return g.object(g.apiVersion, g.kind, "train")
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

// record is what these tests read of the annotation pitcrew.dev/restart.
type record struct {
	Current *restart  `json:"current"`
	Last    []restart `json:"last"`
}

type restart struct {
	Phase   string `json:"phase"`
	Outcome string `json:"outcome"`
}

func (g gang) record() record {
	g.Helper()
	var r record
	if text := g.get().GetAnnotations()[conditions.AnnotationRestart]; text != "" {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			g.Fatal(err)
		}
	}
	return r
}

// closes waits until a restart is closed and returns it.
func (g gang) closes() restart {
	g.Helper()
	var closed restart
	clustertest.Until(g, patience, "wait for the restart to be closed", func() error {
		r := g.record()
		if r.Current != nil || len(r.Last) == 0 {
			return fmt.Errorf("record %+v", r)
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

// quarantine taints a node and returns the quarantine, as the node controller would.
func (g gang) quarantine(node string) jobs.Quarantine {
	g.Helper()
	var n corev1.Node
	if err := g.c.Client.Get(g.Context(), client.ObjectKey{Name: node}, &n); err != nil {
		g.Fatal(err)
	}
	before := n.DeepCopy()
	taint := corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule}
	n.Spec.Taints = append(n.Spec.Taints, taint)
	if err := g.c.Client.Patch(g.Context(), &n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		g.Fatal(err)
	}
	return jobs.Quarantine{ID: "q-" + node, Node: node, NodeUID: n.UID, Reason: "Xid 79", Taint: taint, Since: time.Now()}
}

func sweep(t testing.TB, r *jobs.Restarter, q jobs.Quarantine) {
	t.Helper()
	if _, err := r.Sweep(t.Context(), q); err != nil {
		t.Fatal(err)
	}
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
