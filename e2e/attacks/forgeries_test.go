package attacks

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// forge writes a text as the record of a node: refused for its kubelet, then by an admin.
func (s *scene) forge(node, text string) {
	s.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, conditions.AnnotationQuarantine, text)
	s.denied(patchNode(s.Context(), s.kubelet(node), node, "", types.MergePatchType, patch), nodePolicy, "a kubelet forges its record")
	s.may(patchNode(s.Context(), s.admin, node, "", types.MergePatchType, patch), "an admin forges a record")
}

// said waits for an Event on a node whose reason and note contain a text.
func (s *scene) said(node, text string) {
	s.Helper()
	uid := s.get(node).UID
	s.until(fmt.Sprintf("an Event %q on node %s", text, node), func() error {
		var all []string
		for _, e := range s.nodeEvents() {
			if e.Regarding.UID != uid {
				continue
			}
			line := e.Reason + ": " + e.Note
			if strings.Contains(line, text) {
				return nil
			}
			all = append(all, line)
		}
		return fmt.Errorf("events %q", all)
	})
}

// nodeEvents are the Events about nodes.
func (s *scene) nodeEvents() []eventsv1.Event {
	s.Helper()
	var events eventsv1.EventList
	if err := s.admin.List(s.Context(), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		s.Fatal(err)
	}
	return events.Items
}

// quarantineOf is a quarantine of a node that no remediator has decided on.
func quarantineOf(id string, phase causes.Phase, at time.Time, taint corev1.Taint) causes.Quarantine {
	return causes.Quarantine{
		ID: id, Phase: phase, QuarantinedAt: at,
		Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: "xid", Repair: conditions.Reboot, Message: lost, FirstSeen: at, Due: true, BootID: "b"}},
		Taint:  &causes.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect, Rule: "xid", Repair: conditions.Reboot, Since: at},
	}
}

// Attacks whose verdict is the remediator's own are tests of its packages, and the pages about threats name these. Here some come at once to one
// process, which does what its packages decide: an honest node is quarantined within the limits, and the job on it is restarted.
func TestForgeriesHoldUpNoOther(t *testing.T) {
	hostile := corev1.Taint{Key: "example.com/hostile", Effect: corev1.TaintEffectNoSchedule}
	s := newScene(t, "forgeries", 7, func(n *corev1.Node) {
		if n.Name < "forgeries-4" {
			n.Spec.Taints = []corev1.Taint{hostile}
		}
	})
	claims, repeats, unreadable, ahead := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
	mallory, alice := s.tenant("mallory"), s.tenant("alice")
	forged, _ := s.job(mallory, "mallory", "forged")
	job, honest := s.job(alice, "alice", "train")
	s.remediator(s.policy(`
  budget: {maxNodes: 2}
  breaker: {maxNodes: 3, window: 1h, coolDown: 1h, pace: 1m}
  restart: {maxConcurrent: 1, checkCapacity: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
    soft: {match: {condition: GPUMemoryError, repair: [ResetGPU], POOL}, restartJobs: true, checkpointGrace: 1h}
`))

	now := time.Now().UTC()
	// A quarantine with a taint that Kubernetes acts on. It takes one of two places.
	claimed := causes.Record{V: 1, NodeUID: s.get(claims).UID,
		Quarantine: quarantineOf("forged", causes.Quarantined, now, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})}
	s.report(claims, corev1.ConditionFalse, "no fault")
	s.forge(claims, claimed.String())
	// More quarantines within an hour than the breaker allows all nodes.
	unhealthy := corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule}
	repeated := causes.Record{V: 1, NodeUID: s.get(repeats).UID, Quarantine: quarantineOf("0", causes.Released, now, unhealthy)}
	for i := range 12 {
		repeated.Last = append(repeated.Last, quarantineOf(fmt.Sprint(i+1), causes.Released, now, unhealthy))
	}
	s.report(repeats, corev1.ConditionFalse, "no fault")
	s.forge(repeats, repeated.String())
	s.forge(unreadable, `{"v":2,"phase":"quarantined"}`)
	s.report(unreadable, corev1.ConditionTrue, lost)
	in := now.Add(time.Hour).Format(time.RFC3339)
	s.may(patchNode(t.Context(), s.kubelet(ahead), ahead, "status", types.StrategicMergePatchType, fmt.Sprintf(
		`{"status":{"conditions":[{"type":"GPUXidError","status":"True","reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[2]q}]}}`, lost, in)),
		"a kubelet with a clock that is ahead")
	// A restart that saves its state for 100 years, for quarantines that no node has, after a row of restarts without end.
	s.forgeRestart(mallory, forged, restart.Record{
		Current: &restart.Restart{
			Phase: restart.Checkpointing, StartedAt: now, PhaseSince: now, CheckpointBy: now.AddDate(100, 0, 0), Moving: 1 << 40, Quarantines: bogus(500, honest),
		},
		Last: []restart.Restart{{Phase: restart.Done, Streak: math.MaxInt64, EndedAt: now}},
	})

	s.said(claims, "no known policy sets taint node.kubernetes.io/out-of-service:NoExecute")
	s.said(unreadable, "cannot be read, so nothing is done about the node")
	s.said(ahead, "in the future, so nothing is decided about the node")
	s.report(honest, corev1.ConditionTrue, lost)
	s.becomes(honest, causes.Quarantined)
	gvk := batchv1.SchemeGroupVersion.WithKind("Job")
	s.restarted(gvk, client.ObjectKeyFromObject(job))
	s.until("the forged restart is closed", func() error {
		rec, err := s.restartOf(gvk, client.ObjectKeyFromObject(forged))
		if err != nil || rec.Current != nil {
			return fmt.Errorf("record %+v: %w", rec, err)
		}
		return nil
	})
	for _, name := range s.nodes[:4] {
		if taints := s.get(name).Spec.Taints; len(taints) != 1 || taints[0].Key != hostile.Key {
			t.Errorf("node %s has taints %v", name, taints)
		}
	}
	for _, e := range s.nodeEvents() {
		if strings.Contains(e.Note, "mallory") {
			t.Errorf("an Event about node %s: %s", e.Regarding.Name, e.Note)
		}
	}
}
