package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestAFaultQuarantinesAndHealthReleases(t *testing.T) {
	tm := newTeam(t, "release", 1, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/theirs", Value: "1", Effect: corev1.TaintEffectNoSchedule}}
	})
	name := tm.nodes[0]
	const clearAfter = "clearAfter: 1h"
	policy := tm.policy(1, clearAfter)
	tm.start(policy)
	before := tm.get(name)

	tm.report(name, "True", lost)
	n, r := tm.becomes(name, causes.Quarantined)
	if got, want := taints(n), taints(before)+" "+ourTaint; got != want {
		t.Errorf("taints %q, want %q", got, want)
	}
	if n.Labels[conditions.LabelStatus] != "quarantined" || n.Labels[conditions.LabelRepair] != "Reboot" {
		t.Errorf("labels %v", n.Labels)
	}
	if r.NodeUID != n.UID || r.Causes[0].BootID != before.Status.NodeInfo.BootID || r.Causes[0].Message != lost {
		t.Errorf("record %s", r)
	}
	tm.waitForEvent(n.UID, "NodeQuarantined: GPUXidError needs a reboot (rule gpu: "+lost+"); tainted "+ourTaint)
	described, err := tm.Kubectl(t.Context(), "describe", "node", name)
	if err != nil || !strings.Contains(described, "NodeQuarantined") {
		t.Errorf("kubectl describe node (%v) does not show the Event:\n%s", err, described)
	}

	tm.report(name, "False", "")
	tm.until("the clock of the release runs", func() error {
		if _, r := tm.becomes(name, causes.Quarantined); r.Causes[0].HealthySince.IsZero() {
			return errStill
		}
		return nil
	})
	tm.patchStatus(name, `{"status":{"nodeInfo":{"bootID":"another boot"}}}`)
	tm.until("the new boot is seen", func() error {
		if _, r := tm.becomes(name, causes.Quarantined); r.Boot.ID != "another boot" {
			return errStill
		}
		return nil
	})
	tm.report(name, "False", "no fault in this boot")
	tm.rewrite(policy, clearAfter, "clearAfter: 2s")
	n, r = tm.becomes(name, causes.Released)
	if got, want := taints(n), taints(before); got != want {
		t.Errorf("after the release taints are %q, want %q", got, want)
	}
	if !n.Spec.Unschedulable {
		t.Error("the admin's cordon is gone")
	}
	if n.Labels[conditions.LabelStatus] != "healthy" || n.Labels[conditions.LabelRepair] != "" {
		t.Errorf("labels %v", n.Labels)
	}
	if healthy := r.ReleasedAt.Sub(r.Causes[0].HealthySince); healthy < 2*time.Second {
		t.Errorf("released after %s of health", healthy)
	}
	tm.waitForEvent(n.UID, "NodeReleased: GPUXidError has cleared")
	tm.waitForEvent(n.UID, "NodeQuarantined")
}

