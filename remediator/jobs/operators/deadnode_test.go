//go:build operators

package operators

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// deadNodeCluster is a cluster in which a node that does not answer is found out after seconds, and in which the kubelets of some
// nodes can be frozen.
type deadNodeCluster struct {
	mu       sync.Mutex
	cluster  *cluster.Cluster
	err      error
	started  map[*operator]bool
	steady   *cluster.Kubelets
	freezers int
}

// deadNodeClusters are those of the operators that need one of their own, and, under nil, the one of the others.
var deadNodeClusters = map[*operator]*deadNodeCluster{nil: {}, mpiOperator: {}}

// closeDeadNodeClusters is for TestMain.
func closeDeadNodeClusters() {
	for _, d := range deadNodeClusters {
		if d.cluster == nil {
			continue
		}
		if err := d.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// silentSoon are the options of a cluster in which a node that does not answer is found out after seconds.
func silentSoon(jobSet bool) cluster.Options {
	return cluster.Options{JobSet: jobSet, NodeGrace: 6 * time.Second, NodeEvictionRate: 100, Progress: os.Stderr}
}

// deadNodeClusterOf returns the cluster for an operator, which runs in it.
func deadNodeClusterOf(t *testing.T, o *operator) *deadNodeCluster {
	t.Helper()
	var own *operator
	if o.alone {
		own = o
	}
	d := deadNodeClusters[own]
	d.mu.Lock()
	defer d.mu.Unlock()
	//nolint:usetesting // later tests use it, too
	ctx := context.Background()
	if d.cluster == nil && d.err == nil {
		d.started = map[*operator]bool{}
		if o.alone {
			d.cluster, d.started[o] = o.in(t), true
		} else {
			d.cluster, d.err = cluster.Start(ctx, silentSoon(true))
		}
		if d.err == nil {
			d.steady, d.err = d.cluster.StartKubelets(ctx, "steady")
		}
	}
	if d.err == nil && !d.started[o] {
		d.started[o] = true
		d.err = o.start(d.cluster, ctx)
	}
	if d.err != nil {
		t.Fatal(d.err)
	}
	if err := context.Cause(d.cluster.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// frozenJob is a job with a rank on a node that does not answer, and how the wait for that node ends.
type frozenJob struct {
	name string
	job
	ending
}

// sideBySide runs a test of each job, several at once: most of their time is the control plane's patience with silent nodes. Those with one
// policy share a controller in each cluster, because two controllers would act on each other's jobs.
func sideBySide(t *testing.T, jobsOnFrozen []frozenJob, test func(*testing.T, frozenJob, *jobs.Controller)) {
	t.Helper()
	byPolicy := map[policy.ForceDelete][]frozenJob{}
	for _, f := range jobsOnFrozen {
		deadNodeClusterOf(t, f.operator) // before a controller looks for its kinds
		byPolicy[f.policy.ForceDelete] = append(byPolicy[f.policy.ForceDelete], f)
	}
	for force, group := range byPolicy {
		t.Run("forceDelete "+string(cmp.Or(force, policy.ForceNever)), func(t *testing.T) {
			controllers := map[*deadNodeCluster]*jobs.Controller{}
			for _, f := range group {
				d := deadNodeClusterOf(t, f.operator)
				if controllers[d] == nil {
					controllers[d], _ = run(t, jobstest.Config(t, d.cluster), interceptor.Funcs{}, func(o *jobs.Options) {
						o.Policy = policy.Fixed(&policy.Policy{Restart: f.policy, Rules: jobstest.Rules})
					})
				}
				r := controllers[d]
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					test(t, f, r)
				})
			}
		})
	}
}

// startOnFreezer creates a job with one rank on a node whose kubelet can be frozen, and waits until its ranks run. There are two nodes
// more than it needs.
func startOnFreezer(t *testing.T, j job) (g gang, freezer *cluster.Kubelets, node string) {
	t.Helper()
	d := deadNodeClusterOf(t, j.operator)
	d.mu.Lock()
	d.freezers++
	group := fmt.Sprintf("freezer-%d", d.freezers)
	d.mu.Unlock()
	freezer, err := d.cluster.StartKubelets(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	g = gang{T: t, job: j, c: d.cluster, namespace: fmt.Sprintf("gang-%d", gangs.Add(1))}
	if err := g.c.AddNamespace(t.Context(), g.namespace, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		freezer.Kill()
		if err := g.c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}}); err != nil {
			t.Error(err)
		}
		if err := g.c.DeleteNodes(ctx, g.nodes...); err != nil {
			t.Error(err)
		}
	})
	add := func(name string, n int, kubelets *cluster.Kubelets) {
		t.Helper()
		added, err := g.c.AddNodes(t.Context(), g.namespace+"-"+name, n, func(node *corev1.Node) {
			kubelets.Own(node)
			node.Labels[cluster.LabelPool] = g.namespace
		})
		g.nodes = append(g.nodes, added...)
		if err != nil {
			t.Fatal(err)
		}
	}
	add("freezer", 1, freezer)
	add("steady", j.ranks-1, d.steady)
	g.pods = clustertest.WatchPods(t, g.c, g.namespace)
	g.apply(j.manifest)
	g.runs()
	add("spare", 2, d.steady)
	return g, freezer, g.nodes[0]
}

