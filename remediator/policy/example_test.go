package policy_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func ExampleParse() {
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, maxPercent: 10}
  rules:
    gpu-xid:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("of 288 nodes, out of service at most", p.Budget.Limit(288))
	rule, class, _ := p.Match(nil, corev1.NodeCondition{
		Type: "GPUXidError", Status: corev1.ConditionTrue, Message: "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus",
	})
	fmt.Println(rule.Name, class, rule.Taint.ToString(), rule.ClearAfter)
	// Output:
	// of 288 nodes, out of service at most 3
	// gpu-xid Reboot pitcrew.dev/unhealthy=GPUXidError:NoSchedule 10m0s
}

// All errors come at once, each with its line, field and value.
func ExampleParse_errors() {
	_, err := policy.Parse([]byte(`apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  budget: {maxNodes: 10%}
  rules:
    gpu-xid:
      match: {condition: GPUXidError, repair: [Explode]}
      for: 10x
      restartJob: true
`))
	fmt.Println(err)
	// Output:
	// line 4: cannot unmarshal !!str `10%` into int (spec.budget.maxNodes)
	// line 7: spec.rules[gpu-xid].match.repair[0]: Invalid value: "Explode": "Explode" is no repair class (Monitor, RestartApp, Inspect, ResetGPU, Reboot, Replace)
	// line 8: spec.rules[gpu-xid].for: Invalid value: "10x": must be a duration like 30s, 10m or 1h
	// line 9: field restartJob not found in spec.rules[gpu-xid]; did you mean restartJobs?
}