func TestATaintThatKubectlRemovesIsRestoredOnceAndThenTheUserWins(t *testing.T) {
	tm := newTeam(t, "dropped", 1, nil)
	name := tm.nodes[0]
	tm.start(tm.policy(1, "clearAfter: 1s"), alone)
	// `kubectl taint` reads, computes the new list and patches it without a version.
	const stale = `{"spec":{"taints":[{"key":"example.com/new","effect":"NoSchedule"}]}}`

	tm.report(name, "True", ecc)
	tm.becomes(name, causes.Quarantined)
	tm.patch(name, stale)
	var n *corev1.Node
	tm.until("the taint is back", func() error {
		if n = tm.get(name); !strings.Contains(taints(n), ourTaint) {
			return fmt.Errorf("taints %q", taints(n))
		}
		return nil
	})
	if got, want := taints(n), "example.com/new:NoSchedule "+ourTaint; got != want {
		t.Errorf("taints %q, want %q", got, want)
	}
	tm.waitForEvent(n.UID, "TaintRestored")

	if _, err := tm.Kubectl(t.Context(), "taint", "node", name, "pitcrew.dev/unhealthy-"); err != nil {
		t.Fatal(err)
	}
	n, r := tm.becomes(name, causes.Released)
	if r.ReleasedBy != causes.ByPerson || taints(n) != "example.com/new:NoSchedule" {
		t.Errorf("released by %s, taints %q", r.ReleasedBy, taints(n))
	}
	tm.waitForEvent(n.UID, "ReleaseByHand")
	// The manual release stays in force while the fault is present, whatever else its text says; another code would be a new fault.
	// It ends when the fault has cleared.
	tm.report(name, "True", ecc+" (2 times)")
	tm.report(name, "False", "")
	tm.until("the manual release is no longer active", func() error {
		if _, r := tm.becomes(name, causes.Released); r.ManualReleaseActive {
			return errStill
		}
		return nil
	})
	if n := tm.times(n.UID, "NodeQuarantined"); n != 1 {
		t.Errorf("quarantined %d times while the manual release was active", n)
	}
	tm.report(name, "True", ecc)
	tm.becomes(name, causes.Quarantined)
}

func TestATaintThatAWriterWithAnOldCopyBringsBackIsRemoved(t *testing.T) {
	tm := newTeam(t, "brought-back", 1, nil)
	name := tm.nodes[0]
	tm.start(tm.policy(1, "clearAfter: 1s"), alone)
	tm.report(name, "True", ecc)
	tm.becomes(name, causes.Quarantined)
	tm.report(name, "False", "")
	n, before := tm.becomes(name, causes.Released)
	tm.waitForEvent(n.UID, "NodeReleased: GPUXidError has cleared")

	tm.patch(name, `{"spec":{"taints":[{"key":"example.com/new","effect":"NoSchedule"},{"key":"pitcrew.dev/unhealthy","value":"GPUXidError","effect":"NoSchedule"}]}}`)
	tm.until("the taint is gone", func() error {
		if n = tm.get(name); taints(n) != "example.com/new:NoSchedule" {
			return fmt.Errorf("taints %q", taints(n))
		}
		return nil
	})
	tm.waitForEvent(n.UID, "NodeReleased: taint "+ourTaint+" was on the node without a quarantine and was removed")
	if _, r := tm.becomes(name, causes.Released); r.String() != before.String() {
		t.Errorf("the record became %s, and was %s", r, before)
	}
}

func TestWritersOfTheSameNodeLoseNothing(t *testing.T) {
	tm := newTeam(t, "conflict", 1, nil)
	name := tm.nodes[0]
	tm.start(tm.policy(1, "clearAfter: 1s"), alone)
	const writes = 200
	failed := make(chan error, 1)
	go func() {
		// Another careful controller, which adds taints as fast as it can while ours decides.
		for i := range writes {
			for {
				n := &corev1.Node{}
				if err := tm.Client.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
					failed <- err
					return
				}
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("example.com/t%d", i), Effect: corev1.TaintEffectPreferNoSchedule})
				if tm.Client.Update(t.Context(), n) == nil {
					break
				}
			}
		}
		failed <- nil
	}()
	tm.report(name, "True", ecc)
	tm.becomes(name, causes.Quarantined)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	n, r := tm.becomes(name, causes.Quarantined)
	if got := strings.Count(taints(n), "example.com/t"); got != writes {
		t.Errorf("%d of %d foreign taints are left", got, writes)
	}
	if !strings.Contains(taints(n), ourTaint) || r.Taint.Restored {
		t.Errorf("our taint was lost in between: %s", r)
	}
}

