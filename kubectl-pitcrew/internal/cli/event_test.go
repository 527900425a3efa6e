package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// release --clear clears each condition of a node and then releases it, in the name of the same user at the same time.
func TestOneCommandWritesSeveralEventsAboutANode(t *testing.T) {
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetErr(&out)
	by := Actor{Cmd: cmd, Api: fake.NewFakeClient(), now: metav1.NewMicroTime(time.Now())}
	node := ReferenceTo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}})
	by.Announce(t.Context(), node, EventFaultCleared, "Clear", "GPUXidError")
	by.Announce(t.Context(), node, EventFaultCleared, "Clear", "KernelHardwareError")
	by.Announce(t.Context(), node, causes.ReleaseByHand, "Quarantine", "released manually")
	var events eventsv1.EventList
	if err := by.Api.List(t.Context(), &events); err != nil || len(events.Items) != 3 || out.Len() > 0 {
		t.Errorf("%d Events, want 3; %v; printed %q", len(events.Items), err, out.String())
	}
}
