package cluster

import (
	"context"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// StartKueue starts Kueue with its webhooks. It admits the Jobs and JobSets that have a queue name and no others.
func (c *Cluster) StartKueue(ctx context.Context) error {
	return c.startConfigured(ctx, configured{
		operator: components.Kueue,
		crds:     "config/components/crd/bases",
		group:    "config.kueue.x-k8s.io/v1beta2",
		config: `clientConnection: {qps: 500, burst: 1000}
integrations: {frameworks: ["batch/job", "jobset.x-k8s.io/jobset"]}
featureGates: {VisibilityOnDemand: false}
`,
		// It requires the folder of the metrics' certificate even when it serves no metrics.
		certificate: "/etc/kueue/metrics/certs",
		paths: []string{"/mutate-kueue-x-k8s-io-v1beta2-clusterqueue", "/mutate-batch-v1-job",
			"/mutate-jobset-x-k8s-io-v1alpha2-jobset", "/mutate--v1-pod"},
		webhooks:  "config/components/webhook",
		converted: []string{"clusterqueues.kueue.x-k8s.io", "cohorts.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"},
	})
}
