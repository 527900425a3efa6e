package quarantine

import (
	"maps"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

const (
	awsStatus   = "gpu-healthcheck.aws-samples.io/status"
	awsSeverity = "gpu-healthcheck.aws-samples.io/severity"
)

func showsAWS(w *world) { w.policy.Output.AWS = true }

func hidesAWS(w *world) { w.policy.Output.AWS = false }

func TestTheMarksOfTheAWSSuite(t *testing.T) {
	theirs := `{"timestamp":"2026-01-01T00:00:00Z","hostname":"n","instance_type":"p5.48xlarge","status":"pass","severity":"PASS","checks":[]}`
	result := func(at, status, severity, checks string) string {
		return `{"timestamp":"2026-11-20T` + at + `Z","hostname":"n","instance_type":"","suite":"pitcrew","status":"` + status + `","severity":"` + severity + `","checks":[` + checks + `]}`
	}
	xid := func(status, severity string) string {
		return `{"check":"GPUXidError","status":"` + status + `","severity":"` + severity + `"}`
	}
	tests := map[string]struct {
		steps                     []step
		status, severity, results string
	}{
		"not wanted":              {[]step{gpuFine, decide}, "", "", ""},
		"nothing is known":        {[]step{showsAWS, decide}, "", "", ""},
		"healthy":                 {[]step{showsAWS, gpuFine, decide}, "pass", "PASS", result("12:00:00", "pass", "", xid("PASS", ""))},
		"still healthy":           {[]step{showsAWS, gpuFine, decide, lasts(time.Hour)}, "pass", "PASS", result("12:00:00", "pass", "", xid("PASS", ""))},
		"worth an alert":          {[]step{showsAWS, gpu(inspect), decide}, "warn", "MONITOR", result("12:00:00", "warn", "MONITOR", xid("WARN", "MONITOR"))},
		"quarantined":             {[]step{showsAWS, gpuFine, decide, passes(time.Second), gpu(lost), decide}, "fail", "REBOOT", result("12:00:01", "fail", "REBOOT", xid("FAIL", "REBOOT"))},
		"to be reset":             {[]step{showsAWS, gpu(ecc), decide}, "fail", "RESET", result("12:00:00", "fail", "RESET", xid("FAIL", "RESET"))},
		"to be replaced":          {[]step{showsAWS, gpu(replace), decide}, "fail", "ISOLATE", result("12:00:00", "fail", "ISOLATE", xid("FAIL", "ISOLATE"))},
		"the budget is used up":   {[]step{others(1), showsAWS, gpu(ecc), decide}, "fail", "RESET", result("12:00:00", "fail", "RESET", xid("FAIL", "RESET"))},
		"healthy, not released":   {[]step{showsAWS, gpu(ecc), decide, gpuFine, decide}, "fail", "RESET", result("12:00:00", "fail", "RESET", xid("PASS", ""))},
		"released":                {[]step{showsAWS, gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, "pass", "PASS", result("12:10:00", "pass", "", xid("PASS", ""))},
		"nobody checks":           {[]step{showsAWS, gpuFine, decide, starves(12 * time.Minute)}, "agent-stopped", "", result("12:11:01", "agent-stopped", "", xid("SKIP", ""))},
		"two, the worse decides":  {[]step{showsAWS, gpu(inspect), says("AcceleratorReady", "False", "x"), decide}, "fail", "ISOLATE", result("12:00:00", "fail", "ISOLATE", `{"check":"AcceleratorReady","status":"FAIL","severity":"ISOLATE"},`+xid("WARN", "MONITOR"))},
		"in maintenance":          {[]step{showsAWS, gpu(ecc), decide, taints(maintenance), gpuFine, decide}, "fail", "RESET", result("12:00:00", "fail", "RESET", xid("FAIL", "RESET"))},
		"no longer wanted":        {[]step{showsAWS, gpu(ecc), decide, hidesAWS, decide}, "", "", ""},
		"uninstalled":             {[]step{showsAWS, gpu(ecc), decide, func(w *world) { w.node = Strip(w.node) }}, "", "", ""},
		"theirs, wanted or not":   {[]step{labels(awsStatus, "pass"), annotates(handoff.AWSResults, theirs), decide, showsAWS, gpu(ecc), decide, hidesAWS, decide}, "pass", "", theirs},
		"theirs are not stripped": {[]step{labels(awsStatus, "pass"), annotates(handoff.AWSResults, theirs), func(w *world) { w.node = Strip(w.node) }}, "pass", "", theirs},
		"somebody else's label":   {[]step{showsAWS, gpuFine, decide, labels(awsStatus, "fail"), decide}, "pass", "PASS", result("12:00:00", "pass", "", xid("PASS", ""))},
		"the control plane":       {[]step{labels("node-role.kubernetes.io/control-plane", "x"), showsAWS, gpuFine, decide}, "", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := map[string]string{"status": w.node.Labels[awsStatus], "severity": w.node.Labels[awsSeverity], "results": w.node.Annotations[handoff.AWSResults]}
			want := map[string]string{"status": test.status, "severity": test.severity, "results": test.results}
			if !maps.Equal(got, want) {
				t.Errorf("got  %v\nwant %v\nrecord %s", got, want, w.node.Annotations[conditions.AnnotationQuarantine])
			}
		})
	}
}
