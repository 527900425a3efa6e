package attacks

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Attack 27: the node with a broken link vanishes, so that the victims of that link return although nothing was repaired. The API server lets no
// kubelet delete its Node. A cloud provider does when the machine is stopped, and that is played by an admin. Or the Node grows too large.
func TestAttack27AnOriginThatVanishesReleasesNoVictim(t *testing.T) {
	const fabric = "example.com/fabric"
	s := newScene(t, "vanishes", 4, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 4}
  domains: [{label: example.com/fabric}]
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}, clearAfter: 1s}
`))
	// vanish has a node of a fabric become an origin, another one its victim, and the first one vanish.
	vanish := func(name, origin, victim string, how func(kubelet client.Client, n *corev1.Node)) {
		for _, node := range []string{origin, victim} {
			if err := s.patchNode(s.kubelet(node), node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, fabric, name)); err != nil {
				t.Fatal(err)
			}
		}
		s.says(origin, conditions.GPUXidError, corev1.ConditionTrue, "ResetGPU gpu 0008:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4")
		s.becomes(origin, causes.Quarantined)
		s.says(victim, conditions.GPUXidError, corev1.ConditionTrue, "ResetGPU gpu 0018:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 13")
		if _, r := s.becomes(victim, causes.Quarantined); r.Taint.HeldFor != origin {
			t.Fatalf("the victim is %s", r)
		}
		how(s.kubelet(origin), s.get(origin))
		s.said(victim, "node "+origin+", and nothing shows that it was repaired")
		if n, _ := s.becomes(victim, causes.Quarantined); len(n.Spec.Taints) != 1 {
			t.Errorf("%s: taints %v", name, n.Spec.Taints)
		}
		s.says(victim, conditions.GPUXidError, corev1.ConditionFalse, "no fault")
		s.becomes(victim, causes.Released)
	}
	vanish("grows", s.nodes[0], s.nodes[1], func(kubelet client.Client, n *corev1.Node) {
		before := n.DeepCopy()
		for i := range 700 {
			n.Labels[fmt.Sprintf("example.com/%060d", i)] = strings.Repeat("x", 60)
		}
		if err := kubelet.Patch(t.Context(), n, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	})
	vanish("is-deleted", s.nodes[2], s.nodes[3], func(kubelet client.Client, n *corev1.Node) {
		if err := kubelet.Delete(t.Context(), n.DeepCopy()); !apierrors.IsForbidden(err) {
			t.Errorf("a kubelet deletes its Node: %v", err)
		}
		if err := s.admin.Delete(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	})
}
