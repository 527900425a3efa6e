package attacks

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

const (
	unknown   = "Inspect gpu 0000:1b:00: Xid 999 unknown"
	namespace = "pitcrew" // of the remediator
)

// patchNode merges a patch into a node.
func (s *scene) patchNode(by client.Client, node, patch string) error {
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	return by.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// patchStatus merges a patch into the status of a node.
func (s *scene) patchStatus(by client.Client, node, patch string) {
	s.Helper()
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := by.Status().Patch(s.Context(), target, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		s.Fatal(err)
	}
}

// forge writes a text as the record of a node: refused for its kubelet, then by an admin.
func (s *scene) forge(node, text string) {
	s.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, conditions.AnnotationQuarantine, text)
	s.denied(s.patchNode(s.kubelet(node), node, patch), "pitcrew-node-records", "a kubelet forges its record")
	if err := s.patchNode(s.admin, node, patch); err != nil {
		s.Fatal(err)
	}
}

// changeRecord changes the text of a node's record as an admin.
func (s *scene) changeRecord(node string, change func(string) string) {
	s.Helper()
	text := s.get(node).Annotations[conditions.AnnotationQuarantine]
	if changed := change(text); changed == text {
		s.Fatalf("record %s is not changed", text)
	} else {
		s.forge(node, changed)
	}
}

// said waits for an Event on a node whose reason and note contain a text.
func (s *scene) said(node, text string) {
	s.Helper()
	uid := s.get(node).UID
	s.until(fmt.Sprintf("an Event %q on node %s", text, node), func() error {
		var events eventsv1.EventList
		if err := s.admin.List(s.Context(), &events); err != nil {
			return err
		}
		var all []string
		for _, e := range events.Items {
			if e.Regarding.UID != uid {
				continue
			}
			line := e.Reason + ": " + e.Note
			if strings.Contains(line, text) {
				return nil
			}
			all = append(all, line)
		}
		return fmt.Errorf("events %q", all)
	})
}

// jobOnNode starts an opted-in job of one rank on the scene's nodes, and returns it and its node.
func (s *scene) jobOnNode() (*batchv1.Job, string) {
	s.Helper()
	name := s.pool + "-jobs"
	if err := s.cluster.AddNamespace(s.Context(), name, nil); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			s.Error(err)
		}
	})
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "train", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				NodeSelector:  map[string]string{cluster.LabelPool: s.pool},
				Tolerations:   []corev1.Toleration{{Key: "example.com/theirs", Operator: corev1.TolerationOpExists}},
				Containers:    []corev1.Container{{Name: "main", Image: "none"}},
			}},
		},
	}
	if err := s.admin.Create(s.Context(), job); err != nil {
		s.Fatal(err)
	}
	node := ""
	s.until("the job runs", func() error {
		var pods corev1.PodList
		if err := s.admin.List(s.Context(), &pods, client.InNamespace(name)); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				node = p.Spec.NodeName
				return nil
			}
		}
		return fmt.Errorf("%d pods, none runs", len(pods.Items))
	})
	return job, node
}

// hasRestartRecord reports whether a restart of the job was begun.
func (s *scene) hasRestartRecord(job *batchv1.Job) bool {
	s.Helper()
	if err := s.admin.Get(s.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		s.Fatal(err)
	}
	return job.Annotations[conditions.AnnotationRestart] != ""
}

// pager is a receiver of webhooks, and the part of a policy that names it.
func (s *scene) pager() (count *atomic.Int64, spec string) {
	s.Helper()
	count = &atomic.Int64{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { count.Add(1) }))
	s.Cleanup(server.Close)
	dir := s.TempDir()
	ca, secret := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "secret")
	for path, text := range map[string][]byte{
		ca:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		secret: []byte("0123456789abcdef0123456789abcdef"),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	return count, fmt.Sprintf("\n  webhooks:\n    pager: {url: %q, caFile: %q, secretFile: %q}\n", server.URL, ca, secret)
}

