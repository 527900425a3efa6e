//go:build operators

package operators

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Kueue writes the node of each rank into its pod. That is no pin: it chooses again at the next start.
func TestTheRoomForAPlacedJobIsSearchedOnAllNodes(t *testing.T) {
	t.Parallel()
	g := start(t, queuedJob.placed())
	r, _ := run(t, g.config(), interceptor.Funcs{}, func(o *jobs.Options) {
		o.Policy = policy.Fixed(&policy.Policy{Restart: policy.Restart{CheckCapacity: true}, Rules: jobstest.Rules})
	})
	q := g.quarantine(g.runs()[0].Spec.NodeName)
	after, err := r.RestartJobsOnNode(t.Context(), q)
	if err != nil || after != 0 {
		t.Fatalf("to be restarted after %s, %v", after, err)
	}
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("closed as %+v", closed)
	}
	g.restartedOnce(q.Node)
}

// nodesOf are the nodes that Kueue has chosen for a Workload, as it writes them down.
func nodesOf(workload *unstructured.Unstructured) string {
	assignments, _, _ := unstructured.NestedSlice(workload.Object, "status", "admission", "podSetAssignments")
	var nodes []string
	for _, a := range assignments {
		nodes = append(nodes, fmt.Sprint(a.(map[string]any)["topologyAssignment"]))
	}
	return strings.Join(nodes, " ")
}

// keptAdmission checks that the Workload was not evicted since it was read, but placed elsewhere.
func (g gang) keptAdmission(before *unstructured.Unstructured) {
	g.Helper()
	clustertest.Until(g, patience, "wait for Kueue to replace the node", func() error {
		if now := nodesOf(g.workload()); now == "" || now == nodesOf(before) {
			return fmt.Errorf("its nodes are %s", now)
		}
		return nil
	})
	// The condition stays, as False, when a Workload is admitted again.
	conditions, _, _ := unstructured.NestedSlice(g.workload().Object, "status", "conditions")
	if slices.ContainsFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == "Evicted" }) {
		g.Errorf("it was evicted: %v", conditions)
	}
}

func (g gang) deletePodsOn(node string) {
	g.Helper()
	for _, pod := range g.listed() {
		if pod.Spec.NodeName != node {
			continue
		}
		if err := g.c.Client.Delete(g.Context(), &pod); err != nil {
			g.Fatal(err)
		}
	}
}

// Kueue's own replacement of a node keeps the admission, but no road to it restarts the whole job as it has to be.
func TestTrapKueueReplacesANodeAndNotTheJob(t *testing.T) {
	t.Run("only the ranks of the node are replaced", func(t *testing.T) {
		g := start(t, queuedJob.placed().with("backoffLimit: 0", "backoffLimit: 6").lasting())
		before, workload := g.runs(), g.workload()
		bad := before[0]
		g.quarantine(bad.Spec.NodeName)
		g.deletePodsOn(bad.Spec.NodeName)
		g.keptAdmission(workload)
		g.release([]corev1.Pod{bad})
		clustertest.Until(t, patience, "wait for the rank to be replaced", func() error {
			if slices.Contains(uids(g.runs()), bad.UID) {
				return fmt.Errorf("it is still there")
			}
			return nil
		})
		after := uids(g.runs())
		for _, pod := range before[1:] {
			if !slices.Contains(after, pod.UID) {
				t.Errorf("%s was replaced, too", pod.Name)
			}
		}
		g.becomes(g.get, "1", "status", "failed")
	})
	t.Run("an ended rank counts as a failure", func(t *testing.T) {
		g := start(t, queuedJob.placed())
		bad := g.runs()[0].Spec.NodeName
		g.quarantine(bad)
		g.deletePodsOn(bad)
		g.reports(g.get, "Failed")
	})
	// Kueue undoes it at once, and replaces the node of the old rank.
	t.Run("a suspend of the job starts a rank beside the old ones", func(t *testing.T) {
		for name, j := range map[string]job{"Job": queuedJob, "JobSet": queuedJobSet} {
			t.Run(name, func(t *testing.T) {
				g := start(t, j.placed().lasting())
				workload, old := g.workload(), g.runs()
				g.quarantine(old[0].Spec.NodeName)
				g.patch(g.get(), stop)
				g.keptAdmission(workload)
				g.runBeside(old)
				g.release(old)
				if !g.runTogether() {
					t.Error("the second incarnation waited for the first")
				}
			})
		}
	})
}

// newcomer is a Job that waits for the quota which the other one holds.
const newcomer = `
apiVersion: batch/v1
kind: Job
metadata: {name: newcomer, namespace: NAMESPACE, labels: {kueue.x-k8s.io/queue-name: queue}}
spec:
  completions: 1
  parallelism: 1
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, RANK}}
`

// An inactive Workload holds no quota, and a job that waits for it gets it. Kueue gives it back to the older job if the
// ClusterQueue says so.
func TestAnotherJobMayTakeThePlaceOfAQueuedJob(t *testing.T) {
	t.Parallel()
	const mayPreempt = "namespaceSelector: {}\n  preemption: {withinClusterQueue: LowerOrNewerEqualPriority}"
	for name, test := range map[string]struct {
		job
		returns bool
	}{
		"by default":                {queuedJob, false},
		"placed by Kueue":           {queuedJob.placed(), false},
		"LowerOrNewerEqualPriority": {queuedJob.with("namespaceSelector: {}", mayPreempt), true},
		"the same, placed by Kueue": {queuedJob.placed().with("namespaceSelector: {}", mayPreempt), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, test.job)
			created := g.workload().GetCreationTimestamp()
			old := uids(g.runs())
			clustertest.Until(t, patience, "wait for the next second: in the same one no job is newer", func() error {
				if now := time.Now(); now.Sub(created.Time) < time.Second {
					return fmt.Errorf("it is %s", now)
				}
				return nil
			})
			g.apply(newcomer)
			other := func() *unstructured.Unstructured { return g.object("batch/v1", "Job", "newcomer") }
			clustertest.Until(t, patience, "wait for the newcomer to be queued", func() error {
				if n := len(g.workloads()); n != 2 {
					return fmt.Errorf("%d Workloads", n)
				}
				return nil
			})
			r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
			restartJobs(t, r, g.quarantine(g.listed()[0].Spec.NodeName))
			if !test.returns {
				g.becomes(other, "1", "status", "active")
				clustertest.Until(t, patience, "wait for the job to be queued again", func() error {
					if rec := g.record(); rec.Current == nil || rec.Current.Phase != restart.Starting {
						return fmt.Errorf("record %+v", rec)
					}
					return nil
				})
				g.becomes(g.get, "true", "spec", "suspend")
				// Its place is back when the newcomer is gone.
				if err := g.c.Client.Delete(t.Context(), other(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
					t.Fatal(err)
				}
			}
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			for _, pod := range g.listed() {
				if slices.Contains(old, pod.UID) {
					t.Errorf("%s is of the first incarnation", pod.Name)
				}
			}
		})
	}
}

func (g gang) workloads() []unstructured.Unstructured {
	g.Helper()
	var list unstructured.UnstructuredList
	list.SetAPIVersion("kueue.x-k8s.io/v1beta2")
	list.SetKind("WorkloadList")
	if err := g.c.Client.List(g.Context(), &list, client.InNamespace(g.namespace)); err != nil {
		g.Fatal(err)
	}
	return list.Items
}
