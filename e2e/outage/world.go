// Package outage runs remediators as a kubelet does, beside an API server that goes away, freezes or falls silent, and measures how long
// after that a fault is tainted.
package outage

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The kubelet's back-off: a container that ends is started again at once, then after ten seconds, and so on to five minutes. It begins anew
// after twice that, see https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy.
const firstBackoff, longestBackoff = 10 * time.Second, 5 * time.Minute

const policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: %d}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot]}, for: %s}}
`

// World is a cluster of nodes that have no fault yet, and remediators.
type World struct {
	*cluster.Cluster
	// Replicas are the remediators that run.
	Replicas []*Replica

	policy string
	nodes  []string
}

// NewWorld makes a world in a cluster. The policy lets some nodes be out of service at a time, once their faults have lasted for some time.
func NewWorld(ctx context.Context, c *cluster.Cluster, maxNodes int, after time.Duration) (*World, error) {
	w := &World{Cluster: c}
	if err := c.InstallRemediator(ctx); err != nil {
		return nil, fmt.Errorf("make a world: %w", err)
	}
	if err := components.BuildOurs(ctx, c.Root, "./remediator"); err != nil {
		return nil, fmt.Errorf("make a world: %w", err)
	}
	dir, err := os.MkdirTemp(c.Dir, "world-")
	if err != nil {
		return nil, fmt.Errorf("make a world: %w", err)
	}
	w.policy = filepath.Join(dir, "policy.yaml")
	return w, os.WriteFile(w.policy, fmt.Appendf(nil, policy, maxNodes, after), 0o644) //nolint:wrapcheck // names the file
}

// AddNode makes a node.
func (w *World) AddNode(ctx context.Context) (string, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "gpu-"}}
	err := w.Client.Create(ctx, n)
	w.nodes = append(w.nodes, n.Name)
	return n.Name, err //nolint:wrapcheck // names the request
}

// Report has a node report a fault.
func (w *World) Report(ctx context.Context, name string) error {
	const fault = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	return w.Cluster.Report(ctx, name, conditions.GPUXidError, corev1.ConditionTrue, fault, time.Now())
}

// IsTainted reports whether a node has our taint.
func (w *World) IsTainted(ctx context.Context, name string) (bool, error) {
	var n corev1.Node
	err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &n)
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }), err
}

// Fault has one more node report a fault, and waits for its taint.
func (w *World) Fault(ctx context.Context) (took time.Duration, err error) {
	name, err := w.AddNode(ctx)
	if err != nil {
		return 0, err
	}
	if err := w.Report(ctx, name); err != nil {
		return 0, err
	}
	begun := time.Now()
	err = cluster.Poll(ctx, func(ctx context.Context) error {
		if tainted, err := w.IsTainted(ctx, name); err != nil || tainted {
			return err
		}
		return fmt.Errorf("node %s has no taint", name)
	})
	return time.Since(begun), err //nolint:wrapcheck // names the node
}

// Clean deletes the nodes.
func (w *World) Clean(ctx context.Context) error {
	return w.DeleteNodes(ctx, w.nodes...) //nolint:wrapcheck // names the nodes
}

// Start starts remediators with a lease. Each reaches the API server as its redirect says; nil: directly.
func (w *World) Start(ctx context.Context, lease time.Duration, redirects ...func(*rest.Config)) error {
	ctx, _ = w.With(ctx)
	for i, redirect := range redirects {
		kubeconfig, err := w.RemediatorKubeconfig(ctx, fmt.Sprintf("replica-%d", i), redirect)
		if err != nil {
			return err
		}
		address, err := cluster.FreeAddress()
		if err != nil {
			return err
		}
		r := &Replica{address: address, Ends: map[string]int{}, start: func() (*cluster.Process, error) {
			return w.RunWith(kubeconfig, "-policy", w.policy, "-lease-duration", lease.String(), "-metrics-bind-address", address)
		}}
		w.Replicas = append(w.Replicas, r)
		ctx, end := context.WithCancel(ctx)
		r.ended = make(chan struct{})
		r.End = func() {
			end()
			<-r.ended
		}
		go func() {
			defer close(r.ended)
			r.supervise(ctx)
		}()
	}
	return nil
}

// Stop ends all remediators, and returns how many processes have ended before, by cause.
func (w *World) Stop() map[string]int {
	ends := map[string]int{}
	for _, r := range w.Replicas {
		r.End()
		for cause, n := range r.Ends {
			ends[cause] += n
		}
	}
	w.Replicas = nil
	return ends
}

// Replica is one of the remediators. When its process ends, another one is started as a kubelet does.
type Replica struct {
	// Ends is how many processes have ended, by cause.
	Ends map[string]int
	// End kills the process, and starts no other.
	End func()

	ended   chan struct{}
	start   func() (*cluster.Process, error)
	address string

	mu      sync.Mutex
	process *cluster.Process
	logs    string // of earlier processes
}

func (r *Replica) supervise(ctx context.Context) {
	for pause := time.Duration(0); ctx.Err() == nil; {
		p, err := r.start()
		if err != nil {
			return // the cluster is closed
		}
		r.mu.Lock()
		r.process = p
		r.mu.Unlock()
		begun := time.Now()
		select {
		case <-p.Done():
		case <-ctx.Done():
			p.Kill()
			return
		}
		r.mu.Lock()
		log := p.Log()
		r.Ends[cause(log)]++
		r.logs += log
		r.mu.Unlock()
		if time.Since(begun) > 2*longestBackoff {
			pause = 0
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(max(firstBackoff, 2*pause), longestBackoff)
	}
}

// cause is why a process has ended, by its last line.
func cause(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "remediator: ")
}

// Process is the process that runs, or the last one; nil: there was none yet.
func (r *Replica) Process() *cluster.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Log is what all processes have written.
func (r *Replica) Log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil || strings.HasSuffix(r.logs, r.process.Log()) {
		return r.logs
	}
	return r.logs + r.process.Log()
}

// Ended is how many processes have ended.
func (r *Replica) Ended() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for each := range maps.Values(r.Ends) {
		n += each
	}
	return n
}

// IsLeader reports whether the present process has the lease, or had it when it was last heard of.
func (r *Replica) IsLeader() bool {
	p := r.Process()
	return p != nil && strings.Contains(p.Log(), "Successfully acquired lease")
}

var silentWatches = regexp.MustCompile(`(?m)^pitcrew_silent_watches_total\{.*\} (\d+)$`)

// SilentWatches is how many watches the present process has found to be silent, by its metric.
func (r *Replica) SilentWatches(ctx context.Context) (n int, err error) {
	text, err := cluster.Scrape(ctx, r.address)
	for _, each := range silentWatches.FindAllStringSubmatch(text, -1) {
		count, err := strconv.Atoi(each[1])
		if err != nil {
			return 0, fmt.Errorf("read the metric: %w", err)
		}
		n += count
	}
	return n, err //nolint:wrapcheck // names the address
}