// unknown waits until the control plane has found out that a node does not answer, and has written all that it writes then.
func (g gang) unknown(name string) {
	g.Helper()
	clustertest.Until(g, patience, "wait for node "+name+" to be unreachable", func() error {
		node, err := g.node(name)
		if err != nil {
			return err
		}
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable && t.Effect == effect }) {
				return fmt.Errorf("taints %v, conditions %v", node.Spec.Taints, node.Status.Conditions)
			}
		}
		return nil
	})
}

func (g gang) node(name string) (*corev1.Node, error) {
	var node corev1.Node
	err := g.c.Client.Get(g.Context(), client.ObjectKey{Name: name}, &node)
	return &node, err
}

// waitsForNode waits until the restart of the job says that it waits for a node.
func (g gang) waitsForNode(name string) {
	g.Helper()
	clustertest.Until(g, patience, "wait for the restart to be held", func() error {
		r := g.record()
		if r.Current == nil || !strings.Contains(r.Current.Held, "on node "+name+" may still run") {
			return fmt.Errorf("record %+v, pods %+v", r, g.pods.Lives())
		}
		return nil
	})
}

// ending is how the wait for a dead node ends.
type ending struct {
	policy policy.Restart
	end    func(g gang, node string, freezer *cluster.Kubelets)
}

