package manifests_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Whatever class a tenant's log line is made to name, nothing is done to the node that its pod runs on.
func TestALineOfAPodsLogOnlyAlerts(t *testing.T) {
	file, err := policy.Open("policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"Inspect", "ResetGPU", "Reboot", "Replace"} {
		condition := corev1.NodeCondition{Type: "WorkloadGPUError", Status: "True", Message: class + " gpu 0000:4e:00: Xid 79 in the log of pod team-a/x"}
		if r, _, ok := file.Policy().Match(nil, condition); !ok || !r.AlertOnly || r.RestartJobs || r.Taint != (corev1.Taint{}) {
			t.Errorf("%s: rule %q (found %t) does more than to alert: %+v", class, r.Name, ok, r)
		}
	}
}
