// Package webhooks delivers notices about nodes over HTTP. A notice stays in the node's record until it is delivered, so a
// crash at worst repeats a delivery, with the same id. No decision waits for a delivery.
package webhooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const (
	// firstRetry and lastRetry bound the wait after an attempt that failed; it doubles in between.
	firstRetry, lastRetry = time.Second, 10 * time.Minute
	// longestRetryAfter bounds how long a receiver may ask to wait.
	longestRetryAfter = time.Hour
	// giveUp is the age at which a notice is no longer worth delivering.
	giveUp = 24 * time.Hour
)

// Delivery is one notice for one webhook.
type Delivery struct {
	// Webhook is its name in the policy.
	Webhook string
	// ID is the same for every attempt and every webhook, so that a receiver can recognize a repeated delivery.
	ID string
	// At is when it happened.
	At time.Time
	// Body is JSON.
	Body []byte
}

// Receipt identifies a delivery of a node.
type Receipt struct{ Webhook, ID string }

type key struct {
	node string
	Receipt
}

// state of a delivery.
type state struct {
	Delivery
	attempts int
	// finished is set when the delivery was made or abandoned.
	finished bool
}

// Sender delivers, for each webhook one after the other. Use [New].
type Sender struct {
	policy     *policy.File
	clock      clock.PassiveClock
	onFinished func(ctx context.Context, node string)
	results    *prometheus.CounterVec

	mu     sync.Mutex
	states map[string]map[Receipt]*state // by node, since every decision about a node asks for its own
	queues map[string]workqueue.TypedDelayingInterface[key]
	run    func(workqueue.TypedDelayingInterface[key]) // nil until Start
}

// New makes a sender that calls onFinished whenever a delivery of a node needs no more attempts.
func New(
	p *policy.File, clock clock.PassiveClock, onFinished func(ctx context.Context, node string), registry prometheus.Registerer,
) (*Sender, error) {
	s := &Sender{
		policy: p, clock: clock, onFinished: onFinished,
		states: map[string]map[Receipt]*state{}, queues: map[string]workqueue.TypedDelayingInterface[key]{},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_webhook_deliveries_total",
			Help: "Attempts to deliver to a webhook: sent, failed (and tried again) or dropped (after 24 h).",
		}, []string{"webhook", "result"}),
	}
	if err := registry.Register(s.results); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return s, nil
}

// Start delivers until the context ends.
func (s *Sender) Start(ctx context.Context) error {
	var workers sync.WaitGroup
	s.mu.Lock()
	s.run = func(queue workqueue.TypedDelayingInterface[key]) { workers.Go(func() { s.work(ctx, queue) }) }
	for _, queue := range s.queues {
		s.run(queue)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.run = nil
	for _, queue := range s.queues {
		queue.ShutDown()
	}
	s.mu.Unlock()
	workers.Wait()
	return nil
}

// Deliver takes all deliveries in a node's record, and drops any other deliveries of that node. It never
// blocks.
func (s *Sender) Deliver(node string, wanted []Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.states[node]
	delete(s.states, node)
	for _, d := range wanted {
		r := Receipt{d.Webhook, d.ID}
		it := known[r]
		if it == nil {
			it = &state{Delivery: d}
			s.queue(d.Webhook).Add(key{node, r})
		}
		if s.states[node] == nil {
			s.states[node] = map[Receipt]*state{}
		}
		s.states[node][r] = it
	}
}

// Finished lists the deliveries of a node that were made or abandoned, until its record no longer has them.
func (s *Sender) Finished(node string) map[Receipt]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	finished := map[Receipt]bool{}
	for r, known := range s.states[node] {
		if known.finished {
			finished[r] = true
		}
	}
	return finished
}

