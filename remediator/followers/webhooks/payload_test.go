package webhooks

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

func TestADeliverySaysWhatHappenedAndKeepsItsID(t *testing.T) {
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
`))
	if err != nil {
		t.Fatal(err)
	}
	p.Webhooks = []policy.Webhook{{Name: "pager", Events: policy.WebhookEvents}, {Name: "tickets", Events: policy.WebhookEvents}}
	const ecc = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}, Status: corev1.NodeStatus{
		NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
		Conditions: []corev1.NodeCondition{{
			Type: "GPUXidError", Status: corev1.ConditionTrue, Message: ecc, LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}},
	}}
	record := func() *causes.Record {
		t.Helper()
		record, err := causes.RecordOf(n)
		if err != nil {
			t.Fatal(err)
		}
		d := quarantine.Decide(p, quarantine.Observation{Node: n, Record: record}, now)
		d.State.Apply(n)
		return d.State.Record
	}
	first := record()
	list, err := DeliveriesOf(n, first)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d deliveries, %v", len(list), err)
	}
	var got map[string]any
	if err := json.Unmarshal(list[0].Body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"type": "NodeQuarantined", "timestamp": "2026-11-20T12:00:00Z", "data": map[string]any{
		"node": "n", "nodeUID": "n", "quarantine": first.ID, "condition": "GPUXidError", "rule": "gpu", "repair": "ResetGPU",
		"message": ecc, "taint": "pitcrew.dev/unhealthy=GPUXidError:NoSchedule",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(list[0].ID, ".") {
		t.Errorf("the signature parts id %s from the time with a full stop", list[0].ID)
	}
	for range 12 { // an hour with heartbeats
		now = now.Add(5 * time.Minute)
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(now)
		record()
	}
	again, err := DeliveriesOf(n, record())
	if diff := cmp.Diff(list, again); diff != "" || err != nil || list[0].ID == "" {
		t.Error(diff, err)
	}
}

// A receiver shows the message to people. It is that of a condition, which may be of another writer.
func TestADeliveryHasOneVisibleLine(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
	notice := handoff.Notice{ID: "id", Event: causes.NodeQuarantined, To: []string{"pager"}}
	notice.Message = "disk \u202egone\u200b\x1b[2J\nMARGIN"
	list, err := DeliveriesOf(n, &causes.Record{NodeUID: "n", Notices: []handoff.Notice{notice}})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d deliveries, %v", len(list), err)
	}
	var got payload
	if err := json.Unmarshal(list[0].Body, &got); err != nil || got.Data.Message != "disk \uFFFDgone\uFFFD\uFFFD[2J MARGIN" {
		t.Errorf("%q, %v", got.Data.Message, err)
	}
}