func TestAttack01AForgedRecordIsOnlyAClaim(t *testing.T) {
	const tenant = "node-restriction.kubernetes.io/tenant"
	theirs := corev1.Taint{Key: "example.com/theirs", Value: "1", Effect: corev1.TaintEffectNoExecute}
	s := newScene(t, "forged", 2, func(n *corev1.Node) {
		n.Labels[tenant] = "a"
		n.Spec.Taints = []corev1.Taint{theirs}
	})
	deliveries, webhooks := s.pager()
	job, node := s.jobOnNode()
	s.remediator(s.policy(`
  budget: {maxNodes: 1}` + webhooks + `
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}, clearAfter: 1s, restartJobs: true}
`))
	s.report(node, corev1.ConditionFalse, "no fault")
	n := s.get(node)
	now := time.Now().UTC()
	record := &causes.Record{
		V: 1, NodeUID: n.UID, Boot: causes.Boot{ID: n.Status.NodeInfo.BootID},
		Quarantine: causes.Quarantine{
			ID: "forged", Phase: causes.Quarantined, QuarantinedAt: now,
			Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "xid", Repair: conditions.Reboot, Message: lost, FirstSeen: now, Due: true, BootID: n.Status.NodeInfo.BootID}},
			Taint:  &causes.Taint{Key: "node.kubernetes.io/out-of-service", Effect: corev1.TaintEffectNoExecute, Rule: "xid", Repair: conditions.Reboot, Since: now},
			HandOff: &handoff.Added{
				Labels: map[string]string{tenant: "a"},
				Taints: []corev1.Taint{theirs},
			},
		},
	}
	notice := func(i int) handoff.Notice {
		return handoff.Notice{ID: fmt.Sprint("forged-", i), Event: causes.NodeReleased, At: now, To: []string{"pager"}}
	}
	untouched := func(when string) {
		t.Helper()
		n := s.get(node)
		if n.Labels[tenant] != "a" {
			t.Errorf("%s: labels %v", when, n.Labels)
		}
		found := false
		for _, taint := range n.Spec.Taints {
			found = found || taint.MatchTaint(&theirs)
			if taint.Key == "node.kubernetes.io/out-of-service" {
				t.Errorf("%s: taints %v", when, n.Spec.Taints)
			}
		}
		if !found {
			t.Errorf("%s: taints %v", when, n.Spec.Taints)
		}
	}

	t.Log("a quarantine that was never decided, of a taint that no rule sets")
	s.forge(node, record.String())
	s.said(node, "no known policy sets taint node.kubernetes.io/out-of-service:NoExecute")
	untouched("out of service")
	if s.hasRestartRecord(job) {
		t.Error("a forged record restarts a job")
	}

	t.Log("the same with the taint of a rule")
	record.ID, record.Taint.Key, record.Taint.Value, record.Taint.Effect = "forged2", conditions.TaintUnhealthy, "GPUXidError", corev1.TaintEffectNoSchedule
	for i := range 60 {
		record.Notices = append(record.Notices, notice(i))
	}
	for round := range 20 {
		for i := range record.Notices {
			record.Notices[i].ID = fmt.Sprint("forged-", round, "-", i)
		}
		s.forge(node, record.String())
		s.until("the remediator has dropped forged notices", func() error {
			r, err := causes.RecordOf(s.get(node))
			if err != nil || r == nil || len(r.Notices) > handoff.MaxNotices {
				return fmt.Errorf("record %s, %w", r, err)
			}
			return nil
		})
	}
	untouched("a known taint")
	if s.hasRestartRecord(job) {
		t.Error("a forged record restarts a job")
	}

	t.Log("100 and 1000 notices")
	for n, want := range map[int]string{100: "notices has 160 entries", 1000: "too large to judge"} {
		large := record.Clone()
		for i := range n {
			large.Notices = append(large.Notices, notice(i))
		}
		s.forge(node, large.String())
		s.said(node, want)
	}

	t.Log("a release that takes what the record claims along")
	record.Notices, record.Causes[0].Repair = nil, conditions.ResetGPU
	s.forge(node, record.String())
	s.report(node, corev1.ConditionFalse, "no fault")
	s.becomes(node, causes.Released)
	s.said(node, "it is left as it is: label "+tenant)
	untouched("released")

	t.Log("a real fault is dealt with")
	s.report(node, corev1.ConditionTrue, lost)
	s.becomes(node, causes.Quarantined)
	s.until("the job is restarted", func() error {
		if !s.hasRestartRecord(job) {
			return errors.New("it is not")
		}
		return nil
	})
	untouched("quarantined")
	s.until("the pager is called", func() error {
		if deliveries.Load() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	if got := deliveries.Load(); got > handoff.MaxNotices+4 {
		t.Errorf("%d deliveries", got)
	}
}

// clearAfter is long enough for a test to tell a release in time from one that is too early.
const clearAfter = 10 * time.Second

func TestAttack05AFaultDuringAPauseRestartsTheClock(t *testing.T) {
	s := newScene(t, "early", 1, nil)
	policy := s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, clearAfter: 1h}
`)
	s.remediator(policy)
	node := s.nodes[0]
	s.report(node, corev1.ConditionTrue, ecc)
	s.becomes(node, causes.Quarantined)
	pause := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: conditions.PauseConfigMap}, Data: map[string]string{"reason": "attack 5"}}
	s.report(node, corev1.ConditionFalse, "no fault")
	s.until("the clock of the release runs", func() error {
		if _, r := s.becomes(node, causes.Quarantined); r.Causes[0].HealthySince.IsZero() {
			return errors.New("it does not")
		}
		return nil
	})
	if err := s.admin.Create(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), pause); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	s.change(policy, "clearAfter: 1h", "clearAfter: "+clearAfter.String()) // the node is not released before the pause, however late that comes
	s.said(node, "paused (attack 5), would be NodeReleased")
	s.report(node, corev1.ConditionTrue, ecc)
	s.report(node, corev1.ConditionFalse, "no fault")
	again := s.get(node).Status.Conditions
	if err := s.admin.Delete(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	_, r := s.becomes(node, causes.Released)
	for _, c := range again {
		if c.Type == "GPUXidError" && r.ReleasedAt.Before(c.LastTransitionTime.Add(clearAfter)) {
			t.Errorf("released at %s, the fault went at %s", r.ReleasedAt, c.LastTransitionTime)
		}
	}
}

func TestAttack10AClockThatWasAheadMakesNoNodeDeaf(t *testing.T) {
	s := newScene(t, "ahead", 1, nil)
	state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: conditions.BreakerConfigMap}}
	if err := s.admin.Delete(t.Context(), state); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err := s.cluster.AddNamespace(t.Context(), namespace, nil); err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	state.Data = map[string]string{limits.BreakerKey: `{"openedAt":"2100-01-01T00:00:00Z"}`}
	if err := s.admin.Create(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), state); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  breaker: {maxNodes: 5, window: 10s, coolDown: 1s, pace: 1s}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, clearAfter: 1s}
`))
	node := s.nodes[0]
	s.report(node, corev1.ConditionTrue, ecc)
	s.becomes(node, causes.Quarantined) // although the breaker was opened in 2100
	s.changeRecord(node, func(text string) string {
		var record map[string]any
		if err := json.Unmarshal([]byte(text), &record); err != nil {
			t.Fatal(err)
		}
		record["boot"].(map[string]any)["seen"] = "2100-01-01T00:00:00Z"
		changed, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		return string(changed)
	})
	s.until("the time is clamped", func() error {
		r, err := causes.RecordOf(s.get(node))
		if err != nil || r.Boot.Seen.Year() == 2100 {
			return fmt.Errorf("%s, %w", r, err)
		}
		return nil
	})
	s.report(node, corev1.ConditionFalse, "no fault")
	s.becomes(node, causes.Released)
}