var (
	kubeletBack = ending{end: func(_ gang, _ string, freezer *cluster.Kubelets) { freezer.Thaw() }}
	// As the documentation of Kubernetes has it. Its own garbage collector acts on it, too, up to 20 s later.
	nodeFenced = tainted("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	// As the cloud controller manager has it.
	nodeShutDown = tainted("node.cloudprovider.kubernetes.io/shutdown:NoSchedule")
	nodeDeleted  = ending{end: func(g gang, name string, _ *cluster.Kubelets) {
		if err := g.c.Client.Delete(g.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			g.Fatal(err)
		}
	}}
	// Long enough for a test on a busy machine to see first that the restart waits.
	podForced = ending{policy: policy.Restart{ForceDelete: policy.ForceUnreachable, ForceDeleteAfter: 30 * time.Second}, end: func(gang, string, *cluster.Kubelets) {}}
)

func tainted(taint string) ending {
	return ending{end: func(g gang, name string, _ *cluster.Kubelets) {
		if _, err := g.c.Kubectl(g.Context(), "taint", "nodes", name, taint); err != nil {
			g.Fatal(err)
		}
	}}
}

// frozen are jobs of each kind, and beside the return of the kubelet one other ending for each.
var frozen = map[string]struct {
	job
	proof ending
}{
	"Job":                        {batchJob, nodeFenced},
	"JobSet":                     {jobSet, podForced},
	"TrainJob":                   {trainJob, nodeDeleted},
	"PyTorchJob":                 {pyTorchJob("Never"), nodeFenced},
	"MPIJob of the mpi-operator": {mpiJob, nodeDeleted},
	"RayCluster":                 {rayCluster, nodeFenced},
	"RayJob":                     {rayJob, podForced},
	"Volcano Job":                {volcanoJob, nodeDeleted},
	"LeaderWorkerSet":            {leaderWorkerSet("1", 4), nodeFenced},
	"Job queued by Kueue":        {queuedJob, nodeFenced},
	"JobSet queued by Kueue":     {queuedJobSet, nodeDeleted},
}

func TestAJobOnAFrozenNodeWaitsAndIsRestartedOnce(t *testing.T) {
	tests := []frozenJob{{"LeaderWorkerSet, forced", leaderWorkerSet("1", 4), podForced}}
	for name, test := range frozen {
		tests = append(tests, frozenJob{name + ", kubelet back", test.job, kubeletBack}, frozenJob{name + ", dead", test.job, test.proof})
	}
	sideBySide(t, tests, waitsAndIsRestartedOnce)
}

func waitsAndIsRestartedOnce(t *testing.T, test frozenJob, r *jobs.Controller) {
	g, freezer, bad := startOnFreezer(t, test.job)
	uid := g.get().GetUID()
	freezer.Freeze()
	g.unknown(bad)
	q := g.quarantine(bad)
	for range 3 {
		restartJobs(t, r, q)
	}
	g.waitsForNode(bad)
	g.says("JobRestartBlocked", uid, "on node "+bad+" may still run")
	running := slices.DeleteFunc(g.pods.Lives(), func(l clustertest.Life) bool { return l.Running == 0 })
	if len(running) != g.ranks {
		t.Errorf("while the job waits, %d pods have run: %+v", len(running), running)
	}
	test.end(g, bad, freezer)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	if _, err := g.node(bad); err == nil {
		restartJobs(t, r, q)
	}
	g.restartedOnce(bad)
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 {
		t.Errorf("restarts %+v, want one", rec)
	}
}

// app is a Deployment or StatefulSet of three pods.
func app(kind string) job {
	return job{
		operator: kubernetes, kind: jobstest.Kind("apps/v1", kind), container: "main", ranks: 3,
		manifest: `
apiVersion: apps/v1
kind: ` + kind + `
metadata: ` + optedIn + `
spec:
  replicas: 3
  selector: {matchLabels: {app: train}}
  template: {metadata: {labels: {app: train}, annotations: {e2e.pitcrew.dev/term-delay: 1s}}, spec: {RANK}}
`,
	}
}

// Of an app only the pod on the dead node is replaced: that of a Deployment at once, that of a StatefulSet, which may be the only one of
// its name, when its end is proven.
func TestAnAppOnAFrozenNodeGetsOneNewPod(t *testing.T) {
	sideBySide(t, []frozenJob{
		{"StatefulSet, kubelet back", app("StatefulSet"), kubeletBack},
		{"StatefulSet, fenced", app("StatefulSet"), nodeFenced},
		{"StatefulSet, forced", app("StatefulSet"), podForced},
		{"Deployment, kubelet back", app("Deployment"), kubeletBack},
		{"Deployment, node deleted", app("Deployment"), nodeDeleted},
	}, getsOneNewPod)
}

func getsOneNewPod(t *testing.T, test frozenJob, r *jobs.Controller) {
	atOnce := test.kind.GVK.Kind == "Deployment"
	g, freezer, bad := startOnFreezer(t, test.job)
	freezer.Freeze()
	g.unknown(bad)
	q := g.quarantine(bad)
	restartJobs(t, r, q)
	g.waitsForNode(bad)
	if atOnce {
		clustertest.Until(g, patience, "wait for the successor", func() error {
			if lives := g.pods.Lives(); len(lives) != 4 || lives[3].Running == 0 {
				return fmt.Errorf("pods %+v", lives)
			}
			return nil
		})
	} else if lives := g.pods.Lives(); len(lives) != 3 {
		t.Errorf("beside the pod on the dead node there are %+v", lives)
	}
	test.end(g, bad, freezer)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	for _, pod := range g.runs() {
		if pod.Spec.NodeName == bad {
			t.Errorf("pod %s is on the dead node", pod.Name)
		}
	}
	lives := g.pods.Lives()
	old := slices.IndexFunc(lives, func(l clustertest.Life) bool { return l.Node == bad })
	if len(lives) != 4 || lives[old].Gone == 0 || !atOnce && lives[old].Gone > lives[3].Created {
		t.Errorf("pods %+v, want one successor", lives)
	}
}

// evictedSoon has Kubernetes evict the ranks from a node that does not answer after a second, not after five minutes.
func (j job) evictedSoon() job {
	const soon = "tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}], RANK"
	j.manifest = strings.ReplaceAll(j.manifest, "RANK", soon)
	return j
}

// retried lets a job survive the eviction of a rank.
func (j job) retried() job { return j.with("backoffLimit: 0", "backoffLimit: 6") }

// Without the remediator: the eviction by Kubernetes is the end of these jobs, so that a quarantine has to come first.
func TestAnEvictionFromAFrozenNodeFailsSomeJobsForGood(t *testing.T) {
	tests := map[string]struct {
		job
		condition string
	}{
		"Job with backoffLimit 0":         {batchJob.evictedSoon(), "FailureTarget"}, // Failed only when the last pod is gone
		"PyTorchJob, restartPolicy Never": {pyTorchJob("Never").retried().evictedSoon(), "Failed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, freezer, _ := startOnFreezer(t, test.job)
			freezer.Freeze()
			g.reports(g.get, test.condition)
		})
	}
}

