package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Reasons of the Events that only this plugin writes.
const (
	EventFaultCleared  = "FaultCleared"
	EventAbortWanted   = "JobRestartAbortRequested"
	EventPauseEnded    = "PauseEnded"
	EventBreakerClosed = causes.BreakerClosed
)

// EventBlocked is the reason of the Events about jobs that are not restarted; their action is why.
const EventBlocked = "JobRestartBlocked"

// Actor is who runs a command, and why: for records and Events.
type Actor struct {
	quarantine.Manual
	Cmd *cobra.Command
	Api client.Client
	now metav1.MicroTime
}

func ReasonFlag(cmd *cobra.Command, reason *string, what string) {
	cmd.Flags().StringVar(reason, "reason", "", "`why`, for "+what)
}

// PolicyFlag adds the flag that names a file with the policy in place of the one in force.
func PolicyFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "filename", "f", "", "`file` with the policy, if it is not the one that the remediator's pods use")
}

// Actor asks the API server who the user is. A command does not fail because the user has no name.
func (c *Target) Actor(cmd *cobra.Command, api client.Client, reason string) Actor {
	user, err := WhoAmI(cmd.Context(), api)
	if err != nil {
		Fprintf(cmd.ErrOrStderr(), "Your name is not recorded: %s\n", err.Error())
	}
	return Actor{quarantine.Manual{User: user, Reason: reason}, cmd, api, metav1.NewMicroTime(c.Now())}
}

// Announce writes an Event about what was done to an object, with the user's own rights. What was done stays done if the Event is
// refused. The API server names it: one command can do several things to an object.
func (a Actor) Announce(ctx context.Context, about corev1.ObjectReference, reason, action, what string) {
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events about Nodes are
	}
	err := a.Api.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: about.Name + "-"},
		EventTime:  a.now, ReportingController: conditions.Domain + "/" + FieldOwner, ReportingInstance: FieldOwner,
		Type: corev1.EventTypeNormal, Reason: reason, Action: action, Regarding: about, Note: a.Note(what),
	}, client.FieldOwner(FieldOwner))
	if err != nil {
		Fprintf(a.Cmd.ErrOrStderr(), "Done, but there is no Event %s about it: %s\n", reason, err.Error())
	}
}

func ReferenceTo(n *corev1.Node) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}

// WhoAmI is the user's name as the API server knows it.
func WhoAmI(ctx context.Context, api client.Client) (string, error) {
	var review authenticationv1.SelfSubjectReview
	if err := api.Create(ctx, &review); err != nil {
		return "", fmt.Errorf("ask the API server for the user's name: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}
