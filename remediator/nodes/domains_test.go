package nodes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// newDomainRig makes nodes of one domain without a fault.
func newDomainRig(t *testing.T, names ...string) rig {
	t.Helper()
	p, err := policy.Parse([]byte(strings.Replace(testPolicy, "  rules:", "  domains: [{label: clique}]\n  rules:", 1)))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, names...)
	r.policy = policy.Fixed(p)
	for i := range r.client.nodes {
		n := &r.client.nodes[i]
		n.Labels = map[string]string{"clique": "x"}
		n.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	return r
}

func (r rig) shows(i int, message string) {
	c := &r.client.nodes[i].Status.Conditions[0]
	c.Status, c.Message = corev1.ConditionTrue, message
}

// The label of a domain vanishes before the fault is reported, and the decision knows it still.
func TestAVictimIsFoundByTheLastDomainOfItsNode(t *testing.T) {
	r := newDomainRig(t, "a", "b")
	r.reconcile(t, "a")
	r.reconcile(t, "b")
	for i := range r.client.nodes {
		r.client.nodes[i].Labels = nil
		r.reconcile(t, r.names[i])
	}
	r.shows(0, "ResetGPU gpu 0000:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4")
	r.reconcile(t, "a")
	r.shows(1, "ResetGPU gpu 0000:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 4")
	r.reconcile(t, "b")
	record, err := causes.RecordOf(r.client.live["b"])
	if err != nil || record == nil || record.Taint == nil || record.Taint.HeldFor != "a" {
		t.Errorf("%v %v", record, err)
	}
	if len(r.restarts.quarantines) != 1 {
		t.Errorf("jobs are restarted for %v", r.restarts.quarantines)
	}
	if !strings.Contains(strings.Join(r.reasons(), " "), causes.NodeQuarantined) {
		t.Error("nothing is said")
	}
}

// What is remembered is that of the node: not of another one of its name, nor of one that is gone. Without domains it is nothing.
func TestDomainsAreThoseOfTheirNodes(t *testing.T) {
	r := newDomainRig(t, "a")
	n := &r.client.nodes[0]
	r.reconcile(t, "a")
	if got := r.fleet.domains.of(n); got != (limits.Domain{Label: "clique", Value: "x"}) {
		t.Errorf("remembered is %v", got)
	}
	n.UID = "another"
	if got := r.fleet.domains.of(n); got != (limits.Domain{}) {
		t.Errorf("another node has %v", got)
	}
	r.forget("a")
	if len(r.fleet.domains) != 0 {
		t.Errorf("a node that is gone has %v", r.fleet.domains)
	}
	without := newRig(t, "a")
	without.client.nodes[0].Labels = map[string]string{"clique": "x"}
	without.reconcile(t, "a")
	if len(without.fleet.domains) != 0 {
		t.Errorf("without domains: %v", without.fleet.domains)
	}
}

// A node that is held for its origin is decided again when that one's quarantine has ended: nothing about the node itself changes.
func TestAHeldNodeFollowsItsOrigin(t *testing.T) {
	r := newDomainRig(t, "a", "b")
	r.shows(0, "ResetGPU gpu 0000:01:00: Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4")
	r.shows(1, "ResetGPU gpu 0000:01:00: Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 4")
	r.reconcile(t, "a")
	r.reconcile(t, "b")
	r.reconcile(t, "b") // the cache tells of its own taint
	if names, err := r.findRetries(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("%v %v go on before anything has changed", names, err)
	}
	r.client.nodes[0].Name, r.client.nodes[0].UID = "c", "c" // the machine was replaced
	r.forget("a")
	r.pending.Touch("a")
	if names, err := r.findRetries(t.Context()); err != nil || len(names) != 1 || names[0] != "b" {
		t.Errorf("%v %v go on when the origin is gone", names, err)
	}
}
