package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// reloadEvery is how often the policy file is read. The kubelet takes up to a minute to show a changed ConfigMap anyway.
const reloadEvery = 5 * time.Second

// reloader reads the policy file again and again. It keeps the last good policy and says when the file is not good.
type reloader struct {
	*Controller
	changes chan<- event.GenericEvent
	said    string // the error that was said last
}

// NeedLeaderElection is false: a replica that takes over must have the policy of the day.
func (*reloader) NeedLeaderElection() bool { return false }

// Start runs until the context ends.
func (r *reloader) Start(ctx context.Context) error {
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.reload(ctx)
		}
	}
}

func (r *reloader) reload(ctx context.Context) {
	changed, err := r.policy.Reload()
	if err != nil {
		r.metrics.policyValid.Set(0)
		if r.leads() && err.Error() != r.said {
			r.said = err.Error()
			r.announce(ctx, Event{corev1.EventTypeWarning, PolicyInvalid, "the last good policy stays in force: " + clip(r.said)})
		}
		return
	}
	r.said = ""
	r.metrics.policyValid.Set(1)
	if !changed {
		return
	}
	ctrl.LoggerFrom(ctx).Info("The policy has changed", "file", r.policy.Path(), "rules", len(r.policy.Policy().Rules))
	select {
	case r.changes <- event.GenericEvent{Object: &corev1.Node{}}:
	default: // one is waiting already, and will find this policy
	}
}

func (r *reloader) leads() bool {
	select {
	case <-r.elected:
		return true
	default:
		return false
	}
}