func TestANodeDeletedWhileTaintedStartsOverAndKeepsItsPlaceForAWhile(t *testing.T) {
	tm := newTeam(t, "deleted", 2, nil)
	first, second := tm.nodes[0], tm.nodes[1]
	policy := tm.policy(1, "clearAfter: 1s")
	tm.start(policy, alone)
	tm.report(first, "True", lost)
	n, r := tm.becomes(first, causes.Quarantined)
	if err := tm.Client.Delete(t.Context(), n.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	tm.report(second, "True", lost)
	blocked, _ := tm.becomes(second, causes.Suspect)
	tm.waitForEvent(blocked.UID, "1 nodes are out of service and the budget is 1: "+first+" (gone)")
	tm.rewrite(policy, "maxNodes: 1", "maxNodes: 2")
	tm.becomes(second, causes.Quarantined)
	// A user restores the node from a backup, with the marks of the old quarantine.
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first, Labels: n.Labels, Annotations: n.Annotations}, Spec: n.Spec}
	if err := tm.Client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	tm.until("the marks of the other node are gone", func() error {
		n := tm.get(first)
		if n.Annotations[conditions.AnnotationQuarantine] != "" || strings.Contains(taints(n), ourTaint) || n.Labels[conditions.LabelStatus] != "" {
			return fmt.Errorf("record %s, taints %q", n.Annotations[conditions.AnnotationQuarantine], taints(n))
		}
		return nil
	})
	if again.UID == r.NodeUID {
		t.Error("the node was not created anew")
	}
}

func TestTheBudgetHoldsWhenManyNodesFailTogether(t *testing.T) {
	tm := newTeam(t, "many", 8, nil)
	// The faults exist before the remediator starts, so all of them are decided at the same moment.
	for _, name := range tm.nodes {
		tm.report(name, "True", ecc)
	}
	tm.start(tm.policy(1, "clearAfter: 1s"), alone)
	var taken, waiting []string
	tm.until("all are decided", func() error {
		taken, waiting = nil, nil
		for _, name := range tm.nodes {
			switch tm.get(name).Labels[conditions.LabelStatus] {
			case "quarantined":
				taken = append(taken, name)
			case "suspect":
				waiting = append(waiting, name)
			}
		}
		if len(taken)+len(waiting) < len(tm.nodes) {
			return fmt.Errorf("quarantined %q, suspect %q", taken, waiting)
		}
		return nil
	})
	if len(taken) != 1 {
		t.Fatalf("quarantined %q, suspect %q", taken, waiting)
	}
	tm.report(taken[0], "False", "")
	tm.becomes(taken[0], causes.Released)
	// Another node takes the free place in the budget, although its condition has not changed.
	tm.until("one more is quarantined", func() error {
		for _, name := range waiting {
			if tm.get(name).Labels[conditions.LabelStatus] == "quarantined" {
				return nil
			}
		}
		return errStill
	})
	for _, name := range waiting {
		tm.waitForEvent(tm.get(name).UID, "QuarantineBlocked: GPUXidError needs a GPU reset (rule gpu: ")
	}
}

func TestARestartOfTheRemediatorChangesNoTimer(t *testing.T) {
	tm := newTeam(t, "restart", 1, nil)
	name := tm.nodes[0]
	policy := tm.policy(1, "for: 1h", "clearAfter: 1h")

	killed := tm.start(policy, alone)
	tm.report(name, "True", ecc)
	_, suspect := tm.becomes(name, causes.Suspect)
	killed.Kill()
	tm.rewrite(policy, "for: 1h", "for: 3s") // not before, so that a slow machine sees the suspect
	killed = tm.start(policy, alone)
	_, r := tm.becomes(name, causes.Quarantined)
	if r.ID != suspect.ID || !r.Causes[0].FirstSeen.Equal(suspect.Causes[0].FirstSeen) {
		t.Errorf("the suspicion began again: %s, before %s", r, suspect)
	}
	if waited := r.QuarantinedAt.Sub(r.Causes[0].FirstSeen); waited < 3*time.Second {
		t.Errorf("quarantined after %s", waited)
	}

	tm.report(name, "False", "")
	var clearing *causes.Record
	tm.until("the clock of the release runs", func() error {
		if _, clearing = tm.becomes(name, causes.Quarantined); clearing.Causes[0].HealthySince.IsZero() {
			return errStill
		}
		return nil
	})
	killed.Kill()
	tm.rewrite(policy, "clearAfter: 1h", "clearAfter: 3s")
	tm.start(policy, alone)
	_, r = tm.becomes(name, causes.Released)
	if !r.Causes[0].HealthySince.Equal(clearing.Causes[0].HealthySince) {
		t.Errorf("the clock of the release began again: %s, before %s", r, clearing)
	}
	if n := tm.times(tm.get(name).UID, "NodeQuarantined"); n != 1 {
		t.Errorf("quarantined %d times", n)
	}
}

