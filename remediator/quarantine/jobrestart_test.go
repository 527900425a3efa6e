package quarantine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestJobRestart(t *testing.T) {
	since := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	record, err := causes.ParseRecord(`{"v":1,"nodeUID":"u1","boot":{"id":"b"},"id":"q1","phase":"quarantined","quarantinedAt":"2026-11-20T11:59:00Z",
		"causes":[{"condition":"GPUXidError","rule":"gpu","repair":"Reboot","message":"Reboot gpu 0: Xid 79 lost","firstSeen":"2026-11-20T11:58:00Z","due":true,"bootID":"b"}],
		"taint":{"key":"pitcrew.dev/unhealthy","value":"GPUXidError","effect":"NoSchedule","rule":"gpu","repair":"Reboot","since":"2026-11-20T12:00:00Z"}}`)
	if err != nil {
		t.Fatal(err)
	}
	got := record.JobRestart(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}, policy.Rule{CheckpointGrace: time.Minute}, nil)
	want := restart.Trigger{
		Kind: restart.NodeQuarantined, ID: "q1", Node: "n1", NodeUID: "u1", Reason: "GPUXidError: Reboot gpu 0: Xid 79 lost", Since: since, CheckpointGrace: time.Minute,
		Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
	}
	if diff := cmp.Diff(want, got, cmp.Transformer("taint", func(t corev1.Taint) string { return t.ToString() })); diff != "" {
		t.Error(diff)
	}
}
