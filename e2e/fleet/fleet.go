// Package fleet makes a cluster of thousands of GPU nodes on one machine, as its API server sees it: nodes of a usual size with
// labels, images and conditions, pods that are bound to them, and heartbeats. No kubelet and no controller runs; the caller breaks and
// mends nodes.
package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// writers is how many requests a fleet makes at the same time.
	writers = 16
	// heartbeat is how often a kubelet and a Node Problem Detector confirm conditions that do not change.
	heartbeat = 5 * time.Minute
	// Fault is a message of condition GPUXidError for which the shipped policy quarantines the node.
	Fault = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
)

// Fleet is the nodes of one cluster.
type Fleet struct {
	// Names are the nodes.
	Names []string

	c *cluster.Cluster

	mu sync.Mutex
	// since is when a node was first seen with the taint of a quarantine.
	since map[string]time.Time
	nodes map[string]*corev1.Node
	seen  chan struct{} // closed and made anew with each change of a node
	on    func(*corev1.Node)
}

// Name is that of node number i.
func Name(i int) string { return fmt.Sprintf("gpu-%05d", i) }

// New stores nodes and pods, spread over the nodes, in a cluster with [cluster.Options.APIOnly], and watches the nodes until ctx ends.
func New(ctx context.Context, c *cluster.Cluster, nodes, pods int) (*Fleet, error) {
	f := &Fleet{c: c, since: map[string]time.Time{}, nodes: map[string]*corev1.Node{}, seen: make(chan struct{})}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := client.IgnoreAlreadyExists(c.Client.Create(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", namespace.Name, err)
	}
	for i := range nodes {
		f.Names = append(f.Names, Name(i))
	}
	now := time.Now()
	var training *batchv1.Job
	var batch []client.Object
	for i, made := 0, 0; i < nodes; i++ {
		if i%NodesPerRack == 0 {
			training = job(i/NodesPerRack, now)
			batch = append(batch, training)
		}
		for k := 0; made < pods*(i+1)/nodes; k, made = k+1, made+1 {
			batch = append(batch, pod(i, k, training, now))
		}
		if len(batch) > 1000 || i == nodes-1 {
			if err := c.Store(ctx, batch...); err != nil {
				return nil, err
			}
			batch = batch[:0]
		}
	}
	if err := f.Reset(ctx, nil); err != nil {
		return nil, err
	}
	return f, f.watch(ctx)
}

// Reset stores all nodes anew, without anything that the remediator has written: healthy, or for an hour with [Fault]. No remediator may
// run meanwhile.
func (f *Fleet) Reset(ctx context.Context, faulty []string) error {
	now := time.Now()
	bad := map[string]bool{}
	for _, name := range faulty {
		bad[name] = true
	}
	var batch []client.Object
	for i, name := range f.Names {
		n := node(i, now)
		if old := f.Node(name); old != nil {
			n.UID, n.Status.NodeInfo.BootID = old.UID, old.Status.NodeInfo.BootID
		}
		if bad[name] {
			for k := range n.Status.Conditions {
				if c := &n.Status.Conditions[k]; c.Type == conditions.GPUXidError {
					c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionTrue, "GPUXidSeen", Fault, metav1.NewTime(now.Add(-time.Hour).Truncate(time.Second))
				}
			}
		}
		if batch = append(batch, n); len(batch) == 500 || i == len(f.Names)-1 {
			if err := f.c.Store(ctx, batch...); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if err := f.c.ForgetLimits(ctx); err != nil {
		return fmt.Errorf("reset the fleet: %w", err)
	}
	if err := f.c.Client.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(conditions.EvidenceNamespace)); err != nil {
		return fmt.Errorf("reset the fleet: %w", err)
	}
	if f.Node(f.Names[0]) == nil {
		return nil // it is not watched yet
	}
	return f.Until(ctx, "the reset is seen", func() bool {
		for _, name := range slices.Backward(f.Names) { // the last is stored last
			if f.nodes[name].Status.Conditions[0].LastHeartbeatTime.Before(&metav1.Time{Time: now.Truncate(time.Second)}) {
				return false
			}
		}
		return len(f.since) == 0
	})
}

// Spread names n nodes, as evenly over all of them as possible.
func (f *Fleet) Spread(n int) []string {
	var names []string
	for i := range n {
		names = append(names, f.Names[i*len(f.Names)/n])
	}
	return names
}

// Each calls do for all names, some of them at the same time.
func (f *Fleet) Each(ctx context.Context, names []string, do func(ctx context.Context, name string) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, name := range names {
		group.Go(func() error { return do(ctx, name) })
	}
	return group.Wait()
}

// Report writes a condition of a node as its detector does when it changes.
func (f *Fleet) Report(ctx context.Context, name string, condition corev1.NodeConditionType, status corev1.ConditionStatus, message string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	return f.patchStatus(ctx, name, fmt.Sprintf(`{"type":%q,"status":%q,"reason":"Bench","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[4]q}`, condition, status, message, now))
}

func (f *Fleet) patchStatus(ctx context.Context, name, list string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[`+list+`]}}`))
	if err := f.c.Client.Status().Patch(ctx, n, patch); err != nil {
		return fmt.Errorf("report conditions of %s: %w", name, err)
	}
	return nil
}

// Beat confirms all conditions of a node, as its kubelet and its detector do.
func (f *Fleet) Beat(ctx context.Context, name string) error {
	for _, reporter := range [][]corev1.NodeConditionType{ofKubelet, ofDetector()} {
		now := time.Now().UTC().Format(time.RFC3339)
		var list []string
		for _, c := range reporter {
			list = append(list, fmt.Sprintf(`{"type":%q,"lastHeartbeatTime":%q}`, c, now))
		}
		if err := f.patchStatus(ctx, name, strings.Join(list, ",")); err != nil {
			return err
		}
	}
	return nil
}

// Heartbeats confirms the conditions of every node once in five minutes, spread evenly, until ctx ends. It returns how many
// heartbeats were written, two for each node.
func (f *Fleet) Heartbeats(ctx context.Context) (written int, err error) {
	ticker := time.NewTicker(heartbeat / time.Duration(len(f.Names)))
	defer ticker.Stop()
	group, beating := errgroup.WithContext(context.WithoutCancel(ctx))
	group.SetLimit(writers)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return 2 * i, group.Wait()
		case <-beating.Done():
			return 2 * i, group.Wait()
		case <-ticker.C:
			group.Go(func() error { return f.Beat(beating, f.Names[i%len(f.Names)]) })
		}
	}
}

// watch keeps the nodes as they are. An informer goes on when the API server ends a watch, as a busy one does.
func (f *Fleet) watch(ctx context.Context) error {
	nodes, err := cache.New(f.c.Admin, cache.Options{Scheme: scheme.Scheme, DefaultTransform: func(o any) (any, error) {
		if n, ok := o.(*corev1.Node); ok {
			n.Status.Images, n.ManagedFields = nil, nil
		}
		return o, nil
	}})
	if err != nil {
		return fmt.Errorf("make a cache: %w", err)
	}
	informer, err := nodes.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	see := func(object any) { f.see(object.(*corev1.Node)) }
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	go nodes.Start(ctx) //nolint:errcheck // it ends with the context
	if !toolscache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return fmt.Errorf("watch nodes: %w", context.Cause(ctx))
	}
	return nil
}

func (f *Fleet) see(n *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[n.Name] = n
	if !Tainted(n) {
		delete(f.since, n.Name)
	} else if _, known := f.since[n.Name]; !known {
		f.since[n.Name] = time.Now()
	}
	if f.on != nil {
		f.on(n)
	}
	close(f.seen)
	f.seen = make(chan struct{})
}

// OnChange calls on with each change of a node from now on; nil: no longer. It must return soon.
func (f *Fleet) OnChange(on func(*corev1.Node)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = on
}

// Tainted reports whether a node is quarantined.
func Tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
}

// Node is a node as it was last seen, without images and managed fields; nil: it was not seen.
func (f *Fleet) Node(name string) *corev1.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name]
}

// Since is when each quarantined node was first seen with the taint.
func (f *Fleet) Since() map[string]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.since)
}

// UntilTainted waits until all of these nodes are quarantined, and returns when the first and the last of them was seen so.
func (f *Fleet) UntilTainted(ctx context.Context, names []string) (first, last time.Time, err error) {
	err = f.Until(ctx, fmt.Sprintf("%d nodes are quarantined", len(names)), func() bool {
		first, last = time.Time{}, time.Time{}
		for _, name := range names {
			at, ok := f.since[name]
			if !ok {
				return false
			}
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
		return true
	})
	return first, last, err
}

// Until waits until check is true, and calls it after changes of nodes.
func (f *Fleet) Until(ctx context.Context, what string, check func() bool) error {
	for {
		f.mu.Lock()
		done, seen := check(), f.seen
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		case <-seen:
		}
	}
}
