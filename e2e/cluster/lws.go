package cluster

import (
	"context"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// StartLWS starts the LeaderWorkerSet controller with its webhooks. No worker pod appears without them.
func (c *Cluster) StartLWS(ctx context.Context) error {
	return c.startConfigured(ctx, configured{
		operator: components.LWS,
		crds:     "config/crd/bases",
		group:    "config.lws.x-k8s.io/v1alpha1",
		paths:    []string{"/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset", "/mutate--v1-pod"},
		webhooks: "config/webhook",
	})
}