func TestDryRunReportsEverythingAndWritesNothing(t *testing.T) {
	tm := newTeam(t, "dry", 2, nil)
	first, second := tm.nodes[0], tm.nodes[1]
	job := tm.job()
	policy := tm.policy(1, "clearAfter: 1s", "restartJobs: true")
	server := newReceiver(t)
	server.hook(tm, policy)
	tm.start(policy, alone, "-dry-run")
	uid := tm.get(first).UID
	tm.report(first, "True", ecc)
	tm.waitForEvent(uid, "NodeQuarantined: dry run: ")
	tm.report(second, "True", ecc)
	tm.waitForEvent(tm.get(second).UID, "QuarantineBlocked: dry run: ")
	tm.report(first, "False", "")
	tm.waitForEvent(uid, "NodeReleased: dry run: ")
	tm.waitForEvent(tm.get(second).UID, "NodeQuarantined: dry run: ")
	tm.waitForEvent(uid, "NodeQuarantined: dry run: ")
	for _, name := range tm.nodes {
		tm.untouched(name)
		if len(tm.evidence(name)) > 0 {
			t.Errorf("evidence of node %s is kept", name)
		}
	}
	if n := server.calls.Load(); n > 0 {
		t.Errorf("the webhook was called %d times", n)
	}
	if now := tm.getJob(); now.Generation != job.Generation || now.Annotations[conditions.AnnotationRestart] != "" {
		t.Errorf("the job was changed: %+v", now.ObjectMeta)
	}
}

