package main

import (
	"context"
	"fmt"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

func pauseCommand(c *target) *cobra.Command {
	var confirm confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Pause the remediator: no quarantines, releases or restarts until `kubectl pitcrew resume`",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			present, err := pause.Reason(cmd.Context(), api, c.namespace)
			if err != nil {
				return err
			}
			if present != "" {
				return fmt.Errorf("paused already (%s); `kubectl pitcrew resume` ends the pause", present)
			}
			// A pause that its author cannot be named for is better than none.
			by, err := whoAmI(cmd.Context(), api)
			if err != nil {
				cli.Fprintf(cmd.ErrOrStderr(), "The pause will not say whose it is: %s\n", err.Error())
			}
			return confirm.apply(cmd, []change{{
				text: fmt.Sprintf("Pause: create ConfigMap %s/%s (%s)", c.namespace, conditions.PauseConfigMap, reason),
				do: func(ctx context.Context) error {
					object := c.configMap(conditions.PauseConfigMap)
					object.Data = map[string]string{"reason": reason, pause.ByKey: by}
					return api.Create(ctx, object, client.FieldOwner(fieldOwner))
				},
			}})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", pause.NoReason, "`why`, for the users of the cluster")
	confirm.flags(cmd)
	return cmd
}

func resumeCommand(c *target) *cobra.Command {
	return c.deleting("resume", "End the pause", "Resume", eventPauseEnded, conditions.PauseConfigMap, func(map[string]string) bool { return true })
}

func resetCommand(c *target) *cobra.Command {
	// The remediator writes the starts of quarantines, which the ConfigMap also holds, again: a reset makes none undone.
	return c.deleting("reset", "Close the breaker, so that new quarantines may begin, within the budgets", "Reset the breaker", eventBreakerClosed, conditions.BreakerConfigMap,
		func(data map[string]string) bool { return data[limits.BreakerKey] != "" })
}

// deleting is a command that deletes a ConfigMap of ours if needed tells so by its data.
func (c *target) deleting(use, short, verb, event, name string, needed func(map[string]string) bool) *cobra.Command {
	var confirm confirmation
	var reason string
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		api, err := c.client()
		if err != nil {
			return err
		}
		object := c.configMap(name)
		err = api.Get(cmd.Context(), client.ObjectKeyFromObject(object), object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get ConfigMap %s: %w", name, err)
		}
		if err != nil || !needed(object.Data) {
			return confirm.apply(cmd, nil)
		}
		return confirm.apply(cmd, []change{{
			text: fmt.Sprintf("%s: delete ConfigMap %s/%s", verb, c.namespace, name),
			do: func(ctx context.Context) error {
				if err := api.Delete(ctx, object); err != nil {
					return client.IgnoreNotFound(err)
				}
				about := corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: c.namespace}
				c.actor(cmd, api, reason).announce(ctx, about, event, verb, verb)
				return nil
			},
		}})
	}}
	reasonFlag(cmd, &reason, "an Event on the namespace")
	confirm.flags(cmd)
	return cmd
}

func (c *target) configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name}}
}
