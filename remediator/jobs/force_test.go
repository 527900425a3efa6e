package jobs

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// A rank in D state: its node is Ready, and it does not end.
func TestAPodThatDoesNotEndIsDeletedByForceIfThePolicySaysSo(t *testing.T) {
	t.Parallel()
	forever := dying(time.Hour, 0)
	inASecond := func(spec *batchv1.JobSpec) { spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) }
	tests := map[string]struct {
		force  policy.ForceDelete
		change func(tm team, node string) // of the node, after the taint
		forced string
		// waits is what the job waits for otherwise.
		waits string
	}{
		"quarantined, a Ready node":        {policy.ForceQuarantined, nil, "its node is quarantined", ""},
		"unreachable, a Ready node":        {policy.ForceUnreachable, nil, "", "has not ended"},
		"unreachable, an unreachable node": {policy.ForceUnreachable, team.lose, "its node has not answered since", ""},
		"never, an unreachable node":       {policy.ForceNever, team.lose, "", "may still run, and the node has not answered since"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 4, nil)
			l := limited(policy.Restart{ForceDelete: test.force, ForceDeleteAfter: time.Second})
			r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { l(o); o.StopTimeout = 4 * time.Second })
			g := tm.createJob("train", optedIn, tm.jobSpec(2, inASecond))
			ranks := g.runs()
			stuck := ranks[0]
			tm.annotatePod(&stuck, forever)
			q := tm.quarantineOf(stuck.Spec.NodeName)
			if test.change != nil {
				test.change(tm, q.Node)
			}
			restartJobs(t, r, q)
			uid := g.read().Object.GetUID()
			if test.forced == "" {
				tm.event("JobRestartBlocked", uid, "pod "+stuck.Name+" on node "+q.Node+" "+test.waits)
				tm.event("JobRestarting", uid, "restarting all ranks")
				if notes := tm.notes("JobRestarting", uid); len(notes) != 1 {
					t.Errorf("said %q, want the stop alone", notes)
				}
				if _, err := tm.c.Kubectl(t.Context(), "delete", "pod", "-n", tm.name, stuck.Name, "--force", "--grace-period=0"); err != nil {
					t.Fatal(err)
				}
				g.closes()
				return
			}
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("record %+v", closed)
			}
			g.restartedOnce(q.Node)
			tm.event("JobRestarting", uid, "force-deleted pod "+stuck.Name+" on node "+q.Node)
			tm.event("JobRestarting", q.NodeUID, test.forced)
			tm.event("JobRestarting", q.NodeUID, "; its processes may still run there")
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

// letEnd ends the pods of [dying] that are being deleted.
func (tm team) letEnd(pods []corev1.Pod) {
	tm.Helper()
	for i := range pods {
		tm.annotatePod(&pods[i], dying(0, 0))
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
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
		}) {
			return fmt.Errorf("conditions %v", n.Status.Conditions)
		}
		return nil
	})
}
