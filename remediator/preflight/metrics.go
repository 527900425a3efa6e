package preflight

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

func (c *Controller) registerMetrics(registry prometheus.Registerer) error {
	slowNodes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pitcrew_slow_nodes", Help: "Nodes whose condition SlowNode is True.",
	}, c.countSlowNodes)
	for _, m := range []prometheus.Collector{c.runsTotal, slowNodes} {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

func (c *Controller) countSlowNodes() float64 {
	var nodes corev1.NodeList
	if err := c.client.List(context.Background(), &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return 0
	}
	n := 0.0
	for i := range nodes.Items {
		if slow, found := condition(&nodes.Items[i], conditions.SlowNode); found && slow.Status == corev1.ConditionTrue {
			n++
		}
	}
	return n
}

// result is the label of the metric of runs.
func result(v verdict.Verdict) string {
	switch {
	case len(v.Fabric) > 0:
		return "fabric"
	case len(v.Slow) > 0:
		return "slow"
	case len(v.Failed) > 0:
		return "failed"
	case !v.Complete || len(v.Retest) > 0 || slices.ContainsFunc(v.Figures, func(f verdict.Figure) bool { return len(f.Below) > 0 }):
		return "undecided"
	}
	return "clean"
}
