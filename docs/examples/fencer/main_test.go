package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestWhatTheFencerDoesWithANode(t *testing.T) {
	const unknown, no, yes = corev1.ConditionUnknown, corev1.ConditionFalse, corev1.ConditionTrue
	theirs := corev1.Taint{Key: fenced.Key, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	tests := map[string]struct {
		ready   corev1.ConditionStatus
		state   string
		status  string // label pitcrew.dev/status
		taints  []corev1.Taint
		machine string
		want    string
	}{
		"terminated":                     {unknown, "terminated", "quarantined", nil, "p", "deleted"},
		"stopped":                        {unknown, "stopped", "quarantined", nil, "p", "fencer"},
		"stopped, the kubelet said so":   {no, "stopped", "quarantined", nil, "p", "fencer"},
		"running":                        {unknown, "running", "quarantined", nil, "p", ""},
		"the provider does not say":      {unknown, "", "quarantined", nil, "p", ""},
		"stopped and fenced":             {unknown, "stopped", "quarantined", []corev1.Taint{fenced}, "p", "fencer"},
		"stopped and fenced by a person": {unknown, "stopped", "quarantined", []corev1.Taint{theirs}, "p", "nodeshutdown"},
		"Ready, whatever is said":        {yes, "terminated", "quarantined", nil, "p", ""},
		"Ready again":                    {yes, "running", "quarantined", []corev1.Taint{fenced}, "p", ""},
		"Ready again, a person's taint":  {yes, "running", "quarantined", []corev1.Taint{theirs}, "p", "nodeshutdown"},
		"not quarantined":                {unknown, "terminated", "suspect", nil, "p", ""},
		"no provider id":                 {unknown, "terminated", "quarantined", nil, "", ""},
		"it never reported":              {"", "terminated", "quarantined", nil, "p", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"pitcrew.dev/status": test.status}},
				Spec:       corev1.NodeSpec{ProviderID: test.machine, Taints: test.taints},
			}
			if test.ready != "" {
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: test.ready}}
			}
			api := fake.NewClientBuilder().WithObjects(node).Build()
			f := &fencer{client: api, state: func(_ context.Context, machine string) (string, error) {
				if machine != test.machine || test.ready == yes {
					t.Errorf("asked for machine %q of a node whose Ready is %s", machine, test.ready)
				}
				return test.state, nil
			}}
			for range 2 {
				if err := f.fence(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var after corev1.Node
			err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &after)
			got := ""
			switch {
			case apierrors.IsNotFound(err):
				got = "deleted"
			case err != nil:
				t.Fatal(err)
			case len(after.Spec.Taints) > 0:
				got = after.Spec.Taints[0].Value
			}
			if got != test.want || len(after.Spec.Taints) > 1 {
				t.Errorf("got %q, want %q; taints %v", got, test.want, after.Spec.Taints)
			}
		})
	}
}

func TestANodeThatHasChangedSinceIsNotDeleted(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"pitcrew.dev/status": "quarantined"}},
		Spec:       corev1.NodeSpec{ProviderID: "p"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}},
	}
	asked := false
	api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(node).Build(), interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			var o client.DeleteOptions
			o.ApplyOptions(opts)
			asked = true
			if p := o.Preconditions; p == nil || *p.UID != "u" || *p.ResourceVersion != "7" {
				t.Errorf("asked for %+v", o)
			}
			return nil
		},
	})
	f := &fencer{client: api, state: func(context.Context, string) (string, error) { return "terminated", nil }}
	if err := f.fence(t.Context()); err != nil || !asked {
		t.Errorf("asked for the deletion: %t, %v", asked, err)
	}
}

// The delivery is the example of the specification of Standard Webhooks.
func TestOnlyASignedAndFreshDeliveryWakesTheFencer(t *testing.T) {
	const (
		body      = `{"test": 2432232314}`
		signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret, err := readKey(file)
	if err != nil {
		t.Fatal(err)
	}
	sent := time.Unix(1614265330, 0)
	tests := map[string]struct {
		id, body, signature string
		now                 time.Time
		want                int
	}{
		"right":                    {"msg_p5jXN8AQM9LWM0D4loKWxJek", body, signature, sent.Add(time.Minute), http.StatusNoContent},
		"right, among others":      {"msg_p5jXN8AQM9LWM0D4loKWxJek", body, "v1,AAAA " + signature, sent, http.StatusNoContent},
		"another body":             {"msg_p5jXN8AQM9LWM0D4loKWxJek", body + " ", signature, sent, http.StatusUnauthorized},
		"another id":               {"msg_other", body, signature, sent, http.StatusUnauthorized},
		"no signature":             {"msg_p5jXN8AQM9LWM0D4loKWxJek", body, "", sent, http.StatusUnauthorized},
		"sent again an hour later": {"msg_p5jXN8AQM9LWM0D4loKWxJek", body, signature, sent.Add(time.Hour), http.StatusUnauthorized},
		"sent in the future":       {"msg_p5jXN8AQM9LWM0D4loKWxJek", body, signature, sent.Add(-time.Hour), http.StatusUnauthorized},
		"too long":                 {"msg_p5jXN8AQM9LWM0D4loKWxJek", strings.Repeat("x", maxBody+1), signature, sent, http.StatusUnauthorized},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fencer{secret: secret, wake: make(chan struct{}, 1), now: func() time.Time { return test.now }}
			for range 2 { // repeated, as a delivery may be
				request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
				request.Header.Set("Webhook-Id", test.id)
				request.Header.Set("Webhook-Timestamp", "1614265330")
				request.Header.Set("Webhook-Signature", test.signature)
				answer := httptest.NewRecorder()
				f.ServeHTTP(answer, request)
				if answer.Code != test.want {
					t.Errorf("answered %d, want %d", answer.Code, test.want)
				}
			}
			if woken := len(f.wake) > 0; woken != (test.want == http.StatusNoContent) {
				t.Errorf("woken: %t", woken)
			}
		})
	}
}

func TestAShortSecretIsRefused(t *testing.T) {
	for _, text := range []string{"", "short", "whsec_!!", "whsec_c2hvcnQ="} {
		file := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readKey(file); err == nil {
			t.Errorf("%q is a secret", text)
		}
	}
}
