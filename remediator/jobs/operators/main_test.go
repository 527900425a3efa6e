//go:build operators

// Package operators tests restarts with the real job operators. They take long to build, so the tests are behind the
// build tag operators and have a target of their own, make test-operators.
package operators

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	clustertest.Main(m, cluster.Options{JobSet: true})
	closeDeadNodeClusters()
	for _, o := range []*operator{mpiOperator, kubeRayGangs, nativeGangs} {
		if o.cluster == nil {
			continue
		}
		if err := o.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// patience is how long a test waits for what takes a second or two.
const patience = 3 * time.Minute

// operator is what a test needs beside Kubernetes and JobSet.
type operator struct {
	start func(*cluster.Cluster, context.Context) error
	// alone: in a cluster of its own.
	alone bool
	// nativeGangs: that one has gangs of scheduling.k8s.io.
	nativeGangs bool

	once    sync.Once
	cluster *cluster.Cluster
	err     error
}

var (
	trainingOperator = &operator{start: (*cluster.Cluster).StartTrainingOperator}
	trainer          = &operator{start: (*cluster.Cluster).StartTrainer}
	kubeRay          = &operator{start: (*cluster.Cluster).StartKubeRay}
	lws              = &operator{start: (*cluster.Cluster).StartLWS}
	kueue            = &operator{start: (*cluster.Cluster).StartKueue}
	volcano          = &operator{start: (*cluster.Cluster).StartVolcano}
	// Its CRD is of the same name as one of the training-operator's.
	mpiOperator = &operator{start: (*cluster.Cluster).StartMPIOperator, alone: true}
	// With a batch scheduler the operator writes another scheduler into all pods.
	kubeRayGangs = &operator{start: (*cluster.Cluster).StartKubeRayWithGangs, alone: true}
	nativeGangs  = &operator{alone: true, nativeGangs: true, start: func(c *cluster.Cluster, ctx context.Context) error {
		return errors.Join(c.StartKueue(ctx), c.StartLWS(ctx))
	}}
)

// options are those of a cluster of its own.
func (o *operator) options() cluster.Options {
	if !o.nativeGangs {
		return silentSoon(false)
	}
	return cluster.Options{
		JobSet: true, FeatureGates: "GenericWorkload=true,WorkloadWithJob=true", Progress: os.Stderr,
		APIServerFlags: []string{"--runtime-config=scheduling.k8s.io/v1beta1=true"},
	}
}

// in returns a cluster with the operator in it, which is started by the first test that asks.
func (o *operator) in(t *testing.T) *cluster.Cluster {
	t.Helper()
	o.once.Do(func() {
		//nolint:usetesting // later tests use it, too
		ctx := context.Background()
		if o.alone {
			o.cluster, o.err = cluster.Start(ctx, o.options())
		} else {
			o.cluster = clustertest.Get(t)
		}
		if o.err == nil {
			o.err = o.start(o.cluster, ctx)
		}
	})
	if o.err != nil {
		t.Fatal(o.err)
	}
	if err := context.Cause(o.cluster.Context()); err != nil {
		t.Fatal(err)
	}
	return o.cluster
}
