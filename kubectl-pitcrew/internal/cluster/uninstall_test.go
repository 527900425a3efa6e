package cluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestHelmLeavesTheVisitsOfAnotherInstallation(t *testing.T) {
	var nodes []corev1.Node
	for name, v := range map[string]*visit.Visit{
		"none": nil, "ours": {Namespace: conditions.RepairNamespace}, "before": {}, "theirs": {Namespace: "their-repairs"},
	} {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}}
		if v != nil {
			v.ID, v.Kind, v.Phase, v.Attempt, v.Template = "0123456789ab", visit.Repair, visit.Working, 1, "reboot"
			v.Quarantine, v.StartedAt, v.PhaseSince = "ba9876543210", time.Unix(1, 0), time.Unix(1, 0)
			n.Annotations = map[string]string{conditions.AnnotationRepair: (&visit.Record{V: 1, NodeUID: n.UID, Current: v}).String()}
		}
		nodes = append(nodes, n)
	}
	var warned strings.Builder
	ours := withoutVisitsOfOthers(&warned, nodes)
	if len(ours) != 3 || warned.String() != "Node theirs is left as it is: an installation with Jobs in namespace their-repairs repairs or checks it\n" {
		t.Errorf("%d nodes, %q", len(ours), warned.String())
	}
	for _, n := range ours {
		if n.Name == "theirs" {
			t.Error("the node of the other installation would be cleaned")
		}
	}
}
