package pause_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
)

// The pauses that `kubectl pitcrew pause` of 19f658c began, and one that a user made with kubectl, hold.
func TestGoldenPauses(t *testing.T) {
	made := func(data map[string]string) *corev1.ConfigMap {
		since := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap, CreationTimestamp: since}, Data: data}
	}
	pauses := goldentest.Read(t, "stores/pause", func(*testing.T) map[string]*corev1.ConfigMap {
		return map[string]*corev1.ConfigMap{
			"command": made(map[string]string{"reason": "driver upgrade", pause.ByKey: "jo"}),
			"by hand": made(map[string]string{"reason": "driver upgrade"}),
			"empty":   made(nil),
		}
	})
	answers := map[string]*pause.Pause{}
	for name, object := range pauses {
		var err error
		if answers[name], err = pause.Read(t.Context(), fake.NewClientBuilder().WithObjects(object).Build(), "pitcrew"); err != nil {
			t.Error(err)
		}
	}
	goldentest.Answer(t, "stores/pause", answers)
}
