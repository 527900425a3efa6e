// Command progress measures what it costs the remediator to follow the logs of many training jobs: requests, bytes of logs, CPU and memory,
// with all jobs followed and with none, and beside both a remediator for which following is switched off. With -silent, all jobs then
// fall silent together. One machine runs etcd, the API server, the remediators and this
// program, which stores nodes, jobs and pods in etcd and answers for the kubelets. It prints a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: observe
  budget: {maxNodes: 1}
  restart: {stalls: {mode: %s}}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot]}}}
`

type options struct {
	jobs, ranks int
	length      time.Duration
	silent      time.Duration
	wait        time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.jobs, "jobs", 1000, "how many jobs there are")
	flag.IntVar(&o.ranks, "ranks", 64, "how many ranks each of them has")
	flag.DurationVar(&o.length, "for", 11*time.Minute, "how long to measure while all jobs are followed; the pods of a job are listed once in ten minutes")
	flag.DurationVar(&o.silent, "silent", 0, "then have all jobs fall silent at once, and measure for so long")
	flag.DurationVar(&o.wait, "wait", time.Hour, "how long to wait for anything")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		os.Exit(1)
	}
}

// bench is one cluster with its jobs and two remediators.
type bench struct {
	*cluster.Cluster
	options
	kubelets *kubelets
	off, on  *remediator
}

// remediator is one process, and where it serves its metrics.
type remediator struct {
	*cluster.Process
	metrics string
}

func run(ctx context.Context, o options) (err error) {
	log.SetLogger(logr.Discard())
	c, err := cluster.Start(ctx, cluster.Options{APIOnly: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)
	b := &bench{Cluster: c, options: o}
	if b.kubelets, err = startKubelets(); err != nil {
		return err
	}
	defer b.kubelets.Close()
	begun := time.Now()
	if err := b.storeAll(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d jobs with %d ranks stored after %s\n", o.jobs, o.ranks, time.Since(begun).Round(time.Second))
	if err := b.install(ctx); err != nil {
		return err
	}
	if b.off, err = b.start(ctx, "off"); err != nil {
		return err
	}
	if b.on, err = b.start(ctx, "observe"); err != nil {
		return err
	}
	var t table
	defer t.print(os.Stdout) // what was measured before an error counts
	if err := b.calm(ctx, &t); err != nil {
		return err
	}
	if o.silent == 0 {
		return nil
	}
	return b.silence(ctx)
}

// install installs the roles of the remediator, and the one with which it may read logs.
func (b *bench) install(ctx context.Context) error {
	if err := b.InstallRemediator(ctx); err != nil {
		return err
	}
	role, err := os.ReadFile(filepath.Join(b.Root, "manifests", "progress", "rbac.yaml"))
	if err != nil {
		return fmt.Errorf("read the role: %w", err)
	}
	return b.Apply(ctx, role)
}

// start starts a remediator whose policy has a mode of stalls.
func (b *bench) start(ctx context.Context, mode string) (*remediator, error) {
	path := filepath.Join(b.Dir, "policy-"+mode+".yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, policy, mode), 0o644); err != nil {
		return nil, fmt.Errorf("write the policy: %w", err)
	}
	address, err := cluster.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := b.RunRemediator(ctx, nil, "-policy", path, "-leader-elect=false", "-metrics-bind-address", address)
	return &remediator{p, address}, err
}

// calm measures while all jobs make progress, first without followed jobs.
func (b *bench) calm(ctx context.Context, t *table) error {
	fmt.Fprintln(os.Stderr, "waiting until the remediators are idle")
	if err := b.until(ctx, "the remediators are idle", b.idle); err != nil {
		return err
	}
	none, err := b.measure(ctx, min(b.length, 2*time.Minute))
	if err != nil {
		return err
	}
	for i := range namespaces(b.jobs) {
		namespace := &corev1.Namespace{}
		namespace.Name = namespaceName(i)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q,%q:"5m"}}}`, conditions.AnnotationProgress, `step (?P<step>\d+)`, conditions.AnnotationStalledAfter)
		if err := b.Client.Patch(ctx, namespace, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			return fmt.Errorf("opt in: %w", err)
		}
	}
	begun := time.Now()
	if err := b.until(ctx, "all jobs are followed", func(ctx context.Context) (bool, error) {
		n, err := b.on.sum(ctx, "pitcrew_followed_jobs", "running")
		return int(n) == b.jobs, err
	}); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "all jobs are followed after %s\n", time.Since(begun).Round(time.Second))
	all, err := b.measure(ctx, b.length)
	if err != nil {
		return err
	}
	t.columns = []string{"switched off", "no job followed", fmt.Sprintf("%d jobs of %d ranks followed", b.jobs, b.ranks)}
	t.fill(all[0], none[1], all[1])
	return nil
}

