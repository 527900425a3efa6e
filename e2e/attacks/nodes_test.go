package attacks

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestTheRemediatorWorksUnderTheAdmissionPolicies(t *testing.T) {
	s := newScene(t, "baseline", 1, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}}
`))
	s.report(s.nodes[0], corev1.ConditionTrue, lost)
	s.becomes(s.nodes[0], causes.Quarantined)

	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodes[0]}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, conditions.AnnotationQuarantine))
	s.denied(s.kubelet(s.nodes[0]).Patch(t.Context(), target, patch), "pitcrew-node-records", "a kubelet removes its record")
}
