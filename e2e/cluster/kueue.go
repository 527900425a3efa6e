package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// kueueConfig is Kueue's configuration: our own certificate, no server but the webhooks', and the kinds it manages.
const kueueConfig = `apiVersion: config.kueue.x-k8s.io/v1beta1
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %d, certDir: %s}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 500, burst: 1000}
integrations: {frameworks: ["batch/job", "jobset.x-k8s.io/jobset"]}
featureGates: {VisibilityOnDemand: false}
`

// StartKueue starts Kueue with its webhooks. It admits the Jobs and JobSets that have a queue name and no others.
func (c *Cluster) StartKueue(ctx context.Context) error {
	module, kubeconfig, err := c.prepare(ctx, components.Kueue, "config/components/crd/bases")
	if err != nil {
		return err
	}
	host, err := c.startWebhooks(ctx, func(port int) (*Process, error) {
		if err := c.write("kueue.yaml", fmt.Appendf(nil, kueueConfig, loopback, port, c.Dir)); err != nil {
			return nil, err
		}
		// The certificate of its metrics, which it wants even when it serves none.
		return c.runWithCertificate("/etc/kueue/metrics/certs", "kueue", components.Kueue.Path(c.Root),
			[]string{"KUBECONFIG=" + kubeconfig}, "--config=kueue.yaml")
	}, "/mutate-kueue-x-k8s-io-v1beta1-clusterqueue", "/mutate-batch-v1-job", "/mutate-jobset-x-k8s-io-v1alpha2-jobset",
		"/mutate--v1-pod")
	if err != nil {
		return err
	}
	manifests, err := c.kustomize(ctx, filepath.Join(module, "config", "components", "webhook"))
	if err != nil {
		return err
	}
	if err := c.installWebhooks(ctx, manifests, "kueue-", host); err != nil {
		return fmt.Errorf("install the webhooks of Kueue: %w", err)
	}
	return nil
}
