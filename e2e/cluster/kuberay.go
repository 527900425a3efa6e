package cluster

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// StartKubeRay starts the ray-operator. The Ray dashboards that it asks about the progress of RayJobs are fakes: the
// pods of KWOK run no Ray.
func (c *Cluster) StartKubeRay(ctx context.Context) error {
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
	}, "--metrics-addr=0", "--health-probe-bind-address=0", "--enable-leader-election=false")
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
