package jobs

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// A remediator that starts over what another one left a year ago closes it: the node was released since, and the job runs.
func TestARestartOfAYearAgoStopsNoJob(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cur     restart.Restart
		closed  restart.Phase
		outcome string
	}{
		"that had time to save its state": {restart.Restart{Phase: restart.Checkpointing}, restart.Done, "the job was not stopped"},
		"that was stopped":                {restart.Restart{Phase: restart.Stopping}, restart.Failed, "another user or controller"},
		"that was started":                {restart.Restart{Phase: restart.Starting}, restart.Done, "all ranks running (3/3)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 3, nil)
			g := tm.createJob("train", optedIn, tm.jobSpec(3))
			ranks := g.runs()
			old := time.Now().AddDate(-1, 0, 0).Truncate(time.Second)
			q := jobstest.Quarantine(t, tm.c, ranks[0].Spec.NodeName, old)
			tm.untaint(q.Node)
			cur := test.cur
			cur.ID, cur.StartedAt, cur.PhaseSince, cur.Quarantines = "r1", old, old, []restart.Cause{restart.CauseOf(q)}
			if cur.Phase == restart.Checkpointing {
				cur.CheckpointBy = old.Add(time.Minute)
			}
			record, err := json.Marshal(restart.Record{V: 1, JobUID: g.read().Object.GetUID(), Current: &cur})
			if err != nil {
				t.Fatal(err)
			}
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
				"labels":      map[string]string{conditions.LabelRestarting: "true"},
				"annotations": map[string]string{conditions.AnnotationRestart: string(record)},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := tm.c.Client.Patch(t.Context(), g.object(), client.RawPatch(types.MergePatchType, patch)); err != nil {
				t.Fatal(err)
			}
			run(t, tm.config(), interceptor.Funcs{}, nil)
			if closed := g.closes(); closed.Phase != test.closed || !strings.Contains(closed.Outcome, test.outcome) {
				t.Errorf("closed as %+v", closed)
			}
			sameRanks(t, ranks, g.runs())
			if lives := g.pods.Lives(); len(lives) != 3 || g.read().Suspended {
				t.Errorf("suspended %t, pods %+v", g.read().Suspended, lives)
			}
		})
	}
}
