package webhooks

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// The vector of the Standard Webhooks reference implementations.
func TestSignatureOfStandardWebhooks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write(t, path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	secret, err := readKey(path)
	if err != nil {
		t.Fatal(err)
	}
	got := sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

func TestAnInvalidSecretSignsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := readKey(path); err == nil {
		t.Error("a missing file is a key")
	}
	for _, text := range []string{"", "short", "whsec_not base64 at all", "whsec_c2hvcnQ="} {
		write(t, path, text)
		if key, err := readKey(path); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q is key %q, %v", text, key, err)
		}
	}
	write(t, path, "sixteen bytes or more")
	if key, err := readKey(path); err != nil || string(key) != "sixteen bytes or more" {
		t.Errorf("key %q, %v", key, err)
	}
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is a server that gives the configured answers and stores the requests.
type receiver struct {
	*httptest.Server
	answers chan func(http.ResponseWriter)
	got     chan request
}

type request struct {
	header http.Header
	body   string
	at     time.Time
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{answers: make(chan func(http.ResponseWriter), 10), got: make(chan request, 10)}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		if err != nil {
			t.Error(err)
		}
		select {
		case answer := <-r.answers:
			answer(w)
		default:
		}
		r.got <- request{in.Header, string(body), time.Now()}
	}))
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) next(t *testing.T) request {
	t.Helper()
	select {
	case got := <-r.got:
		return got
	case <-time.After(time.Minute):
		t.Fatal("no delivery arrives")
		return request{}
	}
}

// rig is a sender that runs, with one webhook named hook.
type rig struct {
	*Sender
	over chan string
	logs *logs
}

