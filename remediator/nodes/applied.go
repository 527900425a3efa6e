package nodes

import (
	"context"
	"encoding/json"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
)

// seeAppliedEvery is how often the leader reads whether what it has stored is still there.
const seeAppliedEvery = 10 * time.Minute

// showApplied stores for users which policy is in force, and why the present file is not. It writes when that has changed, once when this
// replica begins to lead, and when the key was changed or deleted by others. What fails is tried again with the next look at the file.
func (r *reloader) showApplied(ctx context.Context, invalid error) {
	if r.dryRun || !r.leads() {
		return
	}
	applied := conditions.Applied{Version: version.String(), Policy: r.policy.Hash()}
	if invalid != nil {
		applied.Invalid = causes.Clip(invalid.Error(), conditions.MaxMessage)
	}
	now := r.clock.Now()
	stored := r.applied != nil && *r.applied == applied
	if stored && now.Sub(r.appliedAt) < seeAppliedEvery {
		return
	}
	if err := r.storeApplied(ctx, applied, stored); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to save which policy is in force; retrying")
		return
	}
	r.applied, r.appliedAt = &applied, now
}

// storeApplied writes the key. If it was stored before, it is read first, and written only if it has changed since.
func (r *reloader) storeApplied(ctx context.Context, applied conditions.Applied, before bool) error {
	text, err := json.Marshal(applied)
	if err != nil {
		return err
	}
	key := keystore.Key{
		Client: r.client, Reader: r.apiReader, Name: conditions.AppliedKey,
		ConfigMap: client.ObjectKey{Namespace: r.namespace, Name: conditions.KnownConfigMap},
	}
	if before {
		if present, err := key.Read(ctx); err != nil || present == string(text) {
			return err
		}
	}
	return key.Write(ctx, string(text))
}
