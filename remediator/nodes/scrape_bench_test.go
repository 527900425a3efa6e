package nodes

import (
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"

	"github.com/pitcrew-dev/pitcrew/remediator/node/nodetest"
)

// BenchmarkScrape counts the conditions of 1,000 nodes for the metrics, by the policy of the manifests.
func BenchmarkScrape(b *testing.B) {
	text, err := os.ReadFile("../../manifests/policy.yaml")
	if err != nil {
		b.Fatal(err)
	}
	p, err := policy.Parse(text)
	if err != nil {
		b.Fatal(err)
	}
	r := newRig(b)
	r.policy = policy.Fixed(p)
	elected := make(chan struct{})
	close(elected)
	r.elected = elected
	for i := range 1000 {
		n := nodetest.Realistic(i)
		for k := range n.Status.Conditions[:len(n.Status.Conditions)/2] {
			n.Status.Conditions[k].Type = p.Rules[k%len(p.Rules)].Condition
			n.Status.Conditions[k].LastHeartbeatTime.Time = r.clock.Now().Add(-time.Minute)
		}
		r.client.nodes = append(r.client.nodes, *n)
	}
	out := make(chan prometheus.Metric)
	go func() {
		for range out { //nolint:revive // they are not read
		}
	}()
	for b.Loop() {
		collector{r.Controller}.Collect(out)
	}
	close(out)
}
