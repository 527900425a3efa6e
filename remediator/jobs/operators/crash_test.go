//go:build operators

package operators

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Every process of the remediator dies after one write, so that each pair of writes of a restart has a crash between.
func TestARestartSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		job
		writes int // of a restart: the record three times, and what its kind takes beside that
	}{
		"PyTorchJob":                 {pyTorchJob("Never"), 3},
		"MPIJob of the mpi-operator": {mpiJob, 3},
		"TrainJob":                   {trainJob, 3},
		"RayJob":                     {rayJob, 3},
		"LeaderWorkerSet":            {leaderWorkerSet("1", 4), 4}, // the deletion of a pod
		"Job queued by Kueue":        {queuedJob, 5},               // its Workload twice
		"JobSet queued by Kueue":     {queuedJobSet, 5},
		"JobSet placed by Kueue":     {queuedJobSet.placed(), 5},
		"Volcano Job":                {volcanoJob, 6}, // the Command, the record that says so, and the Command's target
	}
	for name, test := range tests {
		for when, late := range map[string]bool{"dies as soon as it has written": false, "dies before its next write": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				g := start(t, test.job)
				counted := g.count()
				cfg := g.config()
				q := g.quarantine(g.runs()[0].Spec.NodeName)
				processes := 0
				for len(g.record().Last) == 0 {
					if processes++; processes > 2*test.writes {
						t.Fatalf("after %d processes the restart is not closed: %+v", processes, g.record())
					}
					g.liveAndDie(clustertest.NewMortal(1, late), cfg, q)
				}
				if processes < test.writes {
					t.Errorf("%d processes did it all, want a crash after each of %d writes", processes, test.writes)
				}
				r, _ := run(t, cfg, interceptor.Funcs{}, nil)
				restartJobs(t, r, q)
				if closed := g.closes(); closed.Phase != restart.Done {
					t.Errorf("closed as %+v", closed)
				}
				g.restartedOnce(q.Node)
				if n := len(g.record().Last); n != 1 {
					t.Errorf("%d restarts, want 1", n)
				}
				if added := g.count() - counted; added != test.adds {
					t.Errorf("the restart added %d to what the owners count, want %d", added, test.adds)
				}
			})
		}
	}
}

// liveAndDie runs one process of the remediator until it dies or the restart is closed.
func (g gang) liveAndDie(m *clustertest.Mortal, cfg *rest.Config, q restart.Trigger) {
	g.Helper()
	r, stop := run(g.T, cfg, m.Funcs(), nil)
	defer stop()
	// Every process calls for the quarantines that it finds.
	if err := tryRestart(g, r, q); err != nil && !errors.Is(err, clustertest.ErrCrashed) {
		g.Fatal(err)
	}
	clustertest.Until(g, patience, "wait for the process to die", func() error {
		select {
		case <-m.Dead:
			return nil
		default:
		}
		if len(g.record().Last) > 0 {
			return nil // there is no next write to die at
		}
		return fmt.Errorf("record %+v", g.record())
	})
}
