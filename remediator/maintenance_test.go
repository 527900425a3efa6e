package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// shownMaintenance is the status and the reason of condition MaintenanceInProgress; empty: there is none.
func shownMaintenance(n *corev1.Node) string {
	c, found := node.ConditionOf(n, corev1.NodeMaintenanceInProgress)
	if !found {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

const shownRepair = "True " + conditions.ReasonRepair

// maintains waits until the condition of a node is as wanted.
func (tm team) maintains(name, want string) {
	tm.Helper()
	tm.until(fmt.Sprintf("%s shows %q", name, want), func() error {
		if got := shownMaintenance(tm.get(name)); got != want {
			return fmt.Errorf("it shows %q", got)
		}
		return nil
	})
}

// repairs adds the namespace, the templates and the rights of repairs, and has a policy repair nodes and say so.
func (tm team) repairs(path string) {
	tm.Helper()
	for _, file := range []string{"rbac.yaml", "admission.yaml", "templates.yaml"} {
		text, err := os.ReadFile(filepath.Join(tm.Root, "manifests", "repair", file))
		if err == nil {
			err = tm.Apply(tm.Context(), text)
		}
		if err != nil {
			tm.Fatal(err)
		}
	}
	tm.rewrite(path, "  rules:", "  output: {maintenance: true}\n  repair: {mode: auto, actions: {ResetGPU: [{template: reset-gpu, timeout: 10m}]}, lemon: {repairs: 0}}\n  rules:")
}

// sighting is what a version of a node has of a repair: the condition, its taint, and that of the quarantine.
type sighting struct {
	shows                 string
	repaired, quarantined bool
}

// versions follows a node until the test ends, and returns what its versions had.
func (tm team) versions(name string) func() []sighting {
	tm.Helper()
	w, err := tm.Client.Watch(tm.Context(), &corev1.NodeList{}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		tm.Fatal(err)
	}
	var mu sync.Mutex
	var all []sighting
	go func() {
		for e := range w.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			mu.Lock()
			all = append(all, sighting{
				shownMaintenance(n), node.HasTaintValue(n.Spec.Taints, conditions.TaintMaintenance, conditions.MaintenanceRepair),
				node.HasTaint(n.Spec.Taints, conditions.TaintUnhealthy),
			})
			mu.Unlock()
		}
	}()
	return func() []sighting {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// Each life of the remediator does one write. The condition comes once the node is empty, and goes with the taint, long before pods come.
func TestTheConditionOfARepairSurvivesADeathAfterEveryWrite(t *testing.T) {
	tm := newTeam(t, "maintained", 1, nil)
	name := tm.nodes[0]
	path := tm.policy(1, "clearAfter: 1s")
	tm.repairs(path)
	gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	train := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "maintained-train"}, Spec: corev1.PodSpec{
		NodeName: name, TerminationGracePeriodSeconds: new(int64(0)),
		Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpu, Limits: gpu}}},
	}}
	if err := tm.Client.Create(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	if err := tm.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	versions := tm.versions(name)
	tm.report(name, "True", ecc)
	stop := clustertest.Lives(t, tm.Cluster, "-policy", path, alone, "-repair-namespace", conditions.RepairNamespace)
	tm.until("the repair waits for the pod", func() error {
		r, err := visit.RecordOf(tm.get(name))
		if err == nil && (r == nil || r.Current == nil || !strings.Contains(r.Current.Outcome, train.Name)) {
			err = fmt.Errorf("record %s", r)
		}
		return err
	})
	emptied := len(versions())
	if err := tm.Client.Delete(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	tm.maintains(name, shownRepair)
	tm.until("the node is released", func() error {
		tm.endReset(name)
		if r, err := causes.RecordOf(tm.get(name)); err != nil || r == nil || r.Phase != causes.Released {
			return fmt.Errorf("the quarantine is %+v, %w", r, err)
		}
		return nil
	})
	tm.maintains(name, "")
	writes := stop()
	all := versions()
	for i, v := range all {
		// It is removed by a write of its own, which may come after that of the release.
		if v.shows != "" && (i < emptied || (!v.quarantined || !v.repaired) && all[i-1].shows == "") {
			t.Errorf("version %d of %d: %+v after %+v", i, len(all), v, all[max(0, i-1)])
		}
	}
	if len(writes) < 12 {
		t.Errorf("%d lives: %q", len(writes), writes)
	}
	t.Logf("%d writes, each the last one of a process", len(writes))
}

// endReset ends the pod of the reset on a node, if it runs, as a kubelet does, and reports that the fault is gone.
func (tm team) endReset(name string) {
	tm.Helper()
	var pods corev1.PodList
	if err := tm.Client.List(tm.Context(), &pods, client.InNamespace(conditions.RepairNamespace)); err != nil {
		tm.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != name || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		tm.report(name, "False", "no fault")
		before := pod.DeepCopy()
		pod.Status.Phase = corev1.PodSucceeded
		now := metav1.Now()
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: `{"result":"done","message":"reset"}`, StartedAt: now, FinishedAt: now, ContainerID: "x://1"},
		}}}
		if err := client.IgnoreNotFound(tm.Client.Status().Patch(tm.Context(), &pod, client.MergeFrom(before))); err != nil {
			tm.Fatal(err)
		}
	}
}

