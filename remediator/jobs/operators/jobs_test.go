//go:build operators

package operators

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAJobIsRestartedWholeAndOnce(t *testing.T) {
	t.Parallel()
	tests := map[string]job{
		"PyTorchJob, restartPolicy Never":     pyTorchJob("Never"),
		"PyTorchJob, restartPolicy OnFailure": pyTorchJob("OnFailure"),
		"PyTorchJob, restartPolicy ExitCode":  pyTorchJob("ExitCode"),
		"TFJob":                               trainingJob(jobstest.Kind("kubeflow.org/v1", "TFJob"), "tfReplicaSpecs", "tensorflow", "Never", 1),
		"XGBoostJob":                          trainingJob(jobstest.Kind("kubeflow.org/v1", "XGBoostJob"), "xgbReplicaSpecs", "xgboost", "Never", 1),
		"PaddleJob":                           trainingJob(jobstest.Kind("kubeflow.org/v1", "PaddleJob"), "paddleReplicaSpecs", "paddle", "Never", 1),
		"JAXJob":                              jaxJob(),
		"MPIJob of the training-operator":     mpiJobV1,
		"MPIJob of the mpi-operator":          mpiJob,
		"TrainJob":                            trainJob,
		"RayCluster":                          rayCluster,
		"RayJob":                              rayJob,
		"LeaderWorkerSet":                     leaderWorkerSet("1", 4),
		"LeaderWorkerSet, after start":        leaderWorkerSet("1", 4).with("RecreateGroupOnPodRestart", "RecreateGroupAfterStart"),
		"Job queued by Kueue":                 queuedJob,
		"JobSet queued by Kueue":              queuedJobSet,
		"Job placed by Kueue":                 queuedJob.placed(),
		"JobSet placed by Kueue":              queuedJobSet.placed(),
		"Volcano Job":                         volcanoJob,
	}
	for name, job := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, job)
			before, counted := g.get(), g.count()
			r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
			q := g.quarantine(g.runs()[0].Spec.NodeName)
			for range 3 {
				restartJobs(t, r, q)
			}
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			restartJobs(t, r, q)
			g.restartedOnce(q.Node)
			if n := len(g.record().Last); n != 1 {
				t.Errorf("%d restarts, want 1", n)
			}
			if added := g.count() - counted; added != job.adds {
				t.Errorf("the restart added %d to what the owners count, want %d", added, job.adds)
			}
			g.says("JobRestarting", before.GetUID(), q.Node)
			g.says("JobRestarted", before.GetUID(), "all ranks running")
			g.says("JobRestarted", q.NodeUID, g.namespace+"/train")
		})
	}
}

func (g gang) count() int64 {
	g.Helper()
	if g.counted == nil {
		return 0
	}
	return g.counted(g)
}
