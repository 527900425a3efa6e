package nodes

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestADeliverySaysWhatHappenedAndKeepsItsID(t *testing.T) {
	r := newRig(t, "n")
	r.policy.Policy().Webhooks = []policy.Webhook{{Name: "pager", Events: policy.WebhookEvents}, {Name: "tickets", Events: policy.WebhookEvents}}
	n := &r.client.nodes[0]
	record := func() *quarantine.Record {
		t.Helper()
		record, err := quarantine.RecordOf(n)
		if err != nil {
			t.Fatal(err)
		}
		d := quarantine.Decide(r.policy.Policy(), quarantine.Observation{Node: n, Record: record}, r.clock.Now())
		d.State.Apply(n)
		return d.State.Record
	}
	first := record()
	list, err := deliveries(n, first)
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
		r.clock.SetTime(r.clock.Now().Add(5 * time.Minute))
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
		record()
	}
	again, err := deliveries(n, record())
	if diff := cmp.Diff(list, again); diff != "" || err != nil || list[0].ID == "" {
		t.Error(diff, err)
	}
}
