// Command scale measures the remediator on a cluster of KWOK nodes whose conditions all change together, with the budgets
// off: how long until every node is tainted, the cost of a fault, and the cost of the remediator while only heartbeats
// arrive. One machine runs etcd, the API server, KWOK, the remediator and this program. It prints a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	pool = "scale"
	// writers is how many conditions are written at the same time.
	writers = 16
	// heartbeat is how often the Node Problem Detector confirms a condition that does not change.
	heartbeat = 5 * time.Minute
	patience  = 10 * time.Minute

	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot]}, restartJobs: true}}
`
)

func main() {
	nodes := flag.Int("nodes", 1000, "how many nodes, all of which turn")
	quiet := flag.Duration("quiet", time.Minute, "how long to watch the remediator while only heartbeats come in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *nodes, *quiet)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, n int, quiet time.Duration) (err error) {
	log.SetLogger(logr.Discard())
	c, err := cluster.Start(ctx, cluster.Options{Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)

	names, err := c.AddNodes(ctx, pool, n, nil)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o644); err != nil {
		return err
	}
	address, err := cluster.FreeAddress()
	if err != nil {
		return err
	}
	if _, err := c.StartRemediator(ctx, "-policy", path, "-leader-elect=false", "-metrics-bind-address", address); err != nil {
		return err
	}
	b := &bench{Cluster: c, metrics: "http://" + address + "/metrics", written: map[string]time.Time{}, tainted: map[string]time.Time{}}
	// Every node reports that it is healthy, and the remediator has read it.
	if err := b.report(ctx, names, "False", "no fault"); err != nil {
		return err
	}
	if err := b.settled(ctx, n); err != nil {
		return err
	}
	before, err := b.scrape(ctx)
	if err != nil {
		return err
	}
	if err := b.heartbeats(ctx, names, quiet); err != nil {
		return err
	}
	idle, err := b.scrape(ctx)
	if err != nil {
		return err
	}
	if err := b.turn(ctx, names); err != nil {
		return err
	}
	after, err := b.scrape(ctx)
	if err != nil {
		return err
	}
	b.print(n, quiet, before, idle, after)
	return nil
}

type bench struct {
	*cluster.Cluster
	metrics string

	mu               sync.Mutex
	written, tainted map[string]time.Time
	started, wrote   time.Time
}

// report writes the condition of many nodes, as fast as the API server takes it.
func (b *bench) report(ctx context.Context, names []string, status, message string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, name := range names {
		group.Go(func() error {
			now := metav1.Now().Format(time.RFC3339)
			patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"bench","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
				conditions.GPUXidError, status, message, now, now)
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := b.Client.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
				return fmt.Errorf("report the condition of %s: %w", name, err)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.written[name] = time.Now()
			return nil
		})
	}
	return group.Wait()
}

// settled waits until the remediator's cache shows every node as healthy.
func (b *bench) settled(ctx context.Context, n int) error {
	return b.poll(ctx, "the remediator to see the nodes", func() (bool, error) {
		m, err := b.scrape(ctx)
		return err == nil && m.healthy == float64(n), nil
	})
}

// heartbeats confirms every node's condition once in five minutes, spread evenly, as that many detectors would.
func (b *bench) heartbeats(ctx context.Context, names []string, quiet time.Duration) error {
	ticker := time.NewTicker(heartbeat / time.Duration(len(names)))
	defer ticker.Stop()
	end := time.After(quiet)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-ticker.C:
			if err := b.report(ctx, names[i%len(names):i%len(names)+1], "False", "no fault"); err != nil {
				return err
			}
		}
	}
}

// turn makes all nodes faulty and waits for the last taint.
func (b *bench) turn(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.watch(ctx); err != nil {
		return err
	}
	b.started = time.Now()
	if err := b.report(ctx, names, "True", "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"); err != nil {
		return err
	}
	b.wrote = time.Now()
	return b.poll(ctx, "the last taint", func() (bool, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.tainted) == len(names), nil
	})
}

// watch notes when each taint is first seen. An informer goes on when the API server ends a watch, as a busy one does.
func (b *bench) watch(ctx context.Context) error {
	nodes, err := cache.New(b.Admin, cache.Options{Scheme: scheme.Scheme})
	if err != nil {
		return fmt.Errorf("make a cache: %w", err)
	}
	informer, err := nodes.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, object any) {
		n := object.(*corev1.Node)
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }) {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, known := b.tainted[n.Name]; !known {
			b.tainted[n.Name] = time.Now()
		}
	}}); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	go nodes.Start(ctx) //nolint:errcheck // it ends with the context
	if !nodes.WaitForCacheSync(ctx) {
		return fmt.Errorf("watch nodes: %w", context.Cause(ctx))
	}
	return nil
}

// sample holds values of the remediator's metrics.
type sample struct {
	healthy, requests, cpu, memory float64
	at                             time.Time
}

func (b *bench) scrape(ctx context.Context) (sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.metrics, nil)
	if err != nil {
		return sample{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return sample{}, fmt.Errorf("scrape the remediator: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return sample{}, fmt.Errorf("scrape the remediator: %w", err)
	}
	s := sample{at: time.Now()}
	for _, m := range families["rest_client_requests_total"].GetMetric() {
		s.requests += m.GetCounter().GetValue()
	}
	for _, m := range families["pitcrew_node_condition"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "status" && label.GetValue() == string(corev1.ConditionFalse) {
				s.healthy += m.GetGauge().GetValue()
			}
		}
	}
	for _, m := range families["process_cpu_seconds_total"].GetMetric() {
		s.cpu = m.GetCounter().GetValue()
	}
	for _, m := range families["process_resident_memory_bytes"].GetMetric() {
		s.memory = m.GetGauge().GetValue()
	}
	return s, nil
}

func (b *bench) poll(ctx context.Context, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, err := check()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (b *bench) print(n int, quiet time.Duration, before, idle, after sample) {
	var waits []time.Duration
	var last time.Time
	for name, at := range b.tainted {
		// A taint can be seen before the answer to the write of its condition.
		waits = append(waits, max(0, at.Sub(b.written[name])))
		if at.After(last) {
			last = at
		}
	}
	slices.Sort(waits)
	total := last.Sub(b.started)
	row := func(what, format string, args ...any) {
		fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Print("| what | |\n|---|---|\n")
	row(fmt.Sprintf("%d conditions written by %d writers", n, writers), "%.1f s", b.wrote.Sub(b.started).Seconds())
	row(fmt.Sprintf("until all %d nodes are tainted", n), "%.1f s, %.0f nodes/s", total.Seconds(), float64(n)/total.Seconds())
	row("condition written -> taint seen, p50", "%d ms", waits[n/2].Milliseconds())
	row("p99", "%d ms", waits[n*99/100].Milliseconds())
	row("requests per fault", "%.2f", (after.requests-idle.requests)/float64(n))
	row("the remediator's CPU per fault", "%.1f ms", (after.cpu-idle.cpu)/float64(n)*1000)
	row("its memory (RSS) after it", "%.0f MB", after.memory/(1<<20))
	row(fmt.Sprintf("its CPU while only heartbeats come in, %s", quiet), "%.2f %% of a core", (idle.cpu-before.cpu)/idle.at.Sub(before.at).Seconds()*100)
	row("its requests meanwhile", "%.0f", idle.requests-before.requests)
}
