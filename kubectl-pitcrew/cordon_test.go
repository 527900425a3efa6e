package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	commands "github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// A person releases nodes and uninstalls Pitcrew: the cordon of the remediator goes, that of a person stays although a record claims it.
func TestAPersonTakesBackOnlyTheRemediatorsCordon(t *testing.T) {
	p := NewPerson(t)
	nodes, err := p.AddNodes(t.Context(), "cordoned", 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := p.DeleteNodes(p.Cluster.Context(), nodes...); err != nil {
			t.Error(err)
		}
	})
	now := time.Now().UTC()
	for i, name := range nodes {
		before := p.get(name)
		after := before.DeepCopy()
		added := &handoff.Added{Cordon: true, Annotations: map[string]string{policy.CordonReason: "Pitcrew: x"}}
		record := &causes.Record{V: 1, NodeUID: before.UID, Boot: causes.Boot{ID: before.Status.NodeInfo.BootID, Seen: now}, Quarantine: causes.Quarantine{
			ID: "q", Phase: causes.Quarantined, QuarantinedAt: now, HandOff: added,
			Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Message: clitest.Lost, FirstSeen: now, Due: true, BootID: "b"}},
			Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: conditions.Reboot, Since: now},
		}}
		after.Annotations[conditions.AnnotationQuarantine] = record.String()
		after.Annotations[policy.CordonReason] = "Pitcrew: x"
		after.Spec.Taints = append(after.Spec.Taints, record.Taint.NodeTaint())
		after.Spec.Unschedulable = i%2 == 0
		if err := p.Client.Patch(t.Context(), after, client.MergeFrom(before), client.FieldOwner(quarantine.ControllerName)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			if _, err := p.Kubectl(t.Context(), "cordon", name); err != nil {
				t.Fatal(err)
			}
		}
		status := after.DeepCopy()
		reason := []string{handoff.Suspected, "GPUHealthCheckFailed (Soperator)"}[i%2]
		status.Status.Conditions = append(status.Status.Conditions, corev1.NodeCondition{Type: policy.SoperatorCondition, Status: corev1.ConditionTrue, Reason: reason},
			corev1.NodeCondition{Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: []string{conditions.ReasonRepair, "Window"}[i%2]})
		if err := p.Client.Status().Patch(t.Context(), status, client.StrategicMergeFrom(after)); err != nil {
			t.Fatal(err)
		}
	}
	left := func(name string, cordoned bool) {
		t.Helper()
		n := p.get(name)
		if n.Spec.Unschedulable != cordoned || n.Annotations[policy.CordonReason] != "" || strings.Contains(fmt.Sprint(n.Spec.Taints), conditions.TaintUnhealthy) {
			t.Errorf("node %s: cordoned %v, annotations %v, taints %v", name, n.Spec.Unschedulable, n.Annotations, n.Spec.Taints)
		}
	}
	p.says("release --dry-run "+nodes[0], "remove taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule, uncordon")
	if out := p.run("release", "--dry-run", nodes[1]); strings.Contains(out, "uncordon") {
		t.Error(out)
	}
	p.fails("release -y --timeout=1s "+nodes[0], "no remediator has answered within 1s: the request stays on the node until one runs")
	p.says("describe "+nodes[0], "Asked:    release by person: no reason given, ")
	p.carries(nodes[0], request.ReleaseNow, "")
	p.carries(nodes[1], request.ReleaseNow, "")
	left(nodes[0], false)
	left(nodes[1], true)

	for i, name := range nodes[2:] {
		for _, change := range commands.CleanNode(p.Client, p.get(name)) {
			if strings.Contains(change.Text, "uncordon") != (i == 0) && strings.Contains(change.Text, "taint") {
				t.Errorf("%s: %s", name, change.Text)
			}
			if err := change.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		left(name, i == 1)
		for _, of := range []corev1.NodeConditionType{policy.SoperatorCondition, corev1.NodeMaintenanceInProgress} {
			has := slices.ContainsFunc(p.get(name).Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == of })
			if has != (i == 1) {
				t.Errorf("node %s has condition %s: %v", name, of, has)
			}
		}
	}
}

// soperator suspects the node itself while a person is asked whether to uninstall: its condition stays.
func TestUninstallLeavesAConditionThatOthersHaveTakenOver(t *testing.T) {
	p := NewPerson(t)
	nodes, err := p.AddNodes(t.Context(), "suspected", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := p.DeleteNodes(p.Cluster.Context(), nodes...); err != nil {
			t.Error(err)
		}
	})
	write := func(reason string) {
		t.Helper()
		before := p.get(nodes[0])
		after := before.DeepCopy()
		after.Status.Conditions = slices.DeleteFunc(after.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == policy.SoperatorCondition })
		after.Status.Conditions = append(after.Status.Conditions, corev1.NodeCondition{Type: policy.SoperatorCondition, Status: corev1.ConditionTrue, Reason: reason})
		if err := p.Client.Status().Patch(t.Context(), after, client.StrategicMergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	write(handoff.Suspected)
	changes := commands.CleanNode(p.Client, p.get(nodes[0]))
	if len(changes) != 1 {
		t.Fatalf("%d changes", len(changes))
	}
	write("GPUHealthCheckFailed (Soperator)")
	if err := changes[0].Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(p.get(nodes[0]).Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == policy.SoperatorCondition }) {
		t.Error("the condition is gone")
	}
}
