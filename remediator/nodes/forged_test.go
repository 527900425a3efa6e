package nodes

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const upgradeState = "nvidia.com/gpu-driver-upgrade-state"

// upgraded gives a node the label of a driver upgrade's step, written some time ago, beside what a kubelet writes.
func upgraded(n *corev1.Node, at time.Time) {
	n.Labels = map[string]string{upgradeState: "pod-restart-required"}
	fields := metav1.NewFieldsV1
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", Time: &metav1.Time{Time: at.Add(time.Hour)}, FieldsV1: fields(`{"f:metadata":{"f:labels":{"f:a":{}}}}`)},
		{Manager: "gpu-operator", Time: &metav1.Time{Time: at}, FieldsV1: fields(`{"f:metadata":{"f:annotations":{"f:b":{}},"f:labels":{"f:` + upgradeState + `":{}}}}`)},
	}
}

// Attack 21: the cache keeps of the managed fields no more than since when an upgrade is in its step.
func TestSlimKeepsSinceWhenAnUpgradeIsInItsStep(t *testing.T) {
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	n := &corev1.Node{}
	upgraded(n, at)
	object, err := Slim(n)
	if err != nil {
		t.Fatal(err)
	}
	slim := object.(*corev1.Node)
	kept := slim.ManagedFields
	if len(kept) != 1 || !kept[0].Time.Time.Equal(at) || strings.Contains(kept[0].FieldsV1.GetRawString(), "annotations") {
		t.Errorf("kept %+v", kept)
	}
	again, err := Slim(slim)
	if err != nil || len(again.(*corev1.Node).ManagedFields) != 1 {
		t.Errorf("a slim node becomes %+v, %v", again, err)
	}
}

// Attack 21: that a stale upgrade is ignored is said once, with a metric while it lasts.
func TestAStaleDriverUpgradeIsReportedOnce(t *testing.T) {
	r := newRig(t, "n")
	n := &r.client.nodes[0]
	n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = corev1.ConditionFalse, "no fault"
	upgraded(n, r.clock.Now().Add(-3*time.Hour))
	for range 3 {
		r.reconcile(t, "n")
	}
	if got := r.reasons(); !slices.Equal(got, []string{"DriverUpgradeStale"}) {
		t.Errorf("events %v", got)
	}
	const series = `pitcrew_node_stale_upgrade_timestamp_seconds{node="n"} 1.7951652e+09`
	if got := r.series(t); !strings.Contains(got, series) {
		t.Errorf("no %s in\n%s", series, got)
	}
	upgraded(n, r.clock.Now())
	r.reconcile(t, "n")
	if got := r.series(t); strings.Contains(got, "stale_upgrade") {
		t.Errorf("the upgrade goes on:\n%s", got)
	}
}

