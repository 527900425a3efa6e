package webhook

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The delivery is the example of the specification of Standard Webhooks.
func TestOnlyASignedAndFreshDeliveryWakesTheProgram(t *testing.T) {
	const (
		body      = `{"test": 2432232314}`
		signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600); err != nil {
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
			r, err := New(file)
			if err != nil {
				t.Fatal(err)
			}
			r.now = func() time.Time { return test.now }
			for range 2 { // repeated, as a delivery may be
				request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
				request.Header.Set("Webhook-Id", test.id)
				request.Header.Set("Webhook-Timestamp", "1614265330")
				request.Header.Set("Webhook-Signature", test.signature)
				answer := httptest.NewRecorder()
				r.ServeHTTP(answer, request)
				if answer.Code != test.want {
					t.Errorf("answered %d, want %d", answer.Code, test.want)
				}
			}
			if woken := len(r.woken) > 0; woken != (test.want == http.StatusNoContent) {
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
		if _, err := New(file); err == nil {
			t.Errorf("%q is a secret", text)
		}
	}
}
