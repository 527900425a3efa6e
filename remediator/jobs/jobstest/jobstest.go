// Package jobstest is what the tests of remediator/jobs and of remediator/jobs/operators share: a process of the remediator,
// reduced to the controller of jobs, and quarantined nodes.
package jobstest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Kind is the built-in kind of jobs that a test restarts, with the controller of that kind. Call it with literals: a test of
// package kinds searches a call for every built-in kind. It panics if there is no such kind.
func Kind(apiVersion, name string) kinds.Kind {
	kind, known := kinds.Get(kinds.BuiltIn(), schema.FromAPIVersionAndKind(apiVersion, name))
	if !known {
		panic(fmt.Sprintf("%s %s is no built-in kind", apiVersion, name))
	}
	return kind
}

// Config authenticates as the remediator's service account, with the roles and the admission policies that we ship.
func Config(t *testing.T, c *cluster.Cluster) *rest.Config {
	t.Helper()
	if err := c.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

// OneNamespace returns the configuration of a process that sees the restarts under way of one namespace alone, so that the processes of
// tests that run side by side do not act on each other's jobs. It sees the nodes and the pods of the whole cluster.
func OneNamespace(cfg *rest.Config, namespace string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return RoundTripper(func(r *http.Request) (*http.Response, error) {
			if query := r.URL.Query(); query.Get("labelSelector") == conditions.LabelRestarting+"=true" {
				query.Set("fieldSelector", "metadata.namespace="+namespace)
				r = r.Clone(r.Context())
				r.URL.RawQuery = query.Encode()
			}
			return next.RoundTrip(r)
		})
	})
	return cfg
}

// RoundTripper is a function that answers requests, for [rest.Config.Wrap].
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Run starts a controller with a manager of its own, as one process of the remediator would. Its client reads live, and
// its writes are intercepted. The returned function ends it and returns when nothing of it is left.
func Run[C any](t *testing.T, cfg *rest.Config, writes interceptor.Funcs, setup func(context.Context, ctrl.Manager) (C, error)) (C, func()) {
	t.Helper()
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		NewClient: func(cfg *rest.Config, o client.Options) (client.Client, error) {
			o.Cache = nil
			direct, err := client.NewWithWatch(cfg, o)
			if err != nil {
				return nil, err
			}
			return interceptor.NewClient(direct, writes), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, err := setup(ctx, mgr)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// Quarantine taints and labels a node and writes its record, as the node controller would, and returns the quarantine. The control plane
// may write a node that does not answer at the same time.
func Quarantine(t testing.TB, c *cluster.Cluster, node string, now time.Time) restart.Trigger {
	t.Helper()
	taint := corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule}
	var uid types.UID
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var n corev1.Node
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: node}, &n); err != nil {
			return err
		}
		before := n.DeepCopy()
		uid = n.UID
		n.Spec.Taints = append(n.Spec.Taints, taint)
		n.Labels[conditions.LabelStatus] = "quarantined"
		record := causes.Record{V: 1, NodeUID: n.UID, Quarantine: causes.Quarantine{
			ID: "q-" + node, Phase: causes.Quarantined, QuarantinedAt: now,
			Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: "xid", Repair: conditions.Reboot, Message: "Xid 79", FirstSeen: now, Due: true}},
			Taint:  &causes.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect, Rule: "xid", Repair: conditions.Reboot, Since: now},
		}}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[conditions.AnnotationQuarantine] = record.String()
		return c.Client.Patch(t.Context(), &n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		t.Fatal(err)
	}
	return restart.Trigger{Kind: restart.NodeQuarantined, ID: "q-" + node, Node: node, NodeUID: uid, Reason: "Xid 79", Taint: taint, Since: now}
}
