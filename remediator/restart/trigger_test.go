package restart

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A record of any version has no kind. One that names a taint and no node is forged, and no node may follow from it.
func TestTheKindOfARecordedCause(t *testing.T) {
	taint := corev1.Taint{Key: "pitcrew.dev/unhealthy"}
	for want, triggers := range map[TriggerKind][]Trigger{
		NodeQuarantined: {quarantine}, PodFailed: {podFailed}, JobStalled: {stalled, {ID: "forged", Taint: taint}, {}},
	} {
		for _, from := range triggers {
			c := CauseOf(from)
			if c.Kind() != want {
				t.Errorf("%+v: %s, want %s", c, c.Kind(), want)
			}
		}
	}
	if !(Trigger{Kind: NodeQuarantined}).IsNode() || (Trigger{Kind: PodFailed}).IsNode() {
		t.Error("IsNode")
	}
}
