//go:build operators

// Package operators tests restarts with the real job operators. They take long to build, so the tests are behind the
// build tag operators and have a target of their own, make test-operators.
package operators

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{JobSet: true}) }

// patience is how long a test waits for what takes a second or two.
const patience = time.Minute

// operator starts an operator in a cluster. A nil one is none.
type operator struct {
	start func(*cluster.Cluster, context.Context) error
	once  sync.Once
	err   error
}

var (
	none             = &operator{start: func(*cluster.Cluster, context.Context) error { return nil }}
	trainingOperator = &operator{start: (*cluster.Cluster).StartTrainingOperator}
	trainer          = &operator{start: (*cluster.Cluster).StartTrainer}
	kubeRay          = &operator{start: (*cluster.Cluster).StartKubeRay}
	lws              = &operator{start: (*cluster.Cluster).StartLWS}
	kueue            = &operator{start: (*cluster.Cluster).StartKueue}
	volcano          = &operator{start: (*cluster.Cluster).StartVolcano}
)

// clusterWith returns the package's cluster with the operator in it.
func clusterWith(t *testing.T, o *operator) *cluster.Cluster {
	t.Helper()
	c := clustertest.Get(t)
	o.once.Do(func() { o.err = o.start(c, t.Context()) })
	if o.err != nil {
		t.Fatal(o.err)
	}
	return c
}
