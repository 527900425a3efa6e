// Command repair measures what the loop itself costs: from a fault on an empty node until the node is in service again, when the work on
// the node takes no time, and how many requests the remediator makes meanwhile. KWOK simulates nodes and kubelets; the containers of
// repair Jobs end at once, a reboot takes no time, and every condition is reported once a second. It prints a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const (
	patience = 10 * time.Minute

	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  rules:
    gpu-xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}, clearAfter: 1s, validate: VALIDATE}
    gpu-diag: {match: {condition: DCGMDiagFailed, repair: [ResetGPU]}, clearAfter: 1s}
  repair:
    mode: auto
    actions:
      ResetGPU: [{template: reset-gpu, timeout: 1m}, {template: reboot, timeout: 1m}]
      Reboot: [{template: reboot, timeout: 1m}]
    proofTimeout: 1s
    validate: {template: check, timeout: 1m}
    lemon: {repairs: 0}
`
)

// row is one line of the table.
type row struct {
	name     string
	fault    string
	validate bool
	// resets: a reset mends the fault.
	resets   bool
	outcomes []outcome
}

const (
	needsReset  = "ResetGPU gpu 0000:4e:00: Xid 119 GSP RPC timeout"
	needsReboot = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
)

func rows() []row {
	return []row{
		{name: "GPU reset", fault: needsReset, resets: true},
		{name: "GPU reset, validation", fault: needsReset, resets: true, validate: true},
		{name: "reboot", fault: needsReboot},
		{name: "reboot, validation", fault: needsReboot, validate: true},
		{name: "GPU reset that does not help, reboot, validation", fault: needsReset, validate: true},
	}
}

// outcome is the result of one repair.
type outcome struct {
	took time.Duration
	// reads and writes are the requests of the remediator; one that opens a watch, and those about its Events, are neither.
	reads, writes, events int
}

func main() {
	rounds := flag.Int("rounds", 5, "how many repairs of each kind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *rounds, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "repair:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, out, progress io.Writer) (err error) {
	log.SetLogger(logr.Discard())
	c, err := cluster.Start(ctx, cluster.Options{Progress: progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)

	b := &bench{c: c, nodes: map[string]state{}, cancel: cancel}
	if err := b.install(ctx); err != nil {
		return err
	}
	all := rows()
	for i := range all {
		r := &all[i]
		nodes, err := b.addNodes(ctx, fmt.Sprintf("bench-%d", i), rounds+1)
		if err != nil {
			return err
		}
		stop, err := b.start(ctx, r)
		if err != nil {
			return err
		}
		for round, node := range nodes {
			o, err := b.measure(ctx, r, node)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if round == 0 {
				continue // it includes the start of the remediator
			}
			r.outcomes = append(r.outcomes, o)
			fmt.Fprintf(progress, "%s: %s, %d reads, %d writes, %d of Events\n", r.name, seconds(o.took), o.reads, o.writes, o.events)
		}
		stop()
	}
	return write(out, all)
}

// bench plays what is below the API server: the containers of the Jobs, and the conditions of the nodes.
type bench struct {
	c      *cluster.Cluster
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	nodes   map[string]state
	resets  bool
	counted outcome
}

// state is what a node reports.
type state struct {
	// fault is the message of its fault, empty for a healthy one.
	fault string
	since time.Time
}

// install installs what the remediator and the Jobs need, and starts to play.
func (b *bench) install(ctx context.Context) error {
	if err := b.c.InstallRemediator(ctx); err != nil {
		return err
	}
	for _, file := range []string{"rbac.yaml", "admission.yaml", "templates.yaml"} {
		text, err := os.ReadFile(filepath.Join(b.c.Root, "manifests", "repair", file))
		if err == nil {
			err = b.c.Apply(ctx, text)
		}
		if err != nil {
			return fmt.Errorf("install %s: %w", file, err)
		}
	}
	pods, err := b.c.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(conditions.RepairNamespace))
	if err != nil {
		return err
	}
	go func() {
		for e := range pods.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				if err := b.work(ctx, pod); err != nil && ctx.Err() == nil {
					b.cancel(err)
				}
			}
		}
	}()
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if err := b.report(ctx); err != nil && ctx.Err() == nil {
				b.cancel(err)
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	}()
	return nil
}

// work does the work of a Job's container.
func (b *bench) work(ctx context.Context, pod *corev1.Pod) error {
	node, template := pod.Spec.NodeName, pod.Spec.Containers[0].Name
	result := map[string]string{"check": "healthy", "reset-gpu": "done", "reboot": "done"}[template]
	b.mu.Lock()
	if template == "reboot" || template == "reset-gpu" && b.resets {
		b.nodes[node] = state{since: time.Now()}
	}
	b.mu.Unlock()
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	ended.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: template, Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: fmt.Sprintf(`{"result":%q,"message":"played"}`, result)}},
	}}
	if err := client.IgnoreNotFound(b.c.Client.Status().Patch(ctx, ended, client.MergeFrom(pod))); err != nil {
		return fmt.Errorf("end pod %s: %w", pod.Name, err)
	}
	if template == "reboot" {
		patch := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, uuid.NewUUID())
		if err := b.patch(ctx, node, patch); err != nil {
			return err
		}
	}
	return b.report(ctx, node)
}

func (b *bench) patch(ctx context.Context, node string, patch []byte) error {
	n := &corev1.Node{}
	n.Name = node
	if err := b.c.Client.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return fmt.Errorf("patch the status of %s: %w", node, err)
	}
	return nil
}

// report reports the conditions of nodes, of all unless some are named, as the node-problem-detector does.
func (b *bench) report(ctx context.Context, nodes ...string) error {
	b.mu.Lock()
	states := map[string]state{}
	for node, state := range b.nodes {
		if len(nodes) == 0 || slices.Contains(nodes, node) {
			states[node] = state
		}
	}
	b.mu.Unlock()
	now := time.Now().UTC().Format(time.RFC3339)
	for node, state := range states {
		status, message := corev1.ConditionFalse, "no fault"
		if state.fault != "" {
			status, message = corev1.ConditionTrue, state.fault
		}
		since := state.since.UTC().Format(time.RFC3339)
		if err := b.patch(ctx, node, fmt.Appendf(nil, `{"status":{"conditions":[
			{"type":%q,"status":%q,"reason":"Bench","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%q},
			{"type":%q,"status":"False","reason":"Bench","message":"no fault","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
			conditions.GPUXidError, status, message, now, since, conditions.DCGMDiagFailed, now, since)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) addNodes(ctx context.Context, pool string, n int) ([]string, error) {
	names, err := b.c.AddNodes(ctx, pool, n, nil)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	clear(b.nodes) // the nodes of the last row rest
	for _, name := range names {
		b.nodes[name] = state{since: time.Now()}
	}
	b.mu.Unlock()
	return names, b.report(ctx, names...)
}

// start starts a remediator whose requests are counted.
func (b *bench) start(ctx context.Context, r *row) (stop func(), err error) {
	b.resets = r.resets
	path := filepath.Join(b.c.Dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(policy, "VALIDATE", fmt.Sprint(r.validate), 1)), 0o644); err != nil {
		return nil, err
	}
	proxy, err := b.c.StartProxy(func(answer *http.Response) {
		request := answer.Request
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case request.URL.Query().Get("watch") != "":
		case strings.Contains(request.URL.Path, "/events"):
			b.counted.events++
		case request.Method == http.MethodGet:
			b.counted.reads++
		default:
			b.counted.writes++
		}
	})
	if err != nil {
		return nil, err
	}
	remediator, err := b.c.RunRemediator(ctx, proxy, "-policy", path, "-leader-elect=false", "-repair-namespace", conditions.RepairNamespace)
	if err != nil {
		return nil, err
	}
	return func() {
		remediator.Stop(patience)
		proxy.Close()
	}, nil
}

// measure breaks a node and waits until it is released.
func (b *bench) measure(ctx context.Context, r *row, node string) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	begun := time.Now()
	b.mu.Lock()
	b.nodes[node], b.counted = state{r.fault, begun}, outcome{}
	b.mu.Unlock()
	if err := b.report(ctx, node); err != nil {
		return outcome{}, err
	}
	var last *corev1.Node
	if err := b.wait(ctx, node, func(n *corev1.Node) bool {
		last = n
		q, err := causes.RecordOf(n)
		return err == nil && q != nil && q.ReleasedBy == causes.ByPitcrew
	}); err != nil {
		return outcome{}, fmt.Errorf("wait for the release of %s, which has %v: %w", node, last.Annotations, err)
	}
	b.mu.Lock()
	o := b.counted
	b.mu.Unlock()
	o.took = time.Since(begun)
	visits, err := visit.RecordOf(last)
	if err != nil || visits == nil {
		return outcome{}, fmt.Errorf("no record of visits: %w", err)
	}
	for _, taint := range last.Spec.Taints {
		if strings.HasPrefix(taint.Key, conditions.Domain) {
			return outcome{}, fmt.Errorf("taint %s is left", taint.ToString())
		}
	}
	return o, nil
}

func (b *bench) wait(ctx context.Context, node string, until func(*corev1.Node) bool) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		var n corev1.Node
		if err := b.c.Client.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
			return err
		}
		if until(&n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

func write(out io.Writer, all []row) error {
	var table strings.Builder
	table.WriteString("| repair | fault on an empty node to release, median (range) | Jobs | requests per repair: reads | writes | for Events |\n|---|--:|--:|--:|--:|--:|\n")
	for _, r := range all {
		slices.SortFunc(r.outcomes, func(a, b outcome) int { return int(a.took - b.took) })
		median := r.outcomes[len(r.outcomes)/2]
		jobs := 1
		if r.validate {
			jobs++
		}
		if r.fault == needsReset && !r.resets {
			jobs++
		}
		fmt.Fprintf(&table, "| %s | %s (%s to %s) | %d | %d | %d | %d |\n", r.name, seconds(median.took), seconds(r.outcomes[0].took),
			seconds(r.outcomes[len(r.outcomes)-1].took), jobs, median.reads, median.writes, median.events)
	}
	_, err := io.WriteString(out, table.String())
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