func TestAttack12AHeartbeatFromTheFutureIsNotBelieved(t *testing.T) {
	s := newScene(t, "future", 2, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 2}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}}
`))
	attacker, honest := s.nodes[0], s.nodes[1]
	ahead := metav1.NewTime(time.Now().Add(time.Hour)).Format(time.RFC3339)
	s.patchStatus(s.kubelet(attacker), attacker, fmt.Sprintf(
		`{"status":{"conditions":[{"type":"GPUXidError","status":"True","reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`, lost, ahead, ahead))
	s.said(attacker, "in the future, so nothing is decided about the node")
	s.report(honest, corev1.ConditionTrue, lost)
	s.becomes(honest, causes.Quarantined)
	if n := s.get(attacker); n.Annotations[conditions.AnnotationQuarantine] != "" || len(n.Spec.Taints) > 0 {
		t.Errorf("annotations %v, taints %v", n.Annotations, n.Spec.Taints)
	}
}

func TestAttack13ARecordThatCannotBeReadBlocksNoOtherNode(t *testing.T) {
	s := newScene(t, "unread", 2, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, clearAfter: 1s}
`))
	unreadable, node := s.nodes[0], s.nodes[1]
	s.forge(unreadable, `{"v":2,"phase":"quarantined"}`)
	s.report(unreadable, corev1.ConditionTrue, ecc)
	s.said(unreadable, "cannot be read, so nothing is done about the node")
	s.report(node, corev1.ConditionTrue, ecc)
	s.becomes(node, causes.Quarantined)
	if taints := s.get(unreadable).Spec.Taints; len(taints) > 0 {
		t.Errorf("taints %v", taints)
	}
	// The record of a next version is acted on.
	s.changeRecord(node, func(text string) string {
		return strings.NewReplacer(`{"v":1`, `{"v":1,"next":[{"a":1}]`, `"causes":[{`, `"causes":[{"next":{},`, `"taint":{`, `"taint":{"next":1,`).Replace(text)
	})
	s.report(node, corev1.ConditionFalse, "no fault")
	if n, _ := s.becomes(node, causes.Released); len(n.Spec.Taints) > 0 {
		t.Errorf("taints %v", n.Spec.Taints)
	}
}

func TestAttack19WhatIsOnlyWorthAnAlertKeepsNoNodeOutOfService(t *testing.T) {
	s := newScene(t, "alertonly", 1, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, clearAfter: 1s}
    xid-inspect: {match: {condition: GPUXidError, repair: [Inspect], POOL}, alertOnly: true}
`))
	node := s.nodes[0]
	s.report(node, corev1.ConditionTrue, lost)
	s.becomes(node, causes.Quarantined)
	// The fault was reported well before the boot: heartbeats have a resolution of a second.
	before := metav1.NewTime(time.Now().Add(-time.Minute)).Format(time.RFC3339)
	s.patchStatus(s.admin, node, fmt.Sprintf(`{"status":{"conditions":[{"type":"GPUXidError","lastHeartbeatTime":%q}]}}`, before))
	s.patchStatus(s.admin, node, `{"status":{"nodeInfo":{"bootID":"another boot"}}}`)
	s.until("the new boot is seen", func() error {
		if _, r := s.becomes(node, causes.Quarantined); r.Boot.ID != "another boot" {
			return errors.New("it is not")
		}
		return nil
	})
	s.report(node, corev1.ConditionTrue, unknown)
	s.becomes(node, causes.Released)
	s.said(node, "what remains is only worth an alert (rule xid-inspect: "+unknown+")")
}

func TestAttack20AWorseFaultCountsAfterTheTaintWasRemovedTwice(t *testing.T) {
	s := newScene(t, "removed", 1, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}}
`))
	node := s.nodes[0]
	s.report(node, corev1.ConditionTrue, ecc)
	s.becomes(node, causes.Quarantined)
	remove := func() {
		if err := s.patchNode(s.admin, node, `{"spec":{"taints":null}}`); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	s.until("the taint is put back", func() error {
		if n, r := s.becomes(node, causes.Quarantined); !r.Taint.Restored || len(n.Spec.Taints) == 0 {
			return fmt.Errorf("record %s", r)
		}
		return nil
	})
	remove()
	s.becomes(node, causes.Released)
	s.report(node, corev1.ConditionTrue, lost)
	n, r := s.becomes(node, causes.Quarantined)
	if len(n.Spec.Taints) != 1 || r.Taint.Repair != conditions.Reboot {
		t.Errorf("taints %v, record %s", n.Spec.Taints, r)
	}
}

func TestAttack21AStaleDriverUpgradeSilencesNoNode(t *testing.T) {
	const label = "nvidia.com/gpu-driver-upgrade-state"
	s := newScene(t, "upgrade", 2, func(n *corev1.Node) { n.Labels[label] = "pod-restart-required" })
	stale, fresh := s.nodes[0], s.nodes[1]
	s.until("the label of one node is three hours old", func() error {
		n := s.get(stale)
		for i, f := range n.ManagedFields {
			if f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), label) {
				n.ManagedFields[i].Time = ptr.To(metav1.NewTime(time.Now().Add(-3 * time.Hour)))
			}
		}
		// The API server keeps such a time only in an update that changes something else, by another manager.
		n.Labels["example.com/backdated"] = fmt.Sprint(time.Now().UnixNano())
		if err := s.admin.Update(s.Context(), n, client.FieldOwner("backdate")); err != nil {
			return err
		}
		if at, known := node.UpgradeSince(s.get(stale)); !known || time.Since(at) < 2*time.Hour {
			return fmt.Errorf("since %s", at)
		}
		return nil
	})
	s.remediator(s.policy(`
  budget: {maxNodes: 2}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}}
`))
	s.report(fresh, corev1.ConditionTrue, lost)
	s.report(stale, corev1.ConditionTrue, lost)
	s.becomes(stale, causes.Quarantined)
	s.said(stale, "DriverUpgradeStale: label "+label+"=pod-restart-required has not changed for 3h")
	if n := s.get(fresh); n.Annotations[conditions.AnnotationQuarantine] != "" {
		t.Errorf("a node in an upgrade has record %s", n.Annotations[conditions.AnnotationQuarantine])
	}
}