type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func start(t *testing.T, hooks ...policy.Webhook) rig {
	t.Helper()
	r := rig{over: make(chan string, 10), logs: &logs{}}
	var err error
	if r.Sender, err = New(policy.Fixed(&policy.Policy{Webhooks: hooks}), clock.RealClock{}, func(_ context.Context, node string) { r.over <- node }, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	sink := funcr.New(func(prefix, args string) {
		r.logs.mu.Lock()
		defer r.logs.mu.Unlock()
		fmt.Fprintln(&r.logs.text, prefix, args)
	}, funcr.Options{Verbosity: 10})
	ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), sink))
	ended := make(chan error)
	go func() { ended <- r.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r rig) finished(t *testing.T, node string) {
	t.Helper()
	select {
	case got := <-r.over:
		if got != node {
			t.Fatalf("finished for %s, want %s", got, node)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no delivery is finished; log:\n%s", r.logs)
	}
}

func (r rig) results(t *testing.T, want string) {
	t.Helper()
	count := func(result string) float64 {
		var m dto.Metric
		if err := r.Sender.results.WithLabelValues("hook", result).Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetCounter().GetValue()
	}
	got := fmt.Sprintf("sent %v, failed %v, dropped %v", count("sent"), count("failed"), count("dropped"))
	if got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// hook is a webhook with the URL of a receiver, whose certificate it trusts.
func hook(t *testing.T, r *receiver) policy.Webhook {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), secret)
	write(t, filepath.Join(dir, "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})))
	return policy.Webhook{Name: "hook", URL: r.URL + "/token-in-the-path", SecretFile: filepath.Join(dir, "secret"), CAFile: filepath.Join(dir, "ca.pem"), Timeout: 10 * time.Second}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func delivery(id string) Delivery {
	return Delivery{Webhook: "hook", ID: id, At: time.Now(), Body: []byte(`{"type":"NodeQuarantined"}`)}
}

func TestADeliveryIsSignedAndMadeOnce(t *testing.T) {
	server := receive(t)
	r := start(t, hook(t, server))
	d := delivery("id-1")
	r.Deliver("n", []Delivery{d})
	r.Deliver("n", []Delivery{d}) // by the next reconcile
	got := server.next(t)
	r.finished(t, "n")
	var at int64
	if _, err := fmt.Sscan(got.header.Get("webhook-timestamp"), &at); err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		t.Errorf("timestamp %d, %v", at, err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"id-1", sign(key, "id-1", time.Unix(at, 0), d.Body), "application/json", string(d.Body)}
	have := []string{got.header.Get("webhook-id"), got.header.Get("webhook-signature"), got.header.Get("content-type"), got.body}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if finished := r.Finished("n"); !finished[Receipt{"hook", "id-1"}] {
		t.Errorf("finished %v", finished)
	}
	r.Deliver("n", []Delivery{d}) // its record could not be written yet
	r.Deliver("n", nil)
	if finished := r.Finished("n"); len(finished) > 0 {
		t.Errorf("still lists %v", finished)
	}
	r.results(t, "sent 1, failed 0, dropped 0")
}

func TestARefusedDeliveryIsRepeatedWhenTheReceiverAsks(t *testing.T) {
	server := receive(t)
	r := start(t, hook(t, server))
	server.answers <- func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "3") // longer than the first wait without it
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	server.answers <- func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }
	r.Deliver("n", []Delivery{delivery("id-1")})
	first, second, third := server.next(t), server.next(t), server.next(t)
	r.finished(t, "n")
	if waited := second.at.Sub(first.at); waited < 3*time.Second {
		t.Errorf("tried again after %s", waited)
	}
	if first.header.Get("webhook-id") != third.header.Get("webhook-id") || first.body != third.body {
		t.Errorf("attempts differ: %v, %v", first, third)
	}
	r.results(t, "sent 1, failed 2, dropped 0")
}

func TestARetryComesNeitherImmediatelyNorNever(t *testing.T) {
	server := receive(t)
	r := start(t)
	for after, want := range map[string]time.Duration{
		"": 4 * time.Second, "0": 4 * time.Second, "Fri, 31 Dec 1999 23:59:59 GMT": 4 * time.Second, "30": 30 * time.Second,
		"86400": longestRetryAfter, "9223372036854775807": 4 * time.Second,
	} {
		server.answers <- func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		again, err := r.post(t.Context(), hook(t, server), delivery("id-1"), 3)
		if err == nil || again != want {
			t.Errorf("Retry-After %q: again after %s, want %s (%v)", after, again, want, err)
		}
		server.next(t)
	}
}

func TestAWebhookThatHangsDelaysNoOther(t *testing.T) {
	slow, quick := receive(t), receive(t)
	release := make(chan struct{})
	slow.answers <- func(http.ResponseWriter) { <-release }
	hanging := hook(t, slow)
	hanging.Name = "hanging"
	r := start(t, hanging, hook(t, quick))
	stuck := delivery("id-1")
	stuck.Webhook = "hanging"
	r.Deliver("n", []Delivery{stuck, delivery("id-1")})
	quick.next(t)
	r.finished(t, "n")
	close(release)
	slow.next(t)
	r.finished(t, "n")
}

// The log must contain neither the URL nor the secret nor the body.
func TestErrorsContainNoSecrets(t *testing.T) {
	tests := map[string]struct {
		change func(*testing.T, *policy.Webhook, *receiver)
		logged string
	}{
		"a refused connection":    {func(_ *testing.T, _ *policy.Webhook, r *receiver) { r.Close() }, "connection refused"},
		"an unknown certificate":  {func(_ *testing.T, w *policy.Webhook, _ *receiver) { w.CAFile = "" }, "certificate"},
		"no certificates":         {func(t *testing.T, w *policy.Webhook, _ *receiver) { write(t, w.CAFile, "none") }, "no PEM certificate"},
		"a certificate file less": {func(_ *testing.T, w *policy.Webhook, _ *receiver) { w.CAFile += "?" }, "no such file"},
		"a secret less":           {func(_ *testing.T, w *policy.Webhook, _ *receiver) { w.SecretFile += "?" }, "no such file"},
		"a broken secret":         {func(t *testing.T, w *policy.Webhook, _ *receiver) { write(t, w.SecretFile, "whsec_MfKQ9r8GKYqrTwjUP?") }, "not base64"},
		"an answer that never comes": {func(t *testing.T, w *policy.Webhook, r *receiver) {
			w.Timeout = 50 * time.Millisecond
			ended := make(chan struct{})
			t.Cleanup(func() { close(ended) })
			r.answers <- func(http.ResponseWriter) { <-ended }
		}, "deadline"},
		"a redirect": {func(_ *testing.T, _ *policy.Webhook, r *receiver) {
			r.answers <- func(w http.ResponseWriter) {
				w.Header().Set("Location", r.URL+"/elsewhere")
				w.WriteHeader(http.StatusTemporaryRedirect)
			}
		}, "307"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := receive(t)
			server.TLS.MinVersion = tls.VersionTLS12
			w := hook(t, server)
			test.change(t, &w, server)
			r := start(t, w)
			r.Deliver("n", []Delivery{delivery("id-1")})
			deadline := time.After(time.Minute)
			for !strings.Contains(r.logs.String(), "Failed to deliver to a webhook") {
				select {
				case <-deadline:
					t.Fatalf("no failure is logged; log:\n%s", r.logs)
				case <-time.After(5 * time.Millisecond):
				}
			}
			text := r.logs.String()
			if !strings.Contains(text, test.logged) {
				t.Errorf("no %q in\n%s", test.logged, text)
			}
			for _, hidden := range []string{"token-in-the-path", "MfKQ9r8GKYqrTwjUP", "NodeQuarantined"} {
				if strings.Contains(text, hidden) {
					t.Errorf("%q in\n%s", hidden, text)
				}
			}
		})
	}
}

func TestOldDeliveriesAndThoseOfAnUnknownWebhookAreDropped(t *testing.T) {
	server := receive(t)
	r := start(t, hook(t, server))
	old, unknown := delivery("old"), delivery("unknown")
	old.At = time.Now().Add(-giveUp - time.Minute)
	unknown.Webhook = "gone"
	r.Deliver("n", []Delivery{old, unknown})
	r.finished(t, "n")
	r.finished(t, "n")
	if len(server.got) > 0 {
		t.Errorf("delivered %v", <-server.got)
	}
	r.results(t, "sent 0, failed 0, dropped 1")
}