// silence has all jobs fall silent, and measures what finding them costs.
func (b *bench) silence(ctx context.Context) error {
	before, err := b.on.sample(ctx)
	if err != nil {
		return err
	}
	b.kubelets.stop()
	first := time.Duration(0)
	found := func(ctx context.Context) (n float64, err error) {
		n, err = b.on.sum(ctx, "pitcrew_followed_jobs", "stalled")
		if n > 0 && first == 0 {
			first = time.Since(before.at)
		}
		return n, err
	}
	if err := b.until(ctx, "the time is over, or all jobs are reported", func(ctx context.Context) (bool, error) {
		n, err := found(ctx)
		return int(n) == b.jobs || time.Since(before.at) > b.silent, err
	}); err != nil {
		return err
	}
	n, err := found(ctx)
	if err != nil {
		return err
	}
	after, err := b.on.sample(ctx)
	if err != nil {
		return err
	}
	d := after.since(before)
	fmt.Printf("\nAll %d jobs fell silent at once, with `stalled-after: 5m`. The first was reported after %.1f min, %.0f within %.1f min. In that time: %.0f requests, of which %.0f read a log, "+
		"%.0f MB of logs, %.0f s of CPU, memory (RSS) at most %.0f MB.\n", b.jobs, first.Minutes(), n, d.length.Minutes(), d.requests, d.reads, d.bytes/1e6, d.cpu.Seconds(), d.peak)
	return nil
}

// idle reports whether both remediators have used less than a tenth of a core for a while.
func (b *bench) idle(ctx context.Context) (bool, error) {
	const while = 5 * time.Second
	for _, r := range []*remediator{b.off, b.on} {
		if !strings.Contains(r.Log(), "Starting workers") {
			return false, nil
		}
	}
	before, err := b.samples(ctx)
	if err != nil {
		return false, err
	}
	if err := cluster.Pause(ctx, while); err != nil {
		return false, err
	}
	after, err := b.samples(ctx)
	return err == nil && max(after[0].cpu-before[0].cpu, after[1].cpu-before[1].cpu) < while/10, err
}

// until asks once a second until check is true.
func (b *bench) until(ctx context.Context, what string, check func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.wait, errors.New("it takes too long"))
	defer cancel()
	for {
		done, err := check(ctx)
		if done || err != nil {
			return err
		}
		if err := cluster.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
	}
}

// sample is what a remediator has used and asked for so far.
type sample struct {
	at                     time.Time
	length                 time.Duration
	cpu                    time.Duration
	rss, peak              float64
	requests, reads, bytes float64
}

func (s sample) since(earlier sample) sample {
	s.length = s.at.Sub(earlier.at)
	s.cpu -= earlier.cpu
	s.requests -= earlier.requests
	s.reads -= earlier.reads
	s.bytes -= earlier.bytes
	return s
}

func (r *remediator) sample(ctx context.Context) (s sample, err error) {
	used, err := cluster.UsageOf(r.PID())
	if err != nil {
		return s, err
	}
	s = sample{at: used.At, cpu: used.CPU, rss: used.RSS, peak: used.Peak}
	for name, to := range map[string]*float64{
		"rest_client_requests_total": &s.requests, "pitcrew_progress_log_reads_total": &s.reads, "pitcrew_progress_log_bytes_total": &s.bytes,
	} {
		if *to, err = r.sum(ctx, name, ""); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (b *bench) samples(ctx context.Context) (all [2]sample, err error) {
	for i, r := range []*remediator{b.off, b.on} {
		if all[i], err = r.sample(ctx); err != nil {
			return all, err
		}
	}
	return all, nil
}

// measure returns what both remediators use in the time of a measurement.
func (b *bench) measure(ctx context.Context, length time.Duration) (used [2]sample, err error) {
	fmt.Fprintf(os.Stderr, "measuring for %s\n", length)
	before, err := b.samples(ctx)
	if err != nil {
		return used, err
	}
	if err := cluster.Pause(ctx, length); err != nil {
		return used, err
	}
	after, err := b.samples(ctx)
	for i := range used {
		used[i] = after[i].since(before[i])
	}
	return used, err
}

// sum adds up a metric, all of it or only what has a label with a value.
func (r *remediator) sum(ctx context.Context, name, value string) (sum float64, err error) {
	text, err := cluster.Scrape(ctx, r.metrics)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("read the metrics: %w", err)
	}
	for _, m := range families[name].GetMetric() {
		has := value == ""
		for _, label := range m.GetLabel() {
			has = has || label.GetValue() == value
		}
		if has {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum, nil
}

// table has a column for each remediator.
type table struct{ columns, rows []string }

func (t *table) fill(all ...sample) {
	for _, row := range []struct {
		name string
		cell func(sample) string
	}{
		{"requests in a minute", func(s sample) string { return fmt.Sprintf("%.0f", s.requests/s.length.Minutes()) }},
		{"of these, reads of logs", func(s sample) string { return fmt.Sprintf("%.0f", s.reads/s.length.Minutes()) }},
		{"bytes of logs in a minute", func(s sample) string { return fmt.Sprintf("%.1f MB", s.bytes/1e6/s.length.Minutes()) }},
		{"CPU, of a core", func(s sample) string { return fmt.Sprintf("%.2f %%", 100*s.cpu.Seconds()/s.length.Seconds()) }},
		{"memory (RSS), with its peak since the start", func(s sample) string { return fmt.Sprintf("%.0f MB, %.0f MB", s.rss, s.peak) }},
	} {
		line := "| " + row.name + " |"
		for _, s := range all {
			line += " " + row.cell(s) + " |"
		}
		t.rows = append(t.rows, line)
	}
}

func (t *table) print(out *os.File) {
	if len(t.rows) > 0 {
		fmt.Fprintf(out, "| | %s |\n|---|%s\n%s\n", strings.Join(t.columns, " | "), strings.Repeat("--:|", len(t.columns)), strings.Join(t.rows, "\n"))
	}
}