// A kubelet that writes a whole status drops the condition, and brings it back. It is the remediator's own word that counts, and that of
// others stays.
func TestTheConditionOfARepairOutlivesItsKubelet(t *testing.T) {
	tm := newTeam(t, "overwritten", 3, nil)
	ours, theirs, forged := tm.nodes[0], tm.nodes[1], tm.nodes[2]
	// overwrite writes the whole status that a kubelet has in memory.
	overwrite := func(name string, change func(*corev1.Node)) {
		t.Helper()
		tm.until("the status is overwritten", func() error {
			n := tm.get(name)
			n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeMaintenanceInProgress })
			change(n)
			return tm.Client.Status().Update(t.Context(), n)
		})
	}
	claims := func(reason string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now(),
			})
		}
	}
	// repaired has a repair begin or end on a node, in one patch as the controller of visits does.
	repaired := func(name string, is bool) {
		t.Helper()
		n := tm.get(name)
		before := n.DeepCopy()
		r := &visit.Record{V: visit.Version, NodeUID: n.UID}
		if is {
			at := time.Now().UTC()
			r.Current = &visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Working, Attempt: 1, StartedAt: at, PhaseSince: at, ActionSince: at}
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: conditions.MaintenanceRepair, Effect: corev1.TaintEffectNoSchedule})
		} else {
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
		}
		r.Put(n)
		if err := tm.Client.Patch(t.Context(), n, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	path := tm.policy(3)
	tm.rewrite(path, "  rules:", "  output: {maintenance: true}\n  rules:")
	tm.start(path, alone)
	overwrite(theirs, claims("Window"))
	repaired(ours, true)
	repaired(theirs, true)
	tm.maintains(ours, shownRepair)
	for range 3 {
		overwrite(ours, func(*corev1.Node) {})
		tm.maintains(ours, shownRepair)
	}
	if n := tm.get(ours); !node.IsReady(n) || len(node.Claims(n)) > 0 {
		t.Errorf("conditions %+v, claims %+v", n.Status.Conditions, node.Claims(n))
	}
	tm.rewrite(path, "maintenance: true", "maintenance: false")
	overwrite(forged, claims(conditions.ReasonRepair))
	tm.maintains(forged, "")
	repaired(ours, false)
	tm.maintains(ours, "")
	overwrite(ours, claims(conditions.ReasonRepair))
	tm.maintains(ours, "")
	if got := shownMaintenance(tm.get(theirs)); got != "True Window" {
		t.Errorf("that of others is %q", got)
	}
}
