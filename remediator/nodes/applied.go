package nodes

import (
	"context"
	"encoding/json"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// showApplied stores for users which policy is in force, and why the present file is not. It writes when that has changed, and once
// when this replica begins to lead. A write that fails is tried again with the next look at the file.
func (r *reloader) showApplied(ctx context.Context, invalid error) {
	if r.dryRun || !r.leads() {
		return
	}
	applied := conditions.Applied{Version: version.String(), Policy: r.policy.Hash()}
	if invalid != nil {
		applied.Invalid = quarantine.Clip(invalid.Error(), conditions.MaxMessage)
	}
	if r.applied != nil && *r.applied == applied {
		return
	}
	text, err := json.Marshal(applied)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, breakerDeadline)
		defer cancel()
		err = writeKey(ctx, r.client, client.ObjectKey{Namespace: r.namespace, Name: conditions.KnownConfigMap}, conditions.AppliedKey, string(text))
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Which policy is in force is not stored yet")
		return
	}
	r.applied = &applied
}
