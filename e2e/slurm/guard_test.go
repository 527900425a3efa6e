package slurm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Also where the policy has output.soperator and output.maintenance, a stolen token suspects only nodes that are quarantined, claims the
// maintenance only of those with the taint of a repair, and writes either only as the remediator does.
func TestAttack23AStolenTokenSuspectsOnlyQuarantinedNodes(t *testing.T) {
	c := clustertest.Get(t)
	names, err := c.AddNodes(t.Context(), "stolen-suspicion", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := c.DeleteNodes(context.Background(), names...); err != nil {
			t.Error(err)
		}
	})
	if err := c.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	token, err := client.New(cfg, client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	node := func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: names[0]}} }
	suspect := func(conditions string) error {
		body := fmt.Sprintf(`{"status":{"conditions":[%s]}}`, conditions)
		return token.Status().Patch(t.Context(), node(), client.RawPatch(types.StrategicMergePatchType, []byte(body)),
			&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
	}
	mark := func(record string, taint *corev1.Taint) {
		t.Helper()
		taints := []corev1.Taint{}
		if taint != nil {
			taints = append(taints, *taint)
		}
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{conditions.AnnotationQuarantine: record}}, "spec": map[string]any{"taints": taints},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Patch(t.Context(), node(), client.RawPatch(types.MergePatchType, body)); err != nil {
			t.Fatal(err)
		}
	}
	taint := func(value string, effect corev1.TaintEffect) *corev1.Taint {
		return &corev1.Taint{Key: conditions.TaintMaintenance, Value: value, Effect: effect}
	}
	denied := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'pitcrew-remediator-nodes'")
	}
	const (
		suspected = `{"type":"HardwareIssuesSuspected","status":"True","reason":"QuarantinedByPitcrew"}`
		cleared   = `{"type":"HardwareIssuesSuspected","status":"False","reason":"ReleasedByPitcrew"}`
		unknown   = `{"type":"HardwareIssuesSuspected","status":"Unknown","reason":"QuarantinedByPitcrew"}`
		others    = `{"type":"HardwareIssuesSuspected","status":"True","reason":"GPUHealthCheckFailed (Soperator)"}`
		repaired  = `{"type":"MaintenanceInProgress","status":"True","reason":"RepairByPitcrew"}`
		head      = `{"v":1,"nodeUID":"u","boot":{"id":"b","seen":"2026-01-01T00:00:00Z"},"id":"q","phase":`
	)
	clustertest.Until(t, patience, "the policies are in force", func() error {
		if err := suspect(others); !denied(err) {
			return fmt.Errorf("the reason of another writer: %w", err)
		}
		return nil
	})
	for _, test := range []struct {
		what, record string
		taint        *corev1.Taint
		conditions   string
		allowed      bool
	}{
		{"a suspicion about a quarantined node", head + `"quarantined","causes":[]}`, nil, suspected, true},
		{"the end of one", head + `"released","causes":[]}`, nil, cleared, true},
		{"a suspicion about a node without a record", "", nil, suspected, false},
		{"one about a node that was released", head + `"released","causes":[],"last":[{"id":"p","phase":"quarantined","causes":[]}]}`, nil, suspected, false},
		{"one that Pitcrew never writes", head + `"quarantined","causes":[]}`, nil, unknown, false},
		{"one with the reason of another writer", head + `"quarantined","causes":[]}`, nil, others, false},
		{"two", head + `"quarantined","causes":[]}`, nil, suspected + "," + others, false},
		{"the maintenance of a node under repair", "", taint("repair", corev1.TaintEffectNoSchedule), repaired, true},
		{"that of a node without a taint", "", nil, repaired, false},
		{"that of a validation", "", taint("validation", corev1.TaintEffectNoSchedule), repaired, false},
		{"that of a node which gets pods", "", taint("repair", corev1.TaintEffectPreferNoSchedule), repaired, false},
		{"one with another reason", "", taint("repair", corev1.TaintEffectNoSchedule), strings.Replace(repaired, "RepairByPitcrew", "Window", 1), false},
		{"one that Pitcrew never writes", "", taint("repair", corev1.TaintEffectNoSchedule), strings.Replace(repaired, "True", "False", 1), false},
		{"one that is planned", "", taint("repair", corev1.TaintEffectNoSchedule), strings.Replace(repaired, "InProgress", "Planned", 1), false},
	} {
		mark(test.record, test.taint)
		if err := suspect(test.conditions); test.allowed && err != nil || !test.allowed && !denied(err) {
			t.Errorf("%s: allowed %v, got %v", test.what, test.allowed, err)
		}
	}
}