func TestAPauseChangesNothingUntilItEnds(t *testing.T) {
	tm := newTeam(t, "pause", 1, nil)
	name := tm.nodes[0]
	address := clustertest.FreeAddress(t)
	tm.start(tm.policy(1, "clearAfter: 1s"), alone, "-metrics-bind-address", address)
	pause := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap},
		Data:       map[string]string{"reason": "network upgrade"},
	}
	if err := tm.Client.Create(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	tm.until("the pause is seen", func() error { return tm.shows(address, "pitcrew_paused 1") })
	tm.report(name, "True", ecc)
	tm.waitForEvent(tm.get(name).UID, "QuarantineBlocked: paused (network upgrade), would be NodeQuarantined: GPUXidError needs a GPU reset")
	tm.untouched(name)
	if err := tm.Client.Delete(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	tm.becomes(name, causes.Quarantined)
}

func TestARecordThatDoesNotParseIsReportedAndLeftAlone(t *testing.T) {
	const broken = `{"v":1,"phase":`
	tm := newTeam(t, "broken", 2, func(n *corev1.Node) {
		if n.Name == "broken-0" {
			n.Annotations[conditions.AnnotationQuarantine] = broken
		}
	})
	name, other := tm.nodes[0], tm.nodes[1]
	tm.start(tm.policy(2, "clearAfter: 1s"), alone)
	uid := tm.get(name).UID
	tm.waitForEvent(uid, "QuarantineBlocked: annotation pitcrew.dev/quarantine cannot be read")
	tm.report(name, "True", ecc)
	tm.report(other, "True", ecc) // decided after it
	tm.becomes(other, causes.Quarantined)
	tm.untouched(name)
	tm.waitForEvent(uid, "QuarantineBlocked: annotation pitcrew.dev/quarantine cannot be read")
	tm.patch(name, `{"metadata":{"annotations":{"pitcrew.dev/quarantine":null}}}`)
	tm.becomes(name, causes.Quarantined)
}

func TestAnOutageOfTheAPIServerIsSurvived(t *testing.T) {
	tm := newTeam(t, "outage", 2, nil)
	first, second := tm.nodes[0], tm.nodes[1]
	policy := tm.policy(2, "for: 1h", tm.avoids())
	remediator := tm.start(policy, alone)
	tm.reportAs(first, conditions.SlowNode, "True", "Inspect node: slow")
	_, before := tm.becomes(first, causes.Quarantined)
	tm.report(second, "True", lost)
	tm.becomes(second, causes.Suspect)

	end := clustertest.Outage(t, tm.Cluster)
	tm.rewrite(policy, "for: 1h", "for: 1s")
	// It asks whether there is a pause, or whether its last write was done if the API server stopped before it had answered.
	question := regexp.MustCompile(`The API server does not answer.*(pitcrew-pause|whether node ` + second + ` was written).*: dial tcp`)
	tm.until("a question before the write fails", func() error {
		if !question.MatchString(remediator.Log()) {
			return errStill
		}
		return nil
	})
	end()
	n, _ := tm.becomes(second, causes.Quarantined)
	tm.waitForEvent(n.UID, "NodeQuarantined")
	if _, after := tm.becomes(first, causes.Quarantined); after.String() != before.String() {
		t.Errorf("the outage changed the record:\n%s\n%s", before, after)
	}
}

func TestTheSecondReplicaTakesOver(t *testing.T) {
	tm := newTeam(t, "replica", 2, nil)
	if err := tm.AddNamespace(t.Context(), tm.pool, nil); err != nil {
		t.Fatal(err)
	}
	if out, err := tm.Kubectl(t.Context(), "apply", "-k", tm.Root+"/manifests/preflight/namespace", "-n", tm.pool); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	policy := tm.policy(2, "clearAfter: 1s\n  restart: {podFailures: {enabled: true, podSelector: {team: replica}}}")
	leader := tm.start(policy, "-preflight-namespaces", tm.pool)
	tm.report(tm.nodes[0], "True", ecc)
	n, r := tm.becomes(tm.nodes[0], causes.Quarantined)
	address := clustertest.FreeAddress(t)
	tm.start(policy, "-preflight-namespaces", tm.pool, "-metrics-bind-address", address)
	// What the standby would decide about first waits in its queue.
	waiting := regexp.MustCompile(`(?m)^workqueue_depth\{controller="node",.*\} [1-9]`)
	tm.until("the standby watches the nodes", func() error {
		metrics, err := cluster.Scrape(t.Context(), address)
		if err == nil && !waiting.MatchString(metrics) {
			err = errors.New("its queue is empty")
		}
		for _, controller := range []string{"pod-failure", "preflight"} {
			if strings.Contains(metrics, `workqueue_depth{controller="`+controller+`"`) {
				t.Errorf("the standby keeps a queue of %s", controller)
			}
		}
		return err
	})
	leader.Stop(10 * time.Second) // releases the lease
	tm.report(tm.nodes[1], "True", ecc)
	tm.becomes(tm.nodes[1], causes.Quarantined)
	if _, after := tm.becomes(tm.nodes[0], causes.Quarantined); after.String() != r.String() {
		t.Errorf("the new leader changed the record:\n%s\n%s", r, after)
	}
	tm.waitForEvent(n.UID, "NodeQuarantined")
}

func TestJobsOfAQuarantinedNodeStartAgainElsewhere(t *testing.T) {
	tm := newTeam(t, "jobs", 2, nil)
	tm.job()
	var pod corev1.Pod
	running := func() error {
		var pods corev1.PodList
		if err := tm.Client.List(t.Context(), &pods, client.InNamespace(tm.pool)); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.UID != pod.UID {
				pod = p
				return nil
			}
		}
		return fmt.Errorf("%d pods", len(pods.Items))
	}
	tm.until("the job runs", running)
	first := pod
	tm.start(tm.policy(1, "restartJobs: true"), alone)
	tm.report(first.Spec.NodeName, "True", lost)
	tm.until("the job runs again", running)
	if pod.Spec.NodeName == first.Spec.NodeName {
		t.Errorf("the job runs on %s again", pod.Spec.NodeName)
	}
	_, r := tm.becomes(first.Spec.NodeName, causes.Quarantined)
	tm.until("the restart is closed", func() error {
		job := tm.getJob()
		if got := job.Annotations[conditions.AnnotationRestart]; job.Labels[conditions.LabelRestarting] != "" || !strings.Contains(got, r.ID) {
			return fmt.Errorf("the job's record %s does not name quarantine %s", got, r.ID)
		}
		return nil
	})
}

