package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// leave leaves on a node what a remediator and its detectors wrote at a time: a record in a phase, and a condition with a fault.
func (tm team) leave(name string, phase causes.Phase, at time.Time) {
	tm.Helper()
	n := tm.get(name)
	boot := n.Status.NodeInfo.BootID
	r := causes.Record{V: 1, NodeUID: n.UID, Boot: causes.Boot{ID: boot, Seen: at}, Quarantine: causes.Quarantine{
		ID: "q-" + name, Phase: phase,
		Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: "gpu", Repair: conditions.Reboot, Message: lost, FirstSeen: at, BootID: boot}},
	}}
	if phase == causes.Quarantined {
		r.QuarantinedAt, r.Causes[0].Due = at, true
		r.Taint = &causes.Taint{
			Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: conditions.Reboot, Since: at,
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{conditions.AnnotationQuarantine: r.String()}}})
	if err != nil {
		tm.Fatal(err)
	}
	tm.patch(name, string(patch))
	stamp := at.UTC().Format(time.RFC3339)
	tm.patchStatus(name, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[3]q}]}}`,
		conditions.GPUXidError, lost, stamp))
}

// NVSentinel acted on old records at a cold start (its issue 1280). The visits and restarts that a record may have are tested in their packages.
func TestRecordsOfAYearAgoAreActedOnByNone(t *testing.T) {
	tm := newTeam(t, "year", 4, nil)
	job := tm.job()
	var pod corev1.Pod
	tm.until("the job runs", func() error {
		var pods corev1.PodList
		if err := tm.Client.List(t.Context(), &pods, client.InNamespace(tm.pool)); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		pod = pods.Items[0]
		return nil
	})
	tainted := pod.Spec.NodeName
	rest := slices.DeleteFunc(slices.Clone(tm.nodes), func(name string) bool { return name == tainted })
	untainted, suspect, fresh := rest[0], rest[1], rest[2]
	old := time.Now().AddDate(-1, 0, 0).Truncate(time.Second)
	tm.leave(tainted, causes.Quarantined, old)
	tm.patch(tainted, `{"spec":{"taints":[{"key":"pitcrew.dev/unhealthy","value":"GPUXidError","effect":"NoSchedule"}]}}`)
	tm.leave(untainted, causes.Quarantined, old)
	tm.leave(suspect, causes.Suspect, old)

	tm.start(tm.policy(4, "restartJobs: true"), alone)
	tm.waitForEvent(tm.get(tainted).UID, "no heartbeat of GPUXidError for ")
	tm.waitForEvent(tm.get(untainted).UID, "this remediator has never seen taint "+ourTaint+" on it")
	tm.waitForEvent(tm.get(suspect).UID, "no heartbeat of GPUXidError for ")
	tm.report(fresh, "True", lost) // it acts on what is reported now
	tm.becomes(fresh, causes.Quarantined)

	for name, want := range map[string]string{tainted: ourTaint, untainted: "", suspect: ""} {
		n := tm.get(name)
		if got := taints(n); got != want {
			t.Errorf("node %s: taints %q, want %q; %s", name, got, want, n.Annotations[conditions.AnnotationQuarantine])
		}
		for _, event := range tm.events(n.UID) {
			for _, act := range []string{"NodeQuarantined", "NodeReleased", "TaintRestored", "JobRestart"} {
				if strings.HasPrefix(event, act) {
					t.Errorf("node %s: %s", name, event)
				}
			}
		}
	}
	now := tm.getJob()
	if err := tm.Client.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the rank is gone: %v", err)
	}
	if now.Generation != job.Generation || now.Annotations[conditions.AnnotationRestart] != "" {
		t.Errorf("the job was changed: %+v", now.ObjectMeta)
	}
}
