package visits

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
)

// recheckEvery is how often nodes are looked at although nothing has changed.
const recheckEvery = 30 * time.Second

// rechecker has nodes reconciled that no change leads to: those that wait for a limit, a pause or a new policy. It reads the cache only.
type rechecker struct {
	controller *Controller
	reconcile  func(ctx context.Context, node string)
	every      time.Duration
}

func newRechecker(c *Controller, reconcile func(ctx context.Context, node string), every time.Duration) *rechecker {
	return &rechecker{controller: c, reconcile: reconcile, every: cmp.Or(every, recheckEvery)}
}

// Start has the nodes rechecked until the context ends. It runs on the leader only.
func (l *rechecker) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, l.recheck, l.every)
	return nil
}

func (l *rechecker) recheck(ctx context.Context) {
	var nodes corev1.NodeList
	if err := l.controller.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list nodes for visits; retrying")
		return
	}
	for i := range nodes.Items {
		if l.controller.needsRecheck(&nodes.Items[i]) {
			l.reconcile(ctx, nodes.Items[i].Name)
		}
	}
}

// needsRecheck reports whether a node is out of service, is visited, has a request, or waits for its first check.
func (c *Controller) needsRecheck(n *corev1.Node) bool {
	r, err := c.records.of(n)
	return conditions.OutOfService(n.Labels[conditions.LabelStatus]) || err != nil || r != nil && (r.Current != nil || r.Request != nil) ||
		c.policy.Known() && firstcheck.Waits(c.policy.Policy(), n)
}

// sendTo returns a function that has a node reconciled.
func sendTo(due chan<- event.GenericEvent) func(context.Context, string) {
	return func(ctx context.Context, node string) {
		select {
		case due <- event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}}:
		case <-ctx.Done():
		}
	}
}
