package policy

import (
	"strings"
	"testing"
)

func TestIsolate(t *testing.T) {
	parse := func(rule string) (*Policy, error) {
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
	const xid = "match: {condition: GPUXidError, repair: [ResetGPU]}"
	p, err := parse(xid + ", isolate: device")
	if err != nil || !p.Rules[0].Isolate || p.Rules[0].MaxDevices != 2 {
		t.Errorf("%v, %+v", err, p)
	}
	if p, err := parse(xid + ", isolate: node"); err != nil || p.Rules[0].Isolate {
		t.Errorf("%v, %+v", err, p)
	}
	if p, err := parse(xid + ", isolate: device, maxDevices: 4"); err != nil || p.Rules[0].MaxDevices != 4 {
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
		if _, err := parse(rule); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rule, err, want)
		}
	}
}
