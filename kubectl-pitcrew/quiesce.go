package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

const (
	// quiet is how long no job must be under restart: a pause reaches the remediator in less, and so does what it began before.
	quiet = 5 * time.Second
	// restartPatience is how long a restart under way may take.
	restartPatience = 15 * time.Minute
)

// quiesce has the remediator begin no more restarts and waits for those under way: a job whose restarter is gone stays suspended.
// To look before the pause would prove nothing about the moment after.
func (c *target) quiesce(api client.Client) change {
	return change{
		says: "Pause, and wait for the jobs that are being restarted",
		gate: true,
		do: func(ctx context.Context) error {
			pause := c.configMap(conditions.PauseConfigMap)
			pause.Data = map[string]string{"reason": "uninstall"}
			if err := api.Create(ctx, pause, client.FieldOwner(fieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("pause: %w", err)
			}
			since := c.now()
			var last error
			err := wait.PollUntilContextTimeout(ctx, time.Second, restartPatience, true, func(ctx context.Context) (bool, error) {
				if last = restarting(ctx, api); last != nil {
					since = c.now()
				}
				return c.now().Sub(since) >= quiet, nil
			})
			return errors.Join(err, last)
		},
	}
}

// leftSuspended tells whether a restart was cut off in spite of the wait.
func leftSuspended(api client.Client) change {
	return change{
		says: "Check that no job is left suspended",
		do:   func(ctx context.Context) error { return restarting(ctx, api) },
	}
}

// restarting is an error that names a job that is being restarted.
func restarting(ctx context.Context, api client.Client) error {
	for _, kind := range kinds.BuiltIn() {
		list := kind.List()
		if err := api.List(ctx, list, client.HasLabels{conditions.LabelRestarting}); err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("list the %ss that are being restarted: %w", kind.GVK.Kind, err)
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%s %s/%s is being restarted and would stay suspended", kind.GVK.Kind, list.Items[0].Namespace, list.Items[0].Name)
		}
	}
	return nil
}
