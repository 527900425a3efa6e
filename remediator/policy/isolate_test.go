package policy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func parseRule(rule string) (*Policy, error) {
	return Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu: {` + rule + `}
`))
}

func TestIsolate(t *testing.T) {
	const xid = "match: {condition: GPUXidError, repair: [ResetGPU]}"
	p, err := parseRule(xid + ", isolate: device")
	if err != nil || !p.Rules[0].Isolate || p.Rules[0].MaxDevices != 2 {
		t.Errorf("%v, %+v", err, p)
	}
	if p, err := parseRule(xid + ", isolate: node"); err != nil || p.Rules[0].Isolate {
		t.Errorf("%v, %+v", err, p)
	}
	if p, err := parseRule(xid + ", isolate: device, maxDevices: 4"); err != nil || p.Rules[0].MaxDevices != 4 {
		t.Errorf("%v, %+v", err, p)
	}
	for rule, want := range map[string]string{
		xid + ", isolate: gpu":                                                             "supported values",
		xid + ", isolate: device, maxDevices: 0":                                           "maxDevices",
		xid + ", maxDevices: 3":                                                            "has no effect without isolate: device",
		xid + ", isolate: device, alertOnly: true":                                         "has no effect with alertOnly",
		xid + ", isolate: device, taint: {effect: PreferNoSchedule}":                       "PreferNoSchedule",
		xid + ", isolate: device, restartJobs: true, checkpointGrace: 5m":                  "checkpointGrace",
		xid + ", isolate: device, validate: true":                                          "needs the whole node",
		"match: {condition: GPUXidError, repair: [RestartApp, ResetGPU]}, isolate: device": "must be node with RestartApp in match.repair",
		"match: {condition: GPUXidError, repair: [Inspect, Monitor]}, isolate: device":     "must be node with Monitor in match.repair",
		"match: {condition: KernelDeadlock, repair: [Reboot]}, isolate: device":            "must be node",
		"match: {condition: Ready, status: \"False\", repair: [Inspect]}, isolate: device": "must be node",
	} {
		if _, err := parseRule(rule); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rule, err, want)
		}
	}
}

// A rule without isolate: device acts by the class alone.
func TestIsolateOnlyReportsErrorsOfApplications(t *testing.T) {
	const recurs, hardware = "Inspect gpu 0000:1b:00: Xid 31 MMU fault, recurring with several applications", "Inspect gpu 0000:1b:00: Xid 62 x"
	for _, c := range []struct {
		rule, message string
		alertOnly     bool
	}{
		{"isolate: device", recurs, true},
		{"isolate: device", hardware, false},
		{"isolate: node", recurs, false},
		{"alertOnly: true", hardware, true},
	} {
		p, err := parseRule("match: {condition: GPUXidError, repair: [Inspect]}, " + c.rule)
		if err != nil {
			t.Fatal(err)
		}
		rule, class, ok := p.Match(nil, corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: c.message})
		if !ok || class != conditions.Inspect || rule.AlertOnly != c.alertOnly || p.Rules[0].AlertOnly != (c.rule == "alertOnly: true") {
			t.Errorf("%s, %s: %v, %v, %+v", c.rule, c.message, ok, class, rule)
		}
	}
}
