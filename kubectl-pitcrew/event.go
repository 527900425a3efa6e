package main

import (
	"context"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// Reasons of the Events that only this plugin writes.
const (
	eventFaultCleared  = "FaultCleared"
	eventAbortWanted   = "JobRestartAbortRequested"
	eventPauseEnded    = "PauseEnded"
	eventBreakerClosed = quarantine.BreakerClosed
)

// eventBlocked is the reason of the Events about jobs that are not restarted; their action is why.
const eventBlocked = "JobRestartBlocked"

// actor is who runs a command, and why: for records and Events.
type actor struct {
	quarantine.Manual
	cmd *cobra.Command
	api client.Client
	now metav1.MicroTime
}

func reasonFlag(cmd *cobra.Command, reason *string, what string) {
	cmd.Flags().StringVar(reason, "reason", "", "`why`, for "+what)
}

// actor asks the API server who the user is. A command does not fail because the user has no name.
func (c *target) actor(cmd *cobra.Command, api client.Client, reason string) actor {
	user, err := whoAmI(cmd.Context(), api)
	if err != nil {
		cli.Fprintf(cmd.ErrOrStderr(), "Your name is not recorded: %s\n", err.Error())
	}
	return actor{quarantine.Manual{User: user, Reason: reason}, cmd, api, metav1.NewMicroTime(c.now())}
}

// announce writes an Event about what was done to an object, with the user's own rights. What was done stays done if the Event is
// refused. The API server names it: one command can do several things to an object.
func (a actor) announce(ctx context.Context, about corev1.ObjectReference, reason, action, what string) {
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events about Nodes are
	}
	err := a.api.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: about.Name + "-"},
		EventTime:  a.now, ReportingController: conditions.Domain + "/" + fieldOwner, ReportingInstance: fieldOwner,
		Type: corev1.EventTypeNormal, Reason: reason, Action: action, Regarding: about, Note: a.Note(what),
	}, client.FieldOwner(fieldOwner))
	if err != nil {
		cli.Fprintf(a.cmd.ErrOrStderr(), "Done, but there is no Event %s about it: %s\n", reason, err.Error())
	}
}

func referenceTo(n *corev1.Node) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}
