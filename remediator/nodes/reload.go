package nodes

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/report"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// reloadEvery is how often the policy file is read. The kubelet takes up to a minute to show a changed ConfigMap anyway.
const reloadEvery = 5 * time.Second

// reloader reads the policy file again and again. It keeps the last good policy, if there is one, and reports an invalid file.
type reloader struct {
	*Controller
	changes chan<- event.GenericEvent
	// reported is the error that was reported last.
	reported string
	// applied is what was stored last, appliedAt when that was last written or seen.
	applied   *conditions.Applied
	appliedAt time.Time
	// warned is the policy whose warnings were reported last.
	warned *policy.Policy
}

// NeedLeaderElection is false: a replica that takes over must have the current policy.
func (*reloader) NeedLeaderElection() bool { return false }

// Start runs until the context ends.
func (r *reloader) Start(ctx context.Context) error {
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	r.reload(ctx) // an alert must not wait for what was invalid at the start
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.reload(ctx)
		}
	}
}

// reload puts the file in force, and then shows that: a new policy does not wait for the write.
func (r *reloader) reload(ctx context.Context) {
	changed, err := r.policy.Reload()
	r.takeEffect(ctx, changed, err)
	r.showApplied(ctx, err)
}

// takeEffect reports an invalid file, and has the nodes decided by a changed policy.
func (r *reloader) takeEffect(ctx context.Context, changed bool, err error) {
	if err != nil {
		r.report.ShowPolicy(false)
		if r.leads() && err.Error() != r.reported {
			r.reported = err.Error()
			meanwhile := "the last good policy stays in force: "
			if !r.policy.Known() {
				meanwhile = "no node is quarantined or released until the policy is valid; restarts of jobs under way are finished: "
			}
			r.report.Warn(ctx, causes.PolicyInvalid, meanwhile+causes.Clip(r.reported, conditions.MaxMessage))
		}
		return
	}
	r.reported = ""
	r.report.ShowPolicy(true)
	if p := r.policy.Policy(); r.leads() && p != r.warned {
		r.warned = p
		if len(p.Warnings) > 0 {
			r.report.Warn(ctx, causes.PolicyWarning, "the policy is in force, but: "+causes.Clip(strings.Join(p.Warnings, "; "), report.MaxNote/2))
		}
	}
	if !changed {
		return
	}
	r.report.KeepRules(r.policy.Policy())
	ctrl.LoggerFrom(ctx).Info("The policy has changed", "file", r.policy.Path(), "rules", len(r.policy.Policy().Rules))
	select {
	case r.changes <- event.GenericEvent{Object: &corev1.Node{}}:
	default: // a change is waiting already, and will find this policy
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
