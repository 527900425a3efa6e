package nodes

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// remove deletes a node, and has the controller notice it.
func (r rig) remove(t *testing.T, name string) {
	t.Helper()
	for i, n := range r.client.nodes {
		if n.Name == name {
			r.client.nodes = append(r.client.nodes[:i:i], r.client.nodes[i+1:]...)
			break
		}
	}
	r.reconcile(t, name)
}

// Attack 6: the place of a node that was quarantined is not free once the node is gone.
func TestADeletedNodeKeepsItsPlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.remove(t, "a")
	r.reconcile(t, "b")
	if got := strings.Join(r.reasons(), " "); got != causes.NodeQuarantined+" "+causes.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
	r.clock.SetTime(r.clock.Now().Add(limits.GoneFor))
	r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
	r.reconcile(t, "b")
	if got := strings.Join(r.reasons(), " "); got != causes.NodeQuarantined {
		t.Errorf("later said %q", got)
	}
}

// A quarantine that another remediator or a person began is remembered, too.
func TestTheQuarantineInARecordIsRemembered(t *testing.T) {
	r := newRig(t, "a", "b")
	ordered, err := quarantine.QuarantineManually(&r.client.nodes[0], quarantine.Manual{Reason: "smells of smoke"}, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.client.nodes[0] = *ordered
	r.reconcile(t, "a")
	r.remove(t, "a")
	r.reconcile(t, "b")
	if got := r.reasons(); got[len(got)-1] != causes.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
}

// A write that was refused began no quarantine.
func TestARefusedWriteIsNotRemembered(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = errors.New("no")
	r.fails(t, "a", r.client.refuse)
	if got := r.breaker.Remembered(); len(got) > 0 {
		t.Errorf("remembers %s", got)
	}
}

func TestASkippedNodeKeepsItsPlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.client.nodes[0].Labels = map[string]string{"pitcrew.dev/skip": "true"} // as a kubelet may
	r.client.nodes[0].ResourceVersion = "8"
	r.reconcile(t, "b")
	if got := r.reasons(); got[len(got)-1] != causes.QuarantineBlocked {
		t.Errorf("said %q", got)
	}
}
