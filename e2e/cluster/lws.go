package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// lwsConfig is the controller's configuration: our own certificate, and no server but the webhooks'.
const lwsConfig = `apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %d, certDir: %s}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
`

// StartLWS starts the LeaderWorkerSet controller with its webhooks. No worker pod appears without them.
func (c *Cluster) StartLWS(ctx context.Context) error {
	module, kubeconfig, err := c.prepare(ctx, components.LWS, "config/crd/bases")
	if err != nil {
		return err
	}
	host, err := c.startWebhooks(ctx, func(port int) (*Process, error) {
		if err := c.write("lws.yaml", fmt.Appendf(nil, lwsConfig, loopback, port, c.Dir)); err != nil {
			return nil, err
		}
		return c.run("lws", components.LWS.Path(c.Root), []string{"KUBECONFIG=" + kubeconfig}, "--config=lws.yaml")
	}, "/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset", "/mutate--v1-pod")
	if err != nil {
		return err
	}
	manifests, err := c.kustomize(ctx, filepath.Join(module, "config", "webhook"))
	if err != nil {
		return err
	}
	if err := c.installWebhooks(ctx, manifests, "lws-", host); err != nil {
		return fmt.Errorf("install the LeaderWorkerSet webhooks: %w", err)
	}
	return nil
}