// Kubernetes evicts the rank before the node is quarantined. Whatever its operator makes of that, the job is restarted once and as a whole,
// and no rank that runs at the end has run beside an earlier one.
func TestAJobWhoseRankIsEvictedFromAFrozenNodeRunsWholeAgain(t *testing.T) {
	sideBySide(t, []frozenJob{
		{"Job", batchJob.retried().evictedSoon(), nodeShutDown},
		{"JobSet", jobSet.retried().evictedSoon(), nodeShutDown},
		{"JobSet with restarts", jobSet.with("spec:", "spec:\n  failurePolicy: {maxRestarts: 3}").evictedSoon(), nodeShutDown},
		{"PyTorchJob, OnFailure", pyTorchJob("OnFailure").retried().evictedSoon(), nodeShutDown},
		{"MPIJob of the mpi-operator", mpiJob.retried().evictedSoon(), nodeShutDown},
		{"RayCluster", rayCluster.evictedSoon(), nodeShutDown},
		{"Volcano Job", volcanoJob.evictedSoon(), nodeShutDown},
		{"LeaderWorkerSet", leaderWorkerSet("1", 4).evictedSoon(), nodeShutDown},
		{"Job queued by Kueue", queuedJob.retried().evictedSoon(), nodeShutDown},
	}, runsWholeAgain)
}

func runsWholeAgain(t *testing.T, test frozenJob, r *jobs.Controller) {
	g, freezer, bad := startOnFreezer(t, test.job)
	freezer.Freeze()
	g.unknown(bad)
	clustertest.Until(g, patience, "wait for the eviction", func() error {
		for _, pod := range g.listed() {
			if pod.Spec.NodeName == bad && pod.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is not evicted", pod.Name)
			}
		}
		return nil
	})
	q := g.quarantine(bad)
	restartJobs(t, r, q)
	restartJobs(t, r, q)
	g.waitsForNode(bad)
	restartJobs(t, r, q)
	test.end(g, bad, freezer)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	after := g.runs()
	restartJobs(t, r, q)
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 {
		t.Errorf("restarts %+v, want one", rec)
	}
	lives := g.pods.Lives()
	old := slices.IndexFunc(lives, func(l clustertest.Life) bool { return l.Node == bad })
	for _, pod := range after {
		fresh := slices.IndexFunc(lives, func(l clustertest.Life) bool { return l.Name == pod.Name && l.Gone == 0 })
		if fresh < 0 || pod.Spec.NodeName == bad || lives[old].Gone == 0 || lives[old].Gone > lives[fresh].Running {
			t.Fatalf("rank %s of %+v runs beside the one that was on the dead node", pod.Name, lives)
		}
		for _, l := range lives {
			if stays := slices.ContainsFunc(after, func(p corev1.Pod) bool { return p.Name == l.Name && l.Gone == 0 }); !stays && (l.Gone == 0 || l.Gone > lives[fresh].Running) {
				t.Errorf("rank %+v ran beside %+v", lives[fresh], l)
			}
		}
	}
}