// queue is the queue of one webhook. A webhook that hangs delays no other webhook.
func (s *Sender) queue(webhook string) workqueue.TypedDelayingInterface[key] {
	queue, ok := s.queues[webhook]
	if !ok {
		queue = workqueue.NewTypedDelayingQueue[key]()
		s.queues[webhook] = queue
		if s.run != nil {
			s.run(queue)
		}
	}
	return queue
}

func (s *Sender) work(ctx context.Context, queue workqueue.TypedDelayingInterface[key]) {
	for {
		k, shutdown := queue.Get()
		if shutdown {
			return
		}
		s.attempt(ctx, queue, k)
		queue.Done(k)
	}
}

func (s *Sender) attempt(ctx context.Context, queue workqueue.TypedDelayingInterface[key], k key) {
	s.mu.Lock()
	known := s.states[k.node][k.Receipt]
	if known == nil || known.finished {
		s.mu.Unlock()
		return
	}
	known.attempts++
	d, attempts := known.Delivery, known.attempts
	s.mu.Unlock()

	log := ctrl.LoggerFrom(ctx).WithValues("webhook", k.Webhook, "node", k.node, "delivery", k.ID)
	hook, ok := s.policy.Policy().Webhook(k.Webhook)
	if !ok {
		s.finish(ctx, k) // The webhook is no longer in the policy. The next decision removes the notice from the record.
		return
	}
	if s.clock.Now().Sub(d.At) > giveUp {
		s.results.WithLabelValues(k.Webhook, "dropped").Inc()
		log.Info("Failed to deliver to a webhook; giving up", "after", giveUp)
		s.finish(ctx, k)
		return
	}
	again, err := s.post(ctx, hook, d, attempts)
	if err != nil {
		s.results.WithLabelValues(k.Webhook, "failed").Inc()
		log.Error(err, "Failed to deliver to a webhook; retrying", "attempt", attempts, "again", again)
		queue.AddAfter(k, again)
		return
	}
	s.results.WithLabelValues(k.Webhook, "sent").Inc()
	log.Info("Delivered to a webhook", "attempts", attempts)
	s.finish(ctx, k)
}

func (s *Sender) finish(ctx context.Context, k key) {
	s.mu.Lock()
	if known := s.states[k.node][k.Receipt]; known != nil {
		known.finished = true
	}
	s.mu.Unlock()
	s.onFinished(ctx, k.node)
}

// post makes one attempt. With an error it returns after what time to make the next one.
func (s *Sender) post(ctx context.Context, hook policy.Webhook, d Delivery, attempts int) (again time.Duration, err error) {
	again = retryablehttp.DefaultBackoff(firstRetry, lastRetry, attempts-1, nil)
	client, err := client(hook)
	if err != nil {
		return again, err
	}
	secret, err := readKey(hook.SecretFile)
	if err != nil {
		return again, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(d.Body))
	if err != nil {
		return again, withoutURL(err)
	}
	at := s.clock.Now()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "pitcrew-remediator")
	request.Header.Set("Webhook-Id", d.ID)
	request.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	request.Header.Set("Webhook-Signature", sign(secret, d.ID, at, d.Body))
	response, err := client.Do(request)
	if err != nil {
		return again, withoutURL(err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 2 {
		return 0, nil
	}
	// Retry-After of 429 and 503 counts, unless the next attempt would be later anyway.
	asked := retryablehttp.DefaultBackoff(firstRetry, lastRetry, attempts-1, response)
	return min(max(again, asked), longestRetryAfter), fmt.Errorf("the answer is %s", response.Status)
}

// client follows no redirects, because they would send the signed body to another server. It keeps no connections, because deliveries
// are rare.
func client(hook policy.Webhook) (*http.Client, error) {
	transport := cleanhttp.DefaultTransport()
	if hook.CAFile != "" {
		pem, err := os.ReadFile(hook.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificates: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificates %s: no PEM certificate", hook.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{
		Transport:     transport,
		Timeout:       hook.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// withoutURL drops the URL, which may be a secret, from an error of net/http.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
