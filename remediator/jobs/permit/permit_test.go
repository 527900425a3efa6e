package permit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/switchtest"
)

// cached is a cache with one node, and with a pause or without.
type cached struct {
	client.Reader
	node   *corev1.Node
	paused bool
}

func (c cached) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch o := into.(type) {
	case *corev1.ConfigMap:
		if c.paused {
			return nil
		}
	case *corev1.Node:
		if c.node != nil && key.Name == c.node.Name {
			*o = *c.node
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

const testPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  restart: {forceDelete: quarantined, forceDeleteAfter: 1m}
  repair: {mode: auto}
  rules:
    xid:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}
      restartJobs: true
`

// gate is one before which a switch was put on. bad is a quarantined node.
func gate(t *testing.T, by string) (g Gate, bad *corev1.Node) {
	t.Helper()
	c := cached{node: jobstest.Recorded("bad"), paused: by == switchtest.Pause}
	c.node.Labels = map[string]string{conditions.LabelStatus: conditions.StatusQuarantined}
	change := map[string][]string{
		switchtest.Observe:     {"mode: enforce", "mode: observe"},
		switchtest.RuleObserve: {"    xid:\n", "    xid:\n      mode: observe\n"},
		switchtest.RuleGone:    {"    xid:\n", "    other:\n"},
		switchtest.Approve:     {"mode: auto", "mode: approve"},
		switchtest.Off:         {"mode: auto", `mode: "off"`},
	}[by]
	switch by {
	case switchtest.Skip:
		c.node.Labels[conditions.LabelSkip] = "true"
	case switchtest.Others:
		c.node.Spec.Taints = append(c.node.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Effect: corev1.TaintEffectNoSchedule})
	}
	p, err := policy.Parse([]byte(strings.NewReplacer(change...).Replace(testPolicy)))
	if err != nil {
		t.Fatal(err)
	}
	return Gate{Cached: c, Live: c, Namespace: "pitcrew", Policy: policy.Fixed(p)}, c.node
}

func TestWhatASwitchDoesToAStopAfterACheckpoint(t *testing.T) {
	job := restart.Job{Object: &batchv1.Job{}}
	rec := restart.Record{Current: &restart.Restart{Phase: restart.Checkpointing, CheckpointBy: jobstest.Noon}}
	switchtest.Check(t, "stop after a checkpoint", func(t *testing.T, by string) switchtest.Effect {
		g, bad := gate(t, by)
		facts := restart.Facts{Affected: []corev1.Pod{{Spec: corev1.PodSpec{NodeName: bad.Name}}}}
		var err error
		if facts.Held, err = g.Held(t.Context(), facts.Affected, jobstest.Noon); err != nil {
			t.Fatal(err)
		}
		step := restart.Next(rec, job, facts, restart.PhaseTimeouts{}, jobstest.Noon)
		return switchtest.Effect{Next: map[restart.Action]string{restart.Stop: switchtest.Begins, restart.Wait: switchtest.Waits}[step.Action]}
	})
}

func TestWhatASwitchDoesToAForcedDeletion(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck", DeletionTimestamp: &metav1.Time{Time: jobstest.Noon}, DeletionGracePeriodSeconds: ptr.To[int64](30)},
		Spec:       corev1.PodSpec{NodeName: "bad"},
	}
	cur := restart.Restart{Quarantines: []restart.Cause{jobstest.CauseOn("bad")}}
	forced := func(t *testing.T, g Gate, n *corev1.Node) bool {
		limits, err := g.Limits(t.Context(), n, true)
		if err != nil {
			t.Fatal(err)
		}
		return restart.MayForceDelete(limits, pod, n, cur, jobstest.Noon.Add(time.Hour)).Why != ""
	}
	switchtest.Check(t, "force delete", func(t *testing.T, by string) switchtest.Effect {
		g, bad := gate(t, by)
		if !forced(t, g, nil) {
			t.Error("a pod whose node is gone is not deleted")
		}
		if forced(t, g, bad) {
			return switchtest.Effect{Next: switchtest.Begins}
		}
		return switchtest.Effect{Next: switchtest.Waits}
	})
}

// A restart that was decided before the switch was put on does not begin any more. Where the policy does not decide, a pause alone holds it.
func TestWhatForbidsARestartThatWasDecided(t *testing.T) {
	for by, want := range map[string]struct{ node, pod bool }{
		"":                     {true, true},
		switchtest.Observe:     {false, true},
		switchtest.RuleObserve: {false, true},
		switchtest.RuleGone:    {false, true},
		switchtest.Pause:       {false, false},
		switchtest.Skip:        {false, true},
		switchtest.Others:      {false, true},
	} {
		g, bad := gate(t, by)
		onNode := []corev1.Pod{{Spec: corev1.PodSpec{NodeName: bad.Name}}}
		for kind, want := range map[restart.TriggerKind]bool{restart.NodeQuarantined: want.node, restart.PodFailed: want.pod, restart.JobStalled: want.pod} {
			if err := g.Begins(t.Context(), restart.Trigger{Kind: kind, Node: bad.Name}, onNode, jobstest.Noon); (err == nil) != want {
				t.Errorf("%q, %v: %v", by, kind, err)
			}
		}
	}
}

// A person pauses while the watch of the pause is late: what cannot be taken back does not begin.
func TestAPauseThatTheCacheDoesNotShowHolds(t *testing.T) {
	g, bad := gate(t, "")
	onNode := []corev1.Pod{{Spec: corev1.PodSpec{NodeName: bad.Name}}}
	g.Live = cached{paused: true}
	if limits, err := g.Limits(t.Context(), bad, false); err != nil || limits.ForceDelete != policy.ForceQuarantined {
		t.Errorf("to judge pods the API server is asked: %+v, %v", limits, err)
	}
	if limits, err := g.Limits(t.Context(), bad, true); err != nil || limits.ForceDelete != policy.ForceNever {
		t.Errorf("a pod is deleted: %+v, %v", limits, err)
	}
	if held, err := g.Held(t.Context(), onNode, jobstest.Noon); err != nil || !held {
		t.Errorf("a job is stopped: %v", err)
	}
	for _, kind := range []restart.TriggerKind{restart.NodeQuarantined, restart.PodFailed, restart.JobStalled} {
		if err := g.Begins(t.Context(), restart.Trigger{Kind: kind}, onNode, jobstest.Noon); err == nil || !strings.Contains(err.Error(), pause.NoReason) {
			t.Errorf("%v begins: %v", kind, err)
		}
	}
	g.Live = unreachable{}
	if _, err := g.Limits(t.Context(), bad, true); err == nil {
		t.Error("a pod is deleted although nobody knows of a pause")
	}
	if err := g.Begins(t.Context(), restart.Trigger{}, onNode, jobstest.Noon); err == nil {
		t.Error("a restart begins although nobody knows of a pause")
	}
}

// unreachable is an API server that does not answer.
type unreachable struct{ client.Reader }

func (unreachable) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("connection refused")
}

func TestWhatElseForbidsAnAction(t *testing.T) {
	g, bad := gate(t, "")
	pod := func(on string) []corev1.Pod { return []corev1.Pod{{Spec: corev1.PodSpec{NodeName: on}}} }
	unread, released, bare := bad.DeepCopy(), bad.DeepCopy(), bad.DeepCopy()
	unread.Annotations[conditions.AnnotationQuarantine] = "{"
	released.Annotations[conditions.AnnotationQuarantine] = strings.Replace(released.Annotations[conditions.AnnotationQuarantine], "quarantined\"", "released\"", 1)
	bare.Annotations = nil
	skipped := bad.DeepCopy()
	skipped.Labels[conditions.LabelSkip] = "true"
	empty, err := policy.Parse([]byte(strings.NewReplacer("    xid:\n", "    other:\n").Replace(testPolicy)))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[*corev1.Node]bool{unread: true, released: false, bare: false} {
		g := Gate{Cached: cached{node: n}, Live: cached{}, Namespace: "pitcrew", Policy: policy.Fixed(empty)}
		if held, err := g.Held(t.Context(), pod("bad"), jobstest.Noon); held != want || err != nil {
			t.Errorf("record %q: held %t, %v", n.Annotations[conditions.AnnotationQuarantine], held, err)
		}
		if limits, err := g.Limits(t.Context(), n, true); err != nil || (limits.ForceDelete == policy.ForceNever) != want {
			t.Errorf("record %q: limits %+v, %v", n.Annotations[conditions.AnnotationQuarantine], limits, err)
		}
	}
	for name, test := range map[string]struct {
		gate Gate
		pods []corev1.Pod
		want bool
	}{
		"the rule restarts jobs":   {g, pod("bad"), false},
		"the node is gone":         {g, pod("gone"), false},
		"the cache lacks the node": {Gate{Cached: cached{}, Live: cached{node: skipped}, Policy: g.Policy}, pod("bad"), true},
		"the cache shows it as it was": {
			Gate{Cached: g.Cached, Live: cached{node: skipped}, Policy: g.Policy}, append(pod("bad"), pod("bad")...), true,
		},
		"no node":                     {g, nil, true},
		"no policy":                   {Gate{Cached: g.Cached, Live: g.Live}, pod("bad"), false},
		"a pause without a policy":    {Gate{Cached: cached{paused: true}, Live: cached{}}, pod("bad"), true},
		"one of two nodes forbids it": {Gate{Cached: g.Cached, Live: g.Live, Policy: policy.Fixed(empty)}, append(pod("bad"), pod("gone")...), false},
	} {
		if held, err := test.gate.Held(t.Context(), test.pods, jobstest.Noon); held != test.want || err != nil {
			t.Errorf("%s: held %t, %v", name, held, err)
		}
	}
	observed, err := policy.Parse([]byte(strings.Replace(testPolicy, "mode: enforce", "mode: observe", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if limits, err := (Gate{Cached: g.Cached, Live: g.Live, Policy: policy.Fixed(observed)}).Limits(t.Context(), bare, true); err != nil || limits.ForceDelete != policy.ForceNever {
		t.Errorf("limits of a policy that observes, for a node without a quarantine: %+v, %v", limits, err)
	}
	if limits, err := (Gate{Cached: g.Cached, Live: g.Live}).Limits(t.Context(), bad, true); err != nil || limits.ForceDelete != "" {
		t.Errorf("limits without a policy: %+v, %v", limits, err)
	}
}