func TestMetricsAndThatHeartbeatsCostNothing(t *testing.T) {
	tm := newTeam(t, "metrics", 3, nil)
	address := clustertest.FreeAddress(t)
	tm.start(tm.policy(1, "clearAfter: 1s"), alone, "-metrics-bind-address", address)
	tm.report(tm.nodes[0], "True", ecc)
	tm.becomes(tm.nodes[0], causes.Quarantined)
	tm.report(tm.nodes[1], "True", lost)
	tm.becomes(tm.nodes[1], causes.Suspect)
	tm.report(tm.nodes[2], "False", "fine")
	want := `pitcrew_breaker_open 0
pitcrew_decision_latency_seconds_count 1
pitcrew_evidence_failed_total 0
pitcrew_mode{mode="enforce"} 1
pitcrew_node_blocked{node="metrics-1",reason="budget",rule="gpu"} 1
pitcrew_node_condition{condition="GPUXidError",repair="",status="False"} 1
pitcrew_node_condition{condition="GPUXidError",repair="Reboot",status="True"} 1
pitcrew_node_condition{condition="GPUXidError",repair="ResetGPU",status="True"} 1
pitcrew_node_problem_timestamp_seconds{condition="GPUXidError",node="metrics-0",repair="ResetGPU",status="True"} T
pitcrew_node_problem_timestamp_seconds{condition="GPUXidError",node="metrics-1",repair="Reboot",status="True"} T
pitcrew_node_quarantine_timestamp_seconds{effect="NoSchedule",node="metrics-0",repair="ResetGPU",rule="gpu"} T
pitcrew_paused 0
pitcrew_policy_valid 1
pitcrew_quarantine_blocked_total{reason="budget",rule="gpu"} 1
pitcrew_quarantine_seconds_count 0
pitcrew_quarantined_nodes{rule="gpu"} 1
pitcrew_quarantines_total{condition="ByHand",repair="Inspect"} 0
pitcrew_quarantines_total{condition="GPUXidError",repair="Reboot"} 0
pitcrew_quarantines_total{condition="GPUXidError",repair="ResetGPU"} 1
pitcrew_skipped_nodes 0
pitcrew_time_to_quarantine_seconds_count 1
pitcrew_watched_nodes 3
`
	// No quarantine has ended: package tally tests what counts those.
	ours := regexp.MustCompile(`(?m)^pitcrew_(.*_bucket|.*_sum|job_|stuck|quarantines_ended_|repairs_relapsed_).*\n`)
	times := regexp.MustCompile(`(?m)(_timestamp_seconds\{.*\}) \S+$`)
	tm.until("the metrics", func() error {
		var got strings.Builder
		for line := range strings.Lines(times.ReplaceAllString(ours.ReplaceAllString(scrape(t, address), ""), "$1 T")) {
			if strings.HasPrefix(line, "pitcrew_") {
				got.WriteString(line)
			}
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
	// A blocked node is decided again after a time. Wait until there is none.
	tm.report(tm.nodes[1], "False", "fine")
	tm.until("no node is suspect", func() error {
		if tm.get(tm.nodes[1]).Annotations[conditions.AnnotationQuarantine] != "" {
			return errStill
		}
		return nil
	})
	before := tm.reconciles(address)
	for range 50 {
		tm.report(tm.nodes[2], "False", "fine")
	}
	// This one is reconciled, after the 50 were seen.
	tm.report(tm.nodes[2], "True", lost)
	tm.becomes(tm.nodes[2], causes.Suspect)
	if n := tm.reconciles(address) - before; n > 10 {
		t.Errorf("50 heartbeats and one fault caused %d reconciles", n)
	}
}

func TestValidate(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./remediator"); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(root, "manifests", "policy.yaml")
	misspelt := filepath.Join(t.TempDir(), "misspelt.yaml")
	if err := os.WriteFile(misspelt, []byte(strings.Replace(read(t, good), "condition: KernelDeadlock", "condition: KernelDeadlok", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte(strings.Replace(read(t, good), "clearAfter: 10m", "clearAfter: soon", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-validate", "-policy", good}, 0, "policy.yaml: ok, "},
		{[]string{"-validate", "-policy", bad}, 1, `clearAfter: Invalid value: "soon"`},
		{[]string{"-validate", "-policy", misspelt}, 0, `"KernelDeadlok" is a condition of no check`},
		{[]string{"-validate", "-policy", "/nowhere"}, 1, "no such file"},
		{[]string{"-validate"}, 1, "usage"},
		{[]string{"-policy", good, "-lease-duration", "1500ms"}, 1, "-lease-duration 1.5s: not a whole number of seconds"},
		{[]string{"-policy", good, "-lease-duration", "2s"}, 1, "-lease-duration 2s: not"},
		{[]string{"-validate", "-policy", good, "more"}, 1, "usage"},
		{[]string{"-bad"}, 2, "remediator: flag provided but not defined: -bad; -h lists the flags\n"},
		{[]string{"-h"}, 0, "  -policy file\n"},
		{[]string{"-version"}, 0, ""},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "remediator"), test.args...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) || code == 2 && string(out) != test.want {
			t.Errorf("remediator %v: exit %d, want %d; %s", test.args, code, test.code, out)
		}
	}
}

// job starts an opted-in job of one rank in a namespace of the pool's name.
func (tm team) job() *batchv1.Job {
	tm.Helper()
	if err := tm.AddNamespace(tm.Context(), tm.pool, nil); err != nil {
		tm.Fatal(err)
	}
	tm.Cleanup(func() {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tm.pool}}
		//nolint:usetesting // the test's own context has ended by now
		if err := tm.Client.Delete(context.Background(), namespace); err != nil {
			tm.Error(err)
		}
	})
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: "train", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				NodeSelector:  map[string]string{cluster.LabelPool: tm.pool},
				Containers:    []corev1.Container{{Name: "main", Image: "none"}},
			}},
		},
	}
	if err := tm.Client.Create(tm.Context(), job); err != nil {
		tm.Fatal(err)
	}
	return job
}

func (tm team) getJob() *batchv1.Job {
	tm.Helper()
	job := &batchv1.Job{}
	if err := tm.Client.Get(tm.Context(), client.ObjectKey{Namespace: tm.pool, Name: "train"}, job); err != nil {
		tm.Fatal(err)
	}
	return job
}

// reconciles is the number of node reconciles of the remediator so far.
func (tm team) reconciles(address string) int {
	tm.Helper()
	total := 0
	for line := range strings.Lines(scrape(tm.T, address)) {
		if strings.HasPrefix(line, `controller_runtime_reconcile_total{controller="node"`) {
			var n int
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n); err != nil {
				tm.Fatal(err)
			}
			total += n
		}
	}
	return total
}

// shows returns an error until the metrics contain a line.
func (tm team) shows(address, line string) error {
	tm.Helper()
	text, err := cluster.Scrape(tm.Context(), address)
	if err == nil && !strings.Contains(text, line+"\n") {
		return errStill
	}
	return err
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	text, err := cluster.Scrape(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
