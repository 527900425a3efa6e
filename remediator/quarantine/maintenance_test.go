package quarantine

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

func taintRemoved(key string) step {
	return changes(func(c *handoff.NodeChanges) {
		c.Taints = slices.DeleteFunc(c.Taints, func(t corev1.Taint) bool { return t.Key == key })
	})
}

func TestAQuarantinedNodeUnderMaintenanceIsRepairing(t *testing.T) {
	upgrading, upgraded := labels(node.LabelUpgradeState, "pod-restart-required"), labels(node.LabelUpgradeState, "upgrade-done")
	swept := taintRemoved(maintenance.Key)
	tests := map[string]struct {
		steps []step
		want  string // label status, then that of the repair
	}{
		"quarantined":                              {[]step{gpu(lost), decide}, "quarantined Reboot"},
		"maintained":                               {[]step{gpu(lost), decide, taints(maintenance), decide}, "repairing Reboot"},
		"for as long as it lasts":                  {[]step{gpu(lost), decide, taints(maintenance), decide, lasts(24 * time.Hour)}, "repairing Reboot"},
		"and then no longer":                       {[]step{gpu(lost), decide, taints(maintenance), decide, swept, decide}, "quarantined Reboot"},
		"in a driver upgrade":                      {[]step{gpu(lost), decide, upgrading, decide}, "repairing Reboot"},
		"and after it":                             {[]step{gpu(lost), decide, upgrading, decide, upgraded, decide}, "quarantined Reboot"},
		"the repair worked":                        {[]step{gpu(ecc), decide, taints(maintenance), decide, swept, gpuFine, decide, lasts(10 * time.Minute)}, "healthy "},
		"a suspect in maintenance stays one":       {[]step{says("DiskFailing", "True", "x"), decide, taints(maintenance), decide}, "suspect Replace"},
		"a healthy node in maintenance has none":   {[]step{gpuFine, taints(maintenance), decide}, " "},
		"a manual quarantine during maintenance":   {[]step{taints(maintenance), ordered}, "repairing Inspect"},
		"a manual release during maintenance":      {[]step{gpu(ecc), decide, taints(maintenance), decide, pardoned}, "suspect ResetGPU"},
		"during a pause the label stays as it was": {[]step{gpu(lost), decide, pauses("x"), taints(maintenance), decide}, "quarantined Reboot"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			o := w.outcome()
			if diff := cmp.Diff(test.want, o.Status+" "+o.Repair); diff != "" {
				t.Error(diff)
			}
		})
	}
}
