package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// StartKubeRay starts the ray-operator. The Ray dashboards that it asks about the progress of RayJobs are fakes: the
// pods of KWOK run no Ray.
func (c *Cluster) StartKubeRay(ctx context.Context) error { return c.startKubeRay(ctx) }

// gangScheduler is a scheduler of the name that KubeRay writes into all pods.
const gangScheduler = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
profiles: [{schedulerName: scheduler-plugins-scheduler}]
`

// StartKubeRayWithGangs is [Cluster.StartKubeRay] with scheduler-plugins as batch scheduler: a RayCluster that asks for it gets a PodGroup. The
// scheduler is Kubernetes' own under that name. It knows nothing of PodGroups, so it holds no pod back.
func (c *Cluster) StartKubeRayWithGangs(ctx context.Context) error {
	module, err := components.SchedulerPlugins.ModuleDir(ctx, c.Root)
	if err != nil {
		return err
	}
	if err := c.installCRDs(ctx, filepath.Join(module, "config/crd/bases")); err != nil {
		return fmt.Errorf("install the CRDs of scheduler-plugins: %w", err)
	}
	kubeconfig, err := c.kubeconfigFor("gang-scheduler", "system:masters")
	if err != nil {
		return err
	}
	const file = "gang-scheduler.yaml"
	if err := c.write(file, fmt.Appendf(nil, gangScheduler, kubeconfig)); err != nil {
		return err
	}
	p, err := c.run("gang-scheduler", components.Kube.Path(c.Root), nil, "kube-scheduler", "--config="+file, "--secure-port=0")
	if err != nil {
		return err
	}
	c.need(p)
	return c.startKubeRay(ctx, "--batch-scheduler=scheduler-plugins")
}

func (c *Cluster) startKubeRay(ctx context.Context, args ...string) error {
	_, kubeconfig, err := c.prepare(ctx, components.KubeRay, "config/crd/bases")
	if err != nil {
		return err
	}
	dashboards, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(serveRayJob), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(c.ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(dashboards) }() // until it is closed
	p, err := c.run("kuberay", components.KubeRay.Path(c.Root), []string{
		"KUBECONFIG=" + kubeconfig, "HTTP_PROXY=http://" + dashboards.Addr().String(), "NO_PROXY=" + loopback,
	}, append([]string{"--metrics-addr=0", "--health-probe-bind-address=0", "--enable-leader-election=false"}, args...)...)
	if err != nil {
		return err
	}
	c.need(p)
	return nil
}

// serveRayJob plays, as the operator's HTTP proxy, the dashboard of every Ray cluster: each job that it is asked about
// is running.
func serveRayJob(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "SUBMISSION", "submission_id": path.Base(r.URL.Path), "status": "RUNNING", "start_time": time.Now().UnixMilli(),
	})
}