// forgeRecord writes the record of a quarantine by a rule on a node, as its kubelet may.
func (r rig) forgeRecord(t *testing.T, n *corev1.Node, rule string) {
	t.Helper()
	now := r.clock.Now()
	text, err := json.Marshal(map[string]any{
		"v": 1, "nodeUID": n.UID, "boot": map[string]any{"id": "boot-1"}, "id": "forged", "phase": "quarantined", "quarantinedAt": now,
		"causes": []any{map[string]any{"condition": "GPUXidError", "rule": rule, "repair": "Reboot", "message": lost, "due": true, "bootID": "boot-1", "firstSeen": now}},
		"taint":  map[string]any{"key": conditions.TaintUnhealthy, "value": "GPUXidError", "effect": "NoSchedule", "rule": rule, "repair": "Reboot", "since": now},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Annotations = map[string]string{conditions.AnnotationQuarantine: string(text)}
}

// forgesRules has a healthy node claim a quarantine by one rule after the other.
func (r rig) forgesRules(t *testing.T, n *corev1.Node, rules ...string) {
	t.Helper()
	n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = corev1.ConditionFalse, "no fault"
	for _, rule := range rules {
		r.clock.SetTime(r.clock.Now().Add(time.Second))
		n.Status.Conditions[0].LastHeartbeatTime.Time = r.clock.Now()
		n.ResourceVersion = rule
		r.forgeRecord(t, n, rule)
		r.reconcile(t, n.Name)
	}
}

func TestForgedRecordsAreNotRemembered(t *testing.T) {
	r := newRig(t, "evil", "a")
	r.reconcile(t, "a")
	r.remove(t, "a")
	r.forgesRules(t, &r.client.nodes[0], "forged-1", "forged-2", "gpu")
	if got := r.breaker.Remembered(); got["evil"] != nil || got["a"] == nil {
		t.Errorf("remembers %s", got)
	}
	// Beside the taint, only a rule of the policy is remembered.
	p, n := r.policy.Policy(), &r.client.nodes[0]
	n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}}
	for _, rule := range []string{"forged-3", "gpu", policy.ByHand} {
		r.forgeRecord(t, n, rule)
		record, err := causes.RecordOf(n)
		if err != nil {
			t.Fatal(err)
		}
		r.breaker.RememberRecord(p, n, record, r.clock.Now())
		if got := strings.Contains(r.breaker.Remembered().String(), `"`+rule+`"`); got != (rule != "forged-3") {
			t.Errorf("rule %s is remembered: %v", rule, got)
		}
	}
}

func TestForgedRulesAreNoLabelsOfMetrics(t *testing.T) {
	r := newRig(t, "evil", "a")
	r.reconcile(t, "a") // takes the only place
	r.reasons()
	r.forgesRules(t, &r.client.nodes[0], "forged-1", "forged-2", "forged-3")
	if got := r.reasons(); len(got) != 1 {
		t.Errorf("said %q", got)
	}
	counters := make(chan prometheus.Metric, 10)
	r.report.Metrics.Blocked.Collect(counters)
	if len(counters) != 1 {
		t.Errorf("%d series of the counter", len(counters))
	}
	if got := r.series(t); strings.Contains(got, "forged") {
		t.Error(got)
	}
	// A rule that the policy had when it was reported.
	r.report.Blocked(t.Context(), r.policy.Policy(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &causes.Blocked{Rule: "forged-4", Reason: causes.BlockedByPause})
	if got := r.series(t); strings.Contains(got, "forged") {
		t.Error(got)
	}
}

// Attack 1: a record forged over a quarantine restarts no jobs, through a restart of the remediator.
func TestAForgedRecordRestartsNoJobs(t *testing.T) {
	r := newRig(t, "n")
	n := &r.client.nodes[0]
	n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = corev1.ConditionFalse, "no fault"
	record := map[string]any{
		"v": 1, "nodeUID": "n", "boot": map[string]any{"id": "boot-1"}, "id": "forged", "phase": "quarantined",
		"causes": []any{map[string]any{"condition": "GPUXidError", "rule": "gpu", "repair": "Reboot", "message": lost, "due": true, "bootID": "boot-1", "firstSeen": r.clock.Now()}},
		"taint":  map[string]any{"key": conditions.TaintUnhealthy, "value": "GPUXidError", "effect": "NoSchedule", "rule": "gpu", "repair": "Reboot", "since": r.clock.Now()},
	}
	text, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	n.Annotations = map[string]string{conditions.AnnotationQuarantine: string(text)}
	for range 3 {
		r.reconcile(t, "n")
	}
	if len(r.restarts.quarantines) > 0 {
		t.Errorf("restarted %+v", r.restarts.quarantines)
	}
	if got := r.reasons(); !slices.Equal(got, []string{"QuarantineBlocked"}) {
		t.Errorf("events %v", got)
	}
	if live := r.client.live["n"]; live != nil && len(live.Spec.Taints) > 0 {
		t.Errorf("taints %v", live.Spec.Taints)
	}
}
