package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Stall is a job of which all ranks run and none makes progress.
type Stall struct {
	Kind kinds.Kind
	types.NamespacedName
	UID types.UID
	// Pods are those that have stalled. A job with others is not restarted.
	Pods []types.UID
	// Since is since when.
	Since time.Time
}

// RestartStalled starts the restart of a stalled job, once for its pods, or reports why it does not. Called twice is the same as
// called once: call it as long as the job is stalled, for what holds the restart may end. Nothing follows for any node. The manager must
// have been started.
func (c *Controller) RestartStalled(ctx context.Context, s Stall) error {
	if c.dryRun {
		return nil
	}
	if paused, err := pause.Reason(ctx, c.reconciler.gate.Cached, c.reconciler.gate.Namespace); paused != "" || err != nil {
		return err
	}
	job, err := s.Kind.Read(ctx, c.apiReader, s.NamespacedName)
	if kinds.Gone(err) || err == nil && job.Object.GetUID() != s.UID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", s.Kind.GVK.Kind, s.NamespacedName, err)
	}
	pods, err := c.ActivePods(ctx, job)
	if err != nil {
		return err
	}
	there := sets.New[types.UID]()
	for i := range pods {
		there.Insert(pods[i].UID)
	}
	if !there.Equal(sets.New(s.Pods...)) {
		return nil // other pods may make progress
	}
	t := restart.Trigger{
		Kind: restart.JobStalled, ID: stallOf(s), Reason: "no rank has made progress since " + s.Since.UTC().Format(time.RFC3339), Since: s.Since,
	}
	_, err = c.admission.restartAlone(ctx, t, kinds.Workload{Namespace: s.Namespace, Kind: s.Kind, Job: &job}, pods)
	return err
}

// stallOf is the ID of the restart of a job for these pods.
func stallOf(s Stall) string {
	hash := sha256.Sum256(fmt.Append(nil, slices.Sorted(slices.Values(s.Pods))))
	return fmt.Sprintf("%s-stall-%s", s.UID, hex.EncodeToString(hash[:8]))
}
