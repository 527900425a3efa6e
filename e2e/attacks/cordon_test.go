package attacks

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// A forged record claims that the remediator has cordoned a node that a person has cordoned, so that the release uncordons it.
func TestAttack01AForgedRecordUncordonsNoNode(t *testing.T) {
	for name, handOff := range map[string]string{"cordons": "{cordon: true}", "cordons-not": "{cordon: false}"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, "forged-"+name, 1, nil)
			node := s.nodes[0]
			if _, err := s.cluster.Kubectl(t.Context(), "cordon", node); err != nil {
				t.Fatal(err)
			}
			s.remediator(s.policy(`
  budget: {maxNodes: 1}
  handOff: ` + handOff + `
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, clearAfter: 1s}
`))
			s.report(node, corev1.ConditionTrue, ecc)
			_, r := s.becomes(node, quarantine.Quarantined)
			if r.HandOff.Cordon {
				t.Fatalf("the record has %+v", r.HandOff)
			}
			s.changeRecord(node, func(text string) string { return strings.Replace(text, `"handOff":{`, `"handOff":{"cordon":true,`, 1) })
			s.report(node, corev1.ConditionFalse, "fine")
			if n, r := s.becomes(node, quarantine.Released); !n.Spec.Unschedulable {
				t.Errorf("the cordon of a person is gone with record %s", r)
			}
			if handOff == "{cordon: false}" {
				s.said(node, "the record names what no known policy puts on a node, and it is left as it is: the cordon")
			}
		})
	}
}

// A kubelet undoes the cordon of its own Node, which NodeRestriction allows (kubernetes 1.37.1, plugin/pkg/admission/noderestriction),
// so that Slurm uses the node again. The taint stays, and who reads the record sees what has happened.
func TestAttack01AKubeletThatUncordonsItselfStaysTainted(t *testing.T) {
	s := newScene(t, "uncordons-itself", 1, nil)
	node := s.nodes[0]
	n := s.get(node)
	now := time.Now().UTC()
	record := &quarantine.Record{
		V: 1, NodeUID: n.UID, Boot: quarantine.Boot{ID: n.Status.NodeInfo.BootID},
		Quarantine: quarantine.Quarantine{
			ID: "cordoned", Phase: quarantine.Quarantined, QuarantinedAt: now,
			Causes:  []quarantine.Cause{{Condition: "GPUXidError", Rule: "xid", Repair: conditions.ResetGPU, Message: ecc, FirstSeen: now, Due: true, BootID: n.Status.NodeInfo.BootID}},
			Taint:   &quarantine.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "xid", Repair: conditions.ResetGPU, Since: now},
			HandOff: &handoff.Added{Cordon: true},
		},
	}
	s.may(patchNode(t.Context(), s.admin, node, "", types.MergePatchType,
		`{"spec":{"unschedulable":true,"taints":[{"key":"pitcrew.dev/unhealthy","value":"GPUXidError","effect":"NoSchedule"}]}}`), "a cordoned quarantine")
	s.forge(node, record.String())
	s.report(node, corev1.ConditionTrue, ecc)
	s.may(patchNode(t.Context(), s.kubelet(node), node, "", types.MergePatchType, `{"spec":{"unschedulable":null}}`), "a kubelet uncordons its own Node")
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  handOff: {cordon: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}}
`))
	s.said(node, "UncordonedByHand")
	n, r := s.becomes(node, quarantine.Quarantined)
	if n.Spec.Unschedulable || !r.Uncordoned || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != conditions.TaintUnhealthy {
		t.Errorf("cordoned %v, taints %v, record %s", n.Spec.Unschedulable, n.Spec.Taints, r)
	}
}
