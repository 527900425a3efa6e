package quarantine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

func TestADecisionChangesANodeByEachThingItSets(t *testing.T) {
	n := &corev1.Node{}
	for what, change := range map[string]func(*handoff.NodeChanges){
		"nothing":    func(*handoff.NodeChanges) {},
		"label":      func(c *handoff.NodeChanges) { c.SetLabel("a", "b") },
		"annotation": func(c *handoff.NodeChanges) { c.SetAnnotation("a", "b") },
		"taint":      func(c *handoff.NodeChanges) { c.Taints = []corev1.Taint{{Key: "a"}} },
		"cordon":     func(c *handoff.NodeChanges) { c.Unschedulable = true },
	} {
		changes := handoff.Of(n)
		change(&changes)
		d := Decision{State: &State{Changes: changes}}
		if got := d.Changes(n); got != (what != "nothing") {
			t.Errorf("%s: Changes = %t", what, got)
		}
	}
}
