package jobs

import (
	"fmt"
	"maps"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestMayForce(t *testing.T) {
	ready := func(status corev1.ConditionStatus, ago time.Duration) *corev1.Node {
		node := host("bad")
		node.Labels[conditions.LabelStatus] = "quarantined"
		node.Status.Conditions[0].Status, node.Status.Conditions[0].LastTransitionTime = status, metav1.NewTime(noon.Add(-ago))
		return &node
	}
	const gone, lost, bad = "its node was deleted", "its node has been unreachable since 2026-11-20T11:00:00Z", "its node is quarantined"
	released := ready(corev1.ConditionTrue, time.Hour)
	released.Labels[conditions.LabelStatus] = "healthy"
	well, unknown, younger := ready(corev1.ConditionTrue, time.Hour), ready(corev1.ConditionUnknown, time.Hour), ready(corev1.ConditionUnknown, time.Minute)
	tests := map[string]struct {
		force   policy.ForceDelete
		node    *corev1.Node
		deleted time.Duration // ago; its grace period of 30s included
		graceless,
		elsewhere bool
		want string
	}{
		"never, a quarantined node":                 {policy.ForceNever, well, time.Hour, false, false, ""},
		"never, a deleted node":                     {policy.ForceNever, nil, time.Hour, false, false, ""},
		"nothing said":                              {"", nil, time.Hour, false, false, ""},
		"unreachable, the node is gone":             {policy.ForceUnreachable, nil, time.Hour, false, false, gone},
		"unreachable, the node is":                  {policy.ForceUnreachable, unknown, time.Hour, false, false, lost},
		"unreachable, the node is for a minute":     {policy.ForceUnreachable, younger, time.Hour, false, false, ""},
		"unreachable, the node is Ready":            {policy.ForceUnreachable, well, time.Hour, false, false, ""},
		"unreachable, the node is not Ready":        {policy.ForceUnreachable, ready(corev1.ConditionFalse, time.Hour), time.Hour, false, false, ""},
		"quarantined, the node is Ready":            {policy.ForceQuarantined, well, time.Hour, false, false, bad},
		"quarantined, a Ready node elsewhere":       {policy.ForceQuarantined, well, time.Hour, false, true, ""},
		"quarantined, an unreachable one elsewhere": {policy.ForceQuarantined, unknown, time.Hour, false, true, lost},
		"quarantined, says only the record":         {policy.ForceQuarantined, released, time.Hour, false, false, ""},
		"the pod still has time":                    {policy.ForceQuarantined, unknown, 4 * time.Minute, false, false, ""},
		"the pod's time has just ended":             {policy.ForceQuarantined, unknown, 5*time.Minute + 30*time.Second, false, false, bad},
		"in its grace period and a bit":             {policy.ForceQuarantined, unknown, 5*time.Minute + 29*time.Second, false, false, ""},
		"it was never deleted":                      {policy.ForceQuarantined, unknown, 0, false, false, ""},
		"only a finalizer holds it":                 {policy.ForceQuarantined, unknown, time.Hour, true, false, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := holder("x", "bad", "8")
			pod.DeletionGracePeriodSeconds = ptr.To[int64](30)
			if test.graceless {
				pod.DeletionGracePeriodSeconds = ptr.To[int64](0)
			}
			if test.deleted != 0 {
				pod.DeletionTimestamp = &metav1.Time{Time: noon.Add(30*time.Second - test.deleted)}
			}
			cur := restart{Quarantines: []cause{{Node: "bad"}, {Node: "bad", Taint: quarantine.Taint}}}
			if test.elsewhere {
				cur.Quarantines = cur.Quarantines[:1]
			}
			l := policy.Restart{ForceDelete: test.force, ForceDeleteAfter: 5 * time.Minute}
			if got := mayForce(l, &pod, test.node, cur, noon); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// A rank in D state: its node is Ready, and it does not end.
func TestAPodThatDoesNotEndIsDeletedByForceIfThePolicySaysSo(t *testing.T) {
	forever := dying(time.Hour, 0)
	inASecond := func(spec *batchv1.JobSpec) { spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) }
	tests := map[string]struct {
		force  policy.ForceDelete
		change func(tm team, node string) // of the node, after the taint
		forced string
	}{
		"quarantined, a Ready node":        {policy.ForceQuarantined, nil, "its node is quarantined"},
		"unreachable, a Ready node":        {policy.ForceUnreachable, nil, ""},
		"unreachable, an unreachable node": {policy.ForceUnreachable, team.lose, "its node has been unreachable since"},
		"never, an unreachable node":       {policy.ForceNever, team.lose, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tm := newTeam(t, 4, nil)
			l := limited(policy.Restart{ForceDelete: test.force, ForceDeleteAfter: time.Second})
			r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, func(r *Restarter) { l(r); r.StopTimeout = 4 * time.Second })
			g := tm.createJob("train", optedIn, tm.jobSpec(2, inASecond))
			ranks := g.runs()
			stuck := ranks[0]
			tm.annotatePod(&stuck, forever)
			q := tm.quarantineOf(stuck.Spec.NodeName)
			if test.change != nil {
				test.change(tm, q.Node)
			}
			sweep(t, r, q)
			uid := g.look().object.GetUID()
			if test.forced == "" {
				tm.event("JobRestartBlocked", uid, "pod "+stuck.Name+" on node "+q.Node+" has not ended")
				if notes := tm.notes("JobRestarting", uid); len(notes) != 1 {
					t.Errorf("said %q, want the stop alone", notes)
				}
				if _, err := tm.c.Kubectl(t.Context(), "delete", "pod", "-n", tm.name, stuck.Name, "--force", "--grace-period=0"); err != nil {
					t.Fatal(err)
				}
				g.closes()
				return
			}
			if closed := g.closes(); closed.Phase != done {
				t.Errorf("record %+v", closed)
			}
			g.restartedOnce(q.Node)
			tm.event("JobRestarting", uid, "pod "+stuck.Name+" on node "+q.Node+" was deleted by force")
			tm.event("JobRestarting", q.NodeUID, test.forced)
		})
	}
}

// annotatePod gives one rank the annotations that a change of the template would give all.
func (tm team) annotatePod(pod *corev1.Pod, change func(*batchv1.JobSpec)) {
	tm.Helper()
	var spec batchv1.JobSpec
	change(&spec)
	before := pod.DeepCopy()
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, spec.Template.Annotations)
	if err := tm.c.Client.Patch(tm.Context(), pod, client.MergeFrom(before)); err != nil {
		tm.Fatal(err)
	}
}

// lose makes a node unreachable: nobody reports for it any more, and the node lifecycle controller has found out.
func (tm team) lose(node string) {
	tm.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := tm.c.Client.Patch(tm.Context(), n, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`))); err != nil {
		tm.Fatal(err)
	}
	tm.eventually("wait for the node to be unreachable", func() error {
		unknown := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","lastTransitionTime":%q}]}}`,
			time.Now().Add(-time.Minute).UTC().Format(time.RFC3339))
		if err := tm.c.Client.Status().Patch(tm.Context(), n, client.RawPatch(types.StrategicMergePatchType, unknown)); err != nil {
			return err
		}
		if err := tm.c.Client.Get(tm.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		if unreachable(n, time.Now()) == "" {
			return fmt.Errorf("conditions %v", n.Status.Conditions)
		}
		return nil
	})
}
