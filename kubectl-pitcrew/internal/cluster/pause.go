package cluster

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
)

func PauseCommand(c *cli.Target) *cobra.Command {
	var confirm cli.Confirmation
	var reason string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Pause the remediator: no quarantines, releases or restarts until `kubectl pitcrew resume`",
		Long: "Pause the remediator: no quarantines, releases or restarts until `kubectl pitcrew resume`. This creates a ConfigMap, so it\n" +
			"works while no remediator runs, too: one that starts later is paused.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Client()
			if err != nil {
				return err
			}
			present, err := pause.Reason(cmd.Context(), api, c.Namespace)
			if err != nil {
				return err
			}
			if present != "" {
				return fmt.Errorf("paused already (%s); `kubectl pitcrew resume` ends the pause", present)
			}
			// A pause that its author cannot be named for is better than none.
			by, err := cli.WhoAmI(cmd.Context(), api)
			if err != nil {
				cli.Fprintf(cmd.ErrOrStderr(), "The pause will not say whose it is: %s\n", err.Error())
			}
			return confirm.Apply(cmd, []cli.Change{{
				Text: fmt.Sprintf("Pause: create ConfigMap %s/%s (%s)", c.Namespace, conditions.PauseConfigMap, reason),
				Do: func(ctx context.Context) error {
					object := configMap(c, conditions.PauseConfigMap)
					object.Data = map[string]string{"reason": reason, pause.ByKey: by}
					return api.Create(ctx, object, client.FieldOwner(cli.FieldOwner))
				},
			}})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", pause.NoReason, "`why`, for the users of the cluster")
	confirm.Flags(cmd)
	return cmd
}

func ResumeCommand(c *cli.Target) *cobra.Command {
	return deleting(c, "resume", "End the pause", "Resume", cli.EventPauseEnded, conditions.PauseConfigMap,
		func(map[string]string) bool { return true })
}

func ResetCommand(c *cli.Target) *cobra.Command {
	// The remediator writes the starts of quarantines, which the ConfigMap also holds, again: a reset makes none undone.
	return deleting(c, "reset", "Close the breaker, so that new quarantines may begin, within the budgets", "Reset the breaker",
		cli.EventBreakerClosed, conditions.BreakerConfigMap,
		func(data map[string]string) bool { return data[limits.BreakerKey] != "" || data[breaker.Key] != "" })
}

// deleting is a command that deletes a ConfigMap of ours if needed tells so by its data.
func deleting(c *cli.Target, use, short, verb, event, name string, needed func(map[string]string) bool) *cobra.Command {
	var confirm cli.Confirmation
	var reason string
	long := short + ".\n\nThis deletes a ConfigMap, so it works while no remediator runs, too."
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		api, err := c.Client()
		if err != nil {
			return err
		}
		object := configMap(c, name)
		err = api.Get(cmd.Context(), client.ObjectKeyFromObject(object), object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get ConfigMap %s: %w", name, err)
		}
		if err != nil || !needed(object.Data) {
			return confirm.Apply(cmd, nil)
		}
		return confirm.Apply(cmd, []cli.Change{{
			Text: fmt.Sprintf("%s: delete ConfigMap %s/%s", verb, c.Namespace, name),
			Do: func(ctx context.Context) error {
				if err := api.Delete(ctx, object); err != nil {
					return client.IgnoreNotFound(err)
				}
				about := corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: c.Namespace}
				c.Actor(cmd, api, reason).Announce(ctx, about, event, verb, verb)
				return nil
			},
		}})
	}}
	cli.ReasonFlag(cmd, &reason, "an Event on the namespace")
	confirm.Flags(cmd)
	return cmd
}

func configMap(c *cli.Target, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}}
}
