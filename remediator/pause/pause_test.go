package pause_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
)

func TestReason(t *testing.T) {
	configMap := func(namespace, reason string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: conditions.PauseConfigMap}, Data: map[string]string{"reason": reason}}
	}
	for name, test := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"nothing is paused without the ConfigMap": {nil, ""},
		"a ConfigMap of another namespace":        {[]client.Object{configMap("elsewhere", "drill")}, ""},
		"the reason that a user gave":             {[]client.Object{configMap("pitcrew", "drill")}, "drill"},
		"an empty ConfigMap pauses just the same": {[]client.Object{configMap("pitcrew", "")}, pause.NoReason},
	} {
		t.Run(name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithObjects(test.objects...).Build()
			if got, err := pause.Reason(t.Context(), reader, "pitcrew"); err != nil || got != test.want {
				t.Errorf("Reason() = %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// Whether everything is paused is not known then, so the caller must not go on.
func TestAnUnreadablePauseIsAnError(t *testing.T) {
	broken := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("connection refused")
		},
	})
	if reason, err := pause.Reason(t.Context(), broken, "pitcrew"); err == nil || !strings.Contains(err.Error(), "pitcrew/"+conditions.PauseConfigMap) {
		t.Errorf("Reason() = %q, %v, want an error that names the ConfigMap", reason, err)
	}
}
